//! Another user of the machine, who knows every path, reads no secret, replaces no file that others will
//! execute, and gets no answer.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use herdlet_e2e::{
    agent::Agent,
    command::{self, Running, User},
    home, host,
    program::program,
};

use crate::common::{is_root, job, shell, sleeper};

/// The attempts, in a shell, each with a name. `$a` is the victim's allocation, `$t` its task, `$s` the state
/// directory, `$r` the runtime directory, `$p` the victim's pid, `$v` its supervisor's, `$g` its cgroup.
const ATTEMPTS: &str = r#"
try() { name=$1; shift; if sh -c "$*" >/dev/null 2>&1; then echo "BROKEN $name"; else echo "held $name"; fi; }
try list-state        'ls $s'
try list-allocations  'ls $s/alloc'
try database          'cat $s/state.db'
try accepted          'ls $s/accepted'
try keys              'ls $s/keys'
try specification     'cat $a/alloc.json'
try new-in-allocation 'touch $a/x'
try swap-shared       'mv $a/alloc $a/gone'
try swap-task         'mv $t $a/gone'
try swap-logs         'mv $a/alloc/logs $a/alloc/gone'
try forge-log         'echo forged >> $a/alloc/logs/t.stdout.0'
try remove-log        'rm -f $a/alloc/logs/t.stdout.0'
try swap-local        'mv $t/local $t/gone'
try swap-secrets      'mv $t/secrets $t/gone'
try remove-program    'rm -f $t/local/run.sh'
try swap-program      'mv $t/local/run.sh $t/local/old'
try write-program     'echo evil >> $t/local/run.sh'
try read-token        'cat $t/secrets/nomad_api.jwt'
try remove-token      'rm -f $t/secrets/nomad_api.jwt'
try swap-token        'mv $t/secrets/nomad_api.jwt $t/secrets/old'
try private           'ls $t/private'
try list-records      'ls $r/attempts'
try forge-record      'touch $r/attempts/x || touch $r/x'
try signal-task       'kill -0 $p'
try signal-supervisor 'kill -0 $v'
try environment       'cat /proc/$p/environ'
try launch            'cat /proc/$v/fd/* /proc/$v/environ'
try enter-cgroup      'echo $$ > $g/cgroup.procs'
try kill-cgroup       'echo 1 > $g/cgroup.kill'
"#;

#[test]
fn other_user_with_known_paths_can_do_nothing() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "echo 'exec sleep 100000' > local/run.sh; echo begun; . local/run.sh";
    let more =
        "env: {PASSWORD: battery-staple}\nidentities: [{name: api, aud: [x.test], ttl: 1h, file: true}]";
    agent.apply_and_wait(&job("victim", "service", "", &[shell("t", script, more)]));
    let member = agent.single("victim.g[0]", "t");
    let instance = agent.home.instance().unwrap();
    let supervisor = *host::supervisors(&instance).first().unwrap();
    let alloc = agent.home.state().join("alloc").join(&member.alloc);
    assert!(alloc.join("t/secrets/nomad_api.jwt").exists() && alloc.join("t/local/run.sh").exists());
    let mut command = command::prepare(&agent.home, User::Nobody, Path::new("/bin/sh"), &["-c", ATTEMPTS]);
    command.env("a", &alloc).env("t", alloc.join("t")).env("s", agent.home.state());
    command.env("r", home::runtime(&instance)).env("g", host::cgroup_of(&instance, &member));
    command.env("p", member.pid.to_string()).env("v", supervisor.to_string());
    let tried = Running::start(command).finish();
    assert!(!tried.stdout.contains("BROKEN"), "{}", tried.stdout);
    assert_eq!(tried.stdout.matches("held").count(), ATTEMPTS.matches("\ntry ").count(), "{tried:?}");
    assert_eq!(agent.single("victim.g[0]", "t"), member);
    // The victim itself can do all that with its own files.
    let own =
        "rm local/run.sh && mv local/../tmp/../local local2 && mv local2 local && cat secrets/nomad_api.jwt";
    agent.cli(&["exec", "victim", "--", "sh", "-c", own]).success();
    agent.finish();
}

#[test]
fn socket_accepts_only_its_user_and_root() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("quiet", "service", "", &[sleeper("t", "")]));
    let theirs = command::reachable(&agent.home, program());
    let ask = || {
        let command = command::prepare(&agent.home, User::Nobody, &theirs, &["status"]);
        Running::start(command).finish()
    };
    let socket = agent.home.socket();
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let closed = ask();
    assert!(closed.code != 0 && closed.stderr.contains("ermission denied"), "{closed:?}");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let opened = ask();
    assert!(opened.code != 0 && !opened.stdout.contains("quiet"), "{opened:?}");
    assert!(opened.stderr.contains("this socket is for the agent's user and root"), "{opened:?}");
    agent.finish();
}

// The umask of a user who starts the agent by hand is not always 022.
#[test]
fn closed_umask_admits_tasks_of_other_users() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Default::default());
    agent.set_shell("umask 077");
    agent.launch();
    let script = "set -e; umask; echo x > local/f; echo x > ../alloc/data/f; echo x > tmp/f; cat secrets/nomad_api.jwt; echo done";
    let more = "user: nobody\nrestart: {attempts: 0, mode: fail}\nidentities: [{name: api, aud: [x.test], ttl: 1h, file: true}]";
    agent.apply(&job("closed", "batch", "", &[shell("t", script, more)]));
    let alloc = agent.until_alloc("closed.g[0]", "ended", |alloc| {
        ["complete", "failed"].contains(&alloc.status().as_str())
    });
    assert_eq!(alloc.status(), "complete", "{}", agent.task_log(&alloc.id(), "t", "stderr"));
    agent.until_logged(&alloc.id(), "t", "stdout", |output| output.ends_with("done\n"));
    agent.finish();
}
