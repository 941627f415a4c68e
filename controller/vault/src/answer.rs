//! Tokens and secrets in answers of Vault, with the terms of their leases.
//!
//! In: the JSON of an answer, the time for certificates. Out: tokens, secrets, terms, or what is missing. Terms of secrets
//! follow consul-template (`dependency/vault_common.go`), so that templates are read as often as under Nomad.

use std::time::Duration;

use serde_json::Value;

use crate::{
    lease::{LeaseKind, LeaseTerms},
    secret::{SecretText, SecretValue},
};

/// consul-template reads secrets without a lease this often.
pub const DURATION_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// Ten years. A larger number is a mistake, and would overflow sums of times.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A new token.
#[derive(Clone)]
pub struct TokenGrant {
    pub token: SecretText,
    /// Names the token without giving its rights.
    pub accessor: String,
    pub policies: Vec<String>,
    pub terms: LeaseTerms,
}

/// A token's properties, as Vault reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    pub accessor: String,
    pub policies: Vec<String>,
    /// The duration is what is left.
    pub terms: LeaseTerms,
}

/// A secret, or the result of a write.
#[derive(Clone)]
pub struct Secret {
    pub data: SecretValue,
    /// Empty if there is no lease.
    pub lease_id: String,
    pub terms: LeaseTerms,
}

impl TokenGrant {
    /// Reads an answer with `auth`.
    pub(crate) fn of_answer(mut answer: SecretValue) -> Result<Self, String> {
        let mut auth = answer.take("auth");
        let terms = terms_of_auth(&auth)?;
        let accessor = text(&auth, "accessor");
        let policies = texts(&auth, "policies");
        let token = auth.take_text("client_token").filter(|token| token.header().is_some());
        let token = token.ok_or("it has no valid auth.client_token")?;
        Ok(Self { token, accessor, policies, terms })
    }
}

/// The terms in an answer with `auth`.
pub(crate) fn terms_of_auth(auth: &SecretValue) -> Result<LeaseTerms, String> {
    let seconds = auth.get("lease_duration").and_then(Value::as_u64);
    let seconds = seconds.ok_or("it has no auth.lease_duration")?;
    Ok(terms_of_token(seconds, flag(auth, "renewable")))
}

impl TokenInfo {
    /// Reads an answer with the `data` of a token.
    pub(crate) fn of_answer(mut answer: SecretValue) -> Result<Self, String> {
        let data = answer.take("data");
        let seconds = data.get("ttl").and_then(Value::as_u64).ok_or("it has no data.ttl")?;
        let terms = terms_of_token(seconds, flag(&data, "renewable"));
        Ok(Self { accessor: text(&data, "accessor"), policies: texts(&data, "policies"), terms })
    }
}

/// A token with a duration of 0 does not end.
fn terms_of_token(seconds: u64, renewable: Option<bool>) -> LeaseTerms {
    let kind = match (seconds, renewable) {
        (0, _) => LeaseKind::Endless,
        (_, Some(true)) => LeaseKind::Renewable,
        (_, Some(false) | None) => LeaseKind::Fixed,
    };
    LeaseTerms { duration: bounded(seconds), kind }
}

impl Secret {
    /// Reads an answer; `wall_s` are seconds since 1970. `None` if it has no data.
    pub(crate) fn of_answer(mut answer: SecretValue, wall_s: u64) -> Option<Self> {
        let data = answer.take("data");
        if data.reveal().is_null() {
            return None;
        }
        let lease_id = text(&answer, "lease_id");
        let terms = terms_of_secret(&answer, &data, wall_s);
        Some(Self { data, lease_id, terms })
    }

    /// Reads the answer to a write. A result without an end has no reason to be made again.
    pub(crate) fn of_write(answer: SecretValue, wall_s: u64) -> Option<Self> {
        let has_duration =
            answer.get("lease_duration").and_then(Value::as_u64).is_some_and(|seconds| seconds > 0);
        let mut secret = Self::of_answer(answer, wall_s)?;
        let has_end = has_duration || !secret.lease_id.is_empty() || secret.data.get("certificate").is_some();
        if !has_end && secret.terms.kind == LeaseKind::Fixed {
            secret.terms.kind = LeaseKind::Endless;
        }
        Some(secret)
    }

    /// Whether this is an answer of the key-value engine's version 2 for a version that was deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        let has_metadata = self.data.get("metadata").is_some_and(Value::is_object);
        has_metadata && self.data.get("data").is_some_and(Value::is_null)
    }
}

fn terms_of_secret(answer: &SecretValue, data: &SecretValue, wall_s: u64) -> LeaseTerms {
    let seconds = answer.get("lease_duration").and_then(Value::as_u64).unwrap_or_default();
    if flag(answer, "renewable") == Some(true) && seconds > 0 {
        return LeaseTerms { duration: bounded(seconds), kind: LeaseKind::Renewable };
    }
    let has_lease = !text(answer, "lease_id").is_empty();
    let number = |name: &str| data.get(name).and_then(Value::as_u64).filter(|_| !has_lease);
    // Credentials that Vault rotates have the time until the next rotation.
    if let (Some(_), Some(left)) = (data.get("rotation_period"), number("ttl")) {
        return LeaseTerms { duration: bounded(left), kind: LeaseKind::Rotating };
    }
    let until_end = number("expiration").filter(|_| data.get("certificate").is_some());
    let seconds = until_end.map_or(seconds, |end| end.saturating_sub(wall_s));
    let duration = if seconds == 0 { DURATION_DEFAULT } else { bounded(seconds) };
    LeaseTerms { duration, kind: LeaseKind::Fixed }
}

/// The terms in an answer to the renewal of a secret's lease.
pub(crate) fn terms_of_renewal(answer: &SecretValue) -> Result<LeaseTerms, String> {
    let seconds = answer.get("lease_duration").and_then(Value::as_u64);
    let seconds = seconds.ok_or("it has no lease_duration")?;
    let kind = match flag(answer, "renewable") {
        Some(true) => LeaseKind::Renewable,
        Some(false) | None => LeaseKind::Fixed,
    };
    Ok(LeaseTerms { duration: bounded(seconds), kind })
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(DURATION_MAX)
}

fn flag(value: &SecretValue, name: &str) -> Option<bool> {
    value.get(name).and_then(Value::as_bool)
}

fn text(value: &SecretValue, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub(crate) fn texts(value: &SecretValue, name: &str) -> Vec<String> {
    let items = value.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn terms(answer: Value) -> LeaseTerms {
        Secret::of_answer(SecretValue::new(answer), NOW_S).unwrap().terms
    }

    fn lease(seconds: u64, kind: LeaseKind) -> LeaseTerms {
        LeaseTerms { duration: Duration::from_secs(seconds), kind }
    }

    #[test]
    fn terms_of_secrets_follow_consul_template() {
        let renewable =
            json!({ "lease_id": "db/1", "lease_duration": 60, "renewable": true, "data": { "a": 1 } });
        assert_eq!(terms(renewable), lease(60, LeaseKind::Renewable));
        let fixed =
            json!({ "lease_id": "pki/1", "lease_duration": 60, "renewable": false, "data": { "ttl": 5 } });
        assert_eq!(terms(fixed), lease(60, LeaseKind::Fixed));
        let none = json!({ "lease_id": "", "lease_duration": 0, "data": { "a": "b" } });
        assert_eq!(terms(none), lease(300, LeaseKind::Fixed));
        let certificate =
            json!({ "lease_id": "", "data": { "certificate": "…", "expiration": NOW_S + 1000 } });
        assert_eq!(terms(certificate), lease(1000, LeaseKind::Fixed));
        let expired = json!({ "lease_id": "", "data": { "certificate": "…", "expiration": 1 } });
        assert_eq!(terms(expired), lease(300, LeaseKind::Fixed));
        let rotating = json!({ "lease_id": "", "data": { "rotation_period": 3600, "ttl": 17 } });
        assert_eq!(terms(rotating), lease(17, LeaseKind::Rotating));
        let huge = json!({ "lease_duration": u64::MAX, "data": {} });
        assert_eq!(terms(huge).duration, DURATION_MAX);
    }

    #[test]
    fn only_results_of_writes_with_an_end_are_made_again() {
        let kind = |answer: Value| Secret::of_write(SecretValue::new(answer), NOW_S).unwrap().terms.kind;
        let plain = json!({ "lease_id": "", "lease_duration": 0, "data": { "ciphertext": "vault:v1:x" } });
        assert_eq!(kind(plain), LeaseKind::Endless);
        let certificate =
            json!({ "lease_id": "", "data": { "certificate": "…", "expiration": NOW_S + 1000 } });
        assert_eq!(kind(certificate), LeaseKind::Fixed);
        let leased =
            json!({ "lease_id": "a/1", "lease_duration": 60, "renewable": true, "data": { "a": 1 } });
        assert_eq!(kind(leased), LeaseKind::Renewable);
    }

    #[test]
    fn a_token_without_a_duration_does_not_end() {
        let grant = |auth: Value| TokenGrant::of_answer(SecretValue::new(json!({ "auth": auth })));
        let root = grant(json!({ "client_token": "t", "lease_duration": 0, "renewable": false }));
        assert_eq!(root.ok().unwrap().terms.kind, LeaseKind::Endless);
        let short = grant(json!({ "client_token": "t", "lease_duration": 9, "renewable": true }));
        assert_eq!(short.ok().unwrap().terms, lease(9, LeaseKind::Renewable));
    }

    #[test]
    fn incomplete_answers_are_errors() {
        for auth in [
            json!(null),
            json!("t"),
            json!({ "client_token": "t" }),
            json!({ "lease_duration": 9 }),
            json!({ "lease_duration": 9, "client_token": "" }),
            json!({ "lease_duration": 9, "client_token": "a\r\nb" }),
            json!({ "lease_duration": -9, "client_token": "t" }),
        ] {
            let answer = SecretValue::new(json!({ "auth": auth.clone() }));
            assert!(TokenGrant::of_answer(answer).is_err(), "{auth}");
        }
        for answer in [json!(null), json!([]), json!({ "data": null }), json!({ "auth": {} })] {
            assert!(Secret::of_answer(SecretValue::new(answer), NOW_S).is_none());
        }
    }
}
