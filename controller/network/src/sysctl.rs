//! Settings of the kernel's networks (`/proc/sys/net`).
//!
//! In: a setting and its value. Out: the value it had. Those of a namespace are set by a thread in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The directory of these settings.
pub(crate) const DIR: &str = "/proc/sys/net";

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// Forward IPv4 packets between interfaces.
    ForwardV4,
    /// Forward IPv6 packets between interfaces.
    ForwardV6,
    /// Accept router advertisements on this interface. Forwarding turns them off, unless this is 2.
    AcceptRouters(String),
    /// Take other routes from IPv4 messages that arrive through this interface.
    AcceptRedirectsV4(String),
    /// Take other routes from IPv6 messages that arrive through this interface.
    AcceptRedirectsV6(String),
    /// Have no IPv6 addresses on this interface, not even those that it would give itself.
    DisableV6(String),
    /// Route packets with addresses of 127.0.0.0/8 over this interface.
    RouteLoopback(String),
    /// Wait a second before an IPv6 address of this interface is used, in case another interface has it. Until then the bridge
    /// asks for no neighbour.
    DetectDuplicates(String),
    /// The first port that a process may listen on without the right to bind privileged ones.
    UnprivilegedPorts,
    /// Pass IPv4 packets within a bridge through the rules for routed ones.
    BridgeCallsRules,
}

/// Why a setting can't be read or changed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", path.display())]
pub struct SettingError {
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl Setting {
    /// Its file.
    pub fn path(&self) -> PathBuf {
        let net = PathBuf::from(DIR);
        match self {
            Self::ForwardV4 => net.join("ipv4/ip_forward"),
            Self::ForwardV6 => net.join("ipv6/conf/all/forwarding"),
            Self::AcceptRouters(interface) => net.join("ipv6/conf").join(interface).join("accept_ra"),
            Self::AcceptRedirectsV4(interface) => {
                net.join("ipv4/conf").join(interface).join("accept_redirects")
            }
            Self::AcceptRedirectsV6(interface) => {
                net.join("ipv6/conf").join(interface).join("accept_redirects")
            }
            Self::DisableV6(interface) => net.join("ipv6/conf").join(interface).join("disable_ipv6"),
            Self::RouteLoopback(interface) => net.join("ipv4/conf").join(interface).join("route_localnet"),
            Self::DetectDuplicates(interface) => net.join("ipv6/conf").join(interface).join("accept_dad"),
            Self::UnprivilegedPorts => net.join("ipv4/ip_unprivileged_port_start"),
            Self::BridgeCallsRules => net.join("bridge/bridge-nf-call-iptables"),
        }
    }

    /// Its value; `None` if this kernel does not have it.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn get(&self) -> Result<Option<String>, SettingError> {
        read(&self.path())
    }

    /// Sets it if it differs, and returns the value it had.
    ///
    /// # Errors
    /// If it can't be changed.
    pub fn set(&self, value: &str) -> Result<Option<String>, SettingError> {
        let before = self.get()?;
        if before.as_deref() == Some(value) {
            return Ok(None);
        }
        write(&self.path(), value)?;
        Ok(before)
    }
}

pub(crate) fn read(path: &Path) -> Result<Option<String>, SettingError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingError { what: "read", path: path.to_owned(), source }),
    }
}

pub(crate) fn write(path: &Path, value: &str) -> Result<(), SettingError> {
    fs::write(path, value).map_err(|source| SettingError { what: "change", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{namespace::Namespace, test_machine::on_machine};

    #[test]
    fn setting_is_changed_in_its_namespace_alone() {
        on_machine(|_| {
            let other = Namespace::new().unwrap();
            let setting = Setting::ForwardV4;
            setting.set("0").unwrap();
            assert_eq!(setting.set("1").unwrap().as_deref(), Some("0"));
            assert_eq!(setting.set("1").unwrap(), None, "nothing to change");
            other.run(|| setting.set("0").unwrap()).unwrap();
            assert_eq!(setting.get().unwrap().as_deref(), Some("1"));
            assert_eq!(other.run(|| setting.get().unwrap()).unwrap().as_deref(), Some("0"));
        });
    }

    #[test]
    fn missing_setting_differs_from_a_failure() {
        let missing = Setting::RouteLoopback("no-such".to_owned());
        assert_eq!(missing.get().unwrap(), None);
        let error = missing.set("1").unwrap_err().to_string();
        assert_eq!(error, "change /proc/sys/net/ipv4/conf/no-such/route_localnet");
    }
}
