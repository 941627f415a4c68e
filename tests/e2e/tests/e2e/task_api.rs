//! The Task API: tasks use the API through the socket among their secrets.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::Agent,
    home,
    http::{self, Peer},
    shown::Alloc,
    wait,
};
use serde_json::json;

use crate::common::{TOKEN, is_root, job, on_loopback, shell, sleeper};

pub(crate) const IDENTITY: &str = "identities: [{env: true, file: true}]";

pub(crate) fn secrets(agent: &Agent, alloc: &str, task: &str) -> PathBuf {
    agent.home.state().join("alloc").join(alloc).join(task).join("secrets")
}

/// The code of a GET on a task's socket, through a directory that is short enough for it.
pub(crate) fn status(dir: &Path, path: &str, token: &str) -> Option<u16> {
    let link = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(dir, link.path().join("s")).unwrap();
    let peer = Peer::Socket(link.path().join("s/api.sock"));
    let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("X-Nomad-Token", token)] };
    Some(http::request(&peer, "GET", path, headers, "")?.status)
}

fn put(agent: &Agent, path: &str) {
    let body = json!({ "Items": { "password": "hunter2" } }).to_string();
    let put = http::request(&agent.peer(), "PUT", &format!("/v1/var/{path}"), &[], &body).unwrap();
    assert_eq!(put.status, 200, "{}", put.body);
}

pub(crate) fn token(dir: &Path) -> String {
    fs::read_to_string(dir.join("nomad_token")).unwrap().trim().to_owned()
}

fn running(agent: &Agent, name: &str) -> Alloc {
    agent.until_alloc(name, "runs", |alloc| alloc.state("t") == "running")
}

#[test]
fn a_task_reads_the_variables_of_its_job_by_curl() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    put(&agent, "nomad/jobs/reader");
    put(&agent, "nomad/jobs/other");
    let script = "for path in reader other; do curl -s -o $NOMAD_TASK_DIR/$path -w '%{http_code} ' --unix-socket \
                  $${NOMAD_UNIX_ADDR#unix://} -H \"X-Nomad-Token: $NOMAD_TOKEN\" http://x/v1/var/nomad/jobs/$path; \
                  done; grep -c hunter2 $NOMAD_TASK_DIR/reader; echo done";
    for user in ["", "user: nobody\n"] {
        let task = shell("t", script, &format!("{user}{IDENTITY}"));
        agent.apply_and_wait(&job("reader", "batch", "", &[task]));
        let alloc = agent.until_alloc("reader.g[0]", "has ended", |alloc| {
            ["complete", "failed"].contains(&alloc.status().as_str())
        });
        let log = agent.until_logged(&alloc.id(), "t", "stdout", |log| log.ends_with("done\n"));
        assert_eq!(log, "200 403 1\ndone\n", "{user}");
        agent.cli(&["delete", "reader", "--wait"]).success();
    }
    agent.finish();
}

#[test]
fn only_tokens_that_hold_are_accepted() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    for name in ["one", "two"] {
        agent.apply_and_wait(&job(name, "service", "", &[sleeper("t", IDENTITY)]));
    }
    let (one, two) = (running(&agent, "one.g[0]").id(), running(&agent, "two.g[0]").id());
    let (dir, ends) = (secrets(&agent, &one, "t"), secrets(&agent, &two, "t"));
    let about = fs::symlink_metadata(dir.join("api.sock")).unwrap();
    assert!(about.file_type().is_socket() && about.mode() & 0o777 == 0o600 && about.uid() == 0);
    let (own, others) = (token(&dir), token(&ends));
    let parts: Vec<&str> = own.split('.').collect();
    let (first, rest) = parts[2].split_at(1);
    let forged = format!("{}.{}.{}{rest}", parts[0], parts[1], if first == "A" { "B" } else { "A" });
    // {"alg":"none","typ":"JWT"}
    let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.", parts[1]);
    for (given, code) in [
        ("", 401),
        (own.as_str(), 200),
        (others.as_str(), 200),
        (TOKEN, 200),
        (forged.as_str(), 403),
        (unsigned.as_str(), 403),
        ("anonymous", 403),
        ("00000000-0000-0000-0000-000000000000", 403),
    ] {
        assert_eq!(status(&dir, "/v1/vars", given), Some(code), "{given}");
    }
    assert_eq!(status(&dir, "/v1/jobs", &own), Some(403));
    assert_eq!(status(&dir, "/v1/jobs", TOKEN), Some(200));
    // Its allocation ends, and its token with it.
    agent.cli(&["stop", "two", "--wait"]).success();
    agent.until_alloc("two.g[0]", "is complete", |alloc| alloc.status() == "complete");
    assert_eq!(status(&dir, "/v1/vars", &others), Some(403));
    wait::until_true("its socket is gone", || !ends.join("api.sock").exists());
    // The token of another agent.
    let mut other = Agent::start();
    other.apply_and_wait(&job("one", "service", "", &[sleeper("t", IDENTITY)]));
    let foreign = token(&secrets(&other, &running(&other, "one.g[0]").id(), "t"));
    assert_eq!(status(&dir, "/v1/vars", &foreign), Some(403));
    other.finish();
    agent.finish();
}

#[test]
fn the_next_agent_opens_it_again_and_a_removed_one_is_drift() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("again", "service", "", &[sleeper("t", IDENTITY)]));
    let member = agent.single("again.g[0]", "t");
    let dir = secrets(&agent, &member.alloc, "t");
    let own = token(&dir);
    assert_eq!(status(&dir, "/v1/vars", &own), Some(200));
    agent.crash();
    wait::until_true("it is open again", || status(&dir, "/v1/vars", &own) == Some(200));
    fs::remove_file(dir.join("api.sock")).unwrap();
    wait::until_true("it is made again", || status(&dir, "/v1/vars", &own) == Some(200));
    assert_eq!(agent.single("again.g[0]", "t"), member, "the task ran on");
    agent.finish();
}

#[test]
fn a_task_with_a_long_path_uses_an_alias_that_goes_with_it() {
    if !is_root() {
        return;
    }
    let name = "t".repeat(100);
    let mut agent = Agent::start();
    let script = "echo $NOMAD_UNIX_ADDR; curl -s -o /dev/null -w '%{http_code}\n' --unix-socket \
                  $${NOMAD_UNIX_ADDR#unix://} -H \"X-Nomad-Token: $NOMAD_TOKEN\" http://x/v1/vars; sleep 100000";
    let task = shell(&name, script, &format!("user: nobody\n{IDENTITY}"));
    agent.apply_and_wait(&job("long", "service", "", &[task]));
    let alloc = agent.until_alloc("long.g[0]", "runs", |alloc| alloc.state(&name) == "running");
    let log = agent.until_logged(&alloc.id(), &name, "stdout", |log| log.lines().count() == 2);
    let alias = PathBuf::from(log.lines().next().unwrap().strip_prefix("unix://").unwrap());
    assert!(alias.as_os_str().len() <= 107, "{log}");
    assert!(log.ends_with("\n200\n"), "{log}");
    let dir = home::runtime(&agent.home.instance().unwrap()).join("api");
    let aliases = || fs::read_dir(&dir).map_or(0, Iterator::count);
    assert_eq!((alias.parent(), aliases()), (Some(&*dir), 1));
    agent.crash();
    wait::until_true("the next agent serves it", || {
        http::request(&Peer::Socket(alias.clone()), "GET", "/v1/vars", &[], "")
            .is_some_and(|it| it.status == 401)
    });
    agent.cli(&["stop", "long", "--wait"]).success();
    wait::until_true("the alias is gone", || aliases() == 0);
    agent.finish();
}
