//! The freestanding program: its entry point and verbs.
//!
//! In: the kernel's initial stack (arguments). Out: an exit code. This module and its children are compiled only with
//! `--cfg shim_program`, by the build script, without `std`, libc, an allocator or writable statics.

#![expect(unsafe_code, reason = "no libc: raw system calls and the bare entry point")]

mod attempt;
mod birth;
mod files;
mod logs;
mod mem;
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
/// Exit code for an unknown verb.
const USAGE: u32 = 64;

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {}", "ud2", sym begin);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "bl {}", "brk #1", sym begin);

/// `stack` points to the argument count, followed by the arguments.
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the kernel lays out `argc` and then that many pointers to strings (System V ABI, process initialization).
    let verb = unsafe {
        match stack.read() {
            0 | 1 => c"",
            _ => CStr::from_ptr(stack.add(2).read() as *const _),
        }
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

/// Moves the leash to a close-on-exec descriptor, because the task must not inherit it.
fn take_leash() -> sys::Result<sys::Fd> {
    let leash = sys::dup_private(LEASH)?;
    sys::close(LEASH);
    Ok(leash)
}

/// Moves the directory of the program to a close-on-exec descriptor; -1 if the program has only a path.
fn take_program_dir(spec: &crate::spec::Spec<'_>) -> sys::Result<sys::Fd> {
    if spec.entry.is_none() {
        return Ok(-1);
    }
    let dir = sys::dup_private(PROGRAM_DIR)?;
    sys::close(PROGRAM_DIR);
    Ok(dir)
}

/// Closes all other descriptors. Must be called before one of these numbers is used again.
fn close_unused(spec: &crate::spec::Spec<'_>) {
    sys::close_from(if spec.entry.is_some() { PROGRAM_DIR + 1 } else { PROGRAM_DIR });
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    sys::exit(70)
}
