//! The freestanding program: its entry point and verbs.
//!
//! In: the kernel's initial stack (arguments). Out: an exit code. This module and its children are compiled only with
//! `--cfg shim_program`, by the build script, without `std`, libc, an allocator or writable statics.

#![expect(unsafe_code, reason = "no libc: raw system calls and the bare entry point")]

mod attempt;
mod birth;
mod files;
mod hold;
mod init;
mod logs;
mod mem;
mod mounts;
mod session;
mod slay;
mod sys;

use core::arch::global_asm;
use core::ffi::CStr;
use core::panic::PanicInfo;

/// Descriptor of the launch spec.
const SPEC: sys::Fd = 3;
/// Descriptor of the leash, if there is one.
const LEASH: sys::Fd = 4;
/// Descriptor of the program's directory, if there is one.
const PROGRAM_DIR: sys::Fd = 5;
/// Descriptor of the mount namespace to enter, if there is one.
const MOUNTS: sys::Fd = 6;
/// Descriptor of this program in memory, or of the process to join, if there is one.
const HELPER: sys::Fd = 7;
/// Descriptor of the task's standard input, or of its terminal, if it has one.
const INPUT: sys::Fd = 8;
/// Descriptor of the other side of the task's terminal, if it has one.
const TERMINAL_OUTPUT: sys::Fd = 9;
/// Exit code for an unknown verb.
const USAGE: u32 = 64;

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {}", "ud2", sym begin);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "bl {}", "brk #1", sym begin);

/// `stack` points to the argument count, followed by the arguments.
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the kernel lays out `argc` and then that many pointers to strings (System V ABI, process initialization).
    // Both lists end with a null pointer, which is part of the slices.
    let (arguments, variables) = unsafe {
        let count = stack.read();
        let arguments = stack.add(1).cast::<*const u8>();
        let variables = arguments.add(count + 1);
        let mut len = 0;
        while !variables.add(len).read().is_null() {
            len += 1;
        }
        (core::slice::from_raw_parts(arguments, count + 1), core::slice::from_raw_parts(variables, len + 1))
    };
    let verb = match arguments {
        // SAFETY: the kernel ends each argument with a NUL byte.
        [_, verb, _, ..] => unsafe { CStr::from_ptr(verb.cast()) },
        _ => c"",
    };
    const PR_SET_NAME: u32 = 15;
    const PR_SET_CHILD_SUBREAPER: u32 = 36;
    // From here on only SIGKILL and SIGSTOP reach this process, and the task inherits default dispositions.
    sys::set_signal_mask(u64::MAX);
    sys::reset_signals();
    // Both are optional: an old kernel may lack them.
    let _ = sys::prctl(PR_SET_NAME, c"herdlet-shim".as_ptr() as usize);
    let _ = sys::prctl(PR_SET_CHILD_SUBREAPER, 1);
    let code = match verb.to_bytes() {
        b"run" => attempt::run(),
        b"enter" => session::enter(),
        b"init" => init::init(arguments, variables),
        b"hold" => hold::hold(arguments),
        _ => USAGE,
    };
    sys::exit(code)
}

/// Maps the launch spec and closes its descriptor.
fn take_spec() -> sys::Result<&'static [u8]> {
    let len = sys::stat(SPEC)?.size.min(crate::spec::SPEC_LEN_MAX as u64 + 1) as usize;
    let blob = sys::map_file(SPEC, len);
    sys::close(SPEC);
    blob
}

/// Unmaps the launch spec, which contains the task's environment.
fn drop_spec(blob: &'static [u8]) {
    // SAFETY: the callers no longer use the spec or anything borrowed from it.
    unsafe { sys::unmap(blob.as_ptr(), blob.len()) };
}

/// The descriptors that a spec requires; -1 for the others.
struct Descriptors {
    leash: sys::Fd,
    program_dir: sys::Fd,
    mounts: sys::Fd,
    helper: sys::Fd,
}

impl Descriptors {
    /// Makes these descriptors close-on-exec, because the task must not inherit them, and closes all others from the
    /// leash on; those after [`HELPER`] up to `last` are the caller's. Must be called before one of these numbers is used again.
    fn take(spec: &crate::spec::Spec<'_>, last: sys::Fd) -> sys::Result<Self> {
        let take = |fd, is_asked_for: bool| {
            if is_asked_for {
                return sys::keep_private(fd).map(|()| fd);
            }
            sys::close(fd);
            Ok(-1)
        };
        sys::close_from(last + 1);
        Ok(Self {
            leash: take(LEASH, spec.leash)?,
            program_dir: take(PROGRAM_DIR, spec.entry.is_some())?,
            mounts: take(MOUNTS, spec.mount_namespace)?,
            helper: take(HELPER, spec.init || spec.join.is_some())?,
        })
    }

    /// Closes what only a start needs.
    fn close(&self) {
        for fd in [self.program_dir, self.mounts, self.helper] {
            sys::close(fd);
        }
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    sys::exit(70)
}
