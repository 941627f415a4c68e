//! What a host demands of those who ask without access: the header `WWW-Authenticate` (RFC 9110, section 11.6.1).
//!
//! In: the header's values. Out: the strongest scheme that we have: a token of a server, or a password.

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// What a host demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token of the server `realm`, for `service`.
    Bearer {
        realm: String,
        service: Option<String>,
    },
    Basic,
}

impl Challenge {
    /// Reads the challenges of an answer; none if there is no known one.
    pub(super) fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let known: Vec<Self> = values.flat_map(parse).collect();
        let bearer = known.iter().find(|challenge| matches!(challenge, Self::Bearer { .. }));
        bearer.or(known.first()).cloned()
    }
}

/// A part of the header: a scheme with or without a first parameter, or a further parameter.
struct Item<'t> {
    scheme: Option<&'t str>,
    parameter: Option<(&'t str, String)>,
}

fn parse(text: &str) -> Vec<Challenge> {
    let (mut found, mut open) = (Vec::new(), None);
    for Item { scheme, parameter } in items(text) {
        if let Some(scheme) = scheme {
            found.extend(open.take().and_then(finished));
            open = Some((scheme, Vec::new()));
        }
        if let Some((_, parameters)) = &mut open {
            parameters.extend(parameter);
        }
    }
    found.extend(open.and_then(finished));
    found
}

fn finished((scheme, parameters): (&str, Vec<(&str, String)>)) -> Option<Challenge> {
    let get = |name: &str| {
        let found = parameters.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Challenge::Bearer { realm: get("realm")?, service: get("service") });
    }
    scheme.eq_ignore_ascii_case("basic").then_some(Challenge::Basic)
}

/// Splits at the commas outside quotes.
fn items(text: &str) -> impl Iterator<Item = Item<'_>> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(move |char| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match char {
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            '"' if !was_escaped => is_quoted = !is_quoted,
            ',' => return !is_quoted,
            _ => {}
        }
        false
    });
    parts.filter_map(|part| item(part.trim()))
}

fn item(part: &str) -> Option<Item<'_>> {
    let is_token = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!#$%&'*+^`|".contains(&byte))
    };
    let (scheme, parameter) = match part.split_once([' ', '\t']) {
        Some((scheme, rest)) if is_token(scheme) && !rest.trim_start().starts_with('=') => {
            (Some(scheme), rest.trim())
        }
        Some(_) => (None, part),
        None if is_token(part) => (Some(part), ""),
        None => (None, part),
    };
    let parameter = parameter.split_once('=').map(|(name, value)| (name.trim(), unquoted(value.trim())));
    let parameter = parameter.filter(|(name, _)| is_token(name));
    (scheme.is_some() || parameter.is_some()).then_some(Item { scheme, parameter })
}

fn unquoted(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return text.to_owned();
    };
    let mut chars = inner.chars();
    let mut plain = String::with_capacity(inner.len());
    while let Some(char) = chars.next() {
        plain.extend(if char == '\\' { chars.next() } else { Some(char) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(values: &[&'static str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().unwrap());
        }
        Challenge::of_headers(&headers)
    }

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenges_of_registries_are_read() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        assert_eq!(challenge(&[hub]), bearer("https://auth.docker.io/token", Some("registry.docker.io")));
        assert_eq!(challenge(&["bearer  realm=https://x/t , service=y"]), bearer("https://x/t", Some("y")));
        assert_eq!(challenge(&[r#"Bearer realm = "https://x/\"t""#]), bearer("https://x/\"t", None));
        assert_eq!(challenge(&[r#"Basic realm="a, Bearer realm=b""#]), Some(Challenge::Basic));
        assert_eq!(challenge(&["basic"]), Some(Challenge::Basic));
        assert_eq!(challenge(&["Negotiate", r#"Basic realm="x""#]), Some(Challenge::Basic));
        assert_eq!(
            challenge(&[r#"Basic realm="x", Bearer realm="https://t",service="s""#]),
            bearer("https://t", Some("s"))
        );
        assert_eq!(challenge(&[r#"Bearer realm="https://t", Basic realm="x""#]), bearer("https://t", None));
    }

    #[test]
    fn nonsense_is_no_challenge() {
        for value in [
            "",
            ",",
            "=",
            "Bearer",
            "Bearer service=\"x\"",
            "Bearer realm=\"\"",
            "\"",
            "Digest realm=\"x\"",
            "Bearer =x",
            "\\\"",
            "Bearer realm",
        ] {
            assert_eq!(challenge(&[value]), None, "{value}");
        }
        assert_eq!(challenge(&[]), None);
        assert_eq!(
            challenge(&[r#"Bearer realm="https://x"#]).map(|_| ()),
            Some(()),
            "an open quote ends with the header"
        );
    }
}
