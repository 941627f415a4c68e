//! Creates a process or thread on its own stack, which neither `std` nor libc offers for `clone3`.
//!
//! In: clone(2) flags, a stack, a function. Out: the new pid, or an errno. Used by the shim (which has no libc) and the
//! agent: with `CLONE_VM | CLONE_VFORK` no page table is copied, however large the caller is (without them, clone takes
//! about 50 ms at 1 GB). This module does not know what it starts.

#![expect(unsafe_code, reason = "the system call returns twice, once on another stack")]

use core::arch::asm;
use core::ffi::c_void;

/// `CLONE_VM`: share memory.
pub const CLONE_VM: u64 = 0x100;
/// `CLONE_FILES`: share the file descriptor table.
pub const CLONE_FILES: u64 = 0x400;
/// `CLONE_VFORK`: suspend the calling thread until the child executes a program or ends.
pub const CLONE_VFORK: u64 = 0x4000;
/// `CLONE_PIDFD`: return a pidfd.
pub const CLONE_PIDFD: u64 = 0x1000;
/// `CLONE_INTO_CGROUP`: create the child in the v2 cgroup [`Birth::cgroup`] (`clone3` only, Linux 5.7).
pub const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

#[cfg(target_arch = "x86_64")]
const CLONE: usize = 56;
#[cfg(target_arch = "aarch64")]
const CLONE: usize = 220;
const CLONE3: usize = 435;

/// Parameters of the new process or thread.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// clone(2) flags without the exit signal.
    pub flags: u64,
    /// The signal for the parent when the child ends; 0 for threads.
    pub exit_signal: u64,
    /// The address for the pidfd or thread id, or 0 (`CLONE_PIDFD`, `CLONE_PARENT_SETTID`).
    pub parent_word: u64,
    /// The address of a word to clear when the thread ends, or 0 (`CLONE_CHILD_CLEARTID`).
    pub child_word: u64,
    /// Descriptor of the v2 cgroup (`CLONE_INTO_CGROUP`).
    pub cgroup: u64,
}

#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Creates the child with `clone3` if it goes into a cgroup, else with the older `clone`, which every sandbox allows.
/// The child runs `entry(argument)` on the given stack. Returns its pid or a negative errno.
///
/// # Safety
/// The stack must be writable, large enough for `entry` and not used otherwise until the child has left it. With
/// `CLONE_VM` `entry` shares the caller's memory: it must not allocate, lock or unwind, and `argument` must outlive it.
pub unsafe fn clone_onto(
    birth: &Birth,
    stack: &mut [u8],
    entry: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> isize {
    let base = stack.as_mut_ptr() as usize;
    let top = ((base + stack.len()) & !15) - 16;
    // SAFETY: the two words are within the caller's exclusive stack; the assembly below reads them from there.
    unsafe {
        let words = top as *mut usize;
        words.write(argument as usize);
        words.add(1).write(entry as usize);
    }
    if birth.flags & CLONE_INTO_CGROUP == 0 {
        let flags = (birth.flags | birth.exit_signal) as usize;
        let (parent_word, child_word) = (birth.parent_word as usize, birth.child_word as usize);
        #[cfg(target_arch = "x86_64")]
        let arguments = [flags, top, parent_word, child_word, 0];
        #[cfg(target_arch = "aarch64")]
        let arguments = [flags, top, parent_word, 0, child_word];
        // SAFETY: guaranteed by the caller.
        return unsafe { call_onto(CLONE, arguments) };
    }
    let args = CloneArgs {
        flags: birth.flags,
        pidfd: birth.parent_word,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: birth.exit_signal,
        stack: base as u64,
        stack_size: (top - base) as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: birth.cgroup,
    };
    // SAFETY: guaranteed by the caller; the argument block is only read before the call returns.
    unsafe { call_onto(CLONE3, [&raw const args as usize, size_of::<CloneArgs>(), 0, 0, 0]) }
}

/// Returns the result in the parent; the child pops argument and function from its new stack and never returns.
#[cfg(target_arch = "x86_64")]
unsafe fn call_onto(number: usize, arguments: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the parent's registers are preserved as declared; the child jumps to the function and never returns.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Returns the result in the parent; the child pops argument and function from its new stack and never returns.
#[cfg(target_arch = "aarch64")]
unsafe fn call_onto(number: usize, arguments: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the parent's registers are preserved as declared; the child jumps to the function and never returns.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "ldp x0, x9, [sp], #16",
            "blr x9",
            "brk #1",
            "2:",
            in("x8") number,
            inlateout("x0") arguments[0] as isize => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
        );
    }
    result
}
