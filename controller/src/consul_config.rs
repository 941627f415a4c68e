//! The Consul agents that the config and the environment name.

use std::path::PathBuf;

use anyhow::Context as _;
use herdlet_agent::consul::ConsulSettings;
use herdlet_api_types::job::ConsulAccess;
use herdlet_base::http_client::CredentialFiles;
use herdlet_config::{
    Config,
    consul::{ConsulCluster, ConsulLogins},
};
use herdlet_services::catalog::{ConsulConfig, Verification};

/// The connections to all Consuls, and how tasks and services log in.
///
/// # Errors
/// When a token can't be read, or an address is invalid.
pub(crate) fn resolve(config: &Config) -> anyhow::Result<ConsulSettings> {
    resolve_each(config).map(|(name, resolved)| Ok((name, resolved?))).collect()
}

/// The same for each Consul by itself, with its error.
pub(crate) fn resolve_each(
    config: &Config,
) -> impl Iterator<Item = (String, anyhow::Result<(ConsulConfig, ConsulLogins)>)> {
    config.consul.by_name().into_iter().map(|(name, consul)| {
        let resolved = resolve_one(&name, &consul).with_context(|| format!("use the Consul `{name}`"));
        (name, resolved.map(|resolved| (resolved, consul.logins())))
    })
}

/// The connection to the Consul `default`.
///
/// # Errors
/// As [`resolve`].
pub(crate) fn resolve_default(config: &Config) -> anyhow::Result<ConsulConfig> {
    resolve_one(ConsulAccess::DEFAULT_CLUSTER, &config.consul.default_cluster())
}

/// Consul's own environment variables apply to what the config does not set for the Consul `default`.
fn resolve_one(name: &str, consul: &ConsulCluster) -> anyhow::Result<ConsulConfig> {
    let token = match (&consul.token_file, &consul.token) {
        (Some(path), _) => Some(herdlet_config::read_token(path)?.to_string()),
        (None, token) => token.as_ref().map(|token| token.reveal().to_owned()),
    };
    let is_default = name == ConsulAccess::DEFAULT_CLUSTER;
    let variable = |name: &str| std::env::var(name).ok().filter(|_| is_default);
    let path = if is_default { "consul".to_owned() } else { format!("consul.clusters.{name}") };
    let resolved = ConsulConfig::resolve_at(&path, consul.address.as_deref(), token, variable)?;
    let (files, verification) = tls(consul, variable);
    let credentials = files.read().map_err(anyhow::Error::msg).context("use the certificates for Consul")?;
    let namespace = consul.namespace.clone().or_else(|| set(variable, "CONSUL_NAMESPACE"));
    Ok(resolved
        .with_service_tokens(consul.service_tokens_dir.clone())
        .with_credentials(credentials, verification)
        .with_namespace(namespace.unwrap_or_default()))
}

fn set(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).filter(|value| !value.is_empty())
}

/// The files of certificates, and whether Consul's certificate is verified.
fn tls(consul: &ConsulCluster, variable: impl Fn(&str) -> Option<String>) -> (CredentialFiles, Verification) {
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
        let (files, verification) = tls(&ConsulCluster::default(), variable);
        assert_eq!(files.ca_file, Some("/env/ca.pem".into()));
        assert_eq!(files.certificate, Some(("/env/cert.pem".into(), "/env/key.pem".into())));
        assert_eq!(verification, Verification::Skipped);
        let own = ConsulCluster {
            ca_file: Some("/own/ca.pem".into()),
            verify_ssl: Some(true),
            ..Default::default()
        };
        let (files, verification) = tls(&own, variable);
        assert_eq!((files.ca_file, verification), (Some("/own/ca.pem".into()), Verification::Required));
        assert_eq!(tls(&own, |_| None).0.certificate, None);
    }
}
