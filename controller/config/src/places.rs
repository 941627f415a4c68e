//! Default paths: the Filesystem Hierarchy Standard for root, the XDG base directories for other users.
//!
//! <https://specifications.freedesktop.org/basedir-spec/latest/>: relative directories are ignored.

use std::path::{Path, PathBuf};

/// The inputs of the defaults.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether the process runs as root.
    pub root: bool,
    pub host_name: &'a str,
}

impl<'a> Surroundings<'a> {
    /// The inputs of this process. `host_name` is the result of [`host_name`].
    pub fn of_process(host_name: &'a str) -> Self {
        Self {
            variable: &|name| std::env::var(name).ok(),
            root: rustix::process::geteuid().is_root(),
            host_name,
        }
    }

    fn dir(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// The state directory; `None` if it can't be determined (a user without HOME).
pub fn default_state_dir(surroundings: &Surroundings<'_>) -> Option<PathBuf> {
    if surroundings.root {
        return Some(PathBuf::from("/var/lib/herdlet"));
    }
    let of_home = || surroundings.dir("HOME").map(|home| home.join(".local/state"));
    Some(surroundings.dir("XDG_STATE_HOME").or_else(of_home)?.join("herdlet"))
}

/// The path of the API's socket.
pub fn default_socket(surroundings: &Surroundings<'_>, state_dir: &Path) -> PathBuf {
    if surroundings.root {
        return PathBuf::from("/run/herdlet/herdlet.sock");
    }
    surroundings.dir("XDG_RUNTIME_DIR").unwrap_or_else(|| state_dir.to_owned()).join("herdlet.sock")
}

/// The directory below which each instance has a directory for files that don't outlive the boot.
pub(super) fn default_runtime_parent(surroundings: &Surroundings<'_>) -> Option<PathBuf> {
    if surroundings.root {
        return Some(PathBuf::from("/run/herdlet"));
    }
    surroundings.dir("XDG_RUNTIME_DIR").map(|dir| dir.join("herdlet"))
}
