//! The Consul that the config and the environment name.

use herdlet_config::Config;
use herdlet_services::catalog::ConsulConfig;

/// How it is reached, with Consul's own variables of the environment where the config says nothing.
///
/// # Errors
/// When the token can't be read, or the address is none.
pub(crate) fn resolve(config: &Config) -> anyhow::Result<ConsulConfig> {
    let token = match (&config.consul.token_file, &config.consul.token) {
        (Some(path), _) => Some(herdlet_config::read_token(path)?.to_string()),
        (None, token) => token.as_ref().map(|token| token.reveal().to_owned()),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let resolved = ConsulConfig::resolve(config.consul.address.as_deref(), token, variable)?;
    Ok(resolved.with_service_tokens(config.consul.service_tokens_dir.clone()))
}
