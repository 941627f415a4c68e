//! Planted programs in the search paths of a task: none of them is run, looking them up opens or makes
//! executable nothing, and the task's own files keep working.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use herdlet_e2e::{agent::Agent, wait};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::{is_root, job, shell};

const NOBODY: u32 = 65534;
/// Number of lookups while the file is being exchanged: many times the few dozen that once won the race.
const RACES: u32 = 400;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Creates a program of `nobody` where he could write himself; running it creates `mark`.
fn plant(path: &Path, mark: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\ntouch {}\nexec /bin/sh \"$@\"\n", mark.display())).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// Returns the directory of the only task `t`.
fn task_dir(agent: &Agent, job: &str) -> PathBuf {
    let member = agent.single(&format!("{job}.g[0]"), "t");
    agent.home.state().join("alloc").join(member.alloc).join("t")
}

// Regression: the next check, session or restart ran any user's file `local/sh` or `local/bin/sleep` as root.
#[test]
fn planted_programs_are_never_run() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let mark = agent.home.path().join("ran");
    let check = "{name: c, type: script, command: sh, args: [-c, \"echo x >> local/checks\"], interval: 1s, timeout: 5s}";
    let more = format!("services: [{{name: s, checks: [{check}]}}]");
    agent.apply_and_wait(&job(
        "victim",
        "service",
        "",
        &[shell("t", "echo begun >> local/begun; exec sleep 100000", &more)],
    ));
    let task = task_dir(&agent, "victim");
    let lines =
        |name: &str| fs::read_to_string(task.join("local").join(name)).unwrap_or_default().lines().count();
    for place in ["local/sh", "sh", "local/bin/sh", "bin/sh", "local/bin/sleep", "bin/sleep"] {
        plant(&task.join(place), &mark);
    }
    let checks = lines("checks");
    wait::until_true("checks continue", || lines("checks") >= checks + 2);
    let output = agent.cli(&["exec", "victim", "--", "sh", "-c", "echo from the shell"]).success();
    assert_eq!(output.stdout, "from the shell\n");
    agent.cli(&["exec", "victim", "--", "/bin/sleep", "0"]).success();
    // A name that can only mean the planted program is refused with its owner.
    let refused = agent.cli(&["exec", "victim", "--", "bin/sleep", "0"]);
    assert!(
        refused.code != 0
            && refused
                .stderr
                .contains("belongs to nobody (uid 65534), who could have written or replaced it"),
        "{refused:?}"
    );
    agent.cli(&["restart", "victim"]).success();
    wait::until_true("the task has started again", || lines("begun") == 2);
    assert!(!mark.exists());
    assert!(agent.log().contains("skipped a program"), "{}", agent.log());
    agent.finish();
}

// Regression: the mode was read and set by path, so a file that was exchanged for a link made a log of root a
// set-user-id program.
#[test]
fn swapped_link_makes_nothing_else_executable() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job(
        "race",
        "service",
        "",
        &[shell("t", "echo a log; exec sleep 100000", "user: nobody")],
    ));
    let task = task_dir(&agent, "race");
    let log = task.join("../alloc/logs/t.stdout.0");
    wait::until_true("the log exists", || log.exists());
    let before = mode(&log);
    let (tool, link) = (task.join("local/tool"), task.join("local/link"));
    fs::write(&tool, "#!/bin/sh\n").unwrap();
    let file = fs::File::open(&tool).unwrap();
    chown(&tool, Some(NOBODY), Some(NOBODY)).unwrap();
    symlink("../../alloc/logs/t.stdout.0", &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &tool, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..RACES {
            // Through the descriptor, whatever its name is now. Not executable, and with a bit that must not
            // be kept.
            file.set_permissions(fs::Permissions::from_mode(0o4644)).unwrap();
            agent.cli(&["exec", "race", "--", "local/tool"]);
            assert_eq!(mode(&log), before);
            let bits = file.metadata().unwrap().mode();
            assert!(bits & 0o6000 == 0 || bits & 0o111 == 0, "{bits:o}");
        }
        over.store(true, Ordering::Relaxed);
    });
    agent.finish();
}

// Regression: a link to a token, or a hard link to a file of root, became world-readable.
#[test]
fn asking_for_a_program_opens_up_no_token_and_no_file_of_roots() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let more = "identities: [{name: api, aud: [x.test], ttl: 1h, file: true}]";
    agent.apply_and_wait(&job("kept", "service", "", &[shell("t", "exec sleep 100000", more)]));
    let task = task_dir(&agent, "kept");
    let token = task.join("secrets/nomad_api.jwt");
    let closed = agent.home.state().join("closed");
    fs::write(&closed, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(task.join("local/bin")).unwrap();
    for (name, owner) in [("local/theirs", NOBODY), ("local/own", 0)] {
        symlink("../secrets/nomad_api.jwt", task.join(name)).unwrap();
        lchown(task.join(name), Some(owner), None).unwrap();
    }
    fs::hard_link(&closed, task.join("local/bin/named")).unwrap();
    for command in [
        "theirs",
        "local/theirs",
        "own",
        "local/own",
        "secrets/nomad_api.jwt",
        "bin/named",
        "local/bin/named",
    ] {
        let tried = agent.cli(&["exec", "kept", "--", command]);
        assert_ne!(tried.code, 0, "{command}");
        assert_eq!((mode(&token), mode(&closed)), (0o600, 0o600), "{command}");
    }
    agent.finish();
}

#[test]
fn programs_of_the_task_itself_run_as_before() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "set -e; cd local; mkdir -p venv/bin; ln -s python3 venv/bin/python; ln -s /bin/sh venv/bin/python3; \
                  printf '#!/bin/sh\\necho \"$0\" \"$@\"\\n' > script; cp /bin/cat mycat; chmod 644 mycat script; \
                  cp /bin/cat ../../alloc/data/shared; echo ready; exec sleep 100000";
    let tasks = [shell("t", script, "user: nobody"), shell("other", "exec sleep 100000", "user: daemon")];
    agent.apply_and_wait(&job("own", "service", "", &tasks));
    wait::until_true("it is ready", || agent.cli(&["logs", "own", "--task", "t"]).stdout.contains("ready"));
    let stdout = |command: &[&str]| {
        let arguments = [&["exec", "own", "--task", "t", "--"], command].concat();
        agent.cli(&arguments).success().stdout
    };
    assert_eq!(stdout(&["local/venv/bin/python", "-c", "echo from $0"]), "from local/venv/bin/python\n");
    let script = stdout(&["script", "a", "b"]);
    assert!(script.ends_with("/t/local/script a b\n"), "{script}");
    assert_eq!(stdout(&["mycat", "/proc/self/comm"]), "mycat\n");
    assert_eq!(stdout(&["local/mycat", "/proc/self/cmdline"]), "local/mycat\0/proc/self/cmdline\0");
    agent.finish();
}
