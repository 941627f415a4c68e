//! The freestanding program: where the kernel enters it, and which verb it runs.
//!
//! In: what the kernel lays on the stack (arguments). Out: an exit code. Everything below this module is compiled only
//! with `--cfg shim_program`, by the build script, and lives without `std`, libc, an allocator or writable statics.

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
/// Descriptor of the leash, where there is one.
const LEASH: sys::Fd = 4;
/// Descriptor of the program's directory, where there is one.
const PROGRAM_DIR: sys::Fd = 5;
/// Exit code for a verb nobody knows.
const USAGE: u32 = 64;

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {}", "ud2", sym begin);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "bl {}", "brk #1", sym begin);

/// `stack` points to the argument count, the arguments follow.
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
    // From here on no signal but SIGKILL and SIGSTOP reaches this process, and the task inherits clean dispositions.
    sys::set_signal_mask(u64::MAX);
    sys::reset_signals();
    // Both are a help, no need: an old kernel goes without.
    let _ = sys::prctl(PR_SET_NAME, c"herdlet-shim".as_ptr() as usize);
    let _ = sys::prctl(PR_SET_CHILD_SUBREAPER, 1);
    let code = match verb.to_bytes() {
        b"run" => attempt::run(),
        b"enter" => session::enter(),
        _ => USAGE,
    };
    sys::exit(code)
}

/// The launch spec's bytes; the descriptor is closed.
fn take_spec() -> sys::Result<&'static [u8]> {
    let len = sys::stat(SPEC)?.size.min(crate::spec::SPEC_LEN_MAX as u64 + 1) as usize;
    let blob = sys::map_file(SPEC, len);
    sys::close(SPEC);
    blob
}

/// Gives the launch spec back; it holds the task's environment.
fn drop_spec(blob: &'static [u8]) {
    // SAFETY: the callers are done with the spec and everything borrowed from it.
    unsafe { sys::unmap(blob.as_ptr(), blob.len()) };
}

/// The leash at a close-on-exec descriptor: it must not reach the task, which would hold it.
fn take_leash() -> sys::Result<sys::Fd> {
    let leash = sys::dup_private(LEASH)?;
    sys::close(LEASH);
    Ok(leash)
}

/// The directory of the program at a close-on-exec descriptor; -1 where the program is known by its path only.
fn take_program_dir(spec: &crate::spec::Spec<'_>) -> sys::Result<sys::Fd> {
    if spec.entry.is_none() {
        return Ok(-1);
    }
    let dir = sys::dup_private(PROGRAM_DIR)?;
    sys::close(PROGRAM_DIR);
    Ok(dir)
}

/// Closes what the agent has not handed over. To be called before anything else may take such a number.
fn close_unused(spec: &crate::spec::Spec<'_>) {
    sys::close_from(if spec.entry.is_some() { PROGRAM_DIR + 1 } else { PROGRAM_DIR });
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    sys::exit(70)
}
