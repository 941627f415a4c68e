//! Services, system jobs, and what isn't built.

use crate::stock_nomad::{
    cluster::{StockCluster, assert_has, is, text},
    jobs::{UPDATE, command, group, job, shell, sleeper, states},
};

pub(super) fn three(ground: &mut StockCluster) {
    ground.run("three", &sleeper("three", 3));
    let ids = ground.running("three", "g", 3);
    ground.deployment("three", 0, "successful");
    let allocs = ground.allocs("three");
    let healthy = allocs.iter().filter(|alloc| alloc["DeploymentStatus"]["Healthy"] == true).count();
    assert!(healthy == 3, "expected three healthy allocations, found {healthy} of {}", states(&allocs));
    for id in &ids {
        ground.pid(id, "t");
    }
    let id = ids.first().cloned().unwrap_or_default();
    assert_has(
        &ground.ok(&["alloc", "status", "-stats", &id]),
        &["Task started by client", "Memory Stats", "RSS"],
    );
    ground.ok(&["job", "stop", "-detach", "three"]);
    for id in &ids {
        ground.becomes(id, "complete");
    }
}

pub(super) fn unbuilt(ground: &mut StockCluster) {
    let template = "template {\n  data = \"hello\"\n  destination = \"local/x\"\n}\n";
    let body = format!("{UPDATE}{}", group("g", &shell("t", "exec sleep 100000", template)));
    ground.run("unbuilt", &job("unbuilt", "service", &body));
    let alloc = ground.one_is("unbuilt", "g", "failed");
    let shown = ground.ok(&["alloc", "status", &text(&alloc, "ID")]);
    assert_has(&shown, &["Setup Failure", "template"]);
    ground.until_seen("its deployment hears that it is unhealthy", |seen| {
        let allocs = ground.allocs("unbuilt");
        *seen = states(&allocs);
        allocs.iter().any(|alloc| alloc["DeploymentStatus"]["Healthy"] == false).then_some(())
    });
}

pub(super) fn system(ground: &mut StockCluster) {
    let tasks = command("t", &["/bin/sleep", "100000"], "");
    ground.run("everywhere", &job("everywhere", "system", &group("g", &tasks)));
    let id = ground.single("everywhere", "g");
    assert!(is(&ground.alloc(&id), "NodeID", &ground.node), "expected the allocation on the agent's node");
    ground.ok(&["job", "stop", "-detach", "everywhere"]);
    ground.becomes(&id, "complete");
}
