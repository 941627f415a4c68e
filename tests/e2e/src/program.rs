//! The program under test.
//!
//! In: `HERDLET_TEST_PROGRAM`, or the target directory of this test's build. Out: the path of `herdlet`,
//! which is built if it is missing or older than its sources. The same for the CSI plugin of the tests.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::SystemTime,
};

/// Names another program to test.
pub const PROGRAM: &str = "HERDLET_TEST_PROGRAM";

pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// Returns the path of a manifest in manifests/.
pub fn example(name: &str) -> PathBuf {
    project().join("manifests").join(format!("{name}.yaml"))
}

/// Returns the path of the program.
///
/// # Panics
/// If it can't be built.
pub fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let sources = ["controller", "api-types", "Cargo.lock"];
    PATH.get_or_init(|| {
        env::var_os(PROGRAM).map_or_else(|| build("herdlet", "herdlet", &sources), PathBuf::from)
    })
}

/// Returns the path of the CSI plugin for tests.
///
/// # Panics
/// If it can't be built.
pub fn csi_plugin() -> PathBuf {
    build("herdlet-csi-plugin", "csi-plugin", &["tests/csi/src", "controller/csi/src"])
}

fn build(package: &str, name: &str, sources: &[&str]) -> PathBuf {
    // target/<profile>/deps/<this test>, or target/<profile>/<this program>
    let own = env::current_exe().expect("the path of this program");
    let profile =
        own.ancestors().skip(1).find(|dir| !dir.ends_with("deps")).expect("a program in target/<profile>");
    let program = profile.join(name);
    let built = fs::metadata(&program).and_then(|found| found.modified()).ok();
    let mut changed = sources.iter().filter_map(|part| newest(&project().join(part)));
    if built.is_some_and(|built| changed.all(|source| source <= built)) {
        return program;
    }
    eprintln!("building {}", program.display());
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(project()).args(["build", "--quiet", "--package", package, "--bin", name]);
    cargo.arg("--target-dir").arg(profile.parent().expect("a target directory around the profile"));
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(name) => {
            cargo.args(["--profile", name]);
        }
    }
    let status = cargo.status().expect("a run of cargo");
    assert!(status.success(), "cargo build -p {package} failed");
    program
}

/// Returns the newest modification time below `path`.
fn newest(path: &Path) -> Option<SystemTime> {
    let found = fs::metadata(path).ok()?;
    if !found.is_dir() {
        return found.modified().ok();
    }
    let entries = fs::read_dir(path).ok()?;
    entries.filter_map(|entry| newest(&entry.ok()?.path())).max()
}
