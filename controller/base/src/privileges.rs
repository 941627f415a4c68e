//! The privileges of this process: mounting file systems and giving files away. Probed once at start. Without them the
//! directories below the state directory use simpler forms that need no privileges.

use rustix::{
    mount::{FsOpenFlags, fsopen},
    thread::CapabilitySet,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    pub mounting: Mounting,
    /// Permission to change the owner of files.
    pub ownership: Ownership,
}

/// Whether file systems can be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounting {
    /// Secrets are on tmpfs; volumes are bind mounts.
    Possible,
    /// Secrets are in plain directories that only their owner may enter; volumes are symbolic links.
    Impossible,
}

/// The users that this process may give files to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    Anybody,
    OwnOnly,
}

impl Privileges {
    /// Asks the kernel, without side effects.
    pub fn probe() -> Self {
        // Opening a file system context needs the same capability as mounting, in the user namespace that owns our
        // mounts, and has no effect by itself (fsopen(2)).
        let mounting = match fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_context) => Mounting::Possible,
            Err(_) => Mounting::Impossible,
        };
        let ownership = if may_give_away() { Ownership::Anybody } else { Ownership::OwnOnly };
        Self { mounting, ownership }
    }

    /// The privileges of an ordinary user.
    pub const fn none() -> Self {
        Self { mounting: Mounting::Impossible, ownership: Ownership::OwnOnly }
    }
}

/// `nobody` on every distribution in use; the kernel's overflow id.
pub(crate) const NOBODY: (u32, u32) = (65534, 65534);

/// Root alone is not enough: a container may lack the capability, and a user namespace with few ids has no other users.
fn may_give_away() -> bool {
    let needed = CapabilitySet::CHOWN | CapabilitySet::FOWNER;
    let capable = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let maps = |file: &str, id: u32| std::fs::read_to_string(file).is_ok_and(|map| has_id(&map, id));
    capable && maps("/proc/self/uid_map", NOBODY.0) && maps("/proc/self/gid_map", NOBODY.1)
}

/// Whether a map (user_namespaces(7): first id inside, first outside, count) contains the inside id.
fn has_id(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&u64::from(id)))
    })
}

#[cfg(test)]
mod tests {
    use super::has_id;

    #[test]
    fn an_id_map_is_read() {
        assert!(has_id("         0          0 4294967295\n", 65534));
        assert!(has_id("0 1000 1\n1 100000 65536\n", 65534));
        assert!(!has_id("         0       1000          1\n", 65534));
        assert!(!has_id("", 0));
    }
}
