//! The attributes that Vault gives to this node: `vault.version` and others, by which servers choose nodes for jobs.
//!
//! In: the servers in the config. Out: attributes under Nomad's names. They stay as they are while Vault does not answer: an
//! interruption does not change where a job may run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdlet_api_types::job::VaultAccess;
use herdlet_vault::client::ServerInfo;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{Server, Vaults};

/// Interval of queries, as in Nomad. Vault reports no event when its version changes.
const PERIOD: Duration = Duration::from_secs(15);
/// Time limit for a query.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Attributes by name.
pub type Attributes = BTreeMap<String, String>;

/// Queries the servers until the agent ends, or not at all if the config has none.
pub async fn follow(vaults: Arc<Vaults>, sender: watch::Sender<Attributes>) {
    if vaults.servers().next().is_none() {
        return sender.closed().await;
    }
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut found = Attributes::new();
        for server in vaults.servers() {
            if let Some(info) = timeout(ANSWER_MAX, query(server)).await.ok().flatten() {
                found.extend(attributes(&server.name, info));
            }
        }
        sender.send_if_modified(|known| {
            let before = known.clone();
            known.extend(found);
            *known != before
        });
    }
}

async fn query(server: &Arc<Server>) -> Option<ServerInfo> {
    server.client(None).await.ok()?.describe().await.ok()
}

fn attributes(name: &str, info: ServerInfo) -> Attributes {
    let prefix = match name {
        VaultAccess::DEFAULT_CLUSTER => "vault".to_owned(),
        name => format!("vault.{name}"),
    };
    let ServerInfo { version, cluster_id, cluster_name } = info;
    let version = version.trim_start_matches('v').to_owned();
    [
        ("accessible", "true".to_owned()),
        ("version", version),
        ("cluster_id", cluster_id),
        ("cluster_name", cluster_name),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(attribute, value)| (format!("{prefix}.{attribute}"), value))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nomad() {
        let info = || ServerInfo {
            version: "v2.1.0".to_owned(),
            cluster_id: "id".to_owned(),
            cluster_name: String::new(),
        };
        let pairs = |name| {
            let all = attributes(name, info()).into_iter();
            all.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(pairs("default"), ["vault.accessible=true", "vault.cluster_id=id", "vault.version=2.1.0"]);
        assert_eq!(pairs("eu")[2], "vault.eu.version=2.1.0");
    }
}
