//! Small manifests and queries that several tests share.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    environment,
    home::Home,
    ports,
    program::{example, program},
};

/// Returns whether this is root, which most tests need; otherwise reports that the test is skipped.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        environment::leave_out("this needs root");
    }
    root
}

/// Whether this machine has a program.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        environment::leave_out(&format!("this needs {program}, which tests/setup installs"));
    }
    found
}

/// The token for clients on TCP.
pub(crate) const TOKEN: &str = "0123456789abcdef0123";

/// Starts an agent whose API also listens on this loopback port, for clients that send [`TOKEN`].
pub(crate) fn on_loopback() -> (Agent, u16) {
    let (mut agent, [api, _]) = prepared_on_loopback();
    agent.launch();
    (agent, api)
}

/// Like [`on_loopback`], before the launch, with the ports of its API and its metrics.
pub(crate) fn prepared_on_loopback() -> (Agent, [u16; 2]) {
    let [api, metrics] = ports::free();
    let setup = Setup::default()
        .config("token_file: token\n")
        .argument("--listen")
        .argument(format!("127.0.0.1:{api}"))
        .argument("--metrics-listen")
        .argument(format!("127.0.0.1:{metrics}"));
    let agent = Agent::prepare(setup);
    let token = agent.home.write("token", &format!("{TOKEN}\n"));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    agent.home.write("config.yaml", &format!("token_file: {}\n{}", token.display(), ports::for_tasks()));
    (agent, [api, metrics])
}

/// Returns an example with timeouts and deadlines for a busy machine, so that slowness makes none fail.
pub(crate) fn patient(name: &str) -> String {
    let text = std::fs::read_to_string(example(name)).unwrap();
    let text = text.replace(" timeout: 1s", " timeout: 2m").replace(" timeout: 5s", " timeout: 2m");
    text.replace("healthy_deadline: 30s", "healthy_deadline: 5m")
        .replace("progress_deadline: 1m", "progress_deadline: 10m")
}

/// Returns a job with one group `g` and these tasks, from [`shell`] or [`sleeper`].
pub(crate) fn job(name: &str, kind: &str, group: &str, tasks: &[String]) -> String {
    let tasks = tasks.join("\n");
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  type: {kind}\n  groups:\n    - name: g\n{}      tasks:\n{tasks}\n",
        indented(group, 6)
    )
}

/// Returns a `raw_exec` task that runs `script` in a shell; `more` are additional fields, one per line.
pub(crate) fn shell(name: &str, script: &str, more: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    let head =
        format!("- name: {name}\n  driver: raw_exec\n  config: {{command: /bin/sh, args: [-c, {script}]}}\n");
    indented(&format!("{head}{}", indented(more, 2)), 8)
}

/// Returns a task that is one long-running process, `sleep`, and ends at once on the stop signal.
pub(crate) fn sleeper(name: &str, more: &str) -> String {
    let head = format!(
        "- name: {name}\n  driver: raw_exec\n  config: {{command: /bin/sleep, args: [\"100000\"]}}\n  kill_timeout: 5s\n"
    );
    indented(&format!("{head}{}", indented(more, 2)), 8)
}

/// Returns a volume that herdlet creates.
pub(crate) fn volume(name: &str) -> String {
    format!(
        "apiVersion: herdlet/v1\nkind: Volume\nmetadata: {{name: {name}}}\nspec: {{type: host, plugin_id: mkdir}}\n---\n"
    )
}

/// Starts `herdlet run FILE…`.
pub(crate) fn start_run(home: &Home, user: User, files: &[&Path]) -> Running {
    let program = match user {
        User::Same => program().to_path_buf(),
        User::Nobody => command::reachable(home, program()),
    };
    let mut arguments = vec!["run".into()];
    arguments.extend(files.iter().map(|path| path.as_os_str().to_owned()));
    Running::start(command::prepare(home, user, &program, &arguments))
}

pub(crate) fn indented(text: &str, by: usize) -> String {
    let pad = " ".repeat(by);
    text.lines().map(|line| format!("{pad}{line}\n")).collect()
}
