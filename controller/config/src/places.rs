//! Where things are when nobody says: the Filesystem Hierarchy Standard for root, the XDG base directories for everybody else.
//!
//! <https://specifications.freedesktop.org/basedir-spec/latest/>: a directory that is not absolute is no directory.

use std::path::{Path, PathBuf};

/// What defaults depend on.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether we are root.
    pub root: bool,
    /// Name of the host.
    pub host_name: &'a str,
}

impl<'a> Surroundings<'a> {
    /// Those of this process. `host_name` is what [`host_name`] says.
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

/// The name of this host.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// Where state is kept; none where nothing says so (a user without HOME).
pub fn default_state_dir(surroundings: &Surroundings<'_>) -> Option<PathBuf> {
    if surroundings.root {
        return Some(PathBuf::from("/var/lib/herdlet"));
    }
    let of_home = || surroundings.dir("HOME").map(|home| home.join(".local/state"));
    Some(surroundings.dir("XDG_STATE_HOME").or_else(of_home)?.join("herdlet"))
}

/// Where the API's socket is.
pub fn default_socket(surroundings: &Surroundings<'_>, state_dir: &Path) -> PathBuf {
    if surroundings.root {
        return PathBuf::from("/run/herdlet/herdlet.sock");
    }
    surroundings.dir("XDG_RUNTIME_DIR").unwrap_or_else(|| state_dir.to_owned()).join("herdlet.sock")
}

/// Below what each instance keeps what lives as long as the boot.
pub(super) fn default_runtime_parent(surroundings: &Surroundings<'_>) -> Option<PathBuf> {
    if surroundings.root {
        return Some(PathBuf::from("/run/herdlet"));
    }
    surroundings.dir("XDG_RUNTIME_DIR").map(|dir| dir.join("herdlet"))
}
