//! What a process gives up before it reads a stranger's bytes: all files but those below one directory, the network, other users' rights,
//! and more than its share of memory, time and files.
//!
//! In: who it is to be. Out: the directory in which it was started, which is all that it can reach. Everything is the calling thread's alone
//! but for the limits and the root: to be called in a process that has no other thread of importance.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, Scope,
};
use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    process::{Resource, Rlimit},
    thread::{CapabilitySet, CapabilitySets},
};

use crate::drivers::safe_fs::{Dir, FsError};

/// Who to be, and how much to take.
#[derive(Debug, Clone)]
pub(super) struct Confinement<'a> {
    /// User, group and all groups; where absent, who it is.
    pub(super) user: Option<(u32, u32, &'a [u32])>,
    /// Size of a file.
    pub(super) file_bytes_max: u64,
    /// Time of the processor.
    pub(super) cpu_seconds: u64,
    /// It may give files to others, in its directory.
    pub(super) gives_away: bool,
}

/// Why something could not be given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    /// The directory.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The system said no.
    #[error("{what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// Landlock said no.
    #[error("close off other files: {0}")]
    Landlock(#[from] RulesetError),
}

/// Memory: what decompressors take, with the program itself.
const MEMORY_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Open files: a path is walked by two.
const FILES_MAX: u64 = 64;

/// What it takes to make files for others, and to go on in directories that are theirs then.
const GIVING: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::FOWNER).union(CapabilitySet::DAC_OVERRIDE);

/// Rights of the newest kernel known; older ones grant what they know.
const RULES: ABI = ABI::V6;

/// Gives up all that is not needed.
///
/// # Errors
/// When something can't be given up that this process has. A kernel without Landlock has nothing of it.
pub(super) fn enter(confinement: &Confinement<'_>) -> Result<Dir, SandboxError> {
    let system = |what| move |errno: Errno| SandboxError::System { what, source: errno.into() };
    let dir = Dir::open(Path::new("."))?;
    for (resource, max) in [
        (Resource::Fsize, confinement.file_bytes_max),
        (Resource::Cpu, confinement.cpu_seconds),
        (Resource::As, MEMORY_BYTES_MAX),
        (Resource::Nofile, FILES_MAX),
        (Resource::Core, 0),
    ] {
        limit(resource, max).map_err(system("set limits"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(system("give up new rights"))?;
    if rustix::process::geteuid().is_root() {
        // The files of the machine have no names for us any more; a container may not be allowed to.
        match rustix::process::chroot(".") {
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(system("change the root")(errno)),
        }
    }
    let granted = AccessFs::from_read(RULES) & !AccessFs::Execute
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::Refer
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSym;
    Ruleset::default()
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?
        .add_rule(PathBeneath::new(&dir, granted))?
        .restrict_self()?;
    if let Some((uid, gid, groups)) = confinement.user {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(system("set groups"))?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid)).map_err(system("set the group"))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid)).map_err(system("set the user"))?;
    }
    let none = CapabilitySet::empty();
    let kept = if confinement.gives_away {
        let known = rustix::thread::capabilities(None).map_err(system("read capabilities"))?;
        known.permitted & GIVING
    } else {
        none
    };
    let kept = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    rustix::thread::set_capabilities(None, kept).map_err(system("give up capabilities"))?;
    Ok(dir)
}

/// Lowers a limit, never raises one.
fn limit(resource: Resource, max: u64) -> Result<(), Errno> {
    let known = rustix::process::getrlimit(resource);
    let max = known.maximum.map_or(max, |known| known.min(max));
    rustix::process::setrlimit(resource, Rlimit { current: Some(max), maximum: Some(max) })
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpStream, process::Command};

    use super::*;

    /// What the process itself sees, where this test is started as one.
    #[test]
    fn who_is_confined_reaches_its_directory_and_nothing_else() {
        const CONFINED: &str = "HERDLET_TEST_CONFINED";
        if std::env::var_os(CONFINED).is_some() {
            return look_around();
        }
        let temp = tempfile::tempdir().unwrap();
        let (dir, beside) = (temp.path().join("dir"), temp.path().join("beside"));
        fs::create_dir(&dir).unwrap();
        fs::write(&beside, "beside").unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(65_534), Some(65_534)).unwrap();
        }
        let name = "drivers::artifact::unpack::sandbox::tests::who_is_confined_reaches_its_directory_and_nothing_else";
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CONFINED, "1")
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(fs::read_to_string(dir.join("inside")).unwrap(), "inside");
        assert_eq!(fs::read_to_string(&beside).unwrap(), "beside");
    }

    fn look_around() {
        let is_root = rustix::process::geteuid().is_root();
        let user = is_root.then_some((65_534, 65_534, &[65_534][..]));
        let dir = enter(&Confinement { user, file_bytes_max: 1 << 20, cpu_seconds: 10, gives_away: false })
            .unwrap();
        let here = dir.proc_path("".as_ref());
        fs::write("inside", "inside").unwrap();
        for path in ["/etc/passwd", "../beside", "/proc/self/environ", "/dev/null"] {
            assert!(fs::read(path).is_err(), "{path} can be read");
            // Above its root there is nothing but itself.
            assert!(path.starts_with("..") || fs::write(path, "x").is_err(), "{path} can be written");
        }
        assert!(rustix::fs::mkfifoat(&dir, "pipe", rustix::fs::Mode::RUSR).is_err(), "{here:?}");
        assert!(Command::new("/bin/true").status().is_err());
        let refused = TcpStream::connect("127.0.0.1:9").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
        assert!(!rustix::process::geteuid().is_root() || !is_root);
    }
}
