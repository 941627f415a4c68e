//! Lost contact: an agent that is frozen for longer than the servers wait, frozen servers.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    host,
    stock_nomad::{
        cluster::StockCluster,
        jobs::{UPDATE, group, job, shell},
        stock::Stock,
    },
};

/// Deadline for a node to be ready after its agent continues, on a machine with other loads.
const READY_MAX: Duration = Duration::from_secs(8);

/// Returns a service with one task, whose group has these lines.
fn one(name: &str, lines: &str) -> String {
    let body = format!("{lines}{}", shell("t", "exec sleep 100000", ""));
    job(name, "service", &format!("{UPDATE}{}", group("g", &body)))
}

/// Freezes the agent until the servers report `status` for the node, then continues it.
fn hold(ground: &StockCluster, status: &str) {
    host::signal(ground.agent.pid(), Signal::STOP);
    ground.until_seen(&format!("the node is {status}"), |seen| {
        *seen = ground.node_is(&ground.node);
        (seen == status).then_some(())
    });
    host::signal(ground.agent.pid(), Signal::CONT);
    let began = Instant::now();
    ground.until_true("the node is ready", || ground.node_is(&ground.node) == "ready");
    let took = began.elapsed();
    assert!(took < READY_MAX, "expected that the node is ready within {READY_MAX:?}, found {took:?}");
}

pub(super) fn silent(ground: &mut StockCluster) {
    ground.run("plain", &one("plain", ""));
    let id = ground.single("plain", "g");
    let before = ground.pid(&id, "t");
    hold(ground, "down");
    ground.until_true("the old process has ended", || !host::is_alive(before));
    let next = ground.until("another allocation runs", || {
        let ids = crate::stock_nomad::jobs::of(&ground.allocs("plain"), "g", |alloc| {
            alloc["DesiredStatus"] == "run" && alloc["ClientStatus"] == "running"
        });
        ids.into_iter().find(|other| *other != id)
    });
    ground.pid(&next, "t");
    assert!(ground.pids(&id, "t").is_empty(), "expected no process of {id}");
}

pub(super) fn kept_by_max(ground: &mut StockCluster) {
    kept(ground, "max_client_disconnect = \"5m\"\n");
}

pub(super) fn kept_by_disconnect(ground: &mut StockCluster) {
    kept(
        ground,
        "disconnect {\n  lost_after = \"5m\"\n  replace = true\n  reconcile = \"keep_original\"\n}\n",
    );
}

fn kept(ground: &mut StockCluster, lines: &str) {
    ground.run("kept", &one("kept", lines));
    let id = ground.single("kept", "g");
    ground.deployment("kept", 0, "successful");
    let before = ground.pid(&id, "t");
    hold(ground, "disconnected");
    assert!(ground.single("kept", "g") == id, "expected the same allocation");
    assert!(ground.pid(&id, "t") == before, "expected the same process");
}

pub(super) fn stopped_by_after(ground: &mut StockCluster) {
    stopped(ground, "stop_after_client_disconnect = \"4s\"\n");
}

pub(super) fn stopped_by_disconnect(ground: &mut StockCluster) {
    stopped(ground, "disconnect {\n  stop_on_client_after = \"4s\"\n  replace = false\n}\n");
}

fn stopped(ground: &mut StockCluster, lines: &str) {
    ground.run("stays", &one("stays", ""));
    ground.run("stops", &one("stops", lines));
    let (stays, stops) = (ground.single("stays", "g"), ground.single("stops", "g"));
    let (stays, stops) = (ground.pid(&stays, "t"), ground.pid(&stops, "t"));
    ground.servers.iter().for_each(|server: &Stock| server.signal(Signal::STOP));
    ground.until_true("it has ended", || !host::is_alive(stops));
    assert!(host::is_alive(stays), "expected that allocations without this setting keep running");
    ground.servers.iter().for_each(|server| server.signal(Signal::CONT));
    ground.until_true("the node is ready", || ground.node_is(&ground.node) == "ready");
    ground.single("stays", "g");
}
