//! Clients that others have written for Nomad, against this agent.

use std::{os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use herdlet_tests::{
    e2e::{
        agent::{Agent, Setup},
        ports,
    },
    environment,
};

use crate::common::{is_root, job, shell};

const TOKEN: &str = "0123456789abcdef0123";

/// Every area of the API as python-nomad, the client of most Python programs, sees it.
#[test]
fn python_nomad_finds_what_it_knows_from_nomad() {
    if !is_root() {
        return;
    }
    let (Some(python), Some(library)) =
        (environment::component(environment::PYTHON), environment::component(environment::PYTHON_NOMAD))
    else {
        return;
    };
    let [port] = ports::free();
    let setup = Setup::default()
        .config("token_file: token\n")
        .argument("--listen")
        .argument(format!("127.0.0.1:{port}"));
    let mut agent = Agent::prepare(setup);
    let token = agent.home.write("token", &format!("{TOKEN}\n"));
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    agent.home.write("config.yaml", &format!("token_file: {}\n", token.display()));
    agent.launch();
    let task = shell("t", "echo hello; exec sleep 100000", "kill_timeout: 5s");
    agent.apply_and_wait(&job("web", "service", "", &[task]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python_nomad.py");
    let answer = Command::new(python)
        .arg(script)
        .args([&port.to_string(), TOKEN])
        .env("PYTHONPATH", library)
        .env_remove("NOMAD_ADDR")
        .output()
        .unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(answer.status.success(), "{}{}", told(&answer.stdout), told(&answer.stderr));
    assert_eq!(told(&answer.stdout).lines().count(), 8);
    agent.finish();
}
