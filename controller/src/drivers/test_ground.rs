//! Ground for tests: a temporary directory below which things may be mounted, cleaned up whatever happens.

use std::path::{Path, PathBuf};

use crate::drivers::{
    mounts::{kernel, mounts_below},
    privileges::{Mounting, Privileges},
    safe_fs::Dir,
};

pub(crate) struct Ground {
    temp: tempfile::TempDir,
    privileges: Privileges,
}

impl Ground {
    /// As a plain user has it, whoever runs the test.
    pub(crate) fn plain() -> Self {
        Self { temp: tempfile::tempdir().unwrap(), privileges: Privileges::none() }
    }

    /// With mounting, if that is possible here; said otherwise.
    pub(crate) fn mounting() -> Option<Self> {
        let privileges = Privileges::probe();
        if privileges.mounting == Mounting::Possible {
            return Some(Self { temp: tempfile::tempdir().unwrap(), privileges });
        }
        assert!(
            std::env::var_os("HERDLET_TEST_REQUIRE").is_none_or(|value| value != "1"),
            "required here: the right to mount"
        );
        eprintln!("left out: mounting is not possible here");
        None
    }

    pub(crate) fn privileges(&self) -> Privileges {
        self.privileges
    }

    pub(crate) fn path(&self) -> &Path {
        self.temp.path()
    }

    /// All that is mounted here.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
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
