//! The address and tokens for the Consul agent.
//!
//! In: the agent's config and environment variables. Out: an address, a token, and the directory of service tokens.
//! Tokens are never shown.

use std::{fmt, path::PathBuf, sync::Arc};

use herdlet_base::http_client::{Credentials, Tls};
use reqwest::header::HeaderValue;
use zeroize::Zeroizing;

/// The address of the Consul agent, and our token.
#[derive(Clone)]
pub struct ConsulConfig {
    pub(super) address: Address,
    pub(super) token: Option<Zeroizing<String>>,
    /// The setting that the token comes from.
    pub(super) token_source: Option<String>,
    /// Directory with a file for each service that has its own token.
    pub(super) service_tokens_dir: Option<PathBuf>,
    /// Whether the address is configured.
    pub(super) is_named: bool,
    /// The authorities of its certificate, and the agent's own certificate for it.
    pub(super) credentials: Arc<Credentials>,
    pub(super) verification: Verification,
    /// The namespace of services and of reads for templates, where a job names none; empty for that of the token.
    pub(super) namespace: String,
}

/// How certificates of Consul are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    #[default]
    Required,
    /// Any certificate is accepted.
    Skipped,
}

/// The address of the Consul agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// A URL without a path.
    Http(String),
    Unix(PathBuf),
}

/// Errors in the config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConsulConfigError {
    #[error(
        "read the Consul address {0:?}: write unix:///path, http://host:port, https://host:port or host:port"
    )]
    Address(String),
    /// The token from this setting is invalid; its text is never shown.
    #[error("read the Consul token of {0}: its first line must be visible ASCII characters without spaces")]
    Token(String),
}

impl ConsulConfig {
    /// Reads `address` and `token` of the agent's config, else `CONSUL_HTTP_ADDR` and `CONSUL_HTTP_TOKEN`, else uses
    /// Consul's default address and no token. `variable` reads the environment.
    ///
    /// # Errors
    ///
    /// If the address or the token is invalid.
    pub fn resolve(
        address: Option<&str>,
        token: Option<String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConsulConfigError> {
        Self::resolve_at("consul", address, token, variable)
    }

    /// As [`Self::resolve`], for the Consul whose settings are at `path` in the config.
    ///
    /// # Errors
    ///
    /// If the address or the token is invalid.
    pub fn resolve_at(
        path: &str,
        address: Option<&str>,
        token: Option<String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConsulConfigError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_named = address.is_some() || set("CONSUL_HTTP_ADDR").is_some();
        let address = match address {
            Some(address) => parse(address, "http")?,
            None => match set("CONSUL_HTTP_ADDR") {
                Some(address) => {
                    let tls = set("CONSUL_HTTP_SSL")
                        .is_some_and(|value| matches!(value.as_str(), "1" | "true" | "TRUE"));
                    parse(&address, if tls { "https" } else { "http" })?
                }
                None => Address::Http(DEFAULT_ADDRESS.to_owned()),
            },
        };
        let own = token.filter(|token| !token.is_empty()).map(|token| (token, format!("{path}.token_file")));
        let token =
            own.or_else(|| set("CONSUL_HTTP_TOKEN").map(|token| (token, "CONSUL_HTTP_TOKEN".to_owned())));
        if let Some((_, source)) = token.as_ref().filter(|(token, _)| header(token).is_none()) {
            return Err(ConsulConfigError::Token(source.clone()));
        }
        let (token, token_source) = token.map(|(token, source)| (Zeroizing::new(token), source)).unzip();
        Ok(Self {
            address,
            token,
            token_source,
            service_tokens_dir: None,
            is_named,
            credentials: Arc::default(),
            verification: Verification::Required,
            namespace: String::new(),
        })
    }

    /// Sets the directory of service tokens.
    #[must_use]
    pub fn with_service_tokens(self, dir: Option<PathBuf>) -> Self {
        Self { service_tokens_dir: dir, ..self }
    }

    /// Sets the authorities of Consul's certificate, the agent's own one, and whether it is verified.
    #[must_use]
    pub fn with_credentials(self, credentials: Credentials, verification: Verification) -> Self {
        Self { credentials: Arc::new(credentials), verification, ..self }
    }

    /// Sets the namespace of services and of reads for templates, where a job names none. `default` counts as none: a Consul that is not
    /// Enterprise refuses requests with a namespace.
    #[must_use]
    pub fn with_namespace(self, namespace: String) -> Self {
        Self { namespace: if namespace == "default" { String::new() } else { namespace }, ..self }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The TLS of this address.
    pub(super) fn tls(&self, url: &str) -> Tls {
        match (Tls::of(url), self.verification) {
            (Tls::Verified, Verification::Skipped) => Tls::Unverified,
            (tls, Verification::Required | Verification::Skipped) => tls,
        }
    }

    /// Whether the address is configured.
    pub fn is_named(&self) -> bool {
        self.is_named
    }
}

impl fmt::Debug for ConsulConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = if self.token.is_some() { "set" } else { "not set" };
        f.debug_struct("ConsulConfig").field("address", &self.address).field("token", &token).finish()
    }
}

const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8500";

fn parse(text: &str, scheme: &str) -> Result<Address, ConsulConfigError> {
    let error = || ConsulConfigError::Address(text.to_owned());
    if let Some(path) = text.strip_prefix("unix://") {
        return if path.starts_with('/') { Ok(Address::Unix(path.into())) } else { Err(error()) };
    }
    let url = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let parsed = reqwest::Url::parse(&url).map_err(|_| error())?;
    let plain = parsed.path() == "/" && parsed.query().is_none() && parsed.username().is_empty();
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() || !plain {
        return Err(error());
    }
    Ok(Address::Http(url.trim_end_matches('/').to_owned()))
}

/// The first line as a header; `None` if it is not a token.
pub(super) fn header(text: &str) -> Option<HeaderValue> {
    let token = text.lines().next()?.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut value = HeaderValue::from_str(token).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(address: Option<&str>, env: &[(&str, &str)]) -> Result<ConsulConfig, ConsulConfigError> {
        let find =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ConsulConfig::resolve(address, None, find)
    }

    #[test]
    fn config_overrides_environment_and_defaults() {
        let env = [
            ("CONSUL_HTTP_ADDR", "consul.test:8501"),
            ("CONSUL_HTTP_SSL", "true"),
            ("CONSUL_HTTP_TOKEN", "t0ken"),
        ];
        let http = |url: &str| Address::Http(url.to_owned());
        assert_eq!(resolve(None, &[]).unwrap().address, http(DEFAULT_ADDRESS));
        assert!(!resolve(None, &[]).unwrap().is_named && resolve(None, &env).unwrap().is_named);
        assert!(resolve(Some("[::1]:8500"), &[]).unwrap().is_named);
        assert_eq!(resolve(None, &env).unwrap().address, http("https://consul.test:8501"));
        assert_eq!(resolve(Some("http://[::1]:1/"), &env).unwrap().address, http("http://[::1]:1"));
        assert_eq!(
            resolve(Some("unix:///run/c.sock"), &[]).unwrap().address,
            Address::Unix("/run/c.sock".into())
        );
        let config = resolve(None, &env).unwrap();
        assert_eq!(config.token.as_ref().map(|token| token.as_str()), Some("t0ken"));
        assert!(!format!("{config:?}").contains("t0ken"));
    }

    #[test]
    fn invalid_token_is_refused_without_printing_it() {
        for token in ["\ns3cret", "s3 cret", "s3cr\u{e9}t"] {
            let error = resolve(None, &[("CONSUL_HTTP_TOKEN", token)]).unwrap_err();
            assert_eq!(error, ConsulConfigError::Token("CONSUL_HTTP_TOKEN".to_owned()));
            assert!(!error.to_string().contains("s3"), "{error}");
        }
    }

    #[test]
    fn addresses_that_make_no_sense_are_refused() {
        for address in
            ["", "unix://relative", "ftp://host:1", "http://host:1/v1", "http://u:p@host", "http://"]
        {
            assert!(resolve(Some(address), &[]).is_err(), "{address}");
        }
    }
}
