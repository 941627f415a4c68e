//! Directories of tasks: users without a task in an allocation can enter none of them; tasks of one
//! allocation share its common directories.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{is_root, job, shell};

/// The attempts, in a shell, each with a name. `$a` is the victim's allocation.
const ATTEMPTS: &str = r#"
try() { name=$1; shift; if sh -c "$*" >/dev/null 2>&1; then echo "BROKEN $name"; else echo "held $name"; fi; }
try enter             'cd $a'
try list              'ls $a'
try enter-task        'cd $a/root'
try enter-shared      'cd $a/alloc'
try plant-module      'touch $a/root/json.py'
try plant-program     'touch $a/root/local/sh'
try plant-scratch     'touch $a/root/tmp/x || touch $a/alloc/tmp/x'
try plant-shared      'touch $a/alloc/data/x'
try rename-shared     'mv $a/alloc/data/tool $a/alloc/data/old'
try plant-log         'touch $a/alloc/logs/root.stdout.1'
try read-log          'cat $a/alloc/logs/root.stdout.0'
try list-logs         'ls $a/alloc/logs'
try read-payload      'cat $a/root/local/in'
try read-local        'cat $a/root/local/own'
try read-of-web       'cat $a/web/local/own'
try read-secret       'cat $a/root/secrets/own || ls $a/root/secrets'
"#;

/// Returns a root task and two tasks with their own users, which share the common directories.
fn victim() -> String {
    let begin = |more: &str| {
        format!(
            "set -e; echo mine > local/own; echo mine > secrets/own; echo mine > ../alloc/data/$NOMAD_TASK_NAME; {more} echo PASSWORD; exec sleep 100000"
        )
    };
    job(
        "victim",
        "service",
        "",
        &[
            shell("root", &begin("echo x > local/in; echo x > ../alloc/data/tool;"), ""),
            shell("web", &begin(""), "user: nobody"),
            shell("db", &begin(""), "user: daemon"),
        ],
    )
}

/// Runs the attempts as `user` and returns their results.
fn attempt(agent: &Agent, alloc: &Path, user: &str) -> String {
    let script = format!("exec setpriv --reuid={user} --regid=nogroup --clear-groups sh -c \"$ATTEMPTS\"");
    let mut command = command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", &script]);
    command.env("a", alloc).env("ATTEMPTS", ATTEMPTS);
    Running::start(command).finish().stdout
}

/// Asserts that no attempt of `user` succeeds.
fn all_hold(agent: &Agent, alloc: &Path, user: &str) {
    let tried = attempt(agent, alloc, user);
    assert!(!tried.contains("BROKEN"), "as {user}: {tried}");
    assert_eq!(tried.matches("held").count(), ATTEMPTS.matches("\ntry ").count(), "{tried}");
}

fn start(umask: &str) -> (Agent, PathBuf) {
    let mut agent = Agent::prepare(Default::default());
    agent.set_shell(&format!("umask {umask}"));
    agent.launch();
    agent.apply_and_wait(&victim());
    let member = agent.single("victim.g[0]", "root");
    let alloc = agent.home.state().join("alloc").join(&member.alloc);
    (agent, alloc)
}

// Users without a task in the allocation: one of the machine, and the user of a task in another allocation.
#[test]
fn users_without_a_task_cannot_enter_an_allocation() {
    if !is_root() {
        return;
    }
    for umask in ["000", "077"] {
        let (mut agent, alloc) = start(umask);
        all_hold(&agent, &alloc, "bin");
        let script = format!("export a={}\n{ATTEMPTS}", alloc.display());
        let more = "user: games\nrestart: {attempts: 0, mode: fail}";
        agent.apply(&job("other", "batch", "", &[shell("t", &script, more)]));
        let ended = |status: String| ["complete", "failed"].contains(&status.as_str());
        let other = agent.until_alloc("other.g[0]", "ended", |alloc| ended(alloc.status()));
        let output = agent.task_log(&other.id(), "t", "stdout") + &agent.task_log(&other.id(), "t", "stderr");
        assert!(!output.contains("BROKEN"), "{output}");
        assert_eq!(output.matches("held").count(), ATTEMPTS.matches("\ntry ").count(), "{output}");
        // Each attempt succeeds with sufficient rights: root is refused nothing.
        let tried = attempt(&agent, &alloc, "root");
        assert_eq!(tried.matches("BROKEN").count(), ATTEMPTS.matches("\ntry ").count(), "{tried}");
        agent.finish();
    }
}

#[test]
fn sibling_tasks_share_data_but_not_secrets() {
    if !is_root() {
        return;
    }
    let (agent, alloc) = start("022");
    let may = |task: &str, script: &str| {
        agent.cli(&["exec", "victim", "--task", task, "--", "sh", "-c", script]).code == 0
    };
    for (task, other) in [("web", "db"), ("db", "web")] {
        for script in [
            format!("mv ../alloc/data/{other} ../alloc/data/x && mv ../alloc/data/x ../alloc/data/{other}"),
            format!("cat ../alloc/data/{other} && cat ../{other}/local/own && ls .. && ls ../alloc/logs"),
            format!("cat ../alloc/logs/{other}.stdout.0 && touch ../alloc/tmp/{task} local/x tmp/x x"),
            "cat secrets/own && rm local/own && echo mine > local/own".to_owned(),
        ] {
            assert!(may(task, &script), "{task}: {script}");
        }
        for script in [
            format!("cat ../{other}/secrets/own"),
            format!("ls ../{other}/secrets"),
            format!("touch ../{other}/x"),
            format!("touch ../{other}/local/x"),
            format!("rm ../alloc/tmp/{other}"),
            format!("mv ../{other} ../gone"),
            "cat ../alloc.json".to_owned(),
            "mv secrets old".to_owned(),
            "mv private old".to_owned(),
            "mv ../alloc/logs ../alloc/old".to_owned(),
            format!("rm -f ../alloc/logs/{other}.stdout.0"),
        ] {
            // A file that the other task has not created yet can't be removed either.
            assert!(!may(task, &script), "{task}: {script}");
        }
    }
    assert!(alloc.join("alloc/data/tool").exists());
    agent.finish();
}

// Like directories of an older agent, whose tasks keep running.
#[test]
fn opened_directories_are_closed_again() {
    if !is_root() {
        return;
    }
    let (mut agent, alloc) = start("022");
    let members = ["root", "web", "db"].map(|task| agent.single("victim.g[0]", task));
    let dirs = ["", "alloc", "web"].map(|name| alloc.join(name));
    let open = |dir: &PathBuf| fs::metadata(dir).unwrap().permissions().mode() & 0o007 != 0;
    let open_all =
        || dirs.iter().for_each(|dir| fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap());
    open_all();
    herdlet_e2e::wait::until_true("the directories are closed", || !dirs.iter().any(open));
    // The same while no agent runs, with the contents opened too.
    agent.kill();
    open_all();
    fs::set_permissions(alloc.join("alloc/data"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(alloc.join("web/local"), fs::Permissions::from_mode(0o1777)).unwrap();
    agent.launch();
    let inner = [alloc.join("alloc/data"), alloc.join("web/local")];
    herdlet_e2e::wait::until_true("all directories are closed", || !dirs.iter().chain(&inner).any(open));
    all_hold(&agent, &alloc, "bin");
    assert_eq!(["root", "web", "db"].map(|task| agent.single("victim.g[0]", task)), members);
    agent.finish();
}

#[test]
fn named_users_may_enter_every_allocation() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config("task_dir_users: [bin, no-such-user]\n"));
    let log = agent.log();
    let reported: Vec<_> = log.lines().filter(|line| line.contains("there is no user")).collect();
    assert!(
        matches!(&*reported, [line] if line.contains("WARN") && line.contains("no-such-user")),
        "{reported:?}"
    );
    agent.apply_and_wait(&victim());
    let member = agent.single("victim.g[0]", "root");
    let alloc = agent.home.state().join("alloc").join(&member.alloc);
    let script =
        "setpriv --reuid=bin --regid=nogroup --clear-groups cat $a/root/local/own $a/alloc/data/tool";
    let mut command = command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", script]);
    command.env("a", &alloc);
    let read = Running::start(command).finish();
    assert_eq!((read.code, read.stdout.as_str()), (0, "mine\nx\n"), "{read:?}");
    // That user may write there too, but programs can still be run from there.
    let exec = |command: &[&str]| agent.cli(&[&["exec", "victim", "--task", "web", "--"], command].concat());
    exec(&["sh", "-c", "cp /bin/true ../alloc/data/program"]).success();
    exec(&["../alloc/data/program"]).success();
    agent.finish();
}

/// A file system without access control lists, mounted on the agent's state directory.
struct Plain(PathBuf);

impl Plain {
    fn over(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        mount("plain", &dir, "ramfs", MountFlags::empty(), c"mode=0711").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).unwrap();
        Self(dir)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn file_system_without_acls_keeps_directories_private() {
    if !is_root() {
        return;
    }
    // The file system reports no free space.
    let mut agent = Agent::prepare(Setup::default().config("disk_total_mb: 10000\n"));
    let plain = Plain::over(agent.home.state());
    agent.launch();
    let begin = |more: &str| {
        format!(
            "set -e; echo mine > local/own; echo mine > secrets/own; {more} echo PASSWORD; exec sleep 100000"
        )
    };
    let tasks = [
        shell("root", &begin("echo x > ../alloc/data/tool;"), ""),
        shell("web", &begin(""), "user: nobody"),
        shell("db", &begin(""), "user: daemon"),
    ];
    agent.apply_and_wait(&job("several", "service", "", &tasks));
    let alone = shell("web", &begin("echo x > ../alloc/data/tool; echo x > ../alloc/tmp/x;"), "user: nobody");
    agent.apply_and_wait(&job("alone", "service", "", &[alone]));
    let members = agent.members();
    assert_eq!(members.len(), 4);
    for crashed in [false, true] {
        if crashed {
            agent.crash();
        }
        for (job, tasks) in [("several", &["root", "web", "db"][..]), ("alone", &["web"])] {
            let member = agent.single(&format!("{job}.g[0]"), "web");
            let alloc = agent.home.state().join("alloc").join(&member.alloc);
            let reads = |user: &str, path: &str| {
                let read = "if test -d $1; then ls $1; else cat $1; fi";
                let script = format!(
                    "exec setpriv --reuid={user} --regid=nogroup --clear-groups sh -c '{read}' sh $a/{path}"
                );
                let mut command =
                    command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", &script]);
                command.env("a", &alloc);
                Running::start(command).finish().code == 0
            };
            let logs: Vec<_> = tasks.iter().map(|task| format!("alloc/logs/{task}.stdout.0")).collect();
            let own = tasks.iter().flat_map(|task| {
                ["", "local", "local/own", "secrets/own"].map(|path| format!("{task}/{path}"))
            });
            let shared =
                ["", "alloc", "alloc/data", "alloc/data/tool", "alloc/tmp", "alloc/logs", "alloc.json"]
                    .map(str::to_owned);
            for path in own.chain(shared).chain(logs) {
                assert!(reads("root", &path), "{job}: {path} does not exist");
                assert!(!reads("bin", &path), "{job}: another user reads {path}");
            }
            assert!(reads("nobody", "web/local/own") && reads("nobody", "web/secrets/own"));
            assert_eq!(reads("nobody", "alloc/data/tool"), job == "alone");
        }
        assert_eq!(agent.members(), members);
    }
    for job in ["several", "alone"] {
        agent.cli(&["delete", "--wait", job]).success();
    }
    agent.terminate();
    drop(plain);
    agent.home.until_nothing_left();
}
