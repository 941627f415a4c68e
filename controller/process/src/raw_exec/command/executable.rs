//! Gives a program in the allocation's directory the right to be executed, as Nomad does for what artifacts bring.
//!
//! In: a file that is held and trusted. Out: a mode that lets everybody read and execute it. Nothing becomes readable that others own and
//! have closed, nothing that a link or a mount leads to, and nothing among secrets or logs.

use std::{
    os::fd::AsFd as _,
    path::{Component, Path},
};

use herdlet_base::{paths, safe_fs};
use rustix::{fs::Mode, io::Errno};

use super::{CommandError, walk::Target};

/// Makes the file executable where the user who starts it can't execute it.
///
/// # Errors
/// When nobody can execute it and the right is not given.
pub(super) fn make(target: &Target, starter: u32) -> Result<(), CommandError> {
    let mode = target.stat.st_mode & 0o7777;
    if can_execute(target, starter) {
        return Ok(());
    }
    match refusal(target, starter) {
        // What somebody can execute may be executable for this user by a group or a list.
        Some(_) if mode & ANYBODY_EXECUTES != 0 => Ok(()),
        Some(why) => Err(CommandError::NotExecutable { path: target.path.clone(), why }),
        None => {
            // Without what makes it run as its owner.
            let mode = Mode::from_raw_mode(mode & 0o777 | 0o555);
            // The file was opened as a path: this leads to that very file, whatever has its name by now.
            match rustix::fs::chmod(safe_fs::proc_path(target.file.as_fd(), None), mode) {
                Err(_) if target.stat.st_mode & ANYBODY_EXECUTES != 0 => Ok(()),
                made => made.map_err(|errno| failure(target, errno)),
            }
        }
    }
}

/// What the system refuses it refuses at the next try too.
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

/// Why the right to execute the file is not given.
fn refusal(target: &Target, starter: u32) -> Option<&'static str> {
    let Some(own) = &target.own else { return Some("a link or a mount leads to it") };
    if !may_hold_programs(own) {
        return Some("it lies where no programs belong");
    }
    if target.stat.st_nlink != 1 {
        return Some("it has several names (hard links)");
    }
    // What its owner has closed to others is read by nobody because of us.
    let is_closed = target.stat.st_uid != starter && target.stat.st_mode & OTHERS_READ == 0;
    is_closed.then_some("it belongs to another user, who has not made it readable")
}

/// Whether this is a place in the task's directory or in the shared one, by its path from that of the allocation.
fn may_hold_programs(own: &Path) -> bool {
    let mut names = own.components().map(Component::as_os_str);
    let (Some(first), Some(second)) = (names.next(), names.next()) else { return false };
    if first == paths::SHARED { second != LOGS } else { second != "secrets" && second != "private" }
}

const ANYBODY_EXECUTES: u32 = 0o111;
const OTHERS_READ: u32 = 0o004;
const LOGS: &str = "logs";
