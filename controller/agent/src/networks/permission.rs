//! Whether the agent may make networks, and the attributes of a node that may.

/// The CNI plugins that Nomad makes a bridge with. Servers place no group in mode `bridge` on a node without them, and job files
/// have constraints on them; this agent needs none of them.
const CNI_PLUGINS: [&str; 5] = ["bridge", "firewall", "host-local", "loopback", "portmap"];
/// A version that all servers accept.
const CNI_VERSION: &str = "1.6.0";

/// Whether the agent may make networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// It lacks the privileges.
    Missing,
}

impl Permission {
    /// Asks the kernel for the rights of this process.
    pub fn probe() -> Self {
        use rustix::thread::CapabilitySet;
        let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        let has_all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        if has_all { Self::Granted } else { Self::Missing }
    }

    /// The attributes of a node that may make bridges.
    pub fn attributes(self) -> impl Iterator<Item = (String, String)> {
        let plugins = CNI_PLUGINS.iter().filter(move |_| self == Self::Granted);
        plugins.map(|plugin| (format!("plugins.cni.version.{plugin}"), CNI_VERSION.to_owned()))
    }
}
