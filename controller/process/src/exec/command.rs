//! Finds the program of a task's `command` in the task's root, by the rules of Nomad's executor.
//!
//! In: the command as written, an open root. Out: the program's path in that root. Links never lead out of it. Who may have placed
//! the program does not matter as it does for `raw_exec`: whatever runs here is in the task's root, with the rights of the task.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use herdlet_base::safe_fs;
use herdlet_driver::{DriverError, DriverResult};
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2},
    io::Errno,
};

/// A search for a program.
pub(super) struct Lookup<'a> {
    /// The command as written.
    pub(super) command: &'a str,
    pub(super) root: BorrowedFd<'a>,
    /// Where volumes are mounted in the root.
    pub(super) volumes: Vec<&'a Path>,
    /// The task's `PATH`; empty if it has none.
    pub(super) search_path: &'a str,
}

/// Directories in which names are searched before those in `PATH`.
const PROGRAMS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Names in a task's directory whose files are never made executable.
const SECRETS: [&str; 2] = ["secrets", "private"];

/// Finds the program.
///
/// # Errors
/// If it does not exist, is no program, or can't be examined.
pub(super) fn find(lookup: &Lookup<'_>) -> DriverResult<PathBuf> {
    let Lookup { command, root, volumes, search_path } = lookup;
    if command.is_empty() {
        return Err(DriverError::fatal("exec: command is empty"));
    }
    if command.contains('\0') {
        return Err(DriverError::fatal(format!("exec {command:?}: a path has no NUL byte")));
    }
    let path = Path::new(command);
    let own = match path.is_absolute() {
        true => vec![path.to_owned()],
        false => {
            let dirs = [Path::new("/local"), Path::new("/")].into_iter().chain(volumes.iter().copied());
            dirs.map(|dir| Path::new("/").join(dir).join(path)).collect()
        }
    };
    let mut not_program = None;
    for path in own {
        match examine(*root, &path)? {
            Candidate::File(file, stat) => match make_executable(*root, &path, (&file, &stat))? {
                Executable::Yes => return Ok(path),
                Executable::No(why) => drop(not_program.get_or_insert(why)),
            },
            Candidate::Other(why) => drop(not_program.get_or_insert(why)),
            Candidate::Nothing => {}
        }
    }
    if !command.contains('/') {
        let dirs = PROGRAMS.into_iter().chain(search_path.split(':').filter(|dir| dir.starts_with('/')));
        for path in dirs.map(|dir| Path::new(dir).join(command)) {
            if let Candidate::File(_, stat) = examine(*root, &path)?
                && stat.st_mode & ANYBODY_EXECUTES != 0
            {
                return Ok(path);
            }
        }
    }
    Err(match not_program {
        Some(why) => DriverError::fatal(format!("exec {command:?}: permission denied: {why}")),
        None => DriverError::no_program(format!(
            "exec {command:?}: not found in the task's root{}",
            hint(command)
        )),
    })
}

/// What to do about a command that contains its arguments, or is a path of the machine.
fn hint(command: &str) -> String {
    match command.split_whitespace().collect::<Vec<_>>().as_slice() {
        [program, args @ ..] if !args.is_empty() => {
            let args: Vec<String> = args.iter().map(|arg| format!("{arg:?}")).collect();
            format!("; write its arguments in args (command: {program:?}, args: [{}])", args.join(", "))
        }
        _ if command.starts_with('/') && Path::new(command).exists() => {
            "; it is on the machine, but not in the directories that `chroot_env` of the driver's options in the agent's config shows to tasks"
                .to_owned()
        }
        _ if command.contains('/') => {
            "; the root shows the task's files and the directories of `chroot_env` (by default /bin, /etc, /lib, /sbin and /usr): fetch the program with `artifacts`, or list its directory in `chroot_env` of the driver's options in the agent's config"
                .to_owned()
        }
        _ => " (in /local, /, /usr/local/bin, /usr/bin, /bin and PATH)".to_owned(),
    }
}

/// What is at a path in a root.
enum Candidate {
    File(OwnedFd, Stat),
    /// No regular file, and why that can't be a program.
    Other(&'static str),
    Nothing,
}

fn examine(root: BorrowedFd<'_>, path: &Path) -> DriverResult<Candidate> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = match openat2(
        root,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    ) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::ACCESS) => {
            return Ok(Candidate::Nothing);
        }
        Err(errno) => return Err(failed("open", path, errno)),
    };
    let stat = fstat(&file).map_err(|errno| failed("examine", path, errno))?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Candidate::File(file, stat),
        FileType::Directory => Candidate::Other("it is a directory; name a program in it"),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Candidate::Other("it is not a regular file"),
    })
}

enum Executable {
    Yes,
    No(&'static str),
}

/// Makes a file of the task's own directory executable, as Nomad does for downloaded artifacts. Never changes a file behind a link or
/// a mount, such as a volume, and none that has several names.
fn make_executable(
    root: BorrowedFd<'_>,
    path: &Path,
    (file, stat): (&OwnedFd, &Stat),
) -> DriverResult<Executable> {
    if stat.st_mode & ANYBODY_EXECUTES == ANYBODY_EXECUTES {
        return Ok(Executable::Yes);
    }
    let below = path.strip_prefix("/").unwrap_or(path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let direct = openat2(root, below, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let direct = direct.and_then(|file| fstat(&file));
    let is_direct = direct.is_ok_and(|direct| (direct.st_dev, direct.st_ino) == (stat.st_dev, stat.st_ino));
    let is_secret = SECRETS.iter().any(|name| below.starts_with(name));
    if is_direct && !is_secret && stat.st_nlink == 1 {
        // Drops the set-user-ID and set-group-ID bits.
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o555);
        rustix::fs::chmod(safe_fs::proc_path(file.as_fd(), None), mode)
            .map_err(|errno| failed("make executable", path, errno))?;
        return Ok(Executable::Yes);
    }
    Ok(match stat.st_mode & ANYBODY_EXECUTES {
        0 => Executable::No("it is not executable for any user; chmod +x makes it so"),
        // Perhaps for the task's user.
        _ => Executable::Yes,
    })
}

const ANYBODY_EXECUTES: u32 = 0o111;

fn failed(operation: &str, path: &Path, errno: Errno) -> DriverError {
    let why = format!("{operation} {} in the task's root: {}", path.display(), std::io::Error::from(errno));
    match errno {
        Errno::PERM | Errno::ROFS | Errno::INVAL => DriverError::fatal(why),
        _ => DriverError::retry(why),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use herdlet_driver::FailureClass;

    use super::*;

    struct Case(tempfile::TempDir);

    impl Case {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for sub in ["local/sub", "usr/bin", "opt/bin", "secrets", "data"] {
                fs::create_dir_all(dir.path().join(sub)).unwrap();
            }
            Self(dir)
        }

        fn file(&self, path: &str, mode: u32) -> &Self {
            let path = self.0.path().join(path);
            fs::write(&path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            self
        }

        fn mode(&self, path: &str) -> u32 {
            fs::metadata(self.0.path().join(path)).unwrap().permissions().mode() & 0o7777
        }

        fn find(&self, command: &str) -> DriverResult<PathBuf> {
            let root = fs::File::open(self.0.path()).unwrap();
            let volumes = vec![Path::new("/data")];
            find(&Lookup { command, root: root.as_fd(), volumes, search_path: "/opt/bin:relative" })
        }

        fn found(&self, command: &str) -> String {
            self.find(command).unwrap().display().to_string()
        }
    }

    #[test]
    fn places_are_searched_in_nomads_order() {
        let case = Case::new();
        case.file("opt/bin/tool", 0o755);
        assert_eq!(case.found("tool"), "/opt/bin/tool");
        case.file("usr/bin/tool", 0o755);
        assert_eq!(case.found("tool"), "/usr/bin/tool");
        case.file("data/tool", 0o755);
        assert_eq!(case.found("tool"), "/data/tool");
        case.file("tool", 0o755);
        assert_eq!(case.found("tool"), "/tool");
        case.file("local/tool", 0o755).file("local/sub/tool", 0o755);
        assert_eq!(case.found("tool"), "/local/tool");
        assert_eq!(case.found("sub/tool"), "/local/sub/tool");
        assert_eq!(case.found("usr/bin/tool"), "/usr/bin/tool");
        assert_eq!(case.found("/usr/bin/tool"), "/usr/bin/tool");
        assert_eq!(case.find("/bin/sh").unwrap_err().class(), FailureClass::NoProgram);
        assert_eq!(case.find("local/none").unwrap_err().class(), FailureClass::NoProgram);
        assert_eq!(case.find("").unwrap_err().class(), FailureClass::Fatal);
    }

    #[test]
    fn a_file_in_path_that_is_no_program_is_skipped() {
        let case = Case::new();
        case.file("usr/bin/tool", 0o644).file("opt/bin/tool", 0o755);
        assert_eq!(case.found("tool"), "/opt/bin/tool");
        let refused = case.find("/local").unwrap_err();
        assert!(refused.why().contains("it is a directory"), "{}", refused.why());
    }

    #[test]
    fn programs_of_the_task_are_made_executable_and_secrets_are_not() {
        let case = Case::new();
        case.file("local/tool", 0o4640).file("secrets/key", 0o600);
        assert_eq!(case.found("tool"), "/local/tool");
        assert_eq!(case.mode("local/tool"), 0o755);
        assert!(case.find("secrets/key").unwrap_err().why().contains("not executable"));
        assert_eq!(case.mode("secrets/key"), 0o600);
        symlink("/secrets/key", case.0.path().join("local/linked")).unwrap();
        assert!(case.find("linked").is_err());
        fs::hard_link(case.0.path().join("secrets/key"), case.0.path().join("local/named")).unwrap();
        assert!(case.find("named").is_err());
        assert_eq!(case.mode("secrets/key"), 0o600);
    }

    #[test]
    fn links_stay_in_the_root() {
        let case = Case::new();
        for (name, to) in [("sh", "/bin/sh"), ("up", "../../../../../../../../bin/sh")] {
            symlink(to, case.0.path().join("local").join(name)).unwrap();
            assert_eq!(case.find(name).unwrap_err().class(), FailureClass::NoProgram, "{name}");
        }
        fs::create_dir(case.0.path().join("bin")).unwrap();
        case.file("bin/sh", 0o755);
        assert_eq!(case.found("up"), "/local/up");
    }

    #[test]
    fn hints_say_what_to_do() {
        let case = Case::new();
        let why = case.find("sleep 10").unwrap_err().why();
        assert!(why.contains("args: [\"10\"]"), "{why}");
        let why = case.find("/opt/app/run").unwrap_err().why();
        assert!(why.contains("fetch the program with `artifacts`"), "{why}");
        let why = case.find("/bin/sh").unwrap_err().why();
        assert!(why.contains("chroot_env"), "{why}");
    }
}
