//! Which redirects a check follows, and what it sends then.
//!
//! In: a response. Out: the next URL, if there is one. A task chooses where it redirects to, and the agent reaches
//! services that an isolated task cannot, such as those on the machine's loopback address. So a redirect is followed to
//! the same host and port only, or from plain HTTP to TLS on the same host: there the certificate is verified. Any other
//! redirect is the response.

use reqwest::{
    Method, StatusCode, Url,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, TRANSFER_ENCODING},
};

use super::{Answer, Request};

/// The same limit as in Nomad.
pub(super) const REDIRECTS_MAX: usize = 10;

/// The URL that a response redirects to, if it is followed.
pub(super) fn followed(answer: &Answer, url: &Url) -> Option<Url> {
    // The others have no single target, or mean something else.
    if ![301, 302, 303, 307, 308].contains(&answer.status.as_u16()) {
        return None;
    }
    let location = answer.headers.get(LOCATION)?.to_str().ok()?;
    let next = url.join(location).ok()?;
    let is_same_port = url.port_or_known_default() == next.port_or_known_default();
    let is_same_service = match (url.scheme(), next.scheme()) {
        ("http", "http") | ("https", "https") => is_same_port,
        ("http", "https") => true,
        _ => false,
    };
    (is_same_service && url.host() == next.host()).then_some(next)
}

impl Request<'_> {
    /// Changes the request as browsers and Go's client do (RFC 9110, 15.4).
    pub(super) fn redirect(&mut self, status: StatusCode, from: &Url, to: &Url) {
        if from.scheme() != to.scheme() {
            // It may be another service on this machine.
            self.tls_skip_verify = false;
        }
        let keeps_method = [StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT].contains(&status);
        if keeps_method || [Method::GET, Method::HEAD].contains(&self.method) {
            return;
        }
        self.method = Method::GET;
        self.body.clear();
        for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING] {
            self.headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn redirects_lead_to_the_same_service() {
        let url = Url::parse("http://10.0.0.2:8080/health?full=1").unwrap();
        for (status, location, expected) in [
            (302, "/ready", Some("http://10.0.0.2:8080/ready")),
            (301, "ready#x", Some("http://10.0.0.2:8080/ready#x")),
            (307, "http://10.0.0.2:8080/ready", Some("http://10.0.0.2:8080/ready")),
            (308, "https://10.0.0.2/", Some("https://10.0.0.2/")),
            (302, "https://10.0.0.2:8080/", Some("https://10.0.0.2:8080/")),
            (302, "http://10.0.0.2/", None),
            (302, "http://10.0.0.2:8081/", None),
            (302, "http://127.0.0.1:8080/", None),
            (302, "https://127.0.0.1:8080/", None),
            (302, "//169.254.169.254:8080/latest", None),
            (302, "//10.0.0.2:8080@127.0.0.1:8080/", None),
            (302, "http://10.0.0.2.test:8080/", None),
            (302, "ftp://10.0.0.2:8080/", None),
            (302, "http://[", None),
            (300, "/ready", None),
            (304, "/ready", None),
            (200, "/ready", None),
        ] {
            let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]);
            let status = StatusCode::from_u16(status).unwrap();
            let answer = Answer { status, headers, body: Vec::new() };
            let next = followed(&answer, &url).map(String::from);
            assert_eq!(next.as_deref(), expected, "{status} to {location}");
        }
        // TLS is not given up.
        let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static("http://a.test:443/"))]);
        let answer = Answer { status: StatusCode::FOUND, headers, body: Vec::new() };
        assert_eq!(followed(&answer, &Url::parse("https://a.test/").unwrap()), None);
    }
}
