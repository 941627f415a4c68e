//! Restricts a process before it reads untrusted bytes: no files except below one directory, no network, no rights of
//! other users, and limited memory, time and files.
//!
//! In: the user to become. Out: the directory in which the process was started, the only one it can reach. Everything
//! applies only to the calling thread, except limits and root directory: call it in a process without other important
//! threads.
//!
//! Landlock and a separate root directory keep the process from other files. A kernel may lack the first; a container
//! or a user may forbid the second. As root, one of both is required. Another user can't change the root: without
//! Landlock the process can reach that user's files, and [`Barrier`] reports so. System calls that unpacking doesn't
//! need are refused in any case ([`calls`]).
//!
//! Without a task's user, root stays user 0, without capabilities, because its files must be root's. As `nobody`, files
//! would have to be given to root afterwards, name by name, in a tree that every other process of `nobody` may change
//! meanwhile.

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

/// The user to become, and limits.
#[derive(Debug, Clone)]
pub(super) struct Confinement<'a> {
    /// User, group and all groups; the current user if absent.
    pub(super) user: Option<(u32, u32, &'a [u32])>,
    /// The maximum size of a file.
    pub(super) file_bytes_max: u64,
    /// CPU time.
    pub(super) cpu_seconds: u64,
    /// What it may give to files in its directory.
    pub(super) giving: Giving,
}

/// What files get besides contents and permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Giving {
    Nothing,
    /// Other users.
    Owners,
    /// Other users, set-id bits, capabilities, times; and fifos may be made. These files are the layer of an image: no program of
    /// the machine runs them.
    Everything,
}

/// Errors when restricting the process.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted step.
        what: &'static str,
        source: std::io::Error,
    },
    #[error("restrict access to other files: {0}")]
    Landlock(#[from] RulesetError),
    /// Nothing would keep root from the machine's files.
    #[error(
        "restrict access to other files: the kernel has no Landlock, and root may not change its root directory here; enable Landlock (`lsm=` of \
         the kernel's command line), or give the agent CAP_SYS_CHROOT"
    )]
    Open,
    /// The system call filter can't be set.
    #[error("restrict system calls: {0}; unpacking needs a kernel with seccomp filters")]
    Calls(#[from] seccompiler::Error),
}

/// What keeps the unpacking process from the machine's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Landlock, for any user.
    Landlock,
    /// A separate root directory; the agent is root and the kernel has no Landlock.
    Root,
    /// Only the rights of the agent's or the task's user.
    User,
    /// Nothing, and it is root: archives are refused.
    Nothing,
}

impl Barrier {
    /// Asks the kernel, without side effects.
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

/// Whether a ruleset can be created; none is enforced.
fn has_landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// Memory limit: decompressors and the program itself.
const MEMORY_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Open file limit: walking a path takes two.
const FILES_MAX: u64 = 64;

impl Giving {
    /// Capabilities for creating files for other users, and for continuing in directories that belong to them then.
    fn capabilities(self) -> CapabilitySet {
        const OWNERS: CapabilitySet =
            CapabilitySet::CHOWN.union(CapabilitySet::FOWNER).union(CapabilitySet::DAC_OVERRIDE);
        match self {
            Self::Nothing => CapabilitySet::empty(),
            Self::Owners => OWNERS,
            Self::Everything => OWNERS.union(CapabilitySet::FSETID).union(CapabilitySet::SETFCAP),
        }
    }
}

/// The newest Landlock version used; older kernels support a subset.
const RULES: ABI = ABI::V6;

/// Restricts the process.
///
/// # Errors
/// If a right can't be given up, or root could still reach other files.
pub(super) fn enter(confinement: &Confinement<'_>) -> Result<Dir, SandboxError> {
    let dir = Dir::open(Path::new("."))?;
    // The agent may be protected from the OOM killer, and this process inherits that. If resetting fails, the memory
    // limit applies.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    for (resource, max) in [
        (Resource::Fsize, confinement.file_bytes_max),
        (Resource::Cpu, confinement.cpu_seconds.saturating_add(1)),
        (Resource::As, MEMORY_BYTES_MAX),
        (Resource::Nofile, FILES_MAX),
        (Resource::Core, 0),
    ] {
        limit(resource, max).map_err(system("set limits"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(system("set no_new_privs"))?;
    let is_root = rustix::process::geteuid().is_root();
    let has_own_root = is_root
        && match rustix::process::chroot(".") {
            // The machine's files have no names for this process any more.
            Ok(()) => true,
            // A container may forbid it.
            Err(Errno::PERM) => false,
            Err(errno) => return Err(system("change the root directory")(errno)),
        };
    if restrict(&dir, confinement.giving)? == RulesetStatus::NotEnforced && is_root && !has_own_root {
        return Err(SandboxError::Open);
    }
    give_up_rights(confinement)?;
    calls::close_off(match confinement.giving {
        Giving::Nothing | Giving::Owners => calls::Files::Plain,
        Giving::Everything => calls::Files::OfLayers,
    })?;
    Ok(dir)
}

/// Applies Landlock as far as the kernel supports it.
fn restrict(dir: &Dir, giving: Giving) -> Result<RulesetStatus, RulesetError> {
    let mut granted = AccessFs::from_read(RULES) & !AccessFs::Execute
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::Refer
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSym;
    match giving {
        Giving::Nothing | Giving::Owners => {}
        Giving::Everything => granted |= AccessFs::MakeFifo,
    }
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?
        .add_rule(PathBeneath::new(dir, granted))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// Becomes the task's user, if there is one, and drops all capabilities that are not needed.
fn give_up_rights(confinement: &Confinement<'_>) -> Result<(), SandboxError> {
    if let Some((uid, gid, groups)) = confinement.user {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(system("set groups"))?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid)).map_err(system("set the group"))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid)).map_err(system("set the user"))?;
    }
    let none = CapabilitySet::empty();
    let known = rustix::thread::capabilities(None).map_err(system("read capabilities"))?;
    let kept = known.permitted & confinement.giving.capabilities();
    let kept = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    rustix::thread::set_capabilities(None, kept).map_err(system("drop capabilities"))
}

fn system(what: &'static str) -> impl Fn(Errno) -> SandboxError {
    move |errno| SandboxError::System { what, source: errno.into() }
}

/// Lowers a limit, never raises it.
fn limit(resource: Resource, max: u64) -> Result<(), Errno> {
    let known = rustix::process::getrlimit(resource);
    let max = known.maximum.map_or(max, |known| known.min(max));
    // At the hard limit of time the kernel sends SIGKILL, as it does without memory; at the soft one SIGXCPU.
    let current = if resource == Resource::Cpu { max.saturating_sub(1).max(1) } else { max };
    rustix::process::setrlimit(resource, Rlimit { current: Some(current), maximum: Some(max) })
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

    /// The checks inside the process, if this test is started as it.
    #[test]
    fn sandboxed_process_reaches_only_its_directory() {
        if std::env::var_os(CONFINED).is_some() {
            return report_reachable();
        }
        let temp = tempfile::tempdir().unwrap();
        let beside = temp.path().join("beside");
        fs::write(&beside, "beside").unwrap();
        let ended = again("sandboxed_process_reaches_only_its_directory", temp.path());
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(fs::read_to_string(temp.path().join("dir/inside")).unwrap(), "inside");
        assert_eq!(fs::read_to_string(&beside).unwrap(), "beside");
    }

    #[test]
    fn without_landlock_root_enters_its_own_root() {
        if std::env::var_os(CONFINED).is_some() {
            return enter_without_landlock();
        }
        let temp = tempfile::tempdir().unwrap();
        let ended = again("without_landlock_root_enters_its_own_root", temp.path());
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    fn enter_without_landlock() {
        let confinement =
            Confinement { user: None, file_bytes_max: 1 << 20, cpu_seconds: 10, giving: Giving::Nothing };
        refuse(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(Barrier::probe(), if is_root { Barrier::Root } else { Barrier::User });
        refuse(libc::SYS_chroot, libc::EPERM);
        match enter(&confinement) {
            Err(SandboxError::Open) => assert!(is_root),
            entered => assert!(entered.is_ok() && !is_root, "{entered:?}"),
        }
    }

    /// Refuses the call for this thread, as an older kernel or a container does.
    fn refuse(call: libc::c_long, errno: libc::c_int) {
        let (refused, rest) = (SeccompAction::Errno(errno.unsigned_abs()), SeccompAction::Allow);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new([(call, vec![])].into(), rest, refused, arch).unwrap();
        seccompiler::apply_filter(&seccompiler::BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    const CONFINED: &str = "HERDLET_TEST_CONFINED";

    /// Starts a test again in a separate process, to be confined in the directory `dir`.
    fn again(name: &str, temp: &Path) -> Output {
        let dir = temp.join("dir");
        fs::create_dir(&dir).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(65_534), Some(65_534)).unwrap();
        }
        let name = format!("sandbox::tests::{name}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(CONFINED, "1").current_dir(&dir);
        command.output().unwrap()
    }

    fn report_reachable() {
        let is_root = rustix::process::geteuid().is_root();
        let user = is_root.then_some((65_534, 65_534, &[65_534][..]));
        let dir =
            enter(&Confinement { user, file_bytes_max: 1 << 20, cpu_seconds: 10, giving: Giving::Nothing })
                .unwrap();
        let here = dir.proc_path("".as_ref());
        fs::write("inside", "inside").unwrap();
        for path in ["/etc/passwd", "../beside", "/proc/self/environ", "/dev/null"] {
            assert!(fs::read(path).is_err(), "{path} is readable");
            // Above the new root there is only the root itself.
            assert!(path.starts_with("..") || fs::write(path, "x").is_err(), "{path} is writable");
        }
        assert!(rustix::fs::mkfifoat(&dir, "pipe", rustix::fs::Mode::RUSR).is_err(), "{here:?}");
        assert!(Command::new("/bin/true").status().is_err());
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "threads are allowed");
        assert_eq!(UnixStream::pair().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        let refused = TcpStream::connect("127.0.0.1:9").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
        assert!(!rustix::process::geteuid().is_root() || !is_root);
    }
}
