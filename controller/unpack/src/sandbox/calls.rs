//! The system calls that the unpacking process keeps: those for files below its directory and for its own memory.
//!
//! In: none. Out: a filter on the calling thread. Any other call fails with EPERM: no socket, program, mount or other
//! process.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Calls that are allowed with any arguments.
const ALLOWED: [libc::c_long; 42] = [
    // The archive, and files below the directory.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_ftruncate,
    libc::SYS_dup,
    // Check whether the agent has closed the socket.
    libc::SYS_ppoll,
    // Memory, except executable memory: see `without_code`.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Needed by the runtime and the allocator.
    libc::SYS_clock_gettime,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_geteuid,
    libc::SYS_capget,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // Exit. An abort ends by a fault, because no signal can be sent.
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls for what files of layers have besides contents and permissions.
const ALLOWED_IN_LAYERS: [libc::c_long; 3] = [libc::SYS_fsetxattr, libc::SYS_utimensat, libc::SYS_fchmodat];

/// The files that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    Plain,
    OfLayers,
}

/// Permanently forbids all other calls of the calling thread.
///
/// # Errors
/// If the kernel or this CPU architecture has no such filters.
pub(super) fn close_off(files: Files) -> Result<(), seccompiler::Error> {
    let forbidden = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules(files)?, forbidden, SeccompAction::Allow, architecture()?)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

fn architecture() -> Result<TargetArch, seccompiler::Error> {
    Ok(TargetArch::try_from(std::env::consts::ARCH)?)
}

/// Rules by call number; no rule means any arguments.
fn rules(files: Files) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.into_iter().map(|call| (call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![without_code()?]);
    }
    let duplicate = is(1, libc::F_DUPFD_CLOEXEC)?;
    let (get_flags, get_status) = (is(1, libc::F_GETFD)?, is(1, libc::F_GETFL)?);
    rules.insert(libc::SYS_fcntl, vec![duplicate, get_flags, get_status]);
    if files == Files::OfLayers {
        rules.extend(ALLOWED_IN_LAYERS.map(|call| (call, Vec::new())));
        rules.insert(libc::SYS_mknodat, vec![fifo()?]);
    }
    Ok(rules)
}

/// Allows no executable memory: the third argument has no PROT_EXEC.
fn without_code() -> Result<SeccompRule, seccompiler::Error> {
    let exec = u64::from(libc::PROT_EXEC.unsigned_abs());
    let without = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(exec), 0)?;
    Ok(SeccompRule::new(vec![without])?)
}

/// Allows no node but a fifo: the third argument has its type.
fn fifo() -> Result<SeccompRule, seccompiler::Error> {
    let (mask, value) = (u64::from(libc::S_IFMT), u64::from(libc::S_IFIFO));
    let is_fifo = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)?;
    Ok(SeccompRule::new(vec![is_fifo])?)
}

fn is(argument: u8, value: i32) -> Result<SeccompRule, seccompiler::Error> {
    let value = u64::from(value.unsigned_abs());
    let equals = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
    Ok(SeccompRule::new(vec![equals])?)
}
