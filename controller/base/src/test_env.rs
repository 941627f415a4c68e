//! Test fixture: a temporary directory in which tests may mount; cleaned up even if the test fails.

#![expect(clippy::unwrap_used, reason = "only tests see this")]

use std::path::{Path, PathBuf};

use crate::{
    mounts::{kernel, table::mounts_below},
    privileges::{Mounting, Privileges},
    safe_fs::Dir,
};

/// Reports that a test is skipped because `what` is missing here.
///
/// # Panics
/// If skipping is forbidden: in CI, which sets `HERDLET_TEST_REQUIRE=1`.
pub fn leave_out(what: &str) {
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some_and(|value| value == "1");
    assert!(!is_required, "required here: {what}");
    eprintln!("left out: this needs {what}");
}

/// Whether the test runs as root; otherwise reports it as skipped.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        leave_out("root");
    }
    is_root
}

/// Whether this process runs only the test with this full name, so that it may lower limits. Otherwise runs the test in
/// a separate process.
///
/// # Panics
/// If the test fails there.
pub fn is_alone(name: &str) -> bool {
    const INNER: &str = "HERDLET_TEST_ALONE";
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let mut inner = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = inner.args([name, "--exact", "--nocapture"]).env(INNER, "1").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
    false
}

pub struct TestEnv {
    temp: tempfile::TempDir,
    privileges: Privileges,
}

impl TestEnv {
    /// Without privileges, even as root.
    pub fn plain() -> Self {
        Self { temp: tempfile::tempdir().unwrap(), privileges: Privileges::none() }
    }

    /// With mounting if it is possible here; otherwise reports the test as skipped.
    pub fn mounting() -> Option<Self> {
        let privileges = Privileges::probe();
        if privileges.mounting == Mounting::Possible {
            return Some(Self { temp: tempfile::tempdir().unwrap(), privileges });
        }
        leave_out("the right to mount");
        None
    }

    pub fn privileges(&self) -> Privileges {
        self.privileges
    }

    pub fn path(&self) -> &Path {
        self.temp.path()
    }

    /// All mounts below the directory.
    pub fn mounted(&self) -> Vec<PathBuf> {
        let base = self.path().canonicalize().unwrap();
        mounts_below(&base).unwrap().into_iter().map(|mount| mount.point).collect()
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let parent = Dir::open(self.path().parent().unwrap()).unwrap();
        kernel::unmount_below(&parent, self.path().file_name().unwrap()).unwrap();
    }
}
