//! How the tasks of an allocation resolve names, and their own: `dns` and `hostname` of its group's network, with the values of
//! variables.

use std::sync::Arc;

use herdlet_api_types::{
    alloc::Allocation,
    job::{Dns, Network},
    names::NameKind,
};
use herdlet_network::networks::NameServer;
use herdlet_plan::env::{self, Inputs, TaskEnv};
use tokio::sync::watch;

use super::AllocNetworks;
use crate::current_node::CurrentNode;

impl AllocNetworks {
    /// The sockets to which allocations on the bridge send queries for names, as they are opened.
    pub fn name_servers(&self) -> watch::Receiver<Option<Arc<NameServer>>> {
        self.bridge.name_servers()
    }

    /// The host name of an allocation's tasks; none if it is the machine's. An invalid one has failed the network before.
    pub fn hostname(&self, alloc: &Allocation) -> Option<String> {
        hostname(alloc, &self.machine.node).ok().flatten()
    }
}

/// Replaces the variables. A value that is empty then is left out, as the resolver would ignore it.
///
/// # Errors
/// A value that would be several lines. The text continues "failed to".
pub(super) fn interpolated(alloc: &Allocation, node: &CurrentNode) -> Result<Dns, String> {
    let written = alloc.group().and_then(|group| group.network.as_ref()).map(|network| &network.dns);
    let Some(Dns { servers, searches, options }) = written.filter(|dns| !dns.is_empty()) else {
        return Ok(Dns::default());
    };
    let env = env::build(&Inputs::new(alloc, &node.get()));
    Ok(Dns {
        servers: values("servers", servers, &env)?,
        searches: values("searches", searches, &env)?,
        options: values("options", options, &env)?,
    })
}

/// The host name of an allocation's tasks; none if it is the machine's.
///
/// # Errors
/// That it is no host name. The text continues "failed to".
pub(super) fn hostname(alloc: &Allocation, node: &CurrentNode) -> Result<Option<String>, String> {
    let network = alloc.group().and_then(|group| group.network.as_ref());
    let written = network.filter(|network| !network.mode.is_host() && !network.hostname.is_empty());
    let Some(Network { hostname, .. }) = written else { return Ok(None) };
    let name = env::build(&Inputs::new(alloc, &node.get())).interpolate(hostname);
    if name.is_empty() {
        return Ok(None);
    }
    match NameKind::Host.problem(&name) {
        None => Ok(Some(name)),
        Some(problem) => Err(format!("set the host name {name:?}: it {problem}")),
    }
}

fn values(list: &str, texts: &[String], env: &TaskEnv) -> Result<Vec<String>, String> {
    let value = |text: &String| {
        let value = env.interpolate(text);
        if value.contains(char::is_control) {
            return Err(format!(
                "write {value:?} of `dns.{list}` into resolv.conf: it contains control characters"
            ));
        }
        Ok(value)
    };
    let values: Vec<String> = texts.iter().map(value).collect::<Result<_, _>>()?;
    Ok(values.into_iter().filter(|value| !value.trim().is_empty()).collect())
}
