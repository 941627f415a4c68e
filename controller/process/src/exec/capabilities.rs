//! Capabilities of a task: Nomad's defaults, changed by the task's config as far as the driver's options allow it.
//!
//! In: names, as in capabilities(7) with or without `CAP_`, in any case. Out: sets for the kernel.

use std::collections::BTreeSet;

use herdlet_api_types::{
    driver::{ConfigFinding, Verdict},
    manifest::{Text, driver::ExecConfig},
};

use crate::supervisor::Capabilities;

/// The kernel's names, by number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Those of a task without options, as in Nomad.
pub(super) const DEFAULT: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// How many Nomad gives to root: those that there were before Linux 5.8.
const OF_ROOT: usize = 38;

const ALL: &str = "ALL";

/// The bit of a capability, by its name in upper case without `CAP_`.
pub fn bit_of(name: &str) -> Option<u64> {
    NAMES.iter().position(|known| *known == name).map(|at| 1 << at)
}

/// Names of capabilities; all of them, if `ALL` is among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// # Errors
    /// The first unknown name.
    pub(super) fn parse<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let mut parsed = BTreeSet::new();
        for name in names {
            let upper = name.trim().to_ascii_uppercase();
            let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if plain != ALL && !NAMES.contains(&plain) {
                return Err(name.to_owned());
            }
            parsed.insert(plain.to_owned());
        }
        Ok(Self(parsed))
    }

    /// The bit of each name.
    fn bits(&self) -> u64 {
        let is_named = |name: &str| self.0.contains(ALL) || self.0.contains(name);
        (0..).zip(NAMES).filter(|(_, name)| is_named(name)).fold(0, |bits, (at, _)| bits | 1 << at)
    }
}

/// The names in a config that no kernel knows.
pub(super) fn unknown(config: &ExecConfig) -> Vec<ConfigFinding> {
    let lists = [("cap_add", &config.cap_add), ("cap_drop", &config.cap_drop)];
    let named = lists.into_iter().flat_map(|(key, names)| names.iter().enumerate().map(move |at| (key, at)));
    let finding = |(key, (index, name)): (&str, (usize, &Text))| {
        Names::parse([name.0.as_str()]).err().map(|name| ConfigFinding {
            field: format!("{key}[{index}]"),
            message: unknown_name(&name),
            verdict: Verdict::Refused,
        })
    };
    named.filter_map(finding).collect()
}

/// The message about an unknown name.
pub(super) fn unknown_name(name: &str) -> String {
    format!("there is no capability {name:?}; write one of capabilities(7), such as net_raw")
}

/// The capabilities of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CapabilitySet(u64);

impl CapabilitySet {
    /// The defaults, without the dropped ones, with the added ones.
    ///
    /// # Errors
    /// The names of added capabilities that are not allowed.
    pub(super) fn new(add: &Names, drop: &Names, allowed: &Names) -> Result<Self, String> {
        let denied = add.bits() & !allowed.bits();
        if denied != 0 {
            let names = (0..).zip(NAMES).filter(|(at, _)| denied & (1_u64 << at) != 0);
            let names: Vec<String> = names.map(|(_, name)| name.to_ascii_lowercase()).collect();
            return Err(names.join(", "));
        }
        let default = Names(DEFAULT.map(str::to_owned).into()).bits() & allowed.bits();
        Ok(Self(default & !drop.bits() | add.bits()))
    }

    /// The sets of a task of this user. The agent can't give what it lacks. As in Nomad, programs keep them whatever their user is, and
    /// root has all.
    pub(super) fn sets_for(self, uid: u32) -> Capabilities {
        let own = rustix::thread::capabilities(None).map_or(0, |own| own.permitted.bits());
        let of_root = (1 << OF_ROOT) - 1;
        let set = if uid == 0 { of_root } else { self.0 } & own;
        let ambient = if uid == 0 { 0 } else { set };
        Capabilities { bounding: set, effective: set, inheritable: ambient, permitted: set, ambient }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(add: &[&str], drop: &[&str], allowed: &[&str]) -> Result<u64, String> {
        let names = |list: &[&str]| Names::parse(list.iter().copied()).unwrap();
        CapabilitySet::new(&names(add), &names(drop), &names(allowed)).map(|granted| granted.0)
    }

    #[test]
    fn the_default_is_nomads_and_only_what_is_allowed_is_added() {
        let default = granted(&[], &[], &DEFAULT).unwrap();
        assert_eq!(default.count_ones(), 13);
        // Of Docker's default list, without net_raw: what `capsh --decode` shows as these names.
        assert_eq!(default, 0xa804_25fb & !(1 << 13));
        assert_eq!(
            granted(&["NET_ADMIN", "cap_sys_time"], &[], &DEFAULT),
            Err("net_admin, sys_time".to_owned())
        );
        assert_eq!(granted(&["net_admin"], &["all"], &["all"]), Ok(1 << 12));
        assert_eq!(granted(&["all"], &[], &["ALL"]), Ok((1 << NAMES.len()) - 1));
        assert!(granted(&["all"], &[], &DEFAULT).is_err());
        // An option that allows less takes away from the default.
        assert_eq!(granted(&[], &["kill"], &["chown", "kill"]), Ok(1));
        assert_eq!(Names::parse(["chown", "cap_nothing"]), Err("cap_nothing".to_owned()));
    }

    #[test]
    fn root_has_more_than_others() {
        let own = rustix::thread::capabilities(None).unwrap().permitted.bits();
        let granted = CapabilitySet(1);
        assert_eq!(granted.sets_for(7).bounding, 1 & own);
        assert_eq!((granted.sets_for(7).ambient, granted.sets_for(0).ambient), (1 & own, 0));
        assert_eq!(granted.sets_for(0).effective, ((1 << OF_ROOT) - 1) & own);
    }
}
