//! Third-party clients for Nomad, with this agent.

use std::{path::Path, process::Command};

use herdlet_e2e::environment;

use crate::common::{TOKEN, is_root, job, on_loopback, shell};

/// Tests every area of the API with python-nomad, which most Python programs use.
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
    let (mut agent, port) = on_loopback();
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
