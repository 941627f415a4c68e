//! Nomad's command line against an agent of its own: each command, with the requests that it sends.
//!
//! The test sends the requests, and writes from the answers which commands work. The page `docs/nomad/commands.md` has the result;
//! with `UPDATE_GOLDEN=1` the test writes it. Four commands have other tests for the request that matters: `monitor` (a stream
//! without an end; the API's tests of streams), `alloc exec` (`agent::`), `job promote` (as `deployment promote` here) and `job start`
//! (`the_source_of_a_registered_job_is_kept`). An answer that is neither a success nor "not built" fails the test.
//!
//! Facts: `hashicorp/nomad:command` of 2.0.5.

use std::{fmt::Write as _, path::Path};

use herdlet_e2e::{
    agent::Agent,
    http::{self, Peer},
    wait,
};
use serde_json::{Value, json};

use crate::common::{is_root, job, on_loopback, sleeper};

/// A command without its flags, and its requests: `METHOD PATH [BODY]`.
struct Command {
    name: &'static str,
    requests: &'static [&'static str],
}

const fn command(name: &'static str, requests: &'static [&'static str]) -> Command {
    Command { name, requests }
}

/// Reads or writes files, or creates keys, without an agent.
const NO_AGENT: &[&str] = &[];

/// In the order in which they are sent: those that stop something are last. `$NAME` is replaced.
const COMMANDS: &[Command] = &[
    command(
        "acl auth-method create, delete, info, list, update",
        &["GET acl/auth-methods", "GET acl/auth-method/x"],
    ),
    command("acl binding-rule create, delete, info, list, update", &["GET acl/binding-rules"]),
    command("acl bootstrap", &["PUT acl/bootstrap"]),
    command("acl policy apply, delete, info, list, self", &["GET acl/policies", "PUT acl/policy/x"]),
    command("acl role create, delete, info, list, update", &["GET acl/roles"]),
    command("acl token create, delete, info, list, self, update", &["GET acl/tokens", "GET acl/token/self"]),
    command("login", &["GET acl/auth-methods"]),
    command("agent-info", &["GET agent/self"]),
    command(
        "alloc checks",
        &["GET allocations?prefix=$ALLOC", "GET allocation/$ALLOC", "GET client/allocation/$ALLOC/checks"],
    ),
    command("alloc exec", &["GET allocations?prefix=$ALLOC", "GET allocation/$ALLOC"]),
    command("alloc fs", &["GET client/fs/stat/$ALLOC?path=/", "GET client/fs/ls/$ALLOC?path=/"]),
    command(
        "alloc logs",
        &["GET allocation/$ALLOC", "GET client/fs/logs/$ALLOC?task=t&type=stdout&plain=true"],
    ),
    command("alloc pause", &["GET client/allocation/$ALLOC/pause"]),
    command("alloc signal", &["PUT client/allocation/$ALLOC/signal {\"Task\":\"t\",\"Signal\":\"SIGCONT\"}"]),
    command("alloc restart", &["PUT client/allocation/$ALLOC/restart {}"]),
    command(
        "alloc status",
        &[
            "GET allocations?prefix=$ALLOC",
            "GET allocation/$ALLOC",
            "GET client/allocation/$ALLOC/stats",
            "GET client/allocation/$ALLOC/checks",
        ],
    ),
    command("check", &["GET agent/self"]),
    command("deployment list", &["GET deployments"]),
    command(
        "deployment status",
        &[
            "GET deployments?prefix=$DEPLOYMENT",
            "GET deployment/$DEPLOYMENT",
            "GET deployment/allocations/$DEPLOYMENT",
        ],
    ),
    command("deployment pause", &["PUT deployment/pause/$RUNNING {\"Pause\":true}"]),
    command("deployment resume", &["PUT deployment/pause/$RUNNING {\"Pause\":false}"]),
    command("deployment promote", &["PUT deployment/promote/$CANARIES {\"All\":true}"]),
    command("deployment fail", &["PUT deployment/fail/$RUNNING {}"]),
    command("deployment unblock", &["PUT deployment/unblock/$RUNNING {}"]),
    command("eval list", &["GET evaluations"]),
    command(
        "eval status",
        &["GET evaluations?prefix=$EVAL", "GET evaluation/$EVAL", "GET evaluation/$EVAL/allocations"],
    ),
    command("eval delete", &["DELETE evaluations {}"]),
    command("job action", &["GET job/web/actions"]),
    command("job allocs", &["GET jobs?prefix=web", "GET job/web/allocations"]),
    command("job deployments", &["GET job/web/deployments", "GET job/web/deployment"]),
    command("job dispatch", &["PUT job/import/dispatch {}"]),
    command("job eval", &["PUT job/web/evaluate {}"]),
    command("job history", &["GET job/web/versions?diffs=true"]),
    command(
        "job inspect",
        &[
            "GET job/web",
            "GET job/web/versions",
            "PUT jobs {\"Job\":$JOB,\"Submission\":{\"Source\":\"x\"}}",
            "GET job/web/submission",
        ],
    ),
    command("job periodic force", &["PUT job/backup/periodic/force"]),
    command("job plan", &["PUT job/web/plan {\"Job\":$JOB,\"Diff\":true}"]),
    command("job promote", &["GET job/web/deployment"]),
    command("job scale", &["PUT job/web/scale {\"Count\":2,\"Target\":{\"Group\":\"g\"}}"]),
    command("job scaling-events", &["GET job/web/scale"]),
    command(
        "job status",
        &[
            "GET jobs",
            "GET job/web",
            "GET job/web/summary",
            "GET job/web/allocations",
            "GET job/web/evaluations",
            "GET job/web/deployment",
        ],
    ),
    command("job tag apply", &["PUT job/web/versions/good/tag {\"Version\":0}"]),
    command("job tag unset", &["DELETE job/web/versions/good/tag"]),
    command("job validate", &["PUT validate/job {\"Job\":$JOB}"]),
    command("license get", &["GET operator/license"]),
    command("monitor", &["GET agent/members"]),
    command("monitor export", &["GET agent/monitor/export"]),
    command("namespace list, inspect, status", &["GET namespaces", "GET namespace/default"]),
    command("namespace apply, delete", &["PUT namespace {}", "DELETE namespace/x"]),
    command("node config", &["GET agent/servers"]),
    command("node identity get, renew", &["GET client/identity"]),
    command("node intro create", &["PUT acl/identity/client-introduction-token {}"]),
    command("node meta read", &["GET client/metadata"]),
    command("node meta apply", &["PUT client/metadata {}"]),
    command(
        "node pool list, info, nodes, jobs",
        &[
            "GET node/pools",
            "GET node/pool/default",
            "GET node/pool/default/nodes",
            "GET node/pool/default/jobs",
        ],
    ),
    command("node pool apply, delete", &["PUT node/pools {}", "DELETE node/pool/x"]),
    command(
        "node status",
        &["GET nodes", "GET node/$NODE", "GET node/$NODE/allocations", "GET client/stats?node_id=$NODE"],
    ),
    command("operator api", &["GET jobs"]),
    command("operator autopilot get-config, set-config, health", &["GET operator/autopilot/configuration"]),
    command("operator debug", &["GET agent/self", "GET agent/host", "GET agent/pprof/heap"]),
    command("operator gossip keyring install, list, remove, use", &["GET agent/keyring/list"]),
    command("operator metrics", &["GET metrics", "GET metrics?format=prometheus"]),
    command(
        "operator raft list-peers, remove-peer, transfer-leadership",
        &["GET operator/raft/configuration"],
    ),
    command(
        "operator root keyring list, remove, rotate",
        &["GET operator/keyring/keys", "PUT operator/keyring/rotate?full=true {}"],
    ),
    command("operator scheduler get-config, set-config", &["GET operator/scheduler/configuration"]),
    command("operator snapshot save, restore", &["GET operator/snapshot"]),
    command("operator utilization", &["PUT operator/utilization"]),
    command("plugin status", &["GET plugins?type=csi"]),
    command("quota apply, delete, inspect, list, status", &["GET quotas"]),
    command("recommendation apply, dismiss, info, list", &["GET recommendations"]),
    command("scaling policy info, list", &["GET scaling/policies"]),
    command("sentinel apply, delete, list, read", &["GET sentinel/policies"]),
    command("server members", &["GET agent/members", "GET status/leader"]),
    command("server force-leave, join", &["PUT agent/force-leave", "PUT agent/join"]),
    command("service list", &["GET services"]),
    command("service info", &["GET service/web"]),
    command("service delete", &["DELETE service/web/$SERVICE"]),
    command("status", &["PUT search {\"Prefix\":\"web\",\"Context\":\"all\"}", "GET jobs?prefix=web"]),
    command("system gc", &["PUT system/gc"]),
    command("system reconcile summaries", &["PUT system/reconcile/summaries"]),
    command("ui", &["GET agent/self"]),
    command("var put", &["PUT var/a/b?cas=0 {\"Items\":{\"x\":\"y\"}}"]),
    command("var get", &["GET var/a/b"]),
    command("var list", &["GET vars?prefix=a/"]),
    command("var lock", &["PUT var/l?lock-acquire {\"Lock\":{\"TTL\":\"15s\",\"LockDelay\":\"15s\"}}"]),
    command("var purge", &["DELETE var/a/b"]),
    command("version", &["GET agent/self"]),
    command("volume status", &["GET volumes?type=csi", "GET volumes?type=host"]),
    command(
        "volume create, delete, deregister, detach, register",
        &["PUT volume/csi/x/create {}", "PUT volume/host/create {}"],
    ),
    command("volume claim list, delete", &["GET volumes/claims"]),
    command("volume snapshot create, delete, list", &["GET volumes/snapshot"]),
    command(
        "job run",
        &[
            "PUT jobs {\"Job\":$JOB}",
            "GET evaluation/$EVAL",
            "GET evaluation/$EVAL/allocations",
            "GET deployment/$DEPLOYMENT",
        ],
    ),
    command(
        "job restart",
        &["GET job/web/allocations", "PUT client/allocation/$ALLOC/restart {\"AllTasks\":true}"],
    ),
    command("alloc stop", &["PUT allocation/$ALLOC/stop {}"]),
    command("job revert", &["PUT job/web/revert {\"JobVersion\":0}"]),
    command("job stop", &["DELETE job/canaries"]),
    command("job start", &["PUT jobs {\"Job\":$JOB}"]),
    command(
        "node eligibility",
        &[
            "PUT node/$NODE/eligibility {\"Eligibility\":\"ineligible\"}",
            "PUT node/$NODE/eligibility {\"Eligibility\":\"eligible\"}",
        ],
    ),
    command(
        "node drain",
        &[
            "PUT node/$NODE/drain {\"DrainSpec\":{\"Deadline\":-1}}",
            "GET node/$NODE",
            "PUT node/$NODE/drain {\"MarkEligible\":true}",
        ],
    ),
    command(
        "agent, config validate, fmt, job init, namespace and pool specifications, setup, tls, var init, volume init",
        NO_AGENT,
    ),
    command(
        "operator client-state, operator raft info, logs, state, operator snapshot inspect, redact, state",
        NO_AGENT,
    ),
];

/// Why commands are not there at all, beside the name of what is not built.
const REASONS: &[(&str, &str)] = &[
    ("access control lists", "one token opens the API"),
    ("operation of a cluster", "there are no servers"),
    ("a cluster of agents", "there are no servers"),
];

/// What commands are about: the replacements of `$NAME`.
struct Subjects(Vec<(&'static str, String)>);

impl Subjects {
    fn of(peer: &Peer) -> Self {
        let read = |path: &str| http::get(peer, &format!("/v1/{path}")).unwrap().json();
        let id = |value: &Value| value["ID"].as_str().unwrap_or_default().to_owned();
        let alloc = wait::until("a running allocation of the newest version", || {
            let allocs = read("job/web/allocations");
            let mut all = allocs.as_array().unwrap().iter();
            all.find(|one| one["ClientStatus"] == "running" && one["JobVersion"] == 1).cloned()
        });
        let running = wait::until("a running deployment", || {
            let found = read("job/slow/deployment");
            (found["Status"] == "running").then(|| id(&found))
        });
        let canaries = wait::until("healthy canaries", || {
            let found = read("job/canaries/deployment");
            let group = &found["TaskGroups"]["g"];
            (group["DesiredCanaries"] == 1 && group["HealthyAllocs"] == 1).then(|| id(&found))
        });
        Self(vec![
            ("$ALLOC", id(&alloc)),
            ("$EVAL", alloc["EvalID"].as_str().unwrap().to_owned()),
            ("$NODE", id(&read("nodes")[0])),
            ("$JOB", read("job/web").to_string()),
            ("$DEPLOYMENT", id(&read("job/web/deployment"))),
            ("$RUNNING", running),
            ("$CANARIES", canaries),
            ("$SERVICE", id(&read("service/web")[0])),
        ])
    }

    fn put_into(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The result of one command: what is not built, or nothing.
fn result(peer: &Peer, subjects: &Subjects, command: &Command) -> Result<Option<String>, String> {
    for request in command.requests {
        let request = subjects.put_into(request);
        let mut words = request.splitn(3, ' ');
        let (method, path, body) =
            (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
        // A task that restarts and a deployment that is about to end refuse requests for a moment.
        let answer = wait::until(command.name, || {
            let answer = http::request(peer, method, &format!("/v1/{path}"), &[], body).unwrap();
            let is_busy = answer.status == 409 || answer.body.contains("while its deployment");
            (!is_busy).then_some(answer)
        });
        let message = answer.body.lines().next().unwrap_or_default();
        match answer.status {
            200..=299 => {}
            501 => return Ok(Some(message.strip_prefix("not supported: ").unwrap_or(message).to_owned())),
            other => return Err(format!("{}: {method} {path}: {other} {message}", command.name)),
        }
    }
    Ok(None)
}

fn started() -> (Agent, Peer) {
    let (mut agent, port) = on_loopback();
    let task = || [sleeper("t", "")];
    let update = "update: {min_healthy_time: 0s, healthy_deadline: 5m, progress_deadline: 10m}";
    let slow = "update: {min_healthy_time: 1h, healthy_deadline: 2h, progress_deadline: 3h}";
    let canary = "update: {canary: 1, min_healthy_time: 0s, healthy_deadline: 5m, progress_deadline: 10m}";
    let services = format!("{update}\nservices: [{{name: web}}]");
    agent.apply_and_wait(&job("web", "service", &services, &task()));
    agent.apply_and_wait(&job("canaries", "service", canary, &task()));
    let changed = [sleeper("t", "env: {A: \"1\"}")];
    for text in [
        job("slow", "service", slow, &task()),
        job("canaries", "service", canary, &changed),
        job("web", "service", &format!("meta: {{a: \"1\"}}\n{services}"), &task()),
        job("import", "batch", "", &task()).replace("  groups:", "  parameterized: {}\n  groups:"),
        job("backup", "batch", "", &task())
            .replace("  groups:", "  periodic: {cron: \"0 4 1 1 *\"}\n  groups:"),
    ] {
        agent.apply(&text);
    }
    let _ = port;
    let peer = agent.peer();
    (agent, peer)
}

#[test]
fn each_nomad_command_works_or_names_the_feature() {
    if !is_root() {
        return;
    }
    let (agent, peer) = started();
    let subjects = Subjects::of(&peer);
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut unexplained = Vec::new();
    for command in COMMANDS {
        match result(&peer, &subjects, command) {
            Ok(None) if command.requests.is_empty() => rows.push((command.name, "needs no agent".to_owned())),
            Ok(None) => rows.push((command.name, "works".to_owned())),
            Ok(Some(feature)) => {
                let reason = REASONS.iter().find(|(known, _)| *known == feature);
                let reason = reason.map(|(_, why)| format!(" ({why})")).unwrap_or_default();
                rows.push((command.name, format!("501: {feature}{reason}")));
            }
            Err(why) => unexplained.push(why),
        }
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    rows.sort();
    let mut table = "| command | against an agent of its own |\n| --- | --- |\n".to_owned();
    for (command, result) in &rows {
        let _ = writeln!(table, "| `{command}` | {result} |");
    }
    check_page(&table);
    drop(agent);
}

/// Compares the table with the page, or writes it there.
fn check_page(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nomad/commands.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- table -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    let wanted = format!("{before}<!-- table -->\n{table}<!-- end -->{after}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    assert_eq!(page, wanted, "UPDATE_GOLDEN=1 writes the page");
}

/// `job run` follows the deployment of its evaluation, and fails with it.
#[test]
fn a_registration_leads_to_the_deployment_that_fails() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    let peer = agent.peer();
    let update = "update: {min_healthy_time: 0s, healthy_deadline: 5m, progress_deadline: 0s}\n\
                  restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0}";
    agent.apply_and_wait(&job("web", "service", update, &[sleeper("t", "")]));
    let read = |path: &str| http::get(&peer, &format!("/v1/{path}")).unwrap().json();
    let mut broken = read("job/web");
    broken["TaskGroups"][0]["Tasks"][0]["Config"] = json!({ "command": "/nonexistent" });
    let index = broken["JobModifyIndex"].as_u64().unwrap();
    let register = |index: u64| {
        let body = json!({ "Job": broken, "EnforceIndex": true, "JobModifyIndex": index }).to_string();
        http::request(&peer, "PUT", "/v1/jobs", &[], &body).unwrap()
    };
    let refused = register(index + 1);
    assert!(refused.body.contains("Enforcing job modify index"), "{} {}", refused.status, refused.body);
    let eval = register(index).json()["EvalID"].as_str().unwrap().to_owned();
    let shown = read(&format!("evaluation/{eval}"));
    let id = shown["DeploymentID"].as_str().unwrap();
    assert!(!id.is_empty(), "{shown}");
    let failed = wait::until("the end of the deployment", || {
        let deployment = read(&format!("deployment/{id}"));
        (deployment["Status"] != "running").then_some(deployment)
    });
    assert_eq!(failed["Status"], "failed", "{failed}");
    let placed = read(&format!("evaluation/{eval}/allocations"));
    assert_eq!(placed[0]["EvalID"], eval.as_str(), "{placed}");
    agent.finish();
}

/// `job inspect -hcl` and `job start` read the text that `job run` has sent.
#[test]
fn the_source_of_a_registered_job_is_kept() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "")]));
    let peer = agent.peer();
    let whole = http::get(&peer, "/v1/job/web").unwrap().json();
    let send = |method: &str, path: &str, body: &Value| {
        let answer = http::request(&peer, method, path, &[], &body.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.json()
    };
    let register = |source: &str, priority: u64| {
        let mut job = whole.clone();
        job["Priority"] = priority.into();
        let submission =
            json!({ "Source": source, "Format": "hcl2", "VariableFlags": {"a": "1"}, "Variables": "b = 2" });
        send("PUT", "/v1/jobs", &json!({ "Job": job, "Submission": submission }))
    };
    let read = |version: u64| http::get(&peer, &format!("/v1/job/web/submission?version={version}")).unwrap();
    let missing = |version: u64| {
        let answer = read(version);
        assert_eq!((answer.status, answer.body.trim()), (404, "job source not found"), "version {version}");
    };
    // It was applied without a source; a job that does not exist has none.
    missing(0);
    assert_eq!(http::get(&peer, "/v1/job/other/submission?version=0").unwrap().status, 404);

    assert_eq!(register("one", 60)["JobVersion"], 1);
    assert_eq!(register("two", 70)["JobVersion"], 2);
    for (version, source) in [(1, "one"), (2, "two")] {
        let found = read(version).json();
        let shown = (&found["Source"], &found["Format"], &found["VariableFlags"]["a"], &found["Variables"]);
        assert_eq!(
            shown,
            (&json!(source), &json!("hcl2"), &json!("1"), &json!("b = 2")),
            "version {version}"
        );
        assert_eq!((&found["JobID"], &found["Version"]), (&json!("web"), &json!(version)));
    }
    // A stop, and a revert, make versions with the same content.
    send("DELETE", "/v1/job/web", &Value::Null);
    assert_eq!(read(3).json()["Source"], "two");
    send("PUT", "/v1/job/web/revert", &json!({ "JobVersion": 1 }));
    assert_eq!(read(4).json()["Source"], "one");

    agent.crash();
    assert_eq!(read(2).json()["Source"], "two", "after a restart");

    // Nomad does not store more than a megabyte.
    let answer = register(&"x".repeat(1_000_001), 80);
    let warnings = answer["Warnings"].as_str().unwrap();
    assert!(warnings.contains("is not stored: it has 1000008 bytes, more than 1000000"), "{warnings}");
    missing(5);

    let stored = || std::fs::read_dir(agent.home.state().join("submissions")).unwrap().count();
    assert_eq!(stored(), 2);
    // Variables may be secret: they go with their job.
    agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("the texts of the deleted job are removed", || stored() == 0);
    // Another job with this name does not inherit them.
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "")]));
    missing(0);
    agent.finish();
}
