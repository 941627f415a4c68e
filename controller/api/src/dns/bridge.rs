//! The DNS server for allocations on a bridge.
//!
//! In: sockets, as the networks of allocations open them. Out: answers to queries that come through the bridge: services of the zone
//! `herdlet`, and all other names as the machine resolves them.

use std::{io, net::IpAddr, sync::Arc};

use herdlet_agent::networks::{NameServer, NameSockets};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{Limits, Names, Sockets, Zone, answer_all, forward::Forwarder};

/// Answers queries at the last of these sockets, until `closing` is cancelled or there are no more.
pub async fn serve_bridges(
    mut servers: watch::Receiver<Option<Arc<NameServer>>>,
    zone: Arc<Zone>,
    limits: Limits,
    closing: CancellationToken,
) {
    while !closing.is_cancelled() {
        let server = servers.borrow_and_update().clone();
        let is_over = match server {
            Some(server) => serve_bridge(&server, &mut servers, (&zone, limits, &closing)).await,
            None => tokio::select! {
                () = closing.cancelled() => return,
                changed = servers.changed() => changed.is_err(),
            },
        };
        if is_over {
            return;
        }
    }
}

/// Answers queries until there are other sockets. Returns whether there will be none.
async fn serve_bridge(
    server: &NameServer,
    servers: &mut watch::Receiver<Option<Arc<NameServer>>>,
    (zone, limits, closing): (&Arc<Zone>, Limits, &CancellationToken),
) -> bool {
    let sockets: Vec<Sockets> = match server.sockets().iter().map(sockets_of).collect() {
        Ok(sockets) => sockets,
        Err(error) => {
            tracing::warn!(%error, "failed to use the sockets of the name server of a bridge");
            return servers.changed().await.is_err();
        }
    };
    let own: Vec<IpAddr> = server.sockets().iter().map(|sockets| sockets.ip).collect();
    tracing::debug!(addresses = ?own, "answering DNS for allocations on the bridge");
    let forwarder = Forwarder::new(own);
    let names = Arc::new(Names { zone: Arc::clone(zone), forwarder: Some(forwarder) });
    // Connections end with the sockets.
    let serving = closing.child_token();
    let _ends = serving.clone().drop_guard();
    let mut answering = JoinSet::new();
    for sockets in sockets {
        let (names, serving) = (Arc::clone(&names), serving.clone());
        answering.spawn(async move { answer_all(sockets, &names, limits, &serving).await });
    }
    tokio::select! {
        _ = answering.join_next() => closing.is_cancelled(),
        changed = servers.changed() => changed.is_err(),
    }
}

fn sockets_of(server: &NameSockets) -> io::Result<Sockets> {
    Ok(Sockets {
        udp: UdpSocket::from_std(server.udp.try_clone()?)?,
        tcp: TcpListener::from_std(server.tcp.try_clone()?)?,
    })
}
