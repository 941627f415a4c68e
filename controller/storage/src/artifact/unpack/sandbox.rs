//! What a process gives up before it reads a stranger's bytes: all files but those below one directory, the network, other users' rights,
//! and more than its share of memory, time and files.
//!
//! In: who it is to be. Out: the directory in which it was started, which is all that it can reach. Everything is the calling thread's alone
//! but for the limits and the root: to be called in a process that has no other thread of importance.
//!
//! Two things keep it from other files, Landlock and a root of its own; a kernel may lack the first, a container or a user forbid the
//! second. As root one of both must hold. Another user has no root to change: without Landlock it reaches what that user may, and
//! [`Barrier`] says so. Calls that unpacking doesn't need are refused in any case ([`calls`]).
//!
//! Without a user of the task root stays user 0, without capabilities: its files must be root's. As `nobody` they would be given to root
//! afterwards, name by name, in a tree that every other process of `nobody` may change meanwhile.

mod calls;

use std::path::Path;

use herdlet_base::safe_fs::{Dir, FsError};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};
use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    process::{Resource, Rlimit},
    thread::{CapabilitySet, CapabilitySets},
};

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
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The system said no.
    #[error("{what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        source: std::io::Error,
    },
    #[error("close off other files: {0}")]
    Landlock(#[from] RulesetError),
    /// Nothing keeps root from the files of the machine.
    #[error(
        "close off other files: the kernel has no Landlock, and root may not change its root directory here; enable Landlock (`lsm=` of \
         the kernel's command line), or give the agent CAP_SYS_CHROOT"
    )]
    Open,
    /// The filter of system calls.
    #[error("close off system calls: {0}; unpacking needs a kernel with seccomp filters")]
    Calls(#[from] seccompiler::Error),
}

/// What keeps a process that unpacks from files of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Landlock, whoever it is.
    Landlock,
    /// A root directory of its own, as the agent is root; the kernel has no Landlock.
    Root,
    /// The rights of the agent's user, or of the task's.
    User,
    /// Nothing, and it is root: archives are refused.
    Nothing,
}

impl Barrier {
    /// Asks the kernel, without leaving a trace.
    pub fn probe() -> Self {
        let may_change_root = || {
            let known = rustix::thread::capabilities(None);
            known.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_CHROOT))
        };
        if has_landlock() {
            Self::Landlock
        } else if !rustix::process::geteuid().is_root() {
            Self::User
        } else if may_change_root() {
            Self::Root
        } else {
            Self::Nothing
        }
    }
}

/// Whether a set of rules can be made; none is put in force.
fn has_landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
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
/// When something can't be given up that this process has, or when root would reach other files.
pub(super) fn enter(confinement: &Confinement<'_>) -> Result<Dir, SandboxError> {
    let dir = Dir::open(Path::new("."))?;
    // The agent may be protected from the OOM killer, which this process would inherit. Where it stays so, the limit of memory holds.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
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
    let is_root = rustix::process::geteuid().is_root();
    let has_own_root = is_root
        && match rustix::process::chroot(".") {
            // The files of the machine have no names for us any more.
            Ok(()) => true,
            // A container may not be allowed to.
            Err(Errno::PERM) => false,
            Err(errno) => return Err(system("change the root")(errno)),
        };
    if restrict(&dir)? == RulesetStatus::NotEnforced && is_root && !has_own_root {
        return Err(SandboxError::Open);
    }
    give_up_rights(confinement)?;
    calls::close_off()?;
    Ok(dir)
}

/// Landlock, as far as the kernel has it.
fn restrict(dir: &Dir) -> Result<RulesetStatus, RulesetError> {
    let granted = AccessFs::from_read(RULES) & !AccessFs::Execute
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::Refer
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSym;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?
        .add_rule(PathBeneath::new(dir, granted))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// Becomes the task's user, where there is one, and gives up all capabilities that are not needed.
fn give_up_rights(confinement: &Confinement<'_>) -> Result<(), SandboxError> {
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
    rustix::thread::set_capabilities(None, kept).map_err(system("give up capabilities"))
}

fn system(what: &'static str) -> impl Fn(Errno) -> SandboxError {
    move |errno| SandboxError::System { what, source: errno.into() }
}

/// Lowers a limit, never raises one.
fn limit(resource: Resource, max: u64) -> Result<(), Errno> {
    let known = rustix::process::getrlimit(resource);
    let max = known.maximum.map_or(max, |known| known.min(max));
    rustix::process::setrlimit(resource, Rlimit { current: Some(max), maximum: Some(max) })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::TcpStream,
        os::unix::net::UnixStream,
        process::{Command, Output},
    };

    use seccompiler::{SeccompAction, SeccompFilter};

    use super::*;

    /// What the process itself sees, where this test is started as one.
    #[test]
    fn who_is_confined_reaches_its_directory_and_nothing_else() {
        if std::env::var_os(CONFINED).is_some() {
            return look_around();
        }
        let temp = tempfile::tempdir().unwrap();
        let beside = temp.path().join("beside");
        fs::write(&beside, "beside").unwrap();
        let ended = again("who_is_confined_reaches_its_directory_and_nothing_else", temp.path());
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(fs::read_to_string(temp.path().join("dir/inside")).unwrap(), "inside");
        assert_eq!(fs::read_to_string(&beside).unwrap(), "beside");
    }

    #[test]
    fn without_landlock_root_needs_a_root_directory_of_its_own() {
        if std::env::var_os(CONFINED).is_some() {
            return enter_without_landlock();
        }
        let temp = tempfile::tempdir().unwrap();
        let ended = again("without_landlock_root_needs_a_root_directory_of_its_own", temp.path());
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    fn enter_without_landlock() {
        let confinement =
            Confinement { user: None, file_bytes_max: 1 << 20, cpu_seconds: 10, gives_away: false };
        refuse(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(Barrier::probe(), if is_root { Barrier::Root } else { Barrier::User });
        refuse(libc::SYS_chroot, libc::EPERM);
        match enter(&confinement) {
            Err(SandboxError::Open) => assert!(is_root),
            entered => assert!(entered.is_ok() && !is_root, "{entered:?}"),
        }
    }

    /// As an older kernel or a container does it, for this thread.
    fn refuse(call: libc::c_long, errno: libc::c_int) {
        let (refused, rest) = (SeccompAction::Errno(errno.unsigned_abs()), SeccompAction::Allow);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new([(call, vec![])].into(), rest, refused, arch).unwrap();
        seccompiler::apply_filter(&seccompiler::BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    const CONFINED: &str = "HERDLET_TEST_CONFINED";

    /// Starts a test once more, in a directory `dir` in which it is to be confined.
    fn again(name: &str, temp: &Path) -> Output {
        let dir = temp.join("dir");
        fs::create_dir(&dir).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(65_534), Some(65_534)).unwrap();
        }
        let name = format!("artifact::unpack::sandbox::tests::{name}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(CONFINED, "1").current_dir(&dir);
        command.output().unwrap()
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
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "it can make threads");
        assert_eq!(UnixStream::pair().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        let refused = TcpStream::connect("127.0.0.1:9").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
        assert!(!rustix::process::geteuid().is_root() || !is_root);
    }
}
