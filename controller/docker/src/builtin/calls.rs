//! The system calls of a container: the well-known default of container engines, as data of our own.
//!
//! In: the capabilities of a container. Out: filters for the kernel, made once for each set. A call that is not allowed fails with EPERM,
//! and one that is newer than the list with ENOSYS, as a kernel without it would answer: programs then use an older one. The public
//! default profile (`moby/profiles`, `seccomp/default.json`) is an allow list of names; here is its complement among the calls of
//! 64-bit programs. Those of 32-bit programs are not allowed at all.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use herdlet_driver::{DriverError, DriverResult};
use herdlet_process::{exec::capability_bit, supervisor::CallFilter};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The newest call that is allowed (`removexattrat`).
const LAST: i64 = 466;
/// Calls up to this number do not exist for a container.
const ABSENT_LAST: i64 = 600;

/// Flags of clone(2) that make namespaces.
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// Families of sockets (`AF_ALG`, `AF_VSOCK`) with which programs have left containers.
const FAMILIES: [u64; 2] = [38, 40];
/// Harmless values of personality(2); the last one reads it.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Calls that need one of these capabilities; none for those that are never allowed.
const RESTRICTED: &[(&[libc::c_long], &[&str])] = &[
    (
        &[
            libc::SYS_add_key,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_io_uring_setup,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_migrate_pages,
            libc::SYS_move_pages,
            libc::SYS_nfsservctl,
            libc::SYS_pivot_root,
            libc::SYS_request_key,
            libc::SYS_swapoff,
            libc::SYS_swapon,
            libc::SYS_userfaultfd,
        ],
        &[],
    ),
    (
        &[
            libc::SYS_bpf,
            libc::SYS_fanotify_init,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fsopen,
            libc::SYS_fspick,
            libc::SYS_lookup_dcookie,
            libc::SYS_mount,
            libc::SYS_mount_setattr,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_perf_event_open,
            libc::SYS_quotactl,
            libc::SYS_quotactl_fd,
            libc::SYS_setdomainname,
            libc::SYS_sethostname,
            libc::SYS_setns,
            libc::SYS_umount2,
            libc::SYS_unshare,
            // lsm_get_self_attr, lsm_set_self_attr, lsm_list_modules
            459,
            460,
            461,
        ],
        &["SYS_ADMIN"],
    ),
    (&[libc::SYS_bpf], &["SYS_ADMIN", "BPF"]),
    (&[libc::SYS_perf_event_open], &["SYS_ADMIN", "PERFMON"]),
    (&[libc::SYS_syslog], &["SYS_ADMIN", "SYSLOG"]),
    (&[libc::SYS_open_by_handle_at], &["DAC_READ_SEARCH"]),
    (&[libc::SYS_reboot], &["SYS_BOOT"]),
    (&[libc::SYS_chroot], &["SYS_CHROOT"]),
    (&[libc::SYS_delete_module, libc::SYS_init_module, libc::SYS_finit_module], &["SYS_MODULE"]),
    (&[libc::SYS_acct], &["SYS_PACCT"]),
    (&[libc::SYS_kcmp, libc::SYS_pidfd_getfd, libc::SYS_process_madvise], &["SYS_PTRACE"]),
    (&[libc::SYS_settimeofday, libc::SYS_clock_settime], &["SYS_TIME"]),
    (&[libc::SYS_vhangup], &["SYS_TTY_CONFIG"]),
    // The last one is set_mempolicy_home_node.
    (&[libc::SYS_get_mempolicy, libc::SYS_mbind, libc::SYS_set_mempolicy, 450], &["SYS_NICE"]),
];

/// Those that only this processor has.
#[cfg(target_arch = "x86_64")]
const OF_PROCESSOR: &[(&[libc::c_long], &[&str])] = &[
    (
        &[
            libc::SYS__sysctl,
            libc::SYS_afs_syscall,
            // create_module, get_kernel_syms, query_module
            174,
            177,
            178,
            libc::SYS_getpmsg,
            libc::SYS_kexec_file_load,
            libc::SYS_putpmsg,
            libc::SYS_security,
            libc::SYS_sysfs,
            libc::SYS_tuxcall,
            libc::SYS_uselib,
            libc::SYS_ustat,
            libc::SYS_vserver,
        ],
        &[],
    ),
    (&[libc::SYS_ioperm, libc::SYS_iopl], &["SYS_RAWIO"]),
];

/// kexec_file_load
#[cfg(target_arch = "aarch64")]
const OF_PROCESSOR: &[(&[libc::c_long], &[&str])] = &[(&[294], &[])];

/// The filters that were made.
#[derive(Debug, Default)]
pub(super) struct CallFilters(Mutex<BTreeMap<u64, Vec<CallFilter>>>);

impl CallFilters {
    /// The filters of a container with these capabilities.
    ///
    /// # Errors
    /// If this processor has none.
    pub(super) fn for_capabilities(&self, capabilities: u64) -> DriverResult<Vec<CallFilter>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.get(&capabilities) {
            return Ok(known.clone());
        }
        let failed = |error| DriverError::fatal(format!("make the filter of system calls: {error}"));
        let filters = filters(capabilities).map_err(failed)?;
        made.insert(capabilities, filters.clone());
        Ok(filters)
    }
}

fn filters(capabilities: u64) -> Result<Vec<CallFilter>, seccompiler::Error> {
    let is_granted = |names: &[&str]| {
        names.iter().filter_map(|name| capability_bit(name)).any(|bit| capabilities & bit != 0)
    };
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = (0..=LAST).map(|call| (call, Vec::new())).collect();
    for (calls, names) in RESTRICTED.iter().chain(OF_PROCESSOR) {
        for call in *calls {
            if is_granted(names) {
                allowed.insert(*call, Vec::new());
            } else {
                allowed.remove(call);
            }
        }
    }
    let is_admin = is_granted(&["SYS_ADMIN"]);
    if !is_admin {
        allowed.insert(libc::SYS_clone, vec![rule(SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)?]);
    }
    let [alg, vsock] = FAMILIES;
    let families =
        [rule(SeccompCmpOp::Lt, alg)?, rule(SeccompCmpOp::Eq, alg + 1)?, rule(SeccompCmpOp::Gt, vsock)?];
    allowed.insert(libc::SYS_socket, families.into());
    let personalities: Result<_, _> =
        PERSONALITIES.into_iter().map(|value| rule(SeccompCmpOp::Eq, value)).collect();
    allowed.insert(libc::SYS_personality, personalities?);
    // Flags of clone3 are in memory, which a filter can't read: programs use clone instead.
    let mut absent: BTreeMap<i64, Vec<SeccompRule>> =
        (LAST + 1..=ABSENT_LAST).map(|call| (call, Vec::new())).collect();
    if !is_admin {
        absent.insert(libc::SYS_clone3, Vec::new());
    }
    let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    Ok(vec![
        compiled(allowed, (errno(libc::EPERM), SeccompAction::Allow))?,
        // Of two errors, the kernel takes that of the filter that was added last.
        compiled(absent, (SeccompAction::Allow, errno(libc::ENOSYS)))?,
    ])
}

/// `actions`: without a rule, and with one.
fn compiled(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    actions: (SeccompAction, SeccompAction),
) -> Result<CallFilter, seccompiler::Error> {
    let processor = TargetArch::try_from(std::env::consts::ARCH)?;
    let program = BpfProgram::try_from(SeccompFilter::new(rules, actions.0, actions.1, processor)?)?;
    let bytes = program.iter().flat_map(|step| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&step.code.to_ne_bytes());
        (bytes[2], bytes[3]) = (step.jt, step.jf);
        bytes[4..].copy_from_slice(&step.k.to_ne_bytes());
        bytes
    });
    Ok(Arc::from(bytes.collect::<Vec<u8>>()))
}

/// A rule about the first argument.
fn rule(operation: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::Error> {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, operation, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instruction of a filter, as the kernel runs it: `LD`, `JMP` and `RET` only.
    struct Step {
        code: u16,
        jt: u8,
        jf: u8,
        k: u32,
    }

    /// What a filter answers to a call.
    fn answer(filter: &CallFilter, call: i64, argument: u64) -> u32 {
        let steps: Vec<Step> = filter
            .chunks_exact(8)
            .map(|bytes| Step {
                code: u16::from_ne_bytes([bytes[0], bytes[1]]),
                jt: bytes[2],
                jf: bytes[3],
                k: u32::from_ne_bytes(bytes[4..].try_into().unwrap()),
            })
            .collect();
        let processor: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let load = |offset: u32| match offset {
            0 => u32::try_from(call).unwrap(),
            4 => processor,
            16 => argument as u32,
            20 => (argument >> 32) as u32,
            other => panic!("offset {other}"),
        };
        let (mut at, mut word) = (0, 0_u32);
        loop {
            let step = &steps[at];
            at += 1;
            let jump = |is: bool| usize::from(if is { step.jt } else { step.jf });
            match step.code {
                0x20 => word = load(step.k),
                0x54 => word &= step.k,
                0x05 => at += step.k as usize,
                0x15 => at += jump(word == step.k),
                0x25 => at += jump(word > step.k),
                0x35 => at += jump(word >= step.k),
                0x06 => return step.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

    /// The answer of both filters: an error wins, and of two the later filter's.
    fn errno_of(filters: &[CallFilter], call: i64, argument: u64) -> Option<i32> {
        let error = |filter| match answer(filter, call, argument) {
            ALLOW => None,
            error => Some((error & 0xffff) as i32),
        };
        filters.iter().rev().find_map(error)
    }

    #[test]
    fn calls_are_those_of_the_well_known_profile() {
        let made = CallFilters::default();
        let plain = made.for_capabilities(0).unwrap();
        for call in
            [libc::SYS_read, libc::SYS_execve, libc::SYS_ptrace, libc::SYS_setuid, libc::SYS_prctl, 466]
        {
            assert_eq!(errno_of(&plain, call, 0), None, "{call}");
        }
        for call in
            [libc::SYS_mount, libc::SYS_keyctl, libc::SYS_bpf, libc::SYS_unshare, libc::SYS_chroot, 460]
        {
            assert_eq!(errno_of(&plain, call, 0), Some(libc::EPERM), "{call}");
        }
        for call in [libc::SYS_clone3, 467, 600] {
            assert_eq!(errno_of(&plain, call, 0), Some(libc::ENOSYS), "{call}");
        }
        // Far newer than this list, and those of another interface of the same processor.
        assert_eq!(errno_of(&plain, 0x4000_0000, 0), Some(libc::EPERM));
        for (call, argument, expected) in [
            (libc::SYS_clone, 0x11, None),
            (libc::SYS_clone, 0x1000_0011, Some(libc::EPERM)),
            (libc::SYS_socket, 2, None),
            (libc::SYS_socket, 38, Some(libc::EPERM)),
            (libc::SYS_socket, 39, None),
            (libc::SYS_socket, 40, Some(libc::EPERM)),
            (libc::SYS_socket, 41, None),
            (libc::SYS_personality, 8, None),
            (libc::SYS_personality, 0xffff_ffff, None),
            (libc::SYS_personality, 0x40_0000, Some(libc::EPERM)),
        ] {
            assert_eq!(errno_of(&plain, call, argument), expected, "{call} {argument:#x}");
        }
    }

    #[test]
    fn capabilities_allow_their_calls() {
        let made = CallFilters::default();
        let with = |name: &str| made.for_capabilities(capability_bit(name).unwrap()).unwrap();
        for (name, call) in [
            ("SYS_ADMIN", libc::SYS_mount),
            ("SYS_ADMIN", libc::SYS_bpf),
            ("SYS_ADMIN", libc::SYS_clone3),
            ("BPF", libc::SYS_bpf),
            ("SYSLOG", libc::SYS_syslog),
            ("SYS_CHROOT", libc::SYS_chroot),
            ("SYS_TIME", libc::SYS_clock_settime),
            ("SYS_NICE", libc::SYS_mbind),
        ] {
            assert_eq!(errno_of(&with(name), call, 0), None, "{name}");
            assert_eq!(errno_of(&with("SYS_CHROOT"), libc::SYS_keyctl, 0), Some(libc::EPERM), "{name}");
        }
        assert_eq!(errno_of(&with("SYS_ADMIN"), libc::SYS_clone, 0x1000_0011), None);
        assert!(
            Arc::ptr_eq(&made.for_capabilities(0).unwrap()[0], &made.for_capabilities(0).unwrap()[0]),
            "it is made once"
        );
    }
}
