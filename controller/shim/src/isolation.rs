//! Kinds of namespaces and sets of capabilities, as a launch spec names them.
//!
//! In: numbers of the kernel. Out: values that agent and shim agree on. This module calls nothing.

use core::ops::BitOr;

/// Kinds of namespaces (namespaces(7)), as the flags that clone(2) and setns(2) take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(u32);

impl Namespaces {
    /// Mounts (`CLONE_NEWNS`).
    pub const MOUNT: Self = Self(0x2_0000);
    /// The root of the cgroup hierarchies (`CLONE_NEWCGROUP`).
    pub const CGROUP: Self = Self(0x200_0000);
    /// Host name (`CLONE_NEWUTS`).
    pub const UTS: Self = Self(0x400_0000);
    /// System V objects and POSIX message queues (`CLONE_NEWIPC`).
    pub const IPC: Self = Self(0x800_0000);
    /// Process ids (`CLONE_NEWPID`).
    pub const PID: Self = Self(0x2000_0000);
    /// Interfaces, addresses and ports (`CLONE_NEWNET`).
    pub const NETWORK: Self = Self(0x4000_0000);

    /// All that a process can enter, in one call.
    pub(crate) const ENTERED: Self =
        Self(Self::MOUNT.0 | Self::CGROUP.0 | Self::UTS.0 | Self::IPC.0 | Self::PID.0 | Self::NETWORK.0);
    /// All that a supervisor makes for a task. Mounts and network are made by the agent.
    pub(crate) const CREATED: Self = Self(Self::CGROUP.0 | Self::UTS.0 | Self::IPC.0 | Self::PID.0);

    /// Those with these flags, if all of them are within `limit`.
    pub(crate) const fn from_flags(flags: u32, limit: Self) -> Option<Self> {
        if flags & !limit.0 == 0 { Some(Self(flags)) } else { None }
    }

    /// The kernel's flags.
    #[must_use]
    pub const fn flags(self) -> u32 {
        self.0
    }

    /// Whether `other` is among them.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Namespaces {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The capability sets of a task (capabilities(7)), one bit for each capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The most that any program can get. Capabilities that the agent lacks stay absent.
    pub bounding: u64,
    /// Those in force.
    pub effective: u64,
    /// Those that a program with matching file capabilities keeps.
    pub inheritable: u64,
    /// Those that can be put in force.
    pub permitted: u64,
    /// Those that every program keeps; inheritable and permitted ones only.
    pub ambient: u64,
}

/// The length of encoded capability sets.
pub(crate) const CAPABILITIES_LEN: usize = 40;

impl Capabilities {
    pub(crate) fn to_bytes(self) -> [u8; CAPABILITIES_LEN] {
        let mut bytes = [0; CAPABILITIES_LEN];
        let sets = [self.bounding, self.effective, self.inheritable, self.permitted, self.ambient];
        for (place, set) in bytes.chunks_exact_mut(8).zip(sets) {
            place.copy_from_slice(&set.to_le_bytes());
        }
        bytes
    }

    /// Sets that the kernel would refuse together give `None`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != CAPABILITIES_LEN {
            return None;
        }
        let mut sets = [0; 5];
        for (set, place) in sets.iter_mut().zip(bytes.chunks_exact(8)) {
            *set = u64::from_le_bytes(place.try_into().ok()?);
        }
        let [bounding, effective, inheritable, permitted, ambient] = sets;
        let is_consistent = effective & !permitted == 0 && ambient & !(permitted & inheritable) == 0;
        is_consistent.then_some(Self { bounding, effective, inheritable, permitted, ambient })
    }
}
