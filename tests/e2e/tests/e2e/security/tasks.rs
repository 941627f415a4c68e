//! A malicious task: it plants links where root will write, read and remove files, and searches for the
//! agent's secrets.

use std::{fs, os::unix::fs::PermissionsExt};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host, wait,
};

use crate::common::{is_root, job, shell, sleeper, volume};

const PRECIOUS: &str = "for root's eyes";

#[test]
fn links_among_the_logs_are_neither_written_nor_shown() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let victim = agent.home.write("victim", PRECIOUS);
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let plant = format!(
        "cd ../alloc/logs; for n in 1 2 3; do ln -s {0} t.stdout.$n; done; ln -s {0} t.stderr.1; mkfifo t.stdout.5; \
         ln -s / t.stdout.6; head -c 3500000 /dev/zero | tr '\\0' x; echo; echo planted; exec sleep 100000",
        victim.display()
    );
    let more = "user: nobody\nlogs: {max_files: 9, max_file_size: 1}";
    agent.apply_and_wait(&job("planting", "service", "", &[shell("t", &plant, more)]));
    let shown = |extra: &[&str]| agent.cli(&[&["logs", "planting"], extra].concat());
    wait::until_true("the end of its output is in the log", || {
        shown(&["--tail", "1"]).stdout.contains("planted")
    });
    for log in [shown(&[]), shown(&["--stderr"]), shown(&["--tail", "100000"])] {
        assert!(!log.stdout.contains(PRECIOUS) && !log.stderr.contains(PRECIOUS));
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), PRECIOUS);
    agent.cli(&["delete", "planting", "--wait"]).success();
    assert_eq!(fs::read_to_string(&victim).unwrap(), PRECIOUS);
    agent.finish();
}

#[test]
fn removal_of_planted_links_removes_nothing_else() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let victim = agent.home.path().join("victim");
    fs::create_dir_all(victim.join("deep")).unwrap();
    fs::write(victim.join("deep/file"), PRECIOUS).unwrap();
    let plant = format!(
        "for d in local local/data tmp secrets ../alloc ../alloc/data ../alloc/logs; do \
           ln -s {0} $d/link; ln -s {0}/deep/file $d/file; mkdir -p $d/a/b; ln -s ../../../../../../../../{0} $d/a/b/up; done; \
         mkdir local/data/c; mv local/data/a local/data/c; echo planted; exec sleep 100000",
        victim.display()
    );
    let group = "volumes: {data: {type: host, source: filled}}";
    let task = shell("t", &plant, "volume_mounts: [{volume: data, destination: local/data}]");
    agent.apply_and_wait(&format!("{}{}", volume("filled"), job("filling", "service", group, &[task])));
    wait::until_true("the task has planted its links", || {
        agent.cli(&["logs", "filling"]).stdout.contains("planted")
    });
    agent.cli(&["delete", "filling", "--wait", "--purge"]).success();
    assert!(!agent.home.state().join("volumes/filled").exists());
    assert_eq!(fs::read_to_string(victim.join("deep/file")).unwrap(), PRECIOUS);
    agent.finish();
}

#[test]
fn agent_environment_is_not_passed_to_tasks() {
    if !is_root() {
        return;
    }
    let names = [
        "HERDLET_TOKEN",
        "NOMAD_TOKEN",
        "CONSUL_HTTP_TOKEN",
        "VAULT_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "LISTEN_FDS",
    ];
    let setup = names.iter().fold(Setup::default(), |setup, name| setup.env(name, "agents-secret-4711"));
    let mut agent = Agent::start_with(setup);
    agent.apply_and_wait(&job("nosy", "service", "", &[sleeper("t", "env: {MINE: tasks-secret-0815}")]));
    let member = agent.single("nosy.g[0]", "t");
    let environment =
        |pid: u32| String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).unwrap()).into_owned();
    let of_task = environment(member.pid);
    assert!(of_task.contains("tasks-secret-0815") && !of_task.contains("agents-secret-4711"), "{of_task}");
    assert!(!of_task.contains("NOTIFY_SOCKET"), "the task could report the agent as ready: {of_task}");
    for supervisor in host::supervisors(&agent.home.instance().unwrap()) {
        assert_eq!(environment(supervisor), "", "a supervisor needs no environment");
    }
    let open: Vec<_> = fs::read_dir(format!("/proc/{}/fd", member.pid)).unwrap().collect();
    assert_eq!(open.len(), 3, "{open:?}");
    agent.finish();
}
