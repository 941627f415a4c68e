//! Follows the addresses of the machine, for ports on networks of the machine.
//!
//! In: the networks of the config, reports of the kernel about links and addresses. Out: events with the addresses that these networks
//! have. Without such networks nothing is watched.

use std::{collections::BTreeMap, io, os::fd::AsFd as _, time::Duration};

use herdlet_base::ready::register;
use herdlet_config::network::Network;
use herdlet_network::watch::LinkWatch;
use herdlet_plan::{event::Event, job::ports::HostNetwork};
use herdlet_runtime::{Inbox, off_thread};
use tokio::io::Interest;

use crate::planner::Input;

/// Reports within this time are examined together: an interface gets several addresses in a row.
const SETTLE: Duration = Duration::from_millis(200);

/// Reports the addresses, and each change, until the agent ends.
pub async fn watch(settings: Network, inbox: Inbox<Input>) {
    if settings.host_networks.is_empty() {
        return;
    }
    if let Err(error) = follow(&settings, &inbox).await {
        tracing::error!(
            %error,
            "failed to follow the addresses of the machine: ports of `network.host_networks` have the present ones until a restart"
        );
    }
}

async fn follow(settings: &Network, inbox: &Inbox<Input>) -> io::Result<()> {
    let links = LinkWatch::open()?;
    let reports = register(links.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
    let mut known = BTreeMap::new();
    while !inbox.is_closed() {
        // After the watch has begun, so that no change is missed.
        if let Some(found) = addresses(settings).await
            && found != known
        {
            known.clone_from(&found);
            if inbox.send(Input::Event(Event::HostNetworks(found))).await.is_err() {
                return Ok(());
            }
        }
        let mut ready = reports.readable().await?;
        tokio::time::sleep(SETTLE).await;
        links.read()?;
        ready.clear_ready();
    }
    Ok(())
}

/// None if they can't be listed now.
async fn addresses(settings: &Network) -> Option<BTreeMap<String, HostNetwork>> {
    let settings = settings.clone();
    off_thread(move || settings.host_networks_on_machine()).await.ok()?.ok()
}
