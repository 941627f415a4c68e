//! Ground for tests: a temporary directory below which things may be mounted, cleaned up whatever happens.

#![expect(clippy::unwrap_used, reason = "only tests see this")]

use std::path::{Path, PathBuf};

use crate::{
    mounts::{kernel, table::mounts_below},
    privileges::{Mounting, Privileges},
    safe_fs::Dir,
};

/// Says that a test is left out because `what` is missing here.
///
/// # Panics
/// Where nothing may be missing: in CI, which sets `HERDLET_TEST_REQUIRE=1`.
pub fn leave_out(what: &str) {
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some_and(|value| value == "1");
    assert!(!is_required, "required here: {what}");
    eprintln!("left out: this needs {what}");
}

/// Whether the test runs as root; it is left out otherwise.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        leave_out("root");
    }
    is_root
}

/// Whether this process runs the test with this full name alone, so that it may lower limits. Otherwise runs it in a process of its own.
///
/// # Panics
/// When the test fails there.
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

pub struct Ground {
    temp: tempfile::TempDir,
    privileges: Privileges,
}

impl Ground {
    /// As a plain user has it, whoever runs the test.
    pub fn plain() -> Self {
        Self { temp: tempfile::tempdir().unwrap(), privileges: Privileges::none() }
    }

    /// With mounting, if that is possible here; said otherwise.
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

    /// All that is mounted here.
    pub fn mounted(&self) -> Vec<PathBuf> {
        let base = self.path().canonicalize().unwrap();
        mounts_below(&base).unwrap().into_iter().map(|mount| mount.point).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let parent = Dir::open(self.path().parent().unwrap()).unwrap();
        kernel::unmount_below(&parent, self.path().file_name().unwrap()).unwrap();
    }
}
