//! Tokens of Consul: log-in with an identity, look-up, log-out.
//!
//! In: the name of an auth method and a JWT, or a token. Out: a token with its lifetime, or why there is none. Nothing is retried here.
//! API: <https://developer.hashicorp.com/consul/api-docs/acl>.

use std::{collections::BTreeMap, time::Duration};

use herdlet_base::{error::in_full, http_client::read_start};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::{ConsulReader, client::SAID_CHARS_MAX, config::header};

/// Time limit for one request.
const WITHIN: Duration = Duration::from_secs(8);
/// A token with its roles and policies has some kilobytes.
const BYTES_MAX: usize = 256 * 1024;
/// What agents and servers answer for a token that does not exist.
const NOT_FOUND: &str = "ACL not found";

/// A log-in with an identity. Has no `Debug`: it has a token.
#[derive(Clone)]
pub struct ConsulLogin<'r> {
    pub method: &'r str,
    /// The identity, a JWT.
    pub bearer: &'r str,
    /// Shown with the token to operators.
    pub meta: BTreeMap<&'static str, String>,
    /// The namespace of Consul Enterprise.
    pub namespace: Option<&'r str>,
    pub partition: Option<&'r str>,
}

/// A token that Consul has issued. Has no `Debug`: it is a secret.
pub struct ConsulToken {
    pub secret: Zeroizing<String>,
    /// Consul's name for it, which gives no rights.
    pub accessor: String,
    /// How long it is valid; `None` if it does not expire.
    pub lifetime: Option<Duration>,
}

/// Why a request about tokens has failed. The texts follow "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// No Consul answers, or its servers are away: a later try can succeed.
    #[error("{doing}: no answer from Consul at {address}: {why}")]
    Unreachable { doing: &'static str, address: String, why: String },
    /// There is no such token.
    #[error("{doing}: Consul has no such token")]
    NotFound { doing: &'static str },
    /// Consul refuses.
    #[error("{doing}: Consul at {address} answers {status}: {why}")]
    Refused { doing: &'static str, address: String, status: StatusCode, why: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LoginAnswer {
    #[serde(rename = "AccessorID")]
    accessor: String,
    #[serde(rename = "SecretID")]
    secret: String,
    #[serde(default)]
    create_time: Option<String>,
    #[serde(default)]
    expiration_time: Option<String>,
}

impl AclError {
    /// Whether Consul itself is away.
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::NotFound { .. } | Self::Refused { .. } => false,
        }
    }

    /// Whether the answer is 401 or 403, and not that the token does not exist.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NotFound { .. } => false,
            Self::Refused { status, .. } => {
                matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            }
        }
    }
}

impl ConsulReader {
    /// Logs in.
    ///
    /// # Errors
    /// If Consul refuses the identity or has no such method, or does not answer.
    pub async fn log_in(&self, login: ConsulLogin<'_>) -> Result<ConsulToken, AclError> {
        const DOING: &str = "log in";
        let body = json!({ "AuthMethod": login.method, "BearerToken": login.bearer, "Meta": login.meta });
        let request = self.api.client.request(Method::POST, self.api.url("/v1/acl/login")).json(&body);
        let scope = [("ns", login.namespace), ("partition", login.partition)];
        let scope: Vec<_> = scope.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let answer = self.token_request(DOING, request.query(&scope), login.bearer).await;
        let answer = answer.map_err(|error| match error {
            // Consul answers so for the method too.
            AclError::NotFound { doing } => AclError::Refused {
                doing,
                address: self.api.address.clone(),
                status: StatusCode::FORBIDDEN,
                why: "it has no such auth method".to_owned(),
            },
            AclError::Unreachable { .. } | AclError::Refused { .. } => error,
        })?;
        let wrong = || AclError::Refused {
            doing: DOING,
            address: self.api.address.clone(),
            status: StatusCode::OK,
            why: "its answer is no token".to_owned(),
        };
        let issued: LoginAnswer = serde_json::from_slice(&answer).map_err(|_| wrong())?;
        if header(&issued.secret).is_none() {
            return Err(wrong());
        }
        let LoginAnswer { accessor, secret, create_time, expiration_time } = issued;
        let lifetime = lifetime(create_time.as_deref(), expiration_time.as_deref());
        Ok(ConsulToken { secret: Zeroizing::new(secret), accessor, lifetime })
    }

    /// Whether Consul's agent knows a token, which its servers may have issued a moment ago.
    ///
    /// # Errors
    /// [`AclError::NotFound`] if it does not.
    pub async fn look_up(&self, token: &str) -> Result<(), AclError> {
        let request = self.api.client.request(Method::GET, self.api.url("/v1/acl/token/self"));
        self.with_token("look up a token", request, token).await
    }

    /// Deletes a token that a log-in has issued.
    ///
    /// # Errors
    /// [`AclError::NotFound`] if there is none.
    pub async fn log_out(&self, token: &str) -> Result<(), AclError> {
        let request = self.api.client.request(Method::POST, self.api.url("/v1/acl/logout"));
        self.with_token("log out", request, token).await
    }

    async fn with_token(
        &self,
        doing: &'static str,
        request: RequestBuilder,
        token: &str,
    ) -> Result<(), AclError> {
        // What can't be a token exists nowhere.
        let value = header(token).ok_or(AclError::NotFound { doing })?;
        self.token_request(doing, request.header("x-consul-token", value), token).await.map(drop)
    }

    /// Sends a request, and returns the body. `secret` is in no error.
    async fn token_request(
        &self,
        doing: &'static str,
        request: RequestBuilder,
        secret: &str,
    ) -> Result<Zeroizing<Vec<u8>>, AclError> {
        let address = || self.api.address.clone();
        let sent = request.timeout(WITHIN).send().await;
        let response = sent.map_err(|error| {
            let why = in_full(&error.without_url());
            self.api.unanswered(&why);
            AclError::Unreachable { doing, address: address(), why }
        })?;
        let status = response.status();
        let mut body = Zeroizing::new(Vec::new());
        read_start(response, &mut body, BYTES_MAX).await;
        if status.is_success() {
            self.api.mark_reachable();
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body).trim().replace(secret, "(secret)");
        let why: String = text.chars().take(SAID_CHARS_MAX).collect();
        if why.contains(NOT_FOUND) {
            return Err(AclError::NotFound { doing });
        }
        // Consul answers 500 while its servers are away, and for some wrong identities.
        if self.is_without_servers(status, &why) {
            return Err(AclError::Unreachable { doing, address: address(), why: format!("{status}: {why}") });
        }
        Err(AclError::Refused { doing, address: address(), status, why })
    }
}

/// From the times of Consul's own clock.
fn lifetime(created: Option<&str>, expires: Option<&str>) -> Option<Duration> {
    let time = |text: Option<&str>| text?.parse::<jiff::Timestamp>().ok();
    let (created, expires) = (time(created)?, time(expires)?);
    // An absent time is that of year 1.
    Duration::try_from(expires.duration_since(created)).ok().filter(|lifetime| !lifetime.is_zero())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;
    use crate::catalog::ConsulConfig;

    /// Logs in at a server that answers so.
    async fn logged_in(status: &str, body: &str) -> Result<ConsulToken, AclError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let reader =
            ConsulReader::new(&ConsulConfig::resolve(Some(&address), None, |_| None).unwrap()).unwrap();
        let meta = [("requested_by", "nomad_task_t".to_owned())].into();
        let (namespace, partition) = (Some("team"), None);
        let login = ConsulLogin { method: "m", bearer: "jwt-s3cret", meta, namespace, partition };
        let result = reader.log_in(login).await;
        let request = server.join().unwrap();
        assert!(request.starts_with("POST /v1/acl/login?ns=team HTTP/1.1"), "{request}");
        result
    }

    #[tokio::test]
    async fn a_log_in_gives_a_token_with_its_lifetime() {
        let body = r#"{"AccessorID": "a-1", "SecretID": "s-1", "CreateTime": "2026-11-28T10:00:00Z", "ExpirationTime": "2026-11-28T10:10:00Z"}"#;
        let token = logged_in("200 OK", body).await.ok().unwrap();
        assert_eq!((token.accessor.as_str(), token.secret.as_str()), ("a-1", "s-1"));
        assert_eq!(token.lifetime, Some(Duration::from_secs(600)));
    }

    #[tokio::test]
    async fn other_answers_are_reasons_and_show_no_identity() {
        for (status, body, expected) in [
            ("200 OK", "{}", "its answer is no token"),
            ("200 OK", "[1, 2", "its answer is no token"),
            ("200 OK", r#"{"AccessorID": "a", "SecretID": "two words"}"#, "its answer is no token"),
            ("403 Forbidden", "Permission denied: jwt-s3cret", "403 Forbidden: Permission denied: (secret)"),
            ("403 Forbidden", "ACL not found", "403 Forbidden: it has no such auth method"),
            ("401 Unauthorized", "ACL support disabled", "401 Unauthorized: ACL support disabled"),
            ("500 Internal Server Error", "No cluster leader", "no answer from Consul at http://127.0.0.1"),
        ] {
            let error = logged_in(status, body).await.err().unwrap();
            let text = error.to_string();
            assert!(text.contains(expected) && !text.contains("s3cret"), "{text}");
            assert_eq!(error.is_of_server(), status.starts_with("500"), "{text}");
        }
    }

    #[test]
    fn lifetimes_are_those_of_consuls_clock() {
        let created = Some("2026-11-28T10:00:00.25Z");
        for (expires, expected) in [
            (Some("2026-11-28T12:00:00.25+01:00"), Some(3_600)),
            (Some("0001-01-01T00:00:00Z"), None),
            (Some("soon"), None),
            (None, None),
        ] {
            assert_eq!(
                lifetime(created, expires).map(|lifetime| lifetime.as_secs()),
                expected,
                "{expires:?}"
            );
        }
    }
}
