//! Third-party clients for Nomad, with this agent.

use std::{path::Path, process::Command};

use herdlet_e2e::environment;

use crate::common::{TOKEN, is_root, job, on_loopback, prepared_on_loopback, shell};

/// Tests every area of the API with python-nomad, which most Python programs use.
#[test]
fn python_nomad_works() {
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
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
    assert_eq!(text(&answer.stdout).lines().count(), 8);
    agent.finish();
}

/// Runs python-nomad's own tests, as far as they fit one node; `clients/suite/conftest.py` lists the others with the reasons.
#[test]
fn python_nomads_own_tests_pass() {
    if !is_root() {
        return;
    }
    let (Some(python), Some(source)) = (
        environment::component(environment::PYTHON),
        environment::component(environment::PYTHON_NOMAD_TESTS),
    ) else {
        return;
    };
    let (mut agent, [port, _]) = prepared_on_loopback();
    // Its tests know the node by this name.
    let config = std::fs::read_to_string(agent.home.path().join("config.yaml")).unwrap();
    agent.home.write("config.yaml", &format!("name: pynomad1\n{config}"));
    agent.launch();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/suite");
    let here = agent.home.path().join("suite");
    std::fs::create_dir_all(here.join("tests")).unwrap();
    let copy = |from: &Path, to: &Path| {
        for file in std::fs::read_dir(from).unwrap().map(Result::unwrap).filter(|file| file.path().is_file())
        {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    copy(&source.join("tests"), &here.join("tests"));
    // The jobs are read from the working directory, the modules from `tests`.
    copy(&suite, &here);
    copy(&suite, &here.join("tests"));
    std::fs::write(here.join("tests/__init__.py"), "").unwrap();
    let answer = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "tests"])
        .current_dir(&here)
        .env("PYTHONPATH", format!("{}:{}", source.join("packages").display(), here.display()))
        .env("HERDLET_TEST_PORT", port.to_string())
        .env("HERDLET_TEST_TOKEN", TOKEN)
        .env("NOMAD_VERSION", "2.0.5")
        .env_remove("NOMAD_ADDR")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(answer.status.success(), "{}{}", text(&answer.stdout), text(&answer.stderr));
    agent.finish();
}
