//! Networks that are connected with nothing: a namespace with its loopback interface.
//!
//! In: an allocation. Out: a namespace with a file, as for networks on a bridge, whose files are in the same directory.

use std::path::{Path, PathBuf};

use super::{LOOPBACK, NetworkError, NetworkState, entering, inspecting, machine};
use crate::{
    link,
    namespace::{Namespace, NamespaceId, Pin, Pins},
    socket::{Protocol, Socket},
    sysctl::Setting,
};

/// The networks without a connection.
#[derive(Debug)]
pub struct LoneNetworks {
    pins: Pins,
}

impl LoneNetworks {
    /// Those whose files are in this directory of files that last until the next boot.
    pub fn in_runtime(runtime: &Path) -> Self {
        Self { pins: Pins::in_dir(runtime.join("netns")) }
    }

    /// Makes an allocation's network, or corrects what differs.
    ///
    /// # Errors
    /// If something can't be made. What is there stays, for the next try.
    pub fn up(&self, owner: &str) -> Result<NamespaceId, NetworkError> {
        let namespace = ensure(&self.pins, owner)?;
        link::set_up(&mut namespace.socket(Protocol::Route).map_err(entering)?, LOOPBACK)?;
        namespace.id().map_err(inspecting)
    }

    /// Inspects an allocation's network.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn inspect(&self, owner: &str) -> Result<NetworkState<NamespaceId>, NetworkError> {
        let namespace = match self.pins.find(owner)? {
            Pin::Absent => return Ok(NetworkState::Absent),
            Pin::Empty => return Ok(NetworkState::Incomplete { what: "namespace is gone" }),
            Pin::Kept(namespace) => namespace,
        };
        let links = link::list(&mut namespace.socket(Protocol::Route).map_err(entering)?)?;
        if links.iter().any(|link| link.index == LOOPBACK && link.is_up) {
            return Ok(NetworkState::Complete(namespace.id().map_err(inspecting)?));
        }
        Ok(NetworkState::Incomplete { what: "loopback interface is down" })
    }

    /// The file of an allocation's namespace.
    pub fn path(&self, owner: &str) -> PathBuf {
        self.pins.path(owner)
    }

    /// The namespace that an allocation's file keeps.
    pub fn kept(&self, owner: &str) -> Option<NamespaceId> {
        self.pins.kept(owner)
    }

    /// The number of an allocation's namespace in that of the socket: see [`Namespace::number_in`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn number_in(&self, owner: &str, socket: &mut Socket) -> Result<Option<i32>, NetworkError> {
        match self.pins.find(owner)? {
            Pin::Kept(namespace) => Ok(namespace.number_in(socket)?),
            Pin::Empty | Pin::Absent => Ok(None),
        }
    }

    /// Removes an allocation's network; without effect if there is none.
    ///
    /// # Errors
    /// If the file can't be removed.
    pub fn down(&self, owner: &str) -> Result<(), NetworkError> {
        Ok(self.pins.remove(owner)?)
    }
}

/// The namespace of an allocation, with a file that keeps it.
pub(super) fn ensure(pins: &Pins, owner: &str) -> Result<Namespace, NetworkError> {
    match pins.find(owner)? {
        Pin::Kept(namespace) => {
            open_low_ports(&namespace)?;
            Ok(namespace)
        }
        Pin::Empty | Pin::Absent => {
            let what = "make a network namespace";
            let namespace = Namespace::new().map_err(|source| NetworkError::Io { what, source })?;
            open_low_ports(&namespace)?;
            pins.keep(owner, &namespace)?;
            Ok(namespace)
        }
    }
}

/// Lets tasks without rights listen on ports below 1024, as Docker does: in a network of their own these are nobody else's.
fn open_low_ports(namespace: &Namespace) -> Result<(), NetworkError> {
    let settings = vec![(Setting::UnprivilegedPorts, "0")];
    Ok(namespace.run(|| machine::set_all(settings)).map_err(entering)??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::on_machine;

    #[test]
    fn namespace_without_a_connection_is_made_completed_and_removed() {
        on_machine(|machine| {
            let networks = LoneNetworks::in_runtime(&machine.dir());
            assert_eq!(networks.inspect("a").unwrap(), NetworkState::Absent);
            let made = networks.up("a").unwrap();
            assert_eq!(networks.inspect("a").unwrap(), NetworkState::Complete(made));
            assert_eq!(networks.up("a").unwrap(), made);
            let Pin::Kept(namespace) = networks.pins.find("a").unwrap() else { panic!("there is none") };
            let links = link::list(&mut namespace.socket(Protocol::Route).unwrap()).unwrap();
            assert!(links.iter().all(|link| link.index == LOOPBACK || !link.is_up), "{links:?}");
            for _ in 0..2 {
                networks.down("a").unwrap();
                assert_eq!(networks.inspect("a").unwrap(), NetworkState::Absent);
            }
        });
    }

    /// QEMU, and tasks of other users than root, could not listen on port 80 of their own network.
    #[test]
    fn ports_below_1024_need_no_right_in_a_network_of_an_allocation() {
        on_machine(|machine| {
            let networks = LoneNetworks::in_runtime(&machine.dir());
            let first =
                |namespace: &Namespace| namespace.run(|| Setting::UnprivilegedPorts.get().unwrap()).unwrap();
            let of_machine = Setting::UnprivilegedPorts.get().unwrap();
            networks.up("a").unwrap();
            let Pin::Kept(namespace) = networks.pins.find("a").unwrap() else { panic!("there is none") };
            assert_eq!(first(&namespace).as_deref(), Some("0"));
            // An earlier agent has made it.
            namespace.run(|| Setting::UnprivilegedPorts.set("1024").unwrap()).unwrap();
            networks.up("a").unwrap();
            assert_eq!(first(&namespace).as_deref(), Some("0"));
            assert_eq!(Setting::UnprivilegedPorts.get().unwrap(), of_machine, "the machine's stays");
        });
    }

    /// The agent died before it could configure it.
    #[test]
    fn namespace_whose_loopback_is_down_is_incomplete() {
        on_machine(|machine| {
            let networks = LoneNetworks::in_runtime(&machine.dir());
            let namespace = Namespace::new().unwrap();
            networks.pins.keep("a", &namespace).unwrap();
            let found = networks.inspect("a").unwrap();
            assert_eq!(found, NetworkState::Incomplete { what: "loopback interface is down" });
            let made = networks.up("a").unwrap();
            assert_eq!(made, namespace.id().unwrap());
            assert_eq!(networks.inspect("a").unwrap(), NetworkState::Complete(made));
        });
    }
}
