//! Real connections, in real time.

use herdlet_nomad_server::{Cluster, Settings};
use herdlet_rpc::connect::Network;

use crate::{
    runner::Bench,
    world::{identity, live, pool, runs, within},
};

#[tokio::test]
async fn allocations_run_over_loopback() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let listeners = cluster.listen().await.unwrap();
    let addresses: Vec<_> = listeners.iter().map(|listener| &listener.address[..]).collect();
    let living = live(pool(Network::default(), &addresses), identity(1), Bench::default());
    within(10, "the node has a list", || living.contact.borrow().is_listed).await;
    let ids = cluster.place_many(&living.id, "job", 50);
    for id in &ids {
        runs(&cluster, id).await;
    }
    // The server in use goes down; another one is asked.
    let used = cluster.seen("Alloc.GetAllocs").last().unwrap().server;
    cluster.set_down(used, true);
    ids.iter().for_each(|id| cluster.stop(id));
    cluster.until(|state| ids.iter().all(|id| state.allocs[id].client_status.is_terminal())).await;
    living.end().await;
}
