//! The Consul agent that the config and the environment name.

use herdlet_config::Config;
use herdlet_services::catalog::ConsulConfig;

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
    Ok(resolved.with_service_tokens(config.consul.service_tokens_dir.clone()))
}
