//! The Consul agent that the config and the environment name.

use std::path::PathBuf;

use anyhow::Context as _;
use herdlet_base::http_client::CredentialFiles;
use herdlet_config::Config;
use herdlet_services::catalog::{ConsulConfig, Verification};

/// The connection to Consul. Consul's own environment variables apply to what the config does not
/// set.
///
/// # Errors
/// When the token can't be read, or the address is invalid.
pub(crate) fn resolve(config: &Config) -> anyhow::Result<ConsulConfig> {
    let token = match (&config.consul.token_file, &config.consul.token) {
        (Some(path), _) => Some(herdlet_config::read_token(path)?.to_string()),
        (None, token) => token.as_ref().map(|token| token.reveal().to_owned()),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let resolved = ConsulConfig::resolve(config.consul.address.as_deref(), token, variable)?;
    let (files, verification) = tls(&config.consul, variable);
    let credentials = files.read().map_err(anyhow::Error::msg).context("use the certificates for Consul")?;
    let namespace = config.consul.namespace.clone().or_else(|| set(variable, "CONSUL_NAMESPACE"));
    Ok(resolved
        .with_service_tokens(config.consul.service_tokens_dir.clone())
        .with_credentials(credentials, verification)
        .with_namespace(namespace.unwrap_or_default()))
}

fn set(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).filter(|value| !value.is_empty())
}

/// The files of certificates, and whether Consul's certificate is verified.
fn tls(
    consul: &herdlet_config::Consul,
    variable: impl Fn(&str) -> Option<String>,
) -> (CredentialFiles, Verification) {
    let path =
        |own: &Option<PathBuf>, name: &str| own.clone().or_else(|| set(&variable, name).map(PathBuf::from));
    let files = CredentialFiles {
        ca_file: path(&consul.ca_file, "CONSUL_CACERT"),
        ca_path: path(&None, "CONSUL_CAPATH"),
        certificate: path(&consul.cert_file, "CONSUL_CLIENT_CERT")
            .zip(path(&consul.key_file, "CONSUL_CLIENT_KEY")),
    };
    let is_off = |value: String| matches!(value.as_str(), "0" | "false" | "FALSE");
    let is_skipped = match consul.verify_ssl {
        Some(is_verified) => !is_verified,
        None => set(&variable, "CONSUL_HTTP_SSL_VERIFY").is_some_and(is_off),
    };
    (files, if is_skipped { Verification::Skipped } else { Verification::Required })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_the_config_come_before_those_of_the_environment() {
        let variable = |name: &str| match name {
            "CONSUL_CACERT" => Some("/env/ca.pem".to_owned()),
            "CONSUL_CLIENT_CERT" => Some("/env/cert.pem".to_owned()),
            "CONSUL_CLIENT_KEY" => Some("/env/key.pem".to_owned()),
            "CONSUL_HTTP_SSL_VERIFY" => Some("false".to_owned()),
            _ => None,
        };
        let (files, verification) = tls(&herdlet_config::Consul::default(), variable);
        assert_eq!(files.ca_file, Some("/env/ca.pem".into()));
        assert_eq!(files.certificate, Some(("/env/cert.pem".into(), "/env/key.pem".into())));
        assert_eq!(verification, Verification::Skipped);
        let own = herdlet_config::Consul {
            ca_file: Some("/own/ca.pem".into()),
            verify_ssl: Some(true),
            ..Default::default()
        };
        let (files, verification) = tls(&own, variable);
        assert_eq!((files.ca_file, verification), (Some("/own/ca.pem".into()), Verification::Required));
        assert_eq!(tls(&own, |_| None).0.certificate, None);
    }
}
