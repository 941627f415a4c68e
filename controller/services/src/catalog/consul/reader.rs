//! Reads from a Consul agent, unrelated to our services.
//!
//! In: the agent's address, and a path of its API. Out: JSON.

use serde_json::Value;

use super::{CatalogFailure, ConsulConfig, ConsulError, client::HttpApi, tokens::Tokens};

/// Reads from a Consul agent with the agent's own token.
#[derive(Debug)]
pub struct ConsulReader {
    pub(super) api: HttpApi,
    pub(super) tokens: Tokens,
}

impl ConsulReader {
    /// A reader for the agent in `config`. Sends no request yet.
    ///
    /// # Errors
    /// If the HTTP client can't be created.
    pub fn new(config: &ConsulConfig) -> Result<Self, ConsulError> {
        let mut api = HttpApi::new(config).map_err(ConsulError)?;
        // Every node of a cluster asks, even without a Consul.
        api.is_guess = !config.is_named;
        Ok(Self { api, tokens: Tokens::new(config) })
    }

    /// The response to a path, such as `/v1/agent/self`.
    ///
    /// # Errors
    /// If the agent does not answer, refuses, or does not return JSON.
    pub async fn read(&self, path: &str) -> Result<Value, CatalogFailure> {
        self.api.get(path, None, self.tokens.agent(), |body| serde_json::from_slice(body)).await
    }
}
