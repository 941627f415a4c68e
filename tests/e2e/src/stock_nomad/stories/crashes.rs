//! Killed processes come back, and the tasks keep running.

use std::time::Duration;

use crate::{
    stock_nomad::{cluster::StockCluster, jobs::sleeper, stock::Stock},
    wait,
};

/// Time to check that nothing happens.
const A_WHILE: Duration = Duration::from_secs(3);

/// Returns the processes of these allocations.
fn pids(ground: &StockCluster, ids: &[String]) -> Vec<u32> {
    ids.iter().flat_map(|id| ground.pids(id, "t")).collect()
}

pub(super) fn agent(ground: &mut StockCluster) {
    ground.run("stays", &sleeper("stays", 3));
    let ids = ground.running("stays", "g", 3);
    ground.deployment("stays", 0, "successful");
    let before = pids(ground, &ids);
    ground.agent.crash();
    ground.until_true("the node is ready", || ground.node_is(&ground.node) == "ready");
    wait::pause(A_WHILE);
    assert!(ground.running("stays", "g", 3) == ids, "expected the same allocations");
    assert!(pids(ground, &ids) == before, "expected the same processes");
    ground.ok(&["alloc", "stop", "-detach", ids.first().map_or("", String::as_str)]);
    ground.running("stays", "g", 3);
}

pub(super) fn server(ground: &mut StockCluster) {
    ground.run("stays", &sleeper("stays", 3));
    let ids = ground.running("stays", "g", 3);
    ground.deployment("stays", 0, "successful");
    let before = pids(ground, &ids);
    ground.servers.iter_mut().for_each(Stock::kill);
    wait::pause(A_WHILE);
    assert!(pids(ground, &ids) == before, "expected the same processes while no server runs");
    for server in &mut ground.servers {
        server.start_again(&ground.agent.home);
    }
    ground.until_true("the node is ready", || ground.node_is(&ground.node) == "ready");
    ground.run("next", &sleeper("next", 1));
    ground.single("next", "g");
    assert!(ground.running("stays", "g", 3) == ids, "expected the same allocations");
    assert!(pids(ground, &ids) == before, "expected the same processes");
}
