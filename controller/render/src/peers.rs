//! All that is outside of this agent and has data for templates: the servers of a cluster, and each Consul.
//!
//! In: data. Out: who has it. All of them are watched in the same way: see [`crate::servers`].

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use herdlet_api_types::AllocId;

use crate::{
    data::{Data, Origin},
    region::Region,
    servers::{Following, Peer, Servers},
    watches::Watches,
};

pub(crate) struct Peers {
    servers: Servers,
    /// By name in the config.
    consuls: BTreeMap<String, Servers>,
}

impl Peers {
    pub(crate) fn new(following: &Following, consuls: &BTreeMap<String, Arc<dyn Region>>) -> Self {
        let consul = |(name, region): (&String, &Arc<dyn Region>)| {
            let consul = Servers::new(Peer::Consul(name.clone()), following.of_consul());
            consul.join(Arc::clone(region));
            (name.clone(), consul)
        };
        let servers = Servers::new(Peer::Servers, following.clone());
        Self { servers, consuls: consuls.iter().map(consul).collect() }
    }

    pub(crate) fn join(&self, region: Arc<dyn Region>) {
        self.servers.join(region);
    }

    /// Who has data that is not this agent's; otherwise what is missing in the config.
    pub(crate) fn with_data(&self, data: &Data) -> Option<Result<&Servers, String>> {
        match &data.origin {
            Origin::Agent => None,
            Origin::Servers { .. } => Some(Ok(&self.servers)),
            Origin::Consul { cluster, .. } => Some(
                self.consuls
                    .get(cluster)
                    .ok_or_else(|| format!("Consul `{cluster}` is not in the agent's config")),
            ),
        }
    }

    fn each(&self) -> impl Iterator<Item = &Servers> {
        std::iter::once(&self.servers).chain(self.consuls.values())
    }

    pub(crate) fn forget(&self, alloc: AllocId) {
        self.each().for_each(|peer| peer.forget(alloc));
    }

    pub(crate) fn users_changed(&self) {
        self.each().for_each(Servers::users_changed);
    }

    /// Watches all data that tasks use. Does not end.
    pub(crate) async fn follow(&self, watches: &Watches) {
        join_all(self.each().map(|peer| peer.follow(watches))).await;
    }
}
