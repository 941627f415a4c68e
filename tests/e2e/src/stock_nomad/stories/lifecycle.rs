//! Tasks with a lifecycle.

use crate::stock_nomad::{
    cluster::{StockCluster, assert_has},
    jobs::{ONCE, UPDATE, group, job, shell},
};

fn hook(name: &str, more: &str) -> String {
    format!("lifecycle {{\n  hook = \"{name}\"\n{more}}}\n")
}

pub(super) fn order(ground: &mut StockCluster) {
    let says = |name: &str| format!("echo {name} >> $NOMAD_ALLOC_DIR/data/order");
    let waits = |name: &str| format!("{}; exec sleep 100000", says(name));
    let tasks = [
        shell("init", &says("init"), &hook("prestart", "")),
        shell("side", &format!("exec {}", "sleep 100000"), &hook("prestart", "  sidecar = true\n")),
        shell("main", &waits("main"), ""),
        shell("post", &format!("sleep 0.5; {}", says("post")), &hook("poststart", "")),
        shell("last", &format!("{}; echo bye", says("last")), &hook("poststop", "")),
    ];
    ground.run("life", &job("life", "service", &format!("{UPDATE}{}", group("g", &tasks.concat()))));
    let id = ground.single("life", "g");
    ground.deployment("life", 0, "successful");
    let order = |ground: &StockCluster| ground.ok(&["alloc", "fs", &id, "alloc/data/order"]);
    ground.until_seen("init, main and post have written", |seen| {
        *seen = order(ground);
        (seen == "init\nmain\npost\n").then_some(())
    });
    ground.pid(&id, "side");
    ground.ok(&["job", "stop", "-detach", "life"]);
    let alloc = ground.becomes(&id, "complete");
    for task in ["init", "side", "main", "post", "last"] {
        let state = &alloc["TaskStates"][task];
        assert!(
            state["State"] == "dead" && state["Failed"] == false,
            "expected that {task} succeeded, found {state}"
        );
    }
    assert_has(&order(ground), &["post\nlast\n"]);
    assert_has(&ground.ok(&["alloc", "logs", &id, "last"]), &["bye"]);
}

pub(super) fn leader(ground: &mut StockCluster) {
    let tasks = [shell("leads", "sleep 1", "  leader = true\n"), shell("follows", "exec sleep 100000", "")];
    ground.run("led", &job("led", "batch", &group("g", &format!("{ONCE}{}", tasks.concat()))));
    let alloc = ground.one_is("led", "g", "complete");
    let state = &alloc["TaskStates"]["follows"];
    assert!(
        state["State"] == "dead" && state["Failed"] == false,
        "expected that the agent ended it, found {state}"
    );
}
