//! The real components that this machine has for the tests.
//!
//! In: the variables that `tests/setup` writes to `target/test-env/env`, from the environment or, in a manual
//! `cargo test`, from that file. Out: a path, or `None`, after which the test reports that it was skipped and
//! passes. With `HERDLET_TEST_REQUIRE=1` (CI) a missing component fails the test instead.
//!
//! This module must not know how a component is used.

use std::env;
use std::path::{Path, PathBuf};

/// The Consul program.
pub const CONSUL: &str = "HERDLET_TEST_CONSUL";

/// The OpenBao program.
pub const OPENBAO: &str = "HERDLET_TEST_OPENBAO";

/// The program that validates pages of metrics.
pub const PROMTOOL: &str = "HERDLET_TEST_PROMTOOL";

/// A headless browser.
pub const CHROMIUM: &str = "HERDLET_TEST_CHROMIUM";

/// A Python 3 program, not the wrapper of a version manager.
pub const PYTHON: &str = "HERDLET_TEST_PYTHON";

/// The folder of python-nomad and its dependencies, for that Python.
pub const PYTHON_NOMAD: &str = "HERDLET_TEST_PYTHON_NOMAD";

/// The source package of python-nomad with its own tests, and a folder `packages` with what they need.
pub const PYTHON_NOMAD_TESTS: &str = "HERDLET_TEST_PYTHON_NOMAD_TESTS";

/// The Traefik program.
pub const TRAEFIK: &str = "HERDLET_TEST_TRAEFIK";

/// The folder with the programs of Docker, Podman and a registry, for `tests/engines`.
pub const ENGINES: &str = "HERDLET_TEST_ENGINES";

/// A kernel for a virtual machine.
pub const GUEST_KERNEL: &str = "HERDLET_TEST_GUEST_KERNEL";

/// The disk and network drivers of that kernel.
pub const GUEST_MODULES: &str = "HERDLET_TEST_GUEST_MODULES";

/// Returns the path in `variable` if it is set and exists; otherwise reports it on stderr and returns `None`.
///
/// # Panics
///
/// If the component is missing although `HERDLET_TEST_REQUIRE=1`.
#[must_use]
pub fn component(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable)
        .map(PathBuf::from)
        .or_else(|| from_setup(variable))
        .filter(|path| path.exists());
    if path.is_none() {
        leave_out(&format!("{variable} is not the path of an existing file; run tests/setup"));
    }
    path
}

/// Returns the program `name` on PATH if it exists; otherwise reports it on stderr and returns `None`.
///
/// # Panics
///
/// If it is missing although `HERDLET_TEST_REQUIRE=1`.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").and_then(|path| {
        env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
    });
    if path.is_none() {
        leave_out(&format!("{name} is not on PATH; run tests/setup"));
    }
    path
}

/// Reports that a test is skipped because of `why`. For requirements that only the test itself can check
/// (root, a cgroup controller, a kernel feature).
///
/// # Panics
///
/// If `HERDLET_TEST_REQUIRE=1`.
pub fn leave_out(why: &str) {
    assert!(
        env::var_os("HERDLET_TEST_REQUIRE").is_none_or(|value| value != "1"),
        "HERDLET_TEST_REQUIRE=1 requires this test, but {why}"
    );
    eprintln!("left out: {why}");
}

fn from_setup(variable: &str) -> Option<PathBuf> {
    let cache = env::var_os("HERDLET_TEST_CACHE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-env"), PathBuf::from);
    let lines = std::fs::read_to_string(cache.join("env")).ok()?;
    lines.lines().find_map(|line| value_in(line, variable)).map(PathBuf::from)
}

fn value_in<'l>(line: &'l str, variable: &str) -> Option<&'l str> {
    line.strip_prefix(variable)?.strip_prefix("='")?.strip_suffix('\'')
}

#[cfg(test)]
mod tests {
    use super::value_in;

    #[test]
    fn a_line_of_the_env_file_is_read_by_its_whole_name() {
        assert_eq!(value_in("HERDLET_TEST_CONSUL='/a b/consul'", "HERDLET_TEST_CONSUL"), Some("/a b/consul"));
        assert_eq!(value_in("HERDLET_TEST_CONSUL_X='/a'", "HERDLET_TEST_CONSUL"), None);
    }
}
