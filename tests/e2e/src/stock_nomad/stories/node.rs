//! The node itself: its status on servers, its own API, drains, purges.

use std::time::Duration;

use crate::{
    http::{self, Peer},
    stock_nomad::{
        cluster::{ApiSide, StockCluster, assert_has, entries, is},
        jobs::{UPDATE, group, job, shell, sleeper},
    },
};

/// Deadline for a node to be reported as ready, on a machine with other loads.
const READY_MAX: Duration = Duration::from_secs(10);

pub(super) fn ready(ground: &mut StockCluster) {
    assert!(ground.ready_in < READY_MAX, "expected {READY_MAX:?} at most, found {:?}", ground.ready_in);
    let shown = ground.ok(&["node", "status", "-verbose", &ground.node]);
    assert_has(
        &shown,
        &["raw_exec", "kernel.name", "cpu.arch", "unique.network.ip-address", "nomad.version"],
    );
    let driver = shown.lines().find(|line| line.trim_start().starts_with("raw_exec")).unwrap_or_default();
    assert!(driver.matches("true").count() >= 2, "expected a detected and healthy driver, found {driver:?}");
    assert_has(
        &ground.ok(&["node", "status", "-stats", &ground.node]),
        &["Host Resource Utilization", "CPU Stats"],
    );
}

pub(super) fn metadata(ground: &mut StockCluster) {
    ground.ok(&["node", "meta", "apply", "-node-id", &ground.node, "shelf=b4"]);
    assert_has(&ground.ok(&["node", "meta", "read", "-node-id", &ground.node]), &["shelf", "b4"]);
    let constraint = "constraint {\n  attribute = \"${meta.shelf}\"\n  value = \"b4\"\n}\n";
    let body = format!("{UPDATE}{constraint}{}", group("g", &shell("t", "exec sleep 100000", "")));
    ground.run("shelved", &job("shelved", "service", &body));
    ground.single("shelved", "g");
}

pub(super) fn node_api(ground: &mut StockCluster) {
    let file = ground.job_file("own", &sleeper("own", 1));
    let plan = ground.at(ApiSide::Node, &["job", "plan", &file]);
    assert!(plan.code == 1, "expected changes in the plan, found {plan:?}");
    let run = ground.at(ApiSide::Node, &["job", "run", "-detach", &file]);
    assert!(run.code == 0, "{run:?}");
    let alloc = ground.single("own", "g");
    let own = ground.at(ApiSide::Node, &["node", "status", "-self"]);
    assert_has(&own.stdout, &[&ground.node, "ready"]);
    for (arguments, wanted) in [
        (&["alloc", "exec", "-i=false", "-t=false", &alloc, "/bin/echo", "by the node"][..], "by the node"),
        (&["alloc", "fs", &alloc, "t"], "local/"),
        (&["alloc", "status", &alloc], "running"),
        (&["job", "status", "own"], "running"),
        (&["node", "config", "-servers"], "127.0.0.1"),
    ] {
        let output = ground.at(ApiSide::Node, arguments);
        assert!(output.code == 0, "{arguments:?}: {output:?}");
        assert_has(&output.stdout, &[wanted]);
    }
    let logs = ground.at(ApiSide::Node, &["alloc", "logs", &alloc]);
    assert!(logs.code == 0 && logs.stdout.is_empty(), "expected an empty log, found {logs:?}");
}

pub(super) fn drained(ground: &mut StockCluster) {
    ground.run("moves", &sleeper("moves", 2));
    ground.running("moves", "g", 2);
    let node = ground.node.clone();
    ground.ok(&["node", "drain", "-enable", "-yes", "-deadline", "5s", &node]);
    ground.until_true("nothing runs", || ground.agent.members().is_empty());
    assert!(
        is(&ground.json(&["node", "status", "-json", &node]), "SchedulingEligibility", "ineligible"),
        "expected an ineligible node"
    );
    ground.ok(&["node", "drain", "-disable", "-yes", &node]);
    ground.running("moves", "g", 2);
}

pub(super) fn collected(ground: &mut StockCluster) {
    ground.run("past", &sleeper("past", 2));
    let ids = ground.running("past", "g", 2);
    let dirs = ground.home().state().join("alloc");
    assert!(ids.iter().all(|id| entries(&dirs.join(id)) > 0), "expected directories of {ids:?}");
    ground.ok(&["job", "stop", "-detach", "past"]);
    for id in &ids {
        ground.becomes(id, "complete");
    }
    ground.until_true("its directories are gone", || {
        ground.ok(&["system", "gc"]);
        ids.iter().all(|id| !dirs.join(id).exists())
    });
}

pub(super) fn purged(ground: &mut StockCluster) {
    let path = format!("/v1/node/{}/purge", ground.node);
    let answer =
        ground.server_ports.first().and_then(|port| http::request(&Peer::Port(*port), "PUT", &path, &[], ""));
    assert!(answer.as_ref().is_some_and(|answer| answer.status == 200), "{answer:?}");
    ground.until_true("the node is ready again", || ground.node_is(&ground.node) == "ready");
    ground.run("after", &sleeper("after", 1));
    ground.single("after", "g");
}
