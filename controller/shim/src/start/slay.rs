//! Kills all descendants of this process, for machines without cgroups.
//!
//! In: the kernel's list of this process's children. Out: SIGKILL to each. As a subreaper, this process inherits the
//! children of those that die, so killing all children again at each SIGCHLD ends the whole tree without a timer.

use super::sys;
use crate::rotation::Text;

/// Kills the current children, and the process group of the main process if that isn't reaped yet (afterwards its
/// number may belong to another group). Call it again after each reaped child until none is left.
pub(super) fn slay(main: Option<u32>) {
    if let Some(main) = main {
        sys::kill(-(main as i32), sys::SIGKILL);
    }
    let path = Text::new().with(b"/proc/self/task/").with_number(u64::from(sys::getpid())).with(b"/children");
    let Ok(list) = sys::openat(sys::AT_FDCWD, path.as_c_str(), sys::O_RDONLY, 0) else {
        return;
    };
    let mut pid: u32 = 0;
    let mut buffer = [0; 512];
    while let Ok(len) = sys::read(list, &mut buffer) {
        for byte in buffer.get(..len).unwrap_or_default() {
            if byte.is_ascii_digit() {
                pid = pid.wrapping_mul(10).wrapping_add(u32::from(byte - b'0'));
            } else {
                kill(pid);
                pid = 0;
            }
        }
        if len == 0 {
            break;
        }
    }
    kill(pid);
    sys::close(list);
}

fn kill(pid: u32) {
    if pid > 1 {
        sys::kill(pid as i32, sys::SIGKILL);
    }
}
