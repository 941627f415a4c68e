//! New versions: promoted canaries, reverted failures.

use crate::stock_nomad::{
    cluster::{StockCluster, assert_has},
    jobs::{ONCE, group, job, shell, states},
};

/// Returns a service with two allocations whose task writes its version and then runs `script`.
fn version(name: &str, update: &str, says: &str, script: &str) -> String {
    let update = format!(
        "update {{\n  max_parallel = 1\n  min_healthy_time = \"1s\"\n  healthy_deadline = \"15s\"\n  progress_deadline = \"30s\"\n{update}}}\n"
    );
    let body = format!("count = 2\n{ONCE}{}", shell("t", &format!("echo {says}; {script}"), ""));
    // To be reverted and never rescheduled, a service needs explicit blocks.
    job(name, "service", &format!("{update}{}", group("g", &body)))
}

const GOOD: &str = "exec sleep 100000";

pub(super) fn promoted(ground: &mut StockCluster) {
    let text = |says: &str| version("canary", "  canary = 1\n", says, GOOD);
    ground.run("canary", &text("one"));
    ground.deployment("canary", 0, "successful");
    let old = ground.running("canary", "g", 2);
    ground.run("canary", &text("two"));
    ground.until_seen("the canary is healthy beside the old ones", |seen| {
        let allocs = ground.allocs("canary");
        *seen = states(&allocs);
        let is_healthy = |alloc: &&serde_json::Value| {
            alloc["JobVersion"] == 1
                && alloc["DeploymentStatus"]["Canary"] == true
                && alloc["DeploymentStatus"]["Healthy"] == true
        };
        allocs.iter().find(is_healthy).map(|_| ())
    });
    assert!(
        ground.running("canary", "g", 3).iter().filter(|id| old.contains(id)).count() == 2,
        "expected the old allocations"
    );
    ground.ok(&["job", "promote", "-detach", "canary"]);
    ground.deployment("canary", 1, "successful");
    for id in ground.running("canary", "g", 2) {
        assert_has(&ground.ok(&["alloc", "logs", &id]), &["two"]);
    }
}

pub(super) fn reverted(ground: &mut StockCluster) {
    let text = |says: &str, script: &str| version("revert", "  auto_revert = true\n", says, script);
    ground.run("revert", &text("good", GOOD));
    ground.deployment("revert", 0, "successful");
    ground.run("revert", &text("bad", "exit 1"));
    let failed = ground.deployment("revert", 1, "failed");
    assert_has(&failed.to_string(), &["rolling back to job version 0"]);
    ground.deployment("revert", 2, "successful");
    for id in ground.running("revert", "g", 2) {
        assert_has(&ground.ok(&["alloc", "logs", &id]), &["good"]);
    }
}
