//! Nomad's verbs, as somebody types them who knows nothing else.

use herdlet_tests::e2e::agent::Agent;

use crate::common::{is_root, job, shell, volume};

#[test]
fn nomads_verbs_do_what_they_say() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {v: {type: host, source: kept}}";
    let mounted = "volume_mounts: [{volume: v, destination: local/data}]";
    let web = format!(
        "{}{}",
        volume("kept"),
        job("web", "service", group, &[shell("t", "echo hello; exec sleep 100000", mounted)])
    );
    let file = agent.manifest(&web).display().to_string();
    assert_eq!(agent.cli(&["job", "plan", &file]).code, 1);
    agent.cli(&["job", "run", "-detach", &file]).success();
    agent.cli(&["wait", "web"]).success();
    assert!(agent.cli(&["job", "status", "web"]).success().stdout.contains("web version 0"));
    let alloc = agent.cli(&["get", "allocs", "-o", "name"]).success().stdout.trim().to_owned();
    assert_eq!(agent.cli(&["alloc", "logs", &alloc, "t"]).success().stdout, "hello\n");
    let told = agent.cli(&["alloc", "exec", "-task", "t", &alloc, "echo", "-n", "hi"]).success().stdout;
    assert_eq!(told, "hi");
    assert!(agent.cli(&["alloc", "status", &alloc]).success().stdout.contains("Task started by client"));
    assert!(agent.cli(&["node", "status"]).success().stdout.contains("${attr.cpu.arch}"));
    let unknown = agent.cli(&["job", "eval", "web"]).ended(2).stderr;
    assert!(unknown.contains("herdlet job run FILE"), "{unknown}");
    // There it means to forget the job, which is so here anyway; it never means the data of volumes.
    agent.cli(&["job", "stop", "-purge", "web"]).success();
    agent.cli(&["wait", "web", "--for=deleted"]);
    assert!(agent.cli(&["get", "volumes"]).success().stdout.contains("kept"));
    agent.cli(&["delete", "volume", "kept", "--purge"]).success();
    agent.finish();
}
