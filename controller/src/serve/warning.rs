//! Warnings at the start: an API that is exposed, and users in the config that get no access.
//!
//! In: addresses and their access; names of users. Out: log lines that say what to do.

use std::{net::SocketAddr, sync::Arc};

use herdlet_api::http::Listener;
use herdlet_base::user::guests;
use herdlet_config::HostPort;
use herdlet_node::{acl::Acl, http::NodeApi};
use herdlet_nomad::wire::Secret;
use tokio_util::sync::CancellationToken;

/// Interval between attempts to learn whether the cluster has ACLs.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(30);

/// Warns of an API whose token is sent in plain text beyond this machine.
pub(super) fn of_plain_text(listener: &Listener, address: &HostPort) {
    let is_plain = matches!(listener, Listener::Tcp(_));
    if is_plain && listener.address().is_some_and(is_reachable) {
        tracing::warn!(
            %address,
            "the API is reachable from other machines without TLS: its token and all answers can be read on the network. \
             Set tls.cert_file and tls.key_file in the config, or listen on 127.0.0.1"
        );
    }
}

/// Warns of a node's API without access control, once servers have reported that they have no ACLs.
pub(super) fn of_open_node(address: Option<SocketAddr>, api: &Arc<NodeApi>, closing: &CancellationToken) {
    let Some(address) = address.filter(|address| is_reachable(*address)) else { return };
    let (api, closing) = (Arc::clone(api), closing.clone());
    let learning = async move {
        loop {
            match api.service.acl(&Secret::default()).await {
                Ok(acl) if *acl == Acl::Disabled => {
                    tracing::warn!(
                        %address,
                        "anyone who can connect to the node's API can run commands as the agent's user, because the cluster has no ACLs. \
                         Set cluster.http_addr to 127.0.0.1 or to an address of a network that only operators reach, \
                         or turn on ACLs on the servers"
                    );
                    return;
                }
                Ok(_) => return,
                // Servers are out of reach, or their answer is not valid yet.
                Err(_) => tokio::time::sleep(ASK_AGAIN).await,
            }
        }
    };
    tokio::spawn(async move { closing.run_until_cancelled(learning).await });
}

/// Warns of users in `task_dir_users` who get no access. Blocking.
pub(super) fn of_task_dir_users(names: &[String]) {
    for message in guests::without_effect(names) {
        tracing::warn!(hint = guests::HINT, "{message}");
    }
}

/// Whether other machines can connect.
fn is_reachable(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_not_reachable() {
        for (address, expected) in [
            ("127.0.0.1:1", false),
            ("127.8.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
        ] {
            assert_eq!(is_reachable(address.parse().unwrap()), expected, "{address}");
        }
    }
}
