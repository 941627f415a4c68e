//! Makes a program in the allocation's directory executable, as Nomad does for downloaded artifacts.
//!
//! In: an open, trusted file. Out: a mode that lets all users read and execute it. Never changes files of other users that these
//! users have closed, files reached through a link or a mount, and files in secrets or logs.

use std::{
    os::fd::AsFd as _,
    path::{Component, Path},
};

use herdlet_base::{paths, safe_fs};
use rustix::{fs::Mode, io::Errno};

use super::{CommandError, walk::Target};

/// Makes the file executable if the user who starts it can't execute it.
///
/// # Errors
/// If no user can execute it and it must not be made executable.
pub(super) fn make(target: &Target, starter: u32) -> Result<(), CommandError> {
    let mode = target.stat.st_mode & 0o7777;
    if can_execute(target, starter) {
        return Ok(());
    }
    match refusal(target, starter) {
        // A file that some user can execute may be executable for this user by a group or an ACL.
        Some(_) if mode & ANYBODY_EXECUTES != 0 => Ok(()),
        Some(why) => Err(CommandError::NotExecutable { path: target.path.clone(), why }),
        None => {
            // Drop the set-user-ID and set-group-ID bits.
            let mode = Mode::from_raw_mode(mode & 0o777 | 0o555);
            // The file was opened with O_PATH. This path leads to that file even if its name has been reused.
            match rustix::fs::chmod(safe_fs::proc_path(target.file.as_fd(), None), mode) {
                Err(_) if target.stat.st_mode & ANYBODY_EXECUTES != 0 => Ok(()),
                made => made.map_err(|errno| failure(target, errno)),
            }
        }
    }
}

/// A refusal of the system is permanent.
fn failure(target: &Target, errno: Errno) -> CommandError {
    let path = target.path.clone();
    match errno {
        Errno::ROFS => CommandError::NotExecutable { path, why: "its file system is read-only" },
        Errno::PERM | Errno::ACCESS => CommandError::NotExecutable {
            path,
            why: "it belongs to another user, or is immutable (chattr -i)",
        },
        errno => CommandError::Io { operation: "make executable", path, source: errno.into() },
    }
}

fn can_execute(target: &Target, starter: u32) -> bool {
    let needed = if starter == 0 {
        return target.stat.st_mode & ANYBODY_EXECUTES != 0;
    } else if target.stat.st_uid == starter {
        0o100
    } else {
        0o001
    };
    target.stat.st_mode & needed != 0
}

/// Why the file must not be made executable.
fn refusal(target: &Target, starter: u32) -> Option<&'static str> {
    let Some(own) = &target.own else { return Some("a link or a mount leads to it") };
    if !may_hold_programs(own) {
        return Some("programs are not allowed in its directory");
    }
    if target.stat.st_nlink != 1 {
        return Some("it has several hard links");
    }
    // Never make a file readable that its owner has closed to others.
    let is_closed = target.stat.st_uid != starter && target.stat.st_mode & OTHERS_READ == 0;
    is_closed.then_some("it belongs to another user and is not readable for others")
}

/// Whether a path relative to the allocation's directory is in the task's directory or in the shared one, outside of secrets and
/// logs.
fn may_hold_programs(own: &Path) -> bool {
    let mut names = own.components().map(Component::as_os_str);
    let (Some(first), Some(second)) = (names.next(), names.next()) else { return false };
    if first == paths::SHARED { second != LOGS } else { second != "secrets" && second != "private" }
}

const ANYBODY_EXECUTES: u32 = 0o111;
const OTHERS_READ: u32 = 0o004;
const LOGS: &str = "logs";
