//! Programs of the machine that drivers run for tasks, such as `java`: where they are, and which version they print.
//!
//! In: a name, a search path. Out: a path without links, output of a version command. A command that hangs or writes without end
//! is killed. All calls block.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use herdlet_base::durable;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, prlimit},
};

/// How long a program may take to print its version. On an overloaded machine a virtual machine needs a second.
const VERSION_TIME_MAX: Duration = Duration::from_secs(5);
/// A version has a few lines.
const OUTPUT_LEN_MAX: u64 = 4096;
/// The same with a path before it.
const KEPT_LEN_MAX: u64 = 2 * OUTPUT_LEN_MAX;
/// The longest file that the program may write meanwhile, its output included.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// The programs of a machine.
#[derive(Debug, Clone)]
pub struct Programs {
    search_path: OsString,
    /// A directory of the agent for what it knows about them.
    kept: PathBuf,
}

impl Programs {
    /// `search_path`: where the agent finds programs. `kept`: a directory that only the agent can write to; made if necessary.
    pub fn new(search_path: OsString, kept: PathBuf) -> Self {
        Self { search_path, kept }
    }

    /// Finds a program by its name, without the links that lead to it.
    pub(crate) fn locate(&self, name: &str) -> Option<PathBuf> {
        locate(name, &self.search_path)
    }

    /// What a program prints about its version, as far as it is known. `name` is that of a file.
    pub(crate) fn versions(&self, name: &str) -> Versions {
        if let Err(error) = durable::make_dir(&self.kept) {
            tracing::debug!(%error, path = %self.kept.display(), "the versions of programs can't be kept");
        }
        Versions { kept: self.kept.join(name), known: Mutex::default() }
    }
}

/// Finds a program by its name, without the links that lead to it.
pub fn locate(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    // A relative directory would be one of the agent's own.
    let dirs = std::env::split_paths(search_path).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join(name)).find(|path| is_program(path)).and_then(|path| fs::canonicalize(path).ok())
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What a program prints about its version. Only a changed program is executed again, also by the next agent: a node does not lose
/// its attributes for the time of a start.
#[derive(Debug)]
pub(crate) struct Versions {
    /// The file that keeps it: the program's identity, then the output.
    kept: PathBuf,
    known: Mutex<Option<(Identity, String)>>,
}

/// A file as it was: a package that replaces it changes one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    path: PathBuf,
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    fn read(program: &Path) -> io::Result<Self> {
        let meta = fs::metadata(program)?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Ok(Self { path: program.to_owned(), device: meta.dev(), inode: meta.ino(), changed })
    }
}

impl Versions {
    /// The output of the program, if it was asked before and has not changed since.
    pub(crate) fn known(&self, program: &Path) -> Option<String> {
        let identity = Identity::read(program).ok()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            *known = self.read_kept(&identity).map(|output| (identity.clone(), output));
        }
        known.as_ref().filter(|(of, _)| *of == identity).map(|(_, output)| output.clone())
    }

    fn read_kept(&self, identity: &Identity) -> Option<String> {
        let mut text = String::new();
        File::open(&self.kept).ok()?.take(KEPT_LEN_MAX).read_to_string(&mut text).ok()?;
        let (of, output) = text.split_once('\n')?;
        (of == format!("{identity:?}")).then(|| output.to_owned())
    }

    /// The output of the program with this argument, standard error included.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn query(&self, program: &Path, argument: &str) -> Result<String, String> {
        if let Some(output) = self.known(program) {
            return Ok(output);
        }
        let identity = Identity::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
        let output = output(program, argument, VERSION_TIME_MAX)
            .map_err(|why| format!("{} {argument}: {why}", program.display()))?;
        // Not into a directory made again: the agent may have ended meanwhile, and have removed it.
        let kept = durable::write(&self.kept, format!("{identity:?}\n{output}").as_bytes());
        if let Err(error) = kept {
            tracing::debug!(%error, path = %self.kept.display(), "failed to keep the version of a program");
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((identity, output.clone()));
        Ok(output)
    }
}

/// Runs a program in a process group of its own.
fn output(program: &Path, argument: &str, time_max: Duration) -> Result<String, String> {
    let failed = |error: io::Error| error.to_string();
    let mut written =
        File::from(memfd_create("version", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
    let copy = || written.try_clone().map(Stdio::from).map_err(failed);
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    // Options for programs of the agent's user would be printed, and may name debuggers.
    for name in ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"] {
        command.env_remove(name);
    }
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(failed)?;
    let ended = ends_in_time(&child, time_max);
    if !matches!(ended, Ok(true)) {
        kill_group(&child);
    }
    let status = child.wait().map_err(failed)?;
    if !ended.map_err(failed)? {
        return Err(format!("it did not end within {} s", time_max.as_secs()));
    }
    let mut text = Vec::new();
    written.rewind().map_err(failed)?;
    written.take(OUTPUT_LEN_MAX).read_to_end(&mut text).map_err(failed)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if !status.success() {
        let first = text.lines().next().unwrap_or_default();
        return Err(format!("it ended with {status}: {first}"));
    }
    Ok(text)
}

/// Waits until a child has ended; false if it does not in time. It is not reaped.
fn ends_in_time(child: &Child, time_max: Duration) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    let watched = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Rlimit { current: Some(FILE_LEN_MAX), maximum: Some(FILE_LEN_MAX) };
    // One that has ended already has written what it had to.
    let _ = prlimit(Some(pid), Resource::Fsize, limit);
    let until = Instant::now() + time_max;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&watched, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills a child with the programs that it has started.
#[expect(clippy::disallowed_methods, reason = "the child is not reaped: the number of its group is its own")]
fn kill_group(child: &Child) {
    let _ = rustix::process::kill_process_group(Pid::from_child(child), rustix::process::Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_first_program_in_the_path_is_found_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        for sub in ["a", "b", "c/tool"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        let real = script(&dir.join("b"), "real", "true");
        std::os::unix::fs::symlink(&real, dir.join("b/tool")).unwrap();
        fs::write(dir.join("a/tool"), "no program").unwrap();
        let path = std::env::join_paths([dir.join("c"), dir.join("a"), "b".into(), dir.join("b")]).unwrap();
        assert_eq!(locate("tool", &path), Some(real));
        assert_eq!(locate("other", &path), None);
    }

    #[test]
    fn a_program_is_asked_again_when_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "tool", "echo out; echo err >&2; echo >> $0.runs");
        let programs = Programs::new(OsString::new(), dir.path().join("kept"));
        let versions = programs.versions("tool");
        assert_eq!(versions.known(&program), None);
        for _ in 0..2 {
            assert_eq!(versions.query(&program, "-version").unwrap(), "out\nerr\n");
        }
        // As after a restart of the agent.
        let versions = programs.versions("tool");
        assert_eq!(versions.known(&program).as_deref(), Some("out\nerr\n"));
        assert_eq!(versions.query(&program, "-version").unwrap(), "out\nerr\n");
        assert_eq!(fs::read_to_string(dir.path().join("tool.runs")).unwrap(), "\n");
        fs::remove_file(&program).unwrap();
        assert!(versions.query(&program, "-version").is_err());
        script(dir.path(), "tool", "echo other $1");
        assert_eq!(versions.known(&program), None);
        assert_eq!(versions.query(&program, "-version").unwrap(), "other -version\n");
    }

    /// A private agent has ended before the program has answered.
    #[test]
    fn directory_that_was_removed_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "tool", "echo out");
        let kept = dir.path().join("run/kept");
        let versions = Programs::new(OsString::new(), kept.clone()).versions("tool");
        assert!(kept.exists());
        fs::remove_dir_all(dir.path().join("run")).unwrap();
        assert_eq!(versions.query(&program, "-version").unwrap(), "out\n");
        assert!(!dir.path().join("run").exists());
    }

    #[test]
    fn failures_hangs_and_floods_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let run = |text: &str| output(&script(dir.path(), "tool", text), "x", Duration::from_millis(200));
        let failed = run("echo broken; echo more; exit 3").unwrap_err();
        assert!(failed.contains('3') && failed.ends_with(": broken"), "{failed}");
        assert!(run("exec sleep 1000").unwrap_err().contains("did not end"));
        assert!(run("while :; do echo y; done").is_err());
        assert!(output(&dir.path().join("none"), "x", VERSION_TIME_MAX).is_err());
    }
}
