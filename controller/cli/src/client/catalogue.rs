//! Requests about services in the catalogue, at Nomad's paths: on a node of a cluster the servers answer them.

use herdlet_base::paths::encode;
use reqwest::Method;
use serde::Deserialize;

use super::{Client, Result};

/// An instance of a service.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CatalogueInstance {
    #[serde(rename = "ID")]
    pub id: String,
    pub service_name: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub datacenter: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    pub tags: Option<Vec<String>>,
    pub address: String,
    pub port: u16,
}

/// A service, with the tags of all its instances.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CatalogueService {
    pub service_name: String,
    pub tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfNamespace {
    services: Vec<CatalogueService>,
}

impl Client {
    /// The instances of a service.
    pub async fn catalogue_instances(&self, namespace: &str, name: &str) -> Result<Vec<CatalogueInstance>> {
        let path = format!("/v1/service/{}", encode(name));
        self.ask(self.to(Method::GET, &path).query(&[("namespace", namespace)])).await
    }

    /// The services of a namespace.
    pub async fn catalogue_services(&self, namespace: &str) -> Result<Vec<CatalogueService>> {
        let all: Vec<OfNamespace> =
            self.ask(self.to(Method::GET, "/v1/services").query(&[("namespace", namespace)])).await?;
        Ok(all.into_iter().flat_map(|one| one.services).collect())
    }
}
