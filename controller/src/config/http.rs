//! The section `http`: what the HTTP APIs on TCP have in common, whichever address they are served on.
//!
//! In: the section of a config file, checked. Out: [`Http`], in which nothing is left open.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Cluster, HostPort};
use crate::http::{Names, PER_PEER_MAX};

/// What a config file may say of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Names under which the APIs are called beside this machine's, and whose web pages may call them: HOST, HOST:PORT, or * for any name.
    pub allowed_hosts: Vec<String>,
    /// Connections that one address may have on each listener; 0: as many as there are.
    pub max_conns_per_client: Option<usize>,
}

/// What all HTTP APIs on TCP have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Names beside this machine's.
    pub allowed_hosts: Vec<String>,
    /// Connections of one address on each listener; 0: no bound of its own.
    pub max_conns_per_client: usize,
}

impl Section {
    /// What the types can't say: problems by path within the section.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let wrong = self.allowed_hosts.iter().enumerate().filter(|(_, entry)| !Names::is_entry(entry));
        wrong
            .map(|(index, entry)| {
                let message = format!("expected HOST, HOST:PORT or *, found \"{entry}\"");
                (format!("allowed_hosts[{index}]"), message)
            })
            .collect()
    }

    /// What it comes to.
    pub(super) fn settled(self) -> Http {
        let max_conns_per_client = self.max_conns_per_client.unwrap_or(PER_PEER_MAX);
        Http { allowed_hosts: self.allowed_hosts, max_conns_per_client }
    }
}

impl super::Config {
    /// The names of this machine, as the system and this config know them.
    pub fn names(&self) -> Names {
        let advertised = self.cluster.as_ref().and_then(Cluster::advertised_host);
        let listens = self.listen.as_ref().map(|(address, _)| address);
        let listens =
            listens.into_iter().chain(&self.metrics_listen).map(|HostPort { host, .. }| host.clone());
        let own: Vec<String> = listens.chain(advertised).chain([self.name.clone()]).collect();
        Names::of_machine(&own).allowing(&self.http.allowed_hosts)
    }
}
