//! `apply --prune` deletes the jobs that an earlier apply of the same set brought in, and only those.

use std::fs;

use herdlet_e2e::agent::{Agent, Setup};
use serde_json::Value;

use crate::common::{is_root, job, sleeper};

fn sleeping(name: &str) -> String {
    job(name, "service", "", &[sleeper("t", "")])
}

fn jobs(agent: &Agent) -> Vec<String> {
    agent.cli(&["get", "jobs", "-o", "name"]).success().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn only_jobs_missing_from_their_set_are_pruned() {
    if !is_root() {
        return;
    }
    let ground = tempfile::tempdir().unwrap();
    let (folder, shop) = (ground.path().join("folder"), ground.path().join("shop"));
    for dir in [&folder, &shop] {
        fs::create_dir(dir).unwrap();
    }
    // Its own manifest has the set's label, but its folder owns it.
    let owned = sleeping("owned").replace("{name: owned}", "{name: owned, labels: {herdlet/set: shop}}");
    fs::write(folder.join("owned.yaml"), owned).unwrap();
    let setup = Setup::default().argument("--manifests").argument(folder.display().to_string());
    let mut agent = Agent::start_with(setup);
    agent.apply_and_wait(&sleeping("free"));
    let write = |name: &str| fs::write(shop.join(format!("{name}.yaml")), sleeping(name)).unwrap();
    let shop_path = shop.display().to_string();
    write("web");
    write("old");
    agent.cli(&["apply", "-f", &shop_path, "--prune", "shop", "--wait"]).success();
    assert_eq!(jobs(&agent), ["free", "old", "owned", "web"]);

    // `diff` shows the deletion and changes nothing.
    fs::remove_file(shop.join("old.yaml")).unwrap();
    let differs = agent.cli(&["diff", "-f", &shop_path, "--prune", "shop"]).ended(1).stdout;
    assert!(
        differs.contains("- job/old") && !differs.contains("free") && !differs.contains("web"),
        "{differs}"
    );
    agent.cli(&["diff", "-f", &shop_path, "--prune", "blog"]).ended(2);
    let other = agent.cli(&["apply", "-f", &shop_path, "--prune", "blog"]).ended(1).stderr;
    assert!(other.contains("job \"web\" belongs to the set \"shop\""), "{other}");
    assert_eq!(jobs(&agent), ["free", "old", "owned", "web"]);

    let applied = agent.cli(&["apply", "-f", &shop_path, "--prune", "shop", "-o", "json"]).success();
    let report: Value = serde_json::from_str(&applied.stdout).unwrap();
    assert_eq!(report["pruned"][0]["id"], "old");
    assert_eq!(report["jobs"][0]["change"], "unchanged");
    assert!(applied.stderr.contains("owned.yaml"), "jobs of a folder stay: {}", applied.stderr);
    agent.cli(&["wait", "old", "--for=deleted"]);
    assert_eq!(jobs(&agent), ["free", "owned", "web"]);

    // After an apply without a set it belongs to none, and no later apply deletes it.
    agent.cli(&["apply", "-f", &shop_path, "--wait"]).success();
    fs::remove_file(shop.join("web.yaml")).unwrap();
    write("new");
    agent.cli(&["apply", "-f", &shop_path, "--prune", "shop", "--wait"]).success();
    assert_eq!(jobs(&agent), ["free", "new", "owned", "web"]);
    fs::remove_file(folder.join("owned.yaml")).unwrap();
    agent.cli(&["wait", "owned", "--for=deleted"]);
    agent.cli(&["delete", "free", "new", "web", "--wait"]).success();
    agent.finish();
}
