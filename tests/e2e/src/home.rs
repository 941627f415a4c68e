//! The directories of one test, below one temporary directory with a short name (a unix socket's path has at
//! most 107 bytes).
//!
//! In: nothing. Out: paths; at the end the check that nothing of the test remains on the machine. Dropping a
//! home removes what a failed test leaves.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    ffi::OsString,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{mount::UnmountFlags, process::Signal};
use tempfile::TempDir;

use super::{host, wait};

const NOBODY: u32 = 65534;

/// The user who runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The user who runs the tests.
    Same,
    /// `nobody`, without HOME and without a runtime directory. Needs root.
    Nobody,
}

#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    instances: RefCell<BTreeSet<String>>,
}

impl Home {
    /// Creates directories that `user` may write to.
    ///
    /// # Panics
    /// If they can't be created.
    pub fn new(user: User) -> Self {
        Self::below(Path::new("/tmp"), user)
    }

    /// Like [`Home::new`], below another directory.
    ///
    /// # Panics
    /// If they can't be created.
    pub fn below(ground: &Path, user: User) -> Self {
        let dir = tempfile::Builder::new().prefix("hd").tempdir_in(ground).expect("a temporary directory");
        let home = Self { dir, instances: RefCell::default() };
        for path in [home.path().to_path_buf(), home.temp(), home.path().join("home"), home.manifests()] {
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
            if user == User::Nobody {
                chown(&path, Some(NOBODY), Some(NOBODY)).expect("a change of the owner");
            }
        }
        home
    }

    /// Returns the root of the directories.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("sock")
    }

    /// Returns the socket as an address.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// TMPDIR of all commands.
    pub fn temp(&self) -> PathBuf {
        self.path().join("tmp")
    }

    /// The directory of the test's manifests.
    pub fn manifests(&self) -> PathBuf {
        self.path().join("manifests")
    }

    /// Writes a file in the home and returns its path.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("a writable file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("its mode");
        path
    }

    /// Returns the instance of the agent in [`Home::state`].
    pub fn instance(&self) -> Option<String> {
        self.instances_in(&[self.state()]).pop()
    }

    /// Returns the instance of a running private run.
    pub fn private_instance(&self) -> Option<String> {
        self.instances_in(&self.private_homes()).pop()
    }

    /// Returns the state directories of private runs.
    pub fn private_homes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Describes what remains of the test on this machine, except files.
    pub fn leftovers(&self) -> Vec<String> {
        self.instance();
        self.private_instance();
        let mut left = Vec::new();
        for (pid, arguments) in host::processes_naming(self.path()) {
            left.push(format!("process {pid}: {arguments}"));
        }
        left.extend(
            host::mounts_below(self.path()).into_iter().map(|point| format!("mount {}", point.display())),
        );
        for instance in self.instances.borrow().iter() {
            left.extend(host::attempts(instance).into_iter().map(|name| format!("cgroup {name}")));
            left.extend(host::supervisors(instance).into_iter().map(|pid| format!("supervisor {pid}")));
            left.extend(
                host::mounts_below(&runtime(instance))
                    .into_iter()
                    .map(|point| format!("mount {}", point.display())),
            );
        }
        if self.socket().exists() {
            left.push(format!("socket {}", self.socket().display()));
        }
        left
    }

    /// Waits until nothing remains: no process, cgroup of an attempt, mount or socket.
    ///
    /// # Panics
    /// If something remains.
    #[track_caller]
    pub fn until_nothing_left(&self) {
        until_empty(|| self.leftovers());
    }

    /// Like [`Home::until_nothing_left`]; of a private run, no cgroup tree and no directory may remain
    /// either.
    ///
    /// # Panics
    /// If something remains.
    #[track_caller]
    pub fn until_no_trace(&self) {
        until_empty(|| {
            let mut left = self.leftovers();
            let described =
                |path: &PathBuf| format!("directory {} with {:?}", path.display(), entries_of(path));
            left.extend(self.private_homes().iter().map(described));
            for instance in self.instances.borrow().iter() {
                left.extend(host::trees(instance).iter().map(|tree| format!("cgroup {}", tree.display())));
                left.extend(
                    Some(runtime(instance))
                        .filter(|path| path.exists())
                        .map(|path| format!("directory {}", path.display())),
                );
            }
            left
        });
    }

    fn instances_in(&self, states: &[PathBuf]) -> Vec<String> {
        let read = |state: &PathBuf| fs::read_to_string(state.join("instance")).ok();
        let found: Vec<String> = states
            .iter()
            .filter_map(read)
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
            .collect();
        self.instances.borrow_mut().extend(found.iter().cloned());
        found
    }
}

fn entries_of(dir: &Path) -> Vec<OsString> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

impl Drop for Home {
    fn drop(&mut self) {
        self.instance();
        self.private_instance();
        let instances = self.instances.take();
        // A guard or supervisor may start or end other processes meanwhile.
        for _ in 0..3 {
            for (pid, _) in host::processes_naming(self.path()) {
                host::signal(pid, Signal::KILL);
            }
            if !std::thread::panicking() {
                instances.iter().for_each(|instance| host::remove_trees(instance));
            }
        }
        instances.iter().for_each(|instance| host::remove_trees(instance));
        let runtimes: Vec<PathBuf> = instances.iter().map(|instance| runtime(instance)).collect();
        for dir in runtimes.iter().map(PathBuf::as_path).chain([self.path()]) {
            for point in host::mounts_below(dir) {
                let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
            }
        }
        for dir in &runtimes {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

#[track_caller]
fn until_empty(left: impl Fn() -> Vec<String>) {
    let deadline = std::time::Instant::now() + wait::PATIENCE;
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "not removed after {:?}:\n{}",
            wait::PATIENCE,
            left.join("\n")
        );
        wait::pause(Duration::from_millis(20));
    }
}

/// The directory of a root agent's files that don't outlive the boot.
pub fn runtime(instance: &str) -> PathBuf {
    Path::new("/run/herdlet").join(instance)
}
