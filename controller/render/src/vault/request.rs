//! The requests of template functions to Vault, and the objects that templates see.
//!
//! In: a function with its arguments. Out: a value with the fields of consul-template's `dep.Secret`
//! (`dependency/vault_common.go`) or of its certificates (`dependency/vault_pki.go`).

use std::collections::BTreeMap;

use herdlet_vault::{
    answer::{DURATION_DEFAULT, Secret},
    client::VaultClient,
    error::{FailureClass, VaultError},
    lease::{LeaseKind, LeaseTerms},
    path::VaultPath,
    secret::{SecretText, SecretValue},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What is asked for. Has no `Debug`: data may be secret.
pub(super) struct VaultRequest {
    kind: Kind,
    path: VaultPath,
    /// Of writes.
    data: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Names,
    Write,
    /// A write that issues a certificate.
    Certificate,
}

/// An answer of Vault. Has no `Debug`: it is a secret.
pub(super) struct FetchedSecret {
    pub answer: Value,
    pub lease_id: String,
    pub terms: LeaseTerms,
    pub is_issued: bool,
}

impl VaultRequest {
    /// The request of a function: a path, then data as `KEY=VALUE`.
    pub(super) fn new(function: &str, arguments: &[String]) -> Result<Self, String> {
        let (path, pairs) = arguments.split_first().ok_or("the path is missing")?;
        let path = VaultPath::parse(path.trim()).map_err(|error| error.to_string())?;
        let kind = match function {
            "secrets" => Kind::Names,
            "pkiCert" => Kind::Certificate,
            _ if pairs.is_empty() => Kind::Read,
            _ => Kind::Write,
        };
        let pair = |pair: &String| {
            let (name, value) = pair.split_once('=').ok_or("data must be KEY=VALUE")?;
            Ok((name.to_owned(), value.to_owned()))
        };
        let data = pairs.iter().map(pair).collect::<Result<_, &str>>()?;
        Ok(Self { kind, path, data })
    }

    /// Identifies the request. It does not show the data.
    pub(super) fn key(&self) -> String {
        let mut hash = Sha256::new();
        let kind = match self.kind {
            Kind::Read => "read",
            Kind::Names => "names",
            Kind::Write => "write",
            Kind::Certificate => "certificate",
        };
        let arguments = self.path.arguments().iter().map(|(name, value)| (name, value)).chain(&self.data);
        let texts = arguments.flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for text in [kind, self.path.as_str()].into_iter().chain(texts) {
            // With lengths, so that no two requests have the same text.
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        // Arguments of the path and data are no pairs of each other.
        hash.update(self.data.len().to_le_bytes());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Its name in the audit.
    pub(super) fn operation(&self) -> &'static str {
        match self.kind {
            Kind::Read => "read",
            Kind::Names => "list",
            Kind::Write | Kind::Certificate => "write",
        }
    }

    /// # Errors
    /// Those of the client.
    pub(super) async fn send(
        &self,
        client: &VaultClient,
        token: &SecretText,
    ) -> Result<FetchedSecret, VaultError> {
        match self.kind {
            Kind::Read => {
                let secret = client.read_secret(token, &self.path).await?;
                Ok(FetchedSecret {
                    is_issued: !secret.lease_id.is_empty(),
                    ..FetchedSecret::from_secret(secret)
                })
            }
            Kind::Names => {
                let names = match client.list(token, &self.path).await {
                    Err(error) if error.class() == FailureClass::Absent => Vec::new(),
                    names => names?,
                };
                let terms = LeaseTerms { duration: DURATION_DEFAULT, kind: LeaseKind::Fixed };
                Ok(FetchedSecret { answer: json!(names), lease_id: String::new(), terms, is_issued: false })
            }
            Kind::Write => match client.write(token, &self.path, self.body()).await? {
                Some(secret) => Ok(FetchedSecret::from_secret(secret)),
                // Done, with nothing to show.
                None => {
                    let terms = LeaseTerms { duration: DURATION_DEFAULT, kind: LeaseKind::Endless };
                    Ok(FetchedSecret { answer: Value::Null, lease_id: String::new(), terms, is_issued: true })
                }
            },
            Kind::Certificate => {
                let secret = client.write(token, &self.path, self.body()).await?;
                let certificate = secret.and_then(|secret| {
                    let answer = certificate(secret.data.reveal())?;
                    Some(FetchedSecret { answer, ..FetchedSecret::from_secret(secret) })
                });
                certificate.ok_or_else(|| VaultError::Answer {
                    doing: format!("write to {}", self.path()),
                    why: "it has no certificate".to_owned(),
                })
            }
        }
    }

    fn body(&self) -> SecretValue {
        SecretValue::new(json!(self.data))
    }
}

impl FetchedSecret {
    /// The terms are those at the beginning: a renewal must not change an output.
    fn from_secret(secret: Secret) -> Self {
        let LeaseTerms { duration, kind } = secret.terms;
        let answer = json!({
            "LeaseID": secret.lease_id,
            "LeaseDuration": duration.as_secs(),
            "Renewable": kind == LeaseKind::Renewable,
            "Data": secret.data.reveal(),
        });
        Self { answer, lease_id: secret.lease_id, terms: secret.terms, is_issued: true }
    }
}

/// A certificate as consul-template shows it: with `.Data`, and without.
fn certificate(data: &Value) -> Option<Value> {
    let text = |name: &str| {
        let text = data.get(name).and_then(Value::as_str).unwrap_or_default().trim();
        if text.is_empty() { String::new() } else { format!("{text}\n") }
    };
    let parts = [("Cert", text("certificate")), ("Key", text("private_key")), ("CA", text("issuing_ca"))];
    if parts[0].1.is_empty() {
        return None;
    }
    let mut fields: serde_json::Map<String, Value> =
        parts.into_iter().map(|(name, text)| (name.to_owned(), Value::String(text))).collect();
    fields.insert("Data".to_owned(), Value::Object(fields.clone()));
    Some(Value::Object(fields))
}

/// The values of a key-value secret, or of any other: the answer to `secret PATH`.
pub(crate) fn values(answer: &Value) -> BTreeMap<String, String> {
    let data = answer.get("Data").unwrap_or(&Value::Null);
    // Version 2 of the key-value engine has the values beside their metadata.
    let inner = data.get("data").filter(|inner| inner.is_object());
    let inner = inner.filter(|_| data.get("metadata").is_some_and(Value::is_object));
    let fields = inner.unwrap_or(data).as_object();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    fields.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(function: &str, arguments: &[&str]) -> VaultRequest {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        VaultRequest::new(function, &arguments).ok().unwrap()
    }

    #[test]
    fn requests_differ_by_path_arguments_and_data() {
        let same = [request("secret", &["a/b", "x=1", "y=2"]), request("secret", &["/a//b/", "y=2", "x=1"])];
        assert_eq!(same[0].key(), same[1].key());
        let others = [
            request("secret", &["a/b"]),
            request("secrets", &["a/b"]),
            request("secret", &["a/b?x=1"]),
            request("secret", &["a/b", "x=1"]),
            request("pkiCert", &["a/b", "x=1"]),
            request("secret", &["a/b", "x=1y=2"]),
            request("secret", &["a/b?x=1", "y=2"]),
            request("secret", &["a/b?x=1&y=2"]),
            request("secret", &["a/b", "x=1", "y=2"]),
        ];
        let keys: std::collections::BTreeSet<String> = others.iter().map(VaultRequest::key).collect();
        assert_eq!(keys.len(), others.len());
        for wrong in [&[][..], &[""], &["a/../b"], &["a", "x"]] {
            let arguments: Vec<String> = wrong.iter().map(|text| (*text).to_owned()).collect();
            assert!(VaultRequest::new("secret", &arguments).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_certificate_has_the_fields_of_consul_template() {
        let shown = certificate(
            &json!({ "certificate": "C", "private_key": "K\n", "issuing_ca": "A", "ca_chain": ["A"] }),
        );
        let fields = json!({ "Cert": "C\n", "Key": "K\n", "CA": "A\n" });
        let mut expected = fields.clone();
        expected["Data"] = fields;
        assert_eq!(shown, Some(expected));
        assert_eq!(certificate(&json!({ "private_key": "K" })), None);
    }

    #[test]
    fn values_are_those_of_both_versions() {
        let expected = BTreeMap::from([("a", "b"), ("n", "7"), ("l", "[1]")]);
        let expected: BTreeMap<String, String> =
            expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let fields = json!({ "a": "b", "n": 7, "l": [1] });
        assert_eq!(values(&json!({ "Data": fields })), expected);
        assert_eq!(values(&json!({ "Data": { "data": fields, "metadata": {} } })), expected);
        assert_eq!(values(&json!({ "Data": { "data": "x" } }))["data"], "x");
        assert!(values(&json!(null)).is_empty());
    }
}
