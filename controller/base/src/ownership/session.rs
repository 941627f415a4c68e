//! Detects a runtime directory of another user: `su` and `sudo` may keep the caller's environment variable.
//!
//! In: `XDG_RUNTIME_DIR`, and the paths that an agent would use. Out: nothing, or an error with advice.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, AtFlags, CWD};

use super::TrustPolicy;

/// The directory belongs to another user. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[error(
    "use {} from XDG_RUNTIME_DIR: it belongs to {owner}, and this process runs as {own}. `su` and `sudo` may keep that variable. \
     Unset it, or start a session of that user (`su -`, `sudo -i`, `machinectl shell`), or set --runtime-dir and --socket", dir.display()
)]
pub struct ForeignSession {
    dir: PathBuf,
    owner: String,
    own: String,
}

/// Checks that our user can use the directory in `XDG_RUNTIME_DIR`, if one of these paths is in it. Root has
/// directories of its own.
///
/// # Errors
/// [`ForeignSession`].
pub fn check_session<'p>(mut paths: impl Iterator<Item = &'p Path>) -> Result<(), ForeignSession> {
    let guard = TrustPolicy::of_process();
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if guard.uid != 0 && paths.any(|path| path.starts_with(&dir)) => guard.session(&dir),
        Some(_) | None => Ok(()),
    }
}

impl TrustPolicy {
    /// A missing directory passes: this check doesn't cover it.
    pub(super) fn session(&self, dir: &Path) -> Result<(), ForeignSession> {
        let Ok(owner) = std::fs::metadata(dir).map(|meta| meta.uid()) else { return Ok(()) };
        let access = Access::WRITE_OK | Access::EXEC_OK;
        let is_open = || rustix::fs::accessat(CWD, dir, access, AtFlags::EACCESS).is_ok();
        if owner == self.uid || (self.trusts(owner) && is_open()) {
            return Ok(());
        }
        let [owner, own] = [owner, self.uid].map(|uid| self.accounts.described(uid));
        Err(ForeignSession { dir: dir.to_owned(), owner, own })
    }
}
