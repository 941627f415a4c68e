//! The program of a container: the words of its command, and the file of the first one in the root.
//!
//! In: the task's and the image's command, an open root. Out: words, a path. Links never lead out of the root.

use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use bollard::models::ContainerCreateBody;
use herdlet_driver::{DriverError, DriverResult};
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

use super::dirs::ContainerRecord;

/// Docker's `PATH` of images that set none.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const ANYBODY_EXECUTES: u32 = 0o111;

/// The words of a container's command, by the rules of Docker: an entrypoint of the task's own hides the image's command.
///
/// # Errors
/// If there are none.
pub(super) fn words(body: &ContainerCreateBody, image: &ContainerRecord) -> DriverResult<Vec<String>> {
    let entrypoint = body.entrypoint.as_ref();
    let command = match (&body.cmd, entrypoint) {
        (Some(own), _) => own.clone(),
        (None, None) => image.cmd.clone(),
        (None, Some(_)) => Vec::new(),
    };
    let mut words = entrypoint.unwrap_or(&image.entrypoint).clone();
    words.extend(command);
    match words.first() {
        Some(first) if !first.is_empty() => Ok(words),
        _ => Err(DriverError::fatal(format!(
            "use config.command: the image {} has no command of its own; write `command`",
            image.name
        ))),
    }
}

/// A search for a program.
pub(super) struct Lookup<'a> {
    pub(super) root: BorrowedFd<'a>,
    pub(super) command: &'a str,
    /// The working directory, for a path that is not absolute.
    pub(super) dir: &'a Path,
    /// The value of `PATH`.
    pub(super) search_path: &'a str,
}

/// Finds the program.
///
/// # Errors
/// If it does not exist, or is no program.
pub(super) fn find(lookup: &Lookup<'_>) -> DriverResult<PathBuf> {
    let Lookup { root, command, dir, search_path } = lookup;
    if command.contains('\0') {
        return Err(DriverError::fatal(format!("exec {command:?}: a path has no NUL byte")));
    }
    if command.contains('/') {
        let path = dir.join(command);
        return match is_program(*root, &path)? {
            Candidate::Program => Ok(path),
            Candidate::Other => Err(refused(command)),
            Candidate::Nothing => Err(missing(command)),
        };
    }
    let mut has_other = false;
    for dir in search_path.split(':').filter(|dir| dir.starts_with('/')) {
        let path = Path::new(dir).join(command);
        match is_program(*root, &path)? {
            Candidate::Program => return Ok(path),
            Candidate::Other => has_other = true,
            Candidate::Nothing => {}
        }
    }
    Err(if has_other { refused(command) } else { missing(command) })
}

fn refused(command: &str) -> DriverError {
    DriverError::fatal(format!("exec {command:?}: permission denied: in the image it is no executable file"))
}

fn missing(command: &str) -> DriverError {
    let hint = match command.contains(char::is_whitespace) {
        true => "; write its arguments in args",
        false => "",
    };
    DriverError::no_program(format!("exec {command:?}: not found in the image{hint}"))
}

enum Candidate {
    Program,
    Other,
    Nothing,
}

fn is_program(root: BorrowedFd<'_>, path: &Path) -> DriverResult<Candidate> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let failed = |errno: Errno| {
        DriverError::retry(format!("open {} in the image: {}", path.display(), std::io::Error::from(errno)))
    };
    let file = match openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::ACCESS) => {
            return Ok(Candidate::Nothing);
        }
        opened => opened.map_err(failed)?,
    };
    let mode = fstat(&file).map_err(failed)?.st_mode;
    let is_file = FileType::from_raw_mode(mode) == FileType::RegularFile;
    Ok(if is_file && mode & ANYBODY_EXECUTES != 0 { Candidate::Program } else { Candidate::Other })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd as _, os::unix::fs::PermissionsExt as _, os::unix::fs::symlink};

    use herdlet_driver::FailureClass;

    use super::*;

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_command_is_put_together_as_with_docker() {
        let image = |entrypoint: &[&str], cmd: &[&str]| ContainerRecord {
            entrypoint: list(entrypoint),
            cmd: list(cmd),
            ..ContainerRecord::default()
        };
        let own = |entrypoint: Option<&[&str]>, cmd: Option<&[&str]>| ContainerCreateBody {
            entrypoint: entrypoint.map(list),
            cmd: cmd.map(list),
            ..ContainerCreateBody::default()
        };
        let both = image(&["/entry"], &["run"]);
        assert_eq!(words(&own(None, None), &both).unwrap(), ["/entry", "run"]);
        assert_eq!(words(&own(None, Some(&["x", "y"])), &both).unwrap(), ["/entry", "x", "y"]);
        assert_eq!(words(&own(Some(&["/own"]), None), &both).unwrap(), ["/own"]);
        assert_eq!(words(&own(Some(&["/own"]), Some(&["x"])), &both).unwrap(), ["/own", "x"]);
        assert!(words(&own(None, None), &image(&[], &[])).unwrap_err().why().contains("config.command"));
    }

    #[test]
    fn a_program_is_found_in_the_root_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("opt/bin")).unwrap();
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        for (name, mode) in [("opt/bin/tool", 0o755), ("bin/tool", 0o644), ("bin/plain", 0o644)] {
            fs::write(dir.path().join(name), "").unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("/bin/sh", dir.path().join("bin/out")).unwrap();
        let root = fs::File::open(dir.path()).unwrap();
        let of = |command: &str| {
            let (root, dir) = (root.as_fd(), Path::new("/opt"));
            find(&Lookup { root, command, dir, search_path: "relative:/bin:/opt/bin" })
        };
        assert_eq!(of("tool").unwrap(), Path::new("/opt/bin/tool"));
        assert_eq!(of("bin/tool").unwrap(), Path::new("/opt/bin/tool"));
        assert_eq!(of("/opt/../../opt/bin/tool").unwrap(), Path::new("/opt/../../opt/bin/tool"));
        assert_eq!(of("plain").unwrap_err().class(), FailureClass::Fatal);
        assert_eq!(of("/opt").unwrap_err().class(), FailureClass::Fatal);
        for command in ["none", "out", "/bin/out", "sh -c true"] {
            assert_eq!(of(command).unwrap_err().class(), FailureClass::NoProgram, "{command}");
        }
    }
}
