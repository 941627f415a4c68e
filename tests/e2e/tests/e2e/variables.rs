//! Variables on a real agent: the command line, crashes, keys, backup and restore, locks, and where secrets must not appear.

mod requests;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, wait,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    common::{is_root, on_loopback},
    templates::users_of_a_secret,
};

const SECRET: &str = "planted-secret-0815-4711";

/// Writes a file that only its owner can read.
fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The files below a directory that contain a text.
fn containing(dir: &Path, text: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            containing(&path, text, found);
        } else if fs::read(&path)
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn the_commands_behave_as_nomads() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let file = |name: &str| agent.home.path().join(name).display().to_string();
    private(Path::new(&file("secret")), SECRET);
    let from_file = format!("password=@{}", file("secret"));
    let put = agent.cli(&["var", "put", "nomad/jobs/web", "user=me", &from_file]).success();
    assert!(put.stdout.contains("variable nomad/jobs/web created: its index is 2"), "{}", put.stdout);
    assert!(!put.stdout.contains(SECRET), "put prints no value");
    let got: Value =
        serde_json::from_str(&agent.cli(&["var", "get", "nomad/jobs/web"]).success().stdout).unwrap();
    assert_eq!(got["Items"], json!({ "user": "me", "password": SECRET }));
    assert_eq!(agent.cli(&["var", "get", "-item", "password", "nomad/jobs/web"]).success().stdout, SECRET);
    agent.cli(&["var", "get", "--item", "none", "nomad/jobs/web"]).ended(1);
    // It exists, so it takes an index or force.
    let refused = agent.cli(&["var", "put", "nomad/jobs/web", "user=you"]).ended(1);
    assert!(
        refused.stderr.contains("already, with index 2") && !refused.stderr.contains(SECRET),
        "{}",
        refused.stderr
    );
    agent.cli(&["var", "put", "-check-index", "1", "nomad/jobs/web", "user=you"]).ended(1);
    agent.cli(&["var", "put", "-check-index=2", "nomad/jobs/web", "user=you"]).success();
    agent.cli(&["var", "put", "-force", "nomad/jobs/web", "user=they"]).success();
    // Printed in HCL, changed, and written again.
    let hcl = agent.cli(&["var", "get", "--out", "hcl", "nomad/jobs/web"]).success().stdout;
    agent.home.write("spec.nv.hcl", &hcl);
    let spec = format!("@{}", file("spec.nv.hcl"));
    let put = agent.cli(&["var", "put", "--out", "json", &spec, "more=x"]).success();
    assert_eq!(
        serde_json::from_str::<Value>(&put.stdout).unwrap()["Items"],
        json!({ "user": "they", "more": "x" })
    );
    agent.cli(&["var", "put", &spec, "more=y"]).ended(1);
    agent.cli(&["var", "put", "--namespace", "prod", &spec]).success();
    let list = agent.cli(&["var", "list", "-q", "--namespace", "*"]).success().stdout;
    assert_eq!(list, "default|nomad/jobs/web\nprod|nomad/jobs/web\n");
    let list: Value =
        serde_json::from_str(&agent.cli(&["var", "list", "-o", "json"]).success().stdout).unwrap();
    assert_eq!(
        (&list["apiVersion"], &list["variables"][0]["Path"]),
        (&json!("herdlet/v1"), &json!("nomad/jobs/web"))
    );
    agent.cli(&["var", "purge", "-check-index", "2", "nomad/jobs/web"]).ended(1);
    agent.cli(&["var", "purge", "nomad/jobs/web"]).success();
    let missing = agent.cli(&["var", "get", "nomad/jobs/web"]).ended(1);
    assert!(missing.stderr.contains("there is no variable nomad/jobs/web"), "{}", missing.stderr);
    let example = file("example.hcl");
    agent.cli(&["var", "init", &example]).success();
    agent.cli(&["var", "put", &format!("@{example}")]).success();
    agent.finish();
}

#[test]
fn a_planted_secret_appears_nowhere_else() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().argument("--log-level").argument("trace"));
    let peer = agent.peer();
    let put = |path: &str, value: &str| {
        let body = json!({ "Items": { "password": value } }).to_string();
        http::request(&peer, "PUT", &format!("/v1/var/{path}"), &[], &body).unwrap().status
    };
    assert_eq!(put("nomad/jobs/web", SECRET), 200);
    assert_eq!(put("nomad/jobs/wrong", SECRET), 200);
    assert_eq!(put("nomad/jobs/web?cas=1", SECRET), 409);
    agent.apply(&users_of_a_secret());
    agent.cli(&["wait", "web"]).success();
    let alloc = agent.alloc("web.g[0]").unwrap().id();
    agent.until_printed(&["describe", "web"], |text| {
        text.contains("successfully ran script") && text.contains("exited with code: 2")
    });
    agent.until_printed(&["describe", "wrong"], |text| text.contains("Template failed"));
    assert_eq!(put("not.valid", SECRET), 400);
    let wrong = json!({ "Items": { "password": [SECRET] } }).to_string();
    assert_eq!(http::request(&peer, "PUT", "/v1/var/a", &[], &wrong).unwrap().status, 400);
    let locked = http::request(&peer, "PUT", "/v1/var/lock?lock-acquire", &[], "{}").unwrap().json();
    let lock = locked["Lock"]["ID"].as_str().unwrap().to_owned();
    assert_eq!(agent.cli(&["var", "get", "--item", "password", "nomad/jobs/web"]).success().stdout, SECRET);
    agent.crash();
    assert_eq!(agent.cli(&["var", "get", "--item", "password", "nomad/jobs/web"]).success().stdout, SECRET);
    agent.cli(&["var", "key", "rotate"]).success();
    for secret in [SECRET, lock.as_str()] {
        for path in [
            "vars?namespace=*",
            "metrics",
            "agent/self",
            "agent/health",
            "operator/keyring/keys",
            "herdlet/status",
            "herdlet/overview",
            "herdlet/transitions",
            "jobs",
            "namespaces",
            "allocations",
            "job/web",
            "job/wrong/allocations",
            &format!("allocation/{alloc}"),
        ] {
            let shown = http::get(&peer, &format!("/v1/{path}")).unwrap().body;
            assert!(!shown.contains(secret), "{path} shows it");
        }
        for words in [
            &["status"][..],
            &["doctor"],
            &["get", "events"],
            &["config", "view"],
            &["var", "list"],
            &["var", "key", "list"],
            &["explain", "web"],
            &["explain", "wrong"],
            &["describe", "web"],
            &["describe", "wrong"],
            &["get", "allocs", "-o", "json"],
            &["get", "job", "web", "-o", "json"],
        ] {
            let output = agent.cli(words);
            assert!(!format!("{}{}", output.stdout, output.stderr).contains(secret), "{words:?} shows it");
        }
        assert!(!agent.log().contains(secret), "the log has it");
    }
    let mut found = Vec::new();
    containing(agent.home.path(), SECRET, &mut found);
    // These are in memory.
    let own = agent.home.state().join("alloc").join(&alloc).join("t").display().to_string();
    let is_in_memory = |path: &String| {
        ["secrets/conf", "secrets/env", "secrets/failing", "private/templates.json"]
            .iter()
            .any(|file| *path == format!("{own}/{file}"))
    };
    let in_memory = found.extract_if(.., |path| is_in_memory(path)).count();
    assert_eq!(in_memory, 4, "the task has it");
    assert!(found.is_empty(), "these files have the secret: {found:?}");
    for (pid, arguments) in herdlet_e2e::host::processes_naming(agent.home.path()) {
        assert!(!arguments.contains(SECRET), "arguments of {pid}");
    }
    // Every access has its audit line, with the caller.
    let log = agent.log();
    for parts in [
        ["operation=\"write\"", "path=\"nomad/jobs/web\"", "result=\"ok\"", "uid 0 on the socket"],
        [
            "operation=\"write\"",
            "path=\"nomad/jobs/web\"",
            "result=\"refused: conflict\"",
            "uid 0 on the socket",
        ],
        ["operation=\"write\"", "path=\"not.valid\"", "result=\"refused: invalid\"", "uid 0 on the socket"],
        ["operation=\"read\"", "path=\"nomad/jobs/web\"", "result=\"ok\"", "uid 0 on the socket"],
    ] {
        assert!(log.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{parts:?}\n{log}");
    }
    agent.finish();
}

/// Numbers are written one after the other while the agent is killed again and again.
#[test]
fn kills_lose_no_acknowledged_variable() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let peer = agent.peer();
    let mut acknowledged = [0u64; 4];
    for kill in 0..8u64 {
        // Some of the writes are acknowledged, one may be under way.
        for round in 0..=kill {
            let number = kill * 100 + round + 1;
            let at = usize::try_from(number % 4).unwrap();
            let body = json!({ "Items": { "number": number.to_string() } }).to_string();
            let path = format!("/v1/var/counter/{at}");
            if round < kill {
                let answer = http::request(&peer, "PUT", &path, &[], &body).unwrap();
                assert_eq!(answer.status, 200, "{}", answer.body);
                acknowledged[at] = number;
            } else {
                drop(http::ask(&agent.home.socket(), "PUT", &path, &body));
            }
        }
        agent.crash();
        for (at, number) in acknowledged.iter_mut().enumerate().filter(|(_, number)| **number > 0) {
            let found = http::get(&peer, &format!("/v1/var/counter/{at}")).unwrap().json();
            let now: u64 = found["Items"]["number"].as_str().unwrap().parse().unwrap();
            assert!(now >= *number, "counter {at} is {now}, and {number} was acknowledged");
            *number = now;
        }
    }
    assert!(!agent.home.state().join("damaged").exists());
    agent.finish();
}

#[test]
fn keys_rotate_and_a_backup_is_restored() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    for path in ["a", "b", "c"] {
        agent.cli(&["var", "put", path, &format!("x={path}")]).success();
    }
    let keys = |agent: &Agent| -> Value {
        serde_json::from_str::<Value>(&agent.cli(&["var", "key", "list", "-o", "json"]).success().stdout)
            .unwrap()["keys"]
            .clone()
    };
    let old = keys(&agent)[0]["id"].as_str().unwrap().to_owned();
    // A backup from before the rotation.
    agent.terminate();
    let archive = agent.home.path().join("backup.tar");
    let tar = |arguments: &[&str]| {
        let done =
            Command::new("tar").args(["-C", agent.home.path().to_str().unwrap()]).args(arguments).status();
        assert!(done.unwrap().success());
    };
    let state = agent.home.state().file_name().unwrap().to_str().unwrap().to_owned();
    tar(&["-cf", archive.to_str().unwrap(), &state]);
    agent.launch();
    agent.cli(&["var", "key", "rotate"]).success();
    wait::until_true("all variables have the new key", || keys(&agent)[0]["variables"] == 3);
    assert_eq!((&keys(&agent)[1]["id"], &keys(&agent)[1]["state"]), (&json!(old), &json!("inactive")));
    agent.cli(&["var", "key", "remove", &old]).success();
    agent.crash();
    assert_eq!(agent.cli(&["var", "get", "-item", "x", "b"]).success().stdout, "b");
    agent.cli(&["var", "purge", "a"]).success();
    // The backup has variables and keys, so it is complete.
    agent.terminate();
    fs::remove_dir_all(agent.home.state()).unwrap();
    let home = agent.home.path().to_str().unwrap().to_owned();
    let done = Command::new("tar").args(["-C", &home, "-xf", archive.to_str().unwrap()]).status();
    assert!(done.unwrap().success());
    agent.launch();
    for path in ["a", "b", "c"] {
        assert_eq!(agent.cli(&["var", "get", "-item", "x", path]).success().stdout, path);
    }
    agent.finish();
}

#[test]
fn a_lost_key_is_reported_and_comes_back() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.cli(&["var", "put", "a", "x=1"]).success();
    agent.terminate();
    let (keys, away) = (agent.home.state().join("keys/variables"), agent.home.path().join("away"));
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);
    fs::rename(&keys, &away).unwrap();
    agent.launch();
    let named = format!("the key file {} is missing", keys.display());
    for words in [&["var", "get", "a"][..], &["var", "put", "b", "x=1"]] {
        let refused = agent.cli(words).ended(1);
        assert!(refused.stderr.contains(&named), "{}", refused.stderr);
    }
    let status = agent.cli(&["status"]).success();
    assert!(format!("{}{}", status.stdout, status.stderr).contains(&named), "{status:?}");
    let state = agent.home.state().display().to_string();
    let doctor = agent.cli(&["doctor", "--state-dir", &state]);
    assert!(doctor.stdout.contains(&named), "{}", doctor.stdout);
    agent.cli(&["var", "list"]).success();
    // A file of the operator with another key does not help, and destroys nothing.
    let other = agent.home.path().join("other");
    private(&other, "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n");
    fs::copy(&other, &keys).unwrap();
    let refused = agent.cli(&["var", "get", "a"]).ended(1);
    assert!(refused.stderr.contains("which 1 variables need"), "{}", refused.stderr);
    fs::rename(&away, &keys).unwrap();
    assert_eq!(agent.cli(&["var", "get", "-item", "x", "a"]).success().stdout, "1", "no restart is needed");
    agent.finish();
}

#[test]
fn keys_of_the_operator_are_reloaded() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    agent.cli(&["var", "put", "a", "x=1"]).success();
    agent.terminate();
    // From a generated key to a file of the operator: the new key encrypts, the old one still decrypts.
    let file = agent.home.path().join("variables-key");
    private(&file, "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n");
    let config = fs::read_to_string(agent.home.path().join("config.yaml")).unwrap();
    agent.home.write("config.yaml", &format!("variables: {{key_file: {}}}\n{config}", file.display()));
    agent.launch();
    let encrypted = |agent: &Agent, at: usize| {
        let list = agent.cli(&["var", "key", "list", "-o", "json"]).success().stdout;
        serde_json::from_str::<Value>(&list).unwrap()["keys"][at]["variables"].clone()
    };
    wait::until_true("the operator's key is used", || encrypted(&agent, 0) == 1);
    let refused = agent.cli(&["var", "key", "rotate"]).ended(1);
    assert!(
        refused.stderr.contains("add a key as the first line, and reload the agent"),
        "{}",
        refused.stderr
    );
    private(
        &file,
        "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU=\nMDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n",
    );
    herdlet_e2e::host::signal(agent.pid(), Signal::HUP);
    let first_is_used = || {
        let list = agent.cli(&["var", "key", "list", "-o", "json"]).success().stdout;
        let keys = serde_json::from_str::<Value>(&list).unwrap()["keys"].clone();
        keys.as_array().unwrap().len() == 3 && keys[0]["variables"] == 1
    };
    wait::until_true("the new first key is used", first_is_used);
    assert_eq!(agent.cli(&["var", "get", "-item", "x", "a"]).success().stdout, "1");
    agent.finish();
}

#[test]
fn a_command_runs_while_its_lock_is_held() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let path = |name: &str| agent.home.path().join(name);
    let (inside, go) = (path("inside"), path("go"));
    let script =
        format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7", inside.display(), go.display());
    let first = agent.spawn(&["var", "lock", "locks/one", "--", &script]);
    wait::until_true("the first command runs", || inside.exists());
    let entered = path("entered");
    let mut second = agent.spawn(&["var", "lock", "locks/one", "--", "touch", entered.to_str().unwrap()]);
    wait::until_true("the second command waits", || {
        second.stderr().contains("waiting for the lock on locks/one")
    });
    assert!(!entered.exists() && !second.has_ended());
    let refused = agent.cli(&["var", "put", "--force", "locks/one", "x=1"]).ended(1);
    assert!(refused.stderr.contains("is locked by another holder"), "{}", refused.stderr);
    fs::write(&go, "").unwrap();
    assert_eq!(first.finish().code, 7);
    second.finish().success();
    assert!(entered.exists());
    let list = agent.cli(&["var", "list", "-o", "json"]).success().stdout;
    assert!(serde_json::from_str::<Value>(&list).unwrap()["variables"][0]["Lock"].is_null(), "{list}");
    agent.finish();
}

/// Ctrl-C ended the command that holds the lock at once, while a program that handles it went on without the lock.
#[test]
fn an_interrupted_command_keeps_its_lock_until_the_program_ends() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let path = |name: &str| agent.home.path().join(name);
    let (inside, go) = (path("inside"), path("go"));
    let script = format!(
        "trap : INT; touch {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        inside.display(),
        go.display()
    );
    let first = agent.spawn(&["var", "lock", "locks/one", "--", &script]);
    wait::until_true("the command runs", || inside.exists());
    first.signal(Signal::INT);
    let refused = agent.cli(&["var", "put", "--force", "locks/one", "x=1"]).ended(1);
    assert!(refused.stderr.contains("is locked by another holder"), "{}", refused.stderr);
    fs::write(&go, "").unwrap();
    assert_eq!(first.finish().code, 7);
    agent.cli(&["var", "put", "--force", "locks/one", "x=1"]).success();
    agent.finish();
}
