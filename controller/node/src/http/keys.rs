//! The servers' public keys for signed identities, and the discovery document, which others fetch to verify tokens.
//!
//! In: servers' answers. Out: a JSON Web Key set (RFC 7517, RFC 8037), an OpenID Connect discovery document, and how long to cache the
//! keys. Keys of unknown types are left out.
//!
//! Facts: `hashicorp/nomad:command/agent/keyring_endpoint.go`, `nomad/structs/keyring.go`.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use herdlet_api_types::UnixNanos;
use herdlet_base::rsa_key;
use herdlet_rpc::codec::Value;
use serde_json::{Map, Value as Json, json};

use super::json::to_json;

/// Minimum time to cache keys.
const KEPT_MIN: Duration = Duration::from_secs(15 * 60);

/// The key set in an answer to `Keyring.ListPublic`.
pub(super) fn set(answer: &Value) -> Json {
    let keys: Vec<Json> = keys(answer).iter().filter_map(key).collect();
    json!({ "keys": keys })
}

/// How long the keys may be cached: half of the time until the next rotation, so that a new key is known before it signs tokens. `None` if
/// the rotation time is unknown.
pub(super) fn holds_for(answer: &Value, now: UnixNanos) -> Option<Duration> {
    let number = |value: &Value, field: &str| match value.get(field) {
        Some(Value::Int(number)) => u64::try_from(*number).ok(),
        Some(Value::Uint(number)) => Some(*number),
        _ => None,
    };
    let newest =
        keys(answer).iter().filter_map(|key| number(key, "CreateTime")).max().filter(|at| *at > 0)?;
    let threshold = number(answer, "RotationThreshold").filter(|threshold| *threshold > 0)?;
    let left = newest.saturating_add(threshold).saturating_sub(now.0.max(0).unsigned_abs());
    Some(Duration::from_nanos(left / 2).max(KEPT_MIN))
}

/// The document in an answer to `Keyring.GetConfig`; `None` if servers have none.
pub(super) fn discovery(answer: &Value) -> Option<Json> {
    let document = answer.get("OIDCDiscovery").filter(|document| matches!(document, Value::Map(_)))?;
    let names = [
        ("issuer", "Issuer"),
        ("jwks_uri", "JWKS"),
        ("id_token_signing_alg_values_supported", "IDTokenAlgs"),
        ("response_types_supported", "ResponseTypes"),
        ("subject_types_supported", "Subjects"),
    ];
    let renamed = |(name, field): (&str, &str)| {
        (name.to_owned(), document.get(field).map_or(Json::Null, |value| to_json(value, field)))
    };
    Some(Json::Object(names.into_iter().map(renamed).collect()))
}

fn keys(answer: &Value) -> &[Value] {
    match answer.get("PublicKeys") {
        Some(Value::List(keys)) => keys,
        _ => &[],
    }
}

fn key(key: &Value) -> Option<Json> {
    let text = |field: &str| key.get(field).and_then(Value::as_text).unwrap_or_default();
    let public = key.get("PublicKey")?;
    let public =
        if let Value::Bytes(bytes) = public { bytes.as_slice() } else { public.as_text()?.as_bytes() };
    let encoded = |bytes: &[u8]| Json::from(URL_SAFE_NO_PAD.encode(bytes));
    let mut fields = Map::from_iter([
        ("use".to_owned(), text("Use").into()),
        ("kid".to_owned(), text("KeyID").into()),
        ("alg".to_owned(), text("Algorithm").into()),
    ]);
    match text("Algorithm") {
        "EdDSA" => {
            fields.insert("kty".to_owned(), "OKP".into());
            fields.insert("crv".to_owned(), "Ed25519".into());
            fields.insert("x".to_owned(), encoded(public));
        }
        "RS256" => {
            let (modulus, exponent) = rsa_key::components(public)?;
            fields.insert("kty".to_owned(), "RSA".into());
            fields.insert("n".to_owned(), encoded(modulus));
            fields.insert("e".to_owned(), encoded(exponent));
        }
        _ => return None,
    }
    Some(Json::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, Value)]) -> Value {
        Value::Map(fields.iter().map(|(name, value)| (text(name), value.clone())).collect())
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn public(kind: &str, bytes: &[u8]) -> Value {
        map(&[
            ("KeyID", text("k1")),
            ("Algorithm", text(kind)),
            ("Use", text("sig")),
            ("PublicKey", Value::Bytes(bytes.to_vec())),
            ("CreateTime", Value::Int(1_000_000_000)),
        ])
    }

    #[test]
    fn json_web_keys_of_each_kind_are_encoded() {
        let mut modulus = vec![0x02, 0x81, 0x81, 0x00];
        modulus.extend([0xab; 128]);
        let mut rsa = vec![0x30, 0x81, u8::try_from(modulus.len() + 5).unwrap()];
        rsa.extend(modulus);
        rsa.extend([0x02, 0x03, 0x01, 0x00, 0x01]);
        let torn = &rsa[..100];
        let answer = map(&[(
            "PublicKeys",
            Value::List(vec![
                public("EdDSA", &[0xff; 32]),
                public("RS256", &rsa),
                public("RS256", torn),
                public("ES999", b"x"),
            ]),
        )]);
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let expected = json!({ "keys": [
            { "use": "sig", "kid": "k1", "alg": "EdDSA", "kty": "OKP", "crv": "Ed25519", "x": encoded(&[0xff; 32]) },
            { "use": "sig", "kid": "k1", "alg": "RS256", "kty": "RSA", "n": encoded(&[0xab; 128]), "e": "AQAB" },
        ] });
        assert_eq!(set(&answer), expected);
        assert_eq!(set(&map(&[("PublicKeys", Value::Nil)])), json!({ "keys": [] }));
    }

    #[test]
    fn keys_are_cached_for_half_of_their_lifetime() {
        let answer = |threshold: i64| {
            let keys = Value::List(vec![public("EdDSA", &[0xff; 32])]);
            map(&[("PublicKeys", keys), ("RotationThreshold", Value::Int(threshold))])
        };
        let hour = 3_600_000_000_000;
        let now = UnixNanos(1_000_000_000);
        assert_eq!(holds_for(&answer(4 * hour), now), Some(Duration::from_secs(2 * 3_600)));
        assert_eq!(holds_for(&answer(hour), UnixNanos(i64::MAX)), Some(KEPT_MIN));
        assert_eq!(holds_for(&answer(0), now), None);
    }

    #[test]
    fn key_discovery_requires_an_issuer() {
        let document = map(&[
            ("Issuer", text("https://a")),
            ("JWKS", text("https://a/jwks")),
            ("Subjects", Value::List(vec![text("public")])),
        ]);
        assert_eq!(
            discovery(&map(&[("OIDCDiscovery", document)])),
            Some(json!({
                "issuer": "https://a", "jwks_uri": "https://a/jwks", "id_token_signing_alg_values_supported": null,
                "response_types_supported": null, "subject_types_supported": ["public"],
            }))
        );
        assert_eq!(discovery(&map(&[("OIDCDiscovery", Value::Nil)])), None);
    }
}
