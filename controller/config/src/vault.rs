//! The section `vault`: servers of Vault or OpenBao from which tasks get tokens, by name.
//!
//! In: the section of a config file. Out: [`VaultServer`]s, or problems.

use std::{collections::BTreeMap, path::PathBuf};

use herdlet_api_types::{Duration, manifest::Span, names::NameKind};
use schemars::JsonSchema;
use serde::Deserialize;

use super::check::not_absolute;

/// Where Nomad's documentation mounts the auth method.
const AUTH_PATH: &str = "jwt-nomad";
/// The audience in Nomad's documentation.
const AUDIENCE: &str = "vault.io";
/// A log-in follows at once; Nomad's documentation has the same.
const IDENTITY_TTL: Duration = Duration::from_secs(3_600);

/// The section of a config file.
pub type Section = BTreeMap<String, Server>;

/// A server of Vault or OpenBao.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Whether tasks get tokens of it; by default if it has an address.
    pub enabled: Option<bool>,
    /// Its address: `https://host:port`, `http://host:port` or `unix:///path`.
    pub address: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Where its JWT auth method is mounted.
    pub jwt_auth_backend_path: Option<String>,
    /// The role of tasks that name none.
    pub create_from_role: Option<String>,
    /// CA certificates for its certificate (PEM).
    #[schemars(with = "Option<String>")]
    pub ca_file: Option<PathBuf>,
    /// Directory of CA certificates (PEM).
    #[schemars(with = "Option<String>")]
    pub ca_path: Option<PathBuf>,
    /// The agent's certificate for it (PEM).
    #[schemars(with = "Option<String>")]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[schemars(with = "Option<String>")]
    pub key_file: Option<PathBuf>,
    /// The name in its certificate, if that is not the address's host.
    pub tls_server_name: Option<String>,
    /// Whether any certificate is accepted.
    pub tls_skip_verify: bool,
    /// The identity of tasks that define none of the name `vault_NAME`.
    pub default_identity: DefaultIdentity,
}

/// The identity with which tasks log in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DefaultIdentity {
    /// Its audiences.
    pub aud: Vec<String>,
    /// How long it is valid.
    pub ttl: Option<Span>,
}

/// A server, with defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultServer {
    pub address: String,
    pub namespace: Option<String>,
    /// Where its JWT auth method is mounted.
    pub auth_path: String,
    /// The role of tasks that name none.
    pub role: Option<String>,
    pub ca_file: Option<PathBuf>,
    pub ca_path: Option<PathBuf>,
    /// Files of the agent's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub server_name: Option<String>,
    pub skip_verify: bool,
    /// Audiences of the default identity.
    pub audiences: Vec<String>,
    /// Its lifetime.
    pub identity_ttl: Duration,
}

/// Checks what the types can't express. Returns problems by path below `vault`.
pub(super) fn problems(section: &Section) -> Vec<(String, String)> {
    section.iter().flat_map(|(name, server)| server.problems(name)).collect()
}

/// The servers that are enabled, by name.
pub(super) fn settled(section: Section) -> BTreeMap<String, VaultServer> {
    section.into_iter().filter_map(|(name, server)| Some((name, server.settled()?))).collect()
}

impl Server {
    fn problems(&self, name: &str) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut report = |field: &str, message: String| problems.push((format!("{name}.{field}"), message));
        if let Some(rule) = NameKind::Cluster.problem(name) {
            report("address", format!("its name {rule}"));
        }
        if self.enabled == Some(true) && self.address.is_none() {
            report("address", "is missing".to_owned());
        }
        if let Some(address) = &self.address
            && let Some(message) = address_problem(address)
        {
            report("address", message);
        }
        for (field, path) in [
            ("ca_file", &self.ca_file),
            ("ca_path", &self.ca_path),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ] {
            path.iter().filter_map(|path| not_absolute(path)).for_each(|message| report(field, message));
        }
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => report("cert_file", "requires key_file".to_owned()),
            (None, Some(_)) => report("key_file", "requires cert_file".to_owned()),
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self.default_identity.ttl.is_some_and(|ttl| ttl.0 <= Duration::ZERO) {
            report("default_identity.ttl", "must be longer than 0".to_owned());
        }
        problems
    }

    /// The server with defaults, if it is enabled.
    pub fn settled(self) -> Option<VaultServer> {
        if self.enabled == Some(false) {
            return None;
        }
        let DefaultIdentity { aud, ttl } = self.default_identity;
        Some(VaultServer {
            address: self.address?,
            namespace: self.namespace.filter(|namespace| !namespace.is_empty()),
            auth_path: self.jwt_auth_backend_path.unwrap_or_else(|| AUTH_PATH.to_owned()),
            role: self.create_from_role.filter(|role| !role.is_empty()),
            ca_file: self.ca_file,
            ca_path: self.ca_path,
            certificate: self.cert_file.zip(self.key_file),
            server_name: self.tls_server_name,
            skip_verify: self.tls_skip_verify,
            audiences: if aud.is_empty() { vec![AUDIENCE.to_owned()] } else { aud },
            identity_ttl: ttl.map_or(IDENTITY_TTL, |ttl| ttl.0),
        })
    }
}

/// The client checks the rest when the agent starts. An address is not shown: it may have a password.
fn address_problem(address: &str) -> Option<String> {
    let rest = ["https://", "http://", "unix:///"].iter().find_map(|scheme| address.strip_prefix(scheme));
    let is_good = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#', ' ']));
    (!is_good).then(|| "must be like https://host:port, http://host:port or unix:///path".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(address: &str) -> Server {
        Server { address: Some(address.to_owned()), ..Server::default() }
    }

    #[test]
    fn a_server_with_an_address_has_nomads_defaults() {
        let section = Section::from([("default".to_owned(), server("https://vault:8200"))]);
        assert!(problems(&section).is_empty());
        let server = settled(section).remove("default").unwrap();
        assert_eq!((server.auth_path.as_str(), server.audiences), ("jwt-nomad", vec!["vault.io".to_owned()]));
        assert_eq!((server.role, server.identity_ttl.as_secs()), (None, 3_600));
        let off = Server { enabled: Some(false), ..Server::default() };
        assert!(settled(Section::from([("default".to_owned(), off)])).is_empty());
        assert!(settled(Section::from([("default".to_owned(), Server::default())])).is_empty());
    }

    #[test]
    fn wrong_settings_are_reported_by_their_paths() {
        let on = Server { enabled: Some(true), ..Server::default() };
        let half = Server { cert_file: Some("/cert".into()), ..server("http://v") };
        let relative = Server { ca_file: Some("ca".into()), ..server("http://v") };
        let section: Section =
            [("a", on), ("b", server("v:8200")), ("c", half), ("d", relative), ("e f", server("http://v"))]
                .map(|(name, server)| (name.to_owned(), server))
                .into();
        let paths: Vec<String> = problems(&section).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a.address", "b.address", "c.cert_file", "d.ca_file", "e f.address"]);
        let secret = problems(&Section::from([("x".to_owned(), server("https://u:hunter2@v"))]));
        assert!(!secret[0].1.contains("hunter2"));
    }
}
