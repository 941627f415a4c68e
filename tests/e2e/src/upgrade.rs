//! The files of each released version, on which every later version is tested.
//!
//! In: the program of a release. Out: `tests/fixtures/upgrade/NAME.tar.gz` with its state directory
//! (`state`), owners and modes included, the records of its attempts (`records`), and in `state/bin` its
//! supervisor, which may live on under newer agents for months.
//!
//! To add a release, run this from its tag: `cargo run --release -p herdlet-e2e --bin fixture`. [`leave`]
//! defines the contents of a fixture. If a version starts its supervisor in another way than its predecessor,
//! extend `tests/e2e/tests/e2e/upgrade.rs`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    agent::Agent,
    home, host,
    program::{program, project},
    wait,
};

/// The jobs of a fixture: one that runs on, one whose tasks run as different users, one that has completed,
/// one that ended while no agent ran, and one that was deleted.
const JOBS: &str = r#"apiVersion: herdlet/v1
kind: Volume
metadata: {name: v}
spec: {type: host, plugin_id: mkdir}
---
apiVersion: herdlet/v1
kind: Job
metadata: {name: stays}
spec:
  type: service
  groups:
    - name: g
      restart: {attempts: 3, interval: 1h, delay: 50ms, mode: fail}
      volumes: {data: {type: host, source: v}}
      tasks:
        - name: t
          driver: raw_exec
          config: {command: /bin/sleep, args: ["100000"]}
          volume_mounts: [{volume: data, destination: local/data}]
---
apiVersion: herdlet/v1
kind: Job
metadata: {name: shared}
spec:
  type: service
  groups:
    - name: g
      tasks:
        - {name: root, driver: raw_exec, config: {command: /bin/sleep, args: ["100003"]}}
        - {name: nobody, user: nobody, driver: raw_exec, config: {command: /bin/sleep, args: ["100004"]}}
        - {name: daemon, user: daemon, driver: raw_exec, config: {command: /bin/sleep, args: ["100005"]}}
---
apiVersion: herdlet/v1
kind: Job
metadata: {name: done}
spec:
  type: batch
  groups: [{name: g, tasks: [{name: t, driver: raw_exec, config: {command: /bin/true}}]}]
---
apiVersion: herdlet/v1
kind: Job
metadata: {name: ended}
spec:
  type: service
  groups:
    - name: g
      restart: {attempts: 0, mode: fail}
      tasks: [{name: t, driver: raw_exec, config: {command: /bin/sleep, args: ["100001"]}}]
---
apiVersion: herdlet/v1
kind: Job
metadata: {name: gone}
spec:
  type: service
  groups: [{name: g, tasks: [{name: t, driver: raw_exec, config: {command: /bin/sleep, args: ["100002"]}}]}]
"#;

/// The directory of the fixtures.
pub fn fixtures() -> PathBuf {
    project().join("tests/fixtures/upgrade")
}

/// Creates the fixture of the program under test in `dir`, under `name` or the program's version, and returns
/// its path.
pub fn leave(dir: &Path, name: Option<String>) -> PathBuf {
    let mut agent = Agent::start();
    let name = name.unwrap_or_else(|| version(&agent));
    agent.apply(JOBS);
    agent.cli(&["wait", "stays", "shared", "done", "ended", "gone"]).success();
    agent.cli(&["delete", "gone", "--wait"]).success();
    fs::write(agent.home.state().join("volumes/v/precious"), "kept\n").expect("a file in the volume");
    let ends = agent.single("ended.g[0]", "t");
    let instance = agent.home.instance().expect("an instance has a name");
    agent.kill();
    host::signal(ends.pid, Signal::TERM);
    wait::until_true("its supervisor has recorded the end", || host::supervisors(&instance).len() == LIVING);
    let whole = agent.home.path().join("fixture");
    let records = whole.join("records");
    fs::create_dir_all(&records).expect("a directory");
    run("cp", &["-a", "--one-file-system", &text(&agent.home.state()), &text(&whole)]);
    // The contents of mounts are not part of the state directory.
    for mounted in host::mounts_below(&agent.home.state()) {
        let below = mounted.strip_prefix(agent.home.path()).expect("a path below the state directory");
        run("sh", &["-c", "rm -rf \"$0\"/*", &text(&whole.join(below))]);
    }
    for entry in fs::read_dir(home::runtime(&instance).join("attempts")).expect("records").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file())
            && !entry.file_name().to_string_lossy().starts_with('.')
        {
            fs::copy(entry.path(), records.join(entry.file_name())).expect("a copy of the record");
        }
    }
    let path = dir.join(format!("{name}.tar.gz"));
    fs::create_dir_all(dir).expect("the directory of fixtures");
    run("tar", &["-czf", &text(&path), "-C", &text(&whole), "--numeric-owner", "state", "records"]);
    agent.launch();
    agent.finish();
    path
}

/// How many tasks of [`JOBS`] still run after the agent's end.
const LIVING: usize = 4;

fn version(agent: &Agent) -> String {
    let output = agent.cli(&["version"]).success().stdout;
    let version =
        output.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    version.expect("`herdlet version` prints a version").to_owned()
}

/// Unpacks a fixture's state into the state directory of an agent's home. Returns the path of its records.
pub fn unpack(fixture: &Path, agent: &Agent) -> PathBuf {
    run("tar", &["-xzpf", &text(fixture), "--numeric-owner", "-C", &text(agent.home.path())]);
    agent.home.path().join("records")
}

/// How long each release runs before the next one replaces it.
pub const PAUSE: Duration = Duration::from_millis(300);

/// Installs another file with the same program in place of the previous one.
pub fn install(dir: &Path, number: u64) -> PathBuf {
    let (path, fresh) = (dir.join("herdlet-installed"), dir.join("herdlet-fresh"));
    let mut bytes = fs::read(program()).expect("a readable program");
    // The kernel ignores bytes after the end of the program.
    bytes.extend_from_slice(&number.to_le_bytes());
    fs::write(&fresh, bytes).expect("a writable program");
    run("chmod", &["755", &text(&fresh)]);
    fs::rename(&fresh, &path).expect("replacement of the program");
    path
}

fn run(name: &str, arguments: &[&str]) {
    let output = Command::new(name).args(arguments).output().expect("a run of the tool");
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
