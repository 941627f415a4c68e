//! Questions to a Consul agent that are about no service of ours.
//!
//! In: where the agent is, and a path of its API. Out: JSON.

use serde_json::Value;

use super::{CatalogFailure, ConsulConfig, ConsulError, client::HttpApi, tokens::Tokens};

/// Asks a Consul agent with the agent's own token.
#[derive(Debug)]
pub struct ConsulReader {
    api: HttpApi,
    tokens: Tokens,
}

impl ConsulReader {
    /// For the agent that `config` names. Nothing is asked yet.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(config: &ConsulConfig) -> Result<Self, ConsulError> {
        let mut api = HttpApi::new(config).map_err(ConsulError)?;
        // Every node of a cluster asks, also where there is no Consul.
        api.is_guess = !config.is_named;
        Ok(Self { api, tokens: Tokens::new(config) })
    }

    /// What is at a path, such as `/v1/agent/self`.
    ///
    /// # Errors
    /// When the agent does not answer, refuses, or answers no JSON.
    pub async fn read(&self, path: &str) -> Result<Value, CatalogFailure> {
        self.api.get(path, None, self.tokens.agent(), |body| serde_json::from_slice(body)).await
    }
}
