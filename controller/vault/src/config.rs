//! The address of a server, TLS and namespace.
//!
//! In: settings. Out: a checked config. Files are read by the caller.

use std::{path::PathBuf, time::Duration};

use herdlet_base::http_client::{Credentials, Tls};
use reqwest::Url;

/// As Vault's own client waits.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and how to reach it.
pub struct VaultConfig {
    pub(crate) address: Address,
    /// Without slashes at its ends.
    pub(crate) namespace: Option<String>,
    /// Origins of other servers of the cluster.
    pub(crate) peers: Vec<String>,
    /// Authorities and our certificate.
    pub credentials: Credentials,
    pub(crate) server_name: Option<String>,
    pub verification: Verification,
    /// For one request, with all that belongs to it.
    pub timeout: Duration,
}

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A URL that may have a path.
    Http(Url),
    Unix(PathBuf),
}

/// Whether the server's certificate is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    Required,
    /// As `tls_skip_verify` of Nomad's config.
    Skipped,
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultConfigError {
    #[error("read the Vault address {0:?}: write https://host:port, http://host:port or unix:///path")]
    Address(String),
    #[error("read the Vault namespace {0:?}: it must be visible ASCII characters")]
    Namespace(String),
    #[error(
        "read the TLS server name {0:?}: it must be a DNS name, and the address must begin with https://"
    )]
    ServerName(String),
}

impl VaultConfig {
    /// # Errors
    /// If the address is invalid.
    pub fn new(address: &str) -> Result<Self, VaultConfigError> {
        Ok(Self {
            address: Address::parse(address)?,
            namespace: None,
            peers: Vec::new(),
            credentials: Credentials::default(),
            server_name: None,
            verification: Verification::Required,
            timeout: TIMEOUT,
        })
    }

    /// Sets the namespace of requests; an empty one is the root namespace.
    ///
    /// # Errors
    /// If it can't be sent.
    pub fn with_namespace(mut self, namespace: &str) -> Result<Self, VaultConfigError> {
        let plain = namespace.trim_matches('/');
        if !plain.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(VaultConfigError::Namespace(namespace.to_owned()));
        }
        self.namespace = Some(plain.to_owned()).filter(|plain| !plain.is_empty());
        Ok(self)
    }

    /// Adds another server of the cluster: the token may be sent there if the server redirects to it.
    ///
    /// # Errors
    /// If the address is no URL.
    pub fn with_peer(mut self, address: &str) -> Result<Self, VaultConfigError> {
        match Address::parse(address)? {
            Address::Http(url) => self.peers.push(url.origin().ascii_serialization()),
            Address::Unix(_) => return Err(VaultConfigError::Address(address.to_owned())),
        }
        Ok(self)
    }

    /// Sets the name that the server's certificate must have, instead of the address's host.
    ///
    /// # Errors
    /// If it is not a DNS name, or the address has no TLS.
    pub fn with_server_name(mut self, name: &str) -> Result<Self, VaultConfigError> {
        let is_tls = matches!(&self.address, Address::Http(url) if url.scheme() == "https");
        let url = Url::parse(&format!("https://{name}/")).ok().filter(|_| is_tls);
        let host = url.as_ref().and_then(Url::domain).filter(|host| host.eq_ignore_ascii_case(name));
        let host = host.ok_or_else(|| VaultConfigError::ServerName(name.to_owned()))?;
        self.server_name = Some(host.to_owned());
        Ok(self)
    }

    pub(crate) fn tls(&self, url: &Url) -> Tls {
        match (url.scheme(), self.verification) {
            ("https", Verification::Required) => Tls::Verified,
            ("https", Verification::Skipped) => Tls::Unverified,
            _ => Tls::None,
        }
    }
}

impl Address {
    fn parse(text: &str) -> Result<Self, VaultConfigError> {
        let error = || VaultConfigError::Address(text.to_owned());
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(error()) };
        }
        // Not every text that this rejects is without a password.
        let url = Url::parse(text).ok().filter(is_plain);
        url.map(Self::Http).ok_or_else(|| VaultConfigError::Address(without_user(text)))
    }
}

/// Whether this is a URL of a server: without user, query and fragment.
pub(crate) fn is_plain(url: &Url) -> bool {
    let has_user = !url.username().is_empty() || url.password().is_some();
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    is_http && !has_user && url.query().is_none() && url.fragment().is_none()
}

fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(address: &str) -> String {
        VaultConfig::new(address).err().unwrap().to_string()
    }

    #[test]
    fn addresses_are_urls_or_sockets() {
        for address in ["http://127.0.0.1:8200", "https://vault.test", "https://[::1]:8200/proxy/"] {
            assert!(matches!(VaultConfig::new(address).ok().unwrap().address, Address::Http(_)), "{address}");
        }
        let socket = VaultConfig::new("unix:///run/vault.sock").ok().unwrap();
        assert_eq!(socket.address, Address::Unix("/run/vault.sock".into()));
        for address in [
            "",
            "vault:8200",
            "127.0.0.1:8200",
            "ftp://v",
            "unix://v",
            "https://v/?a",
            "https://v/#a",
            "http://",
        ] {
            assert!(error(address).contains("https://host:port"), "{address}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_shown() {
        let error = error("https://me:s3cret@vault.test:8200");
        assert!(!error.contains("s3cret") && error.contains("@vault.test:8200"), "{error}");
    }

    #[test]
    fn namespaces_are_trimmed() {
        let namespace = |text: &str| {
            let config = VaultConfig::new("http://v").ok().unwrap().with_namespace(text);
            config.ok().map(|config| config.namespace)
        };
        assert_eq!(namespace("/team/web/"), Some(Some("team/web".to_owned())));
        assert_eq!(namespace(""), Some(None));
        assert_eq!(namespace("/"), Some(None));
        assert_eq!(namespace("a\r\nb"), None);
        assert_eq!(namespace("a b"), None);
    }

    #[test]
    fn a_server_name_needs_tls() {
        let name = |address: &str, name: &str| {
            let config = VaultConfig::new(address).ok().unwrap().with_server_name(name);
            config.ok().and_then(|config| config.server_name)
        };
        assert_eq!(name("https://10.0.0.7:8200", "Vault.Test"), Some("vault.test".to_owned()));
        for wrong in ["", "10.0.0.7", "[::1]", "a/b", "a:1", "u@a", "a b"] {
            assert_eq!(name("https://10.0.0.7:8200", wrong), None, "{wrong}");
        }
        assert_eq!(name("http://10.0.0.7:8200", "vault.test"), None);
        assert_eq!(name("unix:///run/v", "vault.test"), None);
    }
}
