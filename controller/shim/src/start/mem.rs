//! The memory functions that compiled code expects from a C library.
//!
//! Semantics as in C. The crate is compiled with `no_builtins`, so that these functions don't call themselves.

#[cfg(target_arch = "x86_64")]
use core::arch::asm;
use core::ffi::c_int;

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's ranges are valid and don't overlap.
    unsafe { copy_forwards(to, from, len) };
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's ranges are valid; the direction preserves overlapping bytes until they are read.
    unsafe {
        if (to as usize).wrapping_sub(from as usize) >= len {
            copy_forwards(to, from, len);
        } else {
            for at in (0..len).rev() {
                to.add(at).write(from.add(at).read());
            }
        }
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, len: usize) -> *mut u8 {
    // SAFETY: the caller's range is valid.
    unsafe { fill(to, byte as u8, len) };
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    for at in 0..len {
        // SAFETY: the caller's ranges are valid.
        let (left, right) = unsafe { (a.add(at).read(), b.add(at).read()) };
        if left != right {
            return c_int::from(left) - c_int::from(right);
        }
    }
    0
}

/// # Safety
/// As memcmp in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { memcmp(a, b, len) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller's text ends with a NUL byte.
    while unsafe { text.add(len).read() } != 0 {
        len += 1;
    }
    len
}

#[cfg(target_arch = "x86_64")]
unsafe fn copy_forwards(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the ranges are valid; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    // SAFETY: the range is valid; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte,
            options(nostack, preserves_flags));
    }
}

#[cfg(target_arch = "aarch64")]
unsafe fn copy_forwards(to: *mut u8, from: *const u8, len: usize) {
    for at in 0..len {
        // SAFETY: the ranges are valid.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
}

#[cfg(target_arch = "aarch64")]
unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    for at in 0..len {
        // SAFETY: the range is valid.
        unsafe { to.add(at).write(byte) };
    }
}
