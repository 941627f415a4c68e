//! Work that completes: completions, failures, dispatches, periodic jobs.

use serde_json::Value;

use crate::stock_nomad::{
    cluster::{StockCluster, assert_has, is, text},
    jobs::{ONCE, command, group, job, shell, states},
};

pub(super) fn completes(ground: &mut StockCluster) {
    let body = format!("{ONCE}count = 3\n{}", shell("t", "echo done $NOMAD_ALLOC_INDEX", ""));
    ground.run("ends", &job("ends", "batch", &group("g", &body)));
    ground.until_seen("three are complete", |seen| {
        let allocs = ground.allocs("ends");
        *seen = states(&allocs);
        (allocs.iter().filter(|alloc| is(alloc, "ClientStatus", "complete")).count() == 3).then_some(())
    });
    let id = text(&ground.one_is("ends", "g", "complete"), "ID");
    assert_has(&ground.ok(&["alloc", "logs", &id]), &["done "]);
    assert_has(&ground.ok(&["job", "status", "ends"]), &["dead", "complete"]);
}

pub(super) fn fails(ground: &mut StockCluster) {
    let rules = "restart {\n  attempts = 2\n  interval = \"10m\"\n  delay = \"1s\"\n  mode = \"fail\"\n}\n\
         reschedule {\n  attempts = 1\n  interval = \"10m\"\n  delay = \"5s\"\n  delay_function = \"constant\"\n  unlimited = false\n}\n";
    let body = format!("{rules}{}", shell("t", "exit 7", ""));
    ground.run("fails", &job("fails", "batch", &group("g", &body)));
    let allocs = ground.until_seen("two have failed", |seen| {
        let allocs = ground.allocs("fails");
        *seen = states(&allocs);
        let failed = allocs.iter().filter(|alloc| is(alloc, "ClientStatus", "failed")).count();
        (failed == 2).then_some(allocs)
    });
    for alloc in &allocs {
        assert!(alloc["TaskStates"]["t"]["Restarts"] == 2, "expected two restarts, found {alloc}");
    }
    let id = allocs.first().map(|alloc| text(alloc, "ID")).unwrap_or_default();
    assert_has(&ground.ok(&["alloc", "status", &id]), &["Exit Code: 7", "Not Restarting"]);
}

pub(super) fn no_command(ground: &mut StockCluster) {
    let body = format!("{ONCE}{}", command("t", &["/no/such/command"], ""));
    ground.run("missing", &job("missing", "batch", &group("g", &body)));
    let id = text(&ground.one_is("missing", "g", "failed"), "ID");
    assert_has(&ground.ok(&["alloc", "status", &id]), &["Driver Failure", "/no/such/command"]);
}

pub(super) fn dispatch(ground: &mut StockCluster) {
    let payload = "dispatch_payload {\n  file = \"in.txt\"\n}\n";
    let wants = "parameterized {\n  payload = \"required\"\n  meta_required = [\"who\"]\n}\n";
    let body = format!("{ONCE}{}", shell("t", "cat local/in.txt; echo for $NOMAD_META_who", payload));
    ground.run("asked", &job("asked", "batch", &format!("{wants}{}", group("g", &body))));
    let file = ground.write("txt", "a payload\n");
    let output = ground.ok(&["job", "dispatch", "-detach", "-meta", "who=me", "asked", &file]);
    let child =
        output.split_whitespace().find(|word| word.starts_with("asked/dispatch-")).unwrap_or_default();
    let alloc = ground.one_is(child, "g", "complete");
    let logs = ground.ok(&["alloc", "logs", &text(&alloc, "ID")]);
    assert!(logs == "a payload\nfor me\n", "expected payload and meta, found {logs:?}");
}

pub(super) fn periodic(ground: &mut StockCluster) {
    let when = "periodic {\n  cron = \"0 0 1 1 *\"\n}\n";
    let body = format!("{ONCE}{}", shell("t", "echo now", ""));
    ground.run("yearly", &job("yearly", "batch", &format!("{when}{}", group("g", &body))));
    ground.ok(&["job", "periodic", "force", "-detach", "yearly"]);
    let child = ground.until("its child exists", || {
        let jobs = ground.get("/v1/jobs?prefix=yearly/periodic-")?;
        jobs.as_array()?.first().map(|job: &Value| text(job, "ID"))
    });
    ground.one_is(&child, "g", "complete");
}
