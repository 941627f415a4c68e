//! How agents find supervisors: another user's process never counts as one, whatever its name, open files and
//! effective user. A supervisor that can't be inspected must not be taken for a missing one.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    home, host,
    program::program,
    wait,
};
use herdlet_shim::record::{Process, Record, State, start_ticks};
use rustix::process::Signal;

use crate::common::{is_root, job, sleeper};

const NOBODY: u32 = 65_534;

/// Creates a directory of another user.
fn foreign_dir(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    path
}

/// Writes a file of another user.
fn write_foreign(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

fn fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o666.into()).unwrap();
}

fn process(pid: u32) -> Process {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap();
    Process { pid, start_ticks: start_ticks(&stat).unwrap() }
}

/// A set-user-id program of root that another user has started like a supervisor, and stopped. It ends when
/// dropped.
struct Forgery(Child);

impl Forgery {
    /// Starts it with `attempts` as its attempts directory, and with the file `name` in it open.
    fn start(agent: &Agent, attempts: &Path, name: &str) -> Self {
        let program = agent.home.path().join("cat");
        if !program.exists() {
            fs::copy("/usr/bin/cat", &program).unwrap();
            fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        }
        // Its first argument is a file whose opening blocks.
        let wait = foreign_dir(agent.home.path().join("wait"));
        if !wait.join("run").exists() {
            fifo(&wait.join("run"));
        }
        if !attempts.join(name).exists() {
            write_foreign(&attempts.join(name), b"");
        }
        let script = r#"cd "$1" && exec 3<>"$2/$3" 2<"$2" && exec -a herdlet-shim "$0" run "$3""#;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", script]);
        command.arg(program).arg(wait).arg(attempts).arg(name);
        let forgery = Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        let arguments = format!("herdlet-shim\0run\0{name}\0").into_bytes();
        wait::until_true("the process looks like a supervisor", || {
            fs::read(format!("/proc/{}/cmdline", forgery.pid())).is_ok_and(|found| found == arguments)
        });
        let status = fs::read_to_string(format!("/proc/{}/status", forgery.pid())).unwrap();
        assert!(status.contains("Uid:\t65534\t0\t0\t0\n"), "set-user-id programs work here: {status}");
        host::signal(forgery.pid(), Signal::STOP);
        forgery
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Forgery {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent with a task; returns the directory of records and the name of the task's record.
fn with_a_task() -> (Agent, PathBuf, String) {
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let attempts = home::runtime(&agent.home.instance().unwrap()).join("attempts");
    let names =
        fs::read_dir(&attempts).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.into_iter().find(|name| !name.starts_with('.')).unwrap();
    (agent, attempts, name)
}

/// Runs a start that must fail, with `wrapper` before the program, and returns its output.
#[track_caller]
fn refused(agent: &Agent, wrapper: &[&str], more: &[&str]) -> String {
    let plain = agent.command(&agent.agent_arguments());
    let mut command = match wrapper {
        [] => Command::new(plain.get_program()),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(plain.get_program());
            command
        }
    };
    command.args(plain.get_args()).args(more);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let output =
        String::from_utf8_lossy(&ended.stderr).into_owned() + &String::from_utf8_lossy(&ended.stdout);
    assert!(!ended.status.success(), "{output}");
    output
}

/// Regression: the agent took the record of such a process for the task's, and killed the process in it.
#[test]
fn foreign_setuid_program_gets_no_record() {
    if !is_root() {
        return;
    }
    let (mut agent, attempts, name) = with_a_task();
    let member = agent.single("kept.g[0]", "t");
    agent.kill();
    let mut victim = Command::new("sleep").arg("100000").spawn().unwrap();
    let forged = foreign_dir(agent.home.path().join("q"));
    write_foreign(&forged.join(".path"), attempts.canonicalize().unwrap().to_str().unwrap().as_bytes());
    let forgery = Forgery::start(&agent, &forged, &name);
    let record = Record {
        state: State::Running,
        shim: process(forgery.pid()),
        task: process(victim.id()),
        ..Record::claimed()
    };
    fs::write(forged.join(&name), record.to_bytes()).unwrap();
    let before = fs::read(attempts.join(&name)).unwrap();
    agent.launch();
    assert_eq!(fs::read(attempts.join(&name)).unwrap(), before, "{}", agent.log());
    assert!(!agent.log().contains("its record was gone"), "{}", agent.log());
    assert_eq!(agent.single("kept.g[0]", "t"), member);
    agent.cli(&["restart", "kept"]).success();
    wait::until_true("it was started again", || {
        let members = agent.members();
        !members.is_empty() && !members.contains(&member)
    });
    assert!(victim.try_wait().unwrap().is_none(), "the process in the forged record was killed");
    victim.kill().unwrap();
    victim.wait().unwrap();
    drop(forgery);
    agent.finish();
}

/// Regression: the file was opened whatever its owner, so each agent, `doctor` and `run` of root waited for
/// ever.
#[test]
fn foreign_runtime_files_do_not_block_the_agent() {
    if !is_root() {
        return;
    }
    let (mut agent, _, name) = with_a_task();
    let member = agent.single("kept.g[0]", "t");
    agent.kill();
    let waits = foreign_dir(agent.home.path().join("waits"));
    fifo(&waits.join(".path"));
    let endless = foreign_dir(agent.home.path().join("endless"));
    symlink("/dev/zero", endless.join(".path")).unwrap();
    let forgeries = [waits, endless].map(|dir| Forgery::start(&agent, &dir, &name));
    agent.launch();
    assert_eq!(agent.single("kept.g[0]", "t"), member);
    let [state, socket] = [agent.home.state(), agent.home.socket()].map(|path| path.display().to_string());
    agent.cli(&["doctor", "--state-dir", &state, "--socket", &socket]).success();
    drop(forgeries);
    agent.finish();
}

/// Regression: the agent refused to start, and advised to use that directory, or to trust that user.
#[test]
fn foreign_directory_with_an_instance_name_is_ignored() {
    if !is_root() {
        return;
    }
    let (mut agent, _, name) = with_a_task();
    agent.cli(&["delete", "--wait", "kept"]).success();
    let instance = agent.home.instance().unwrap();
    agent.terminate();
    let forged = foreign_dir(agent.home.path().join("q").join(instance).join("attempts"));
    let forgery = Forgery::start(&agent, &forged, &name);
    agent.launch();
    drop(forgery);
    agent.finish();
}

/// An unreadable supervisor does not mean that its task has ended.
#[test]
fn agent_that_cannot_inspect_supervisors_does_not_start() {
    if !is_root() {
        return;
    }
    let (mut agent, attempts, _) = with_a_task();
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    fs::remove_dir_all(&attempts).unwrap();
    let output = refused(&agent, &["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"], &[]);
    assert!(output.contains("supervises a task, but this agent may not inspect it"), "{output}");
    assert!(output.contains("CAP_SYS_PTRACE"), "{output}");
    assert_eq!(host::members(&instance), members, "{output}");
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

/// Regression: the agent took the pids in the records for pids of its own namespace, and ended all tasks or
/// ran them twice.
#[test]
fn agent_in_another_pid_namespace_does_not_start() {
    if !is_root() {
        return;
    }
    let (mut agent, _, _) = with_a_task();
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--"];
    let parent = format!("herdlet-test-{instance}");
    for more in [&[][..], &["--cgroup-parent", &parent][..]] {
        let output = refused(&agent, &unshare, more);
        assert!(output.contains("its last start was in another PID namespace"), "{output}");
        assert!(output.contains("still run"), "{output}");
        assert_eq!(host::members(&instance), members, "{output}");
    }
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

/// Regression: with other cgroups the agent would not have seen the running tasks, and would have forgotten
/// their location.
#[test]
fn agent_with_other_cgroups_does_not_start() {
    if !is_root() {
        return;
    }
    let (mut agent, _, _) = with_a_task();
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    for (_, supervisor) in host::held_supervisors(&instance) {
        host::kill_held(&supervisor);
    }
    assert_eq!(host::members(&instance), members);
    let parent = format!("herdlet-test-{instance}");
    let output = refused(&agent, &[], &["--cgroup-parent", &parent]);
    let empty = r#"for dir in /sys/fs/cgroup/"$0" /sys/fs/cgroup/*/"$0"; do find "$dir" -depth -type d -exec rmdir {} +; done"#;
    Command::new("sh").args(["-c", empty, &parent]).stderr(Stdio::null()).status().unwrap();
    assert!(
        output.contains("no record in") && output.contains("with its cgroup parent as before"),
        "{output}"
    );
    assert_eq!(host::members(&instance), members, "{output}");
    agent.launch();
    wait::until_true("the tasks have ended and started again", || {
        let now = agent.members();
        !now.is_empty() && now.iter().all(|member| !members.contains(member))
    });
    agent.finish();
}

/// As after a move of an agent from its own user to root, which trusts that user.
#[test]
fn tasks_of_a_trusted_users_agent_block_a_start_elsewhere() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::nobody());
    let runtime = foreign_dir(agent.home.path().join("run")).display().to_string();
    let at = |runtime: &str| vec!["--runtime-dir".to_owned(), runtime.to_owned()];
    agent.set_arguments(at(&runtime));
    agent.launch();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    agent.kill();
    let instance = agent.home.instance().unwrap();
    fs::remove_dir_all(Path::new(&runtime).join(instance)).unwrap();
    fs::remove_file(agent.home.state().join("location")).unwrap();
    agent.set_arguments(at(&agent.home.path().join("elsewhere").display().to_string()));
    let mut command = Command::new(program());
    let ended = command
        .args(agent.agent_arguments())
        .env("HERDLET_TRUSTED_USERS", "nobody")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && stderr.contains("1 task still runs"), "{stderr}");
    assert!(stderr.contains(&format!("Start the agent with --runtime-dir {runtime} as before")), "{stderr}");
    agent.set_arguments(at(&runtime));
    agent.launch();
    agent.finish();
}
