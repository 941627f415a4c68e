//! The bridge of an instance, opened by the first network that needs it, with sockets that hold the ports which lead to its networks.
//!
//! In: settings; the defaults of some are derived from the machine. Out: [`Networks`], and ports that no other program can bind. An
//! instance without such networks does not change the machine's network.

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_base::error::in_full;
use tokio::sync::watch;

use super::{
    AllocNetwork, BridgeConfig, NameServer, NetworkError, NetworkRequest, Networks, SETTINGS, naming,
    open_socket,
};
use crate::{
    host,
    link::{self, Hairpin, InterfaceName},
    ports::{HoldError, PortHolder},
    subnet::{Subnet, Subnet4, Subnet6},
};

/// Number of digits of the instance's id in the name of its bridge.
const DIGITS: usize = 8;

/// What is configured of a bridge.
#[derive(Debug, Clone)]
pub struct BridgeSettings {
    /// The instance whose bridge it is.
    pub instance: String,
    /// Its name; `None` for one that follows from the instance.
    pub name: Option<InterfaceName>,
    /// Its network; `None` for one that is free.
    pub subnet4: Option<Subnet4>,
    /// Its IPv6 network, if it has one.
    pub subnet6: Option<Subnet6>,
    /// The longest packet; `None` for that of the machine's default route.
    pub mtu: Option<u32>,
    /// Whether it sends back through a port what arrived through it.
    pub hairpin: Hairpin,
    /// The directory of files that last until the next boot.
    pub runtime: PathBuf,
    pub name_serving: NameServing,
}

/// Whether the agent resolves names for networks on its bridge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameServing {
    #[default]
    On,
    Off,
}

/// The bridge.
#[derive(Debug)]
pub struct Bridge {
    settings: BridgeSettings,
    /// The ports stay held if another bridge takes its place.
    holder: PortHolder,
    opened: Mutex<Option<Arc<Networks>>>,
    name_servers: watch::Sender<Option<Arc<NameServer>>>,
}

/// Why a network with ports can't be made. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A port can't be had.
    #[error(transparent)]
    Port(#[from] HoldError),
    /// The network can't be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

impl Bridge {
    /// The bridge of these settings. Changes nothing.
    pub fn new(settings: BridgeSettings) -> Self {
        Self {
            settings,
            holder: PortHolder::default(),
            opened: Mutex::default(),
            name_servers: watch::Sender::new(None),
        }
    }

    /// The sockets that hold ports.
    pub fn holder(&self) -> &PortHolder {
        &self.holder
    }

    /// The networks, opened now if they never were.
    ///
    /// # Errors
    /// If the kernel does not answer, or no network is free.
    pub fn networks(&self) -> Result<Arc<Networks>, NetworkError> {
        let mut opened = self.lock();
        if let Some(networks) = opened.as_ref() {
            return Ok(Arc::clone(networks));
        }
        let (mut socket, name) = (open_socket()?, self.name()?);
        let mtu = match self.settings.mtu {
            Some(mtu) => mtu,
            None => host::mtu(&mut socket)?,
        };
        let subnet4 = match self.settings.subnet4 {
            Some(subnet) => subnet,
            None => host::default_subnet(&mut socket, &name)?,
        };
        let BridgeSettings { instance, subnet6, hairpin, runtime, .. } = self.settings.clone();
        let config = BridgeConfig { instance, name, subnet4, subnet6, mtu, hairpin, runtime };
        let networks = Networks::open(config);
        let networks =
            networks.map_err(|source| NetworkError::Io { what: "open a netlink socket", source })?;
        Ok(Arc::clone(opened.insert(Arc::new(networks))))
    }

    /// The sockets to which networks on the bridge send queries for names, as they are opened.
    pub fn name_servers(&self) -> watch::Receiver<Option<Arc<NameServer>>> {
        self.name_servers.subscribe()
    }

    /// The address to which networks on the bridge send queries for names; none if they use other servers.
    pub fn name_server(&self, networks: &Networks) -> Option<IpAddr> {
        if self.settings.name_serving == NameServing::Off {
            return None;
        }
        let server = networks.name_server().unwrap_or_else(|error| {
            tracing::warn!(error = in_full(&error), "failed to answer queries of allocations for names");
            None
        })?;
        let ip = server.ip();
        self.name_servers.send_if_modified(|known| {
            let is_new = known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &server));
            *known = Some(server);
            is_new
        });
        ip
    }

    /// The networks, if one was needed since the start of the agent.
    pub fn opened(&self) -> Option<Arc<Networks>> {
        self.lock().clone()
    }

    /// Makes a network, or corrects what differs. The ports come first: a process that has one must not lose its packets to the network.
    /// If they are mapped already, the process came later, while no agent ran.
    ///
    /// # Errors
    /// If a port can't be had, or something can't be made.
    pub fn connect(&self, request: &NetworkRequest<'_>) -> Result<AllocNetwork, ConnectError> {
        let networks = self.networks()?;
        if let Err(error) = self.holder.hold(request.owner, &request.held_ports()) {
            if !networks.maps_ports(request)? {
                return Err(error.into());
            }
            warn_of_stranger(request.owner, &error);
        }
        let made = networks.up(request);
        Ok(made.inspect_err(|error| self.choose_again_after(error))?)
    }

    /// Holds the ports of a network that exists: the sockets of an earlier agent have ended with it.
    pub fn hold(&self, request: &NetworkRequest<'_>) {
        if let Err(error) = self.holder.hold(request.owner, &request.held_ports()) {
            warn_of_stranger(request.owner, &error);
        }
    }

    /// Removes a network. Its ports are released last: until then they may lead to it.
    ///
    /// # Errors
    /// If something is left.
    pub fn disconnect(&self, owner: &str) -> Result<(), NetworkError> {
        self.networks()?.down(owner)?;
        self.holder.release(owner);
        Ok(())
    }

    /// Whether an earlier agent may have made networks.
    pub fn may_be_used(&self) -> bool {
        let is_used = |dir: &str| {
            let entries = std::fs::read_dir(self.settings.runtime.join(dir));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        };
        is_used("netns") || is_used("addresses") || is_used(SETTINGS) || self.exists().unwrap_or_default()
    }

    /// Whether the machine has it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn exists(&self) -> Result<bool, NetworkError> {
        Ok(link::find(&mut open_socket()?, &self.name()?)?.is_some())
    }

    /// Its name.
    ///
    /// # Errors
    /// If the instance has an id that is no name.
    pub fn name(&self) -> Result<InterfaceName, NetworkError> {
        if let Some(name) = &self.settings.name {
            return Ok(name.clone());
        }
        let digits: String = self.settings.instance.chars().take(DIGITS).collect();
        InterfaceName::new(&format!("hl-{digits}")).map_err(naming)
    }

    /// Another agent may have taken a network that this one has chosen.
    fn choose_again_after(&self, error: &NetworkError) {
        let is_chosen = self.settings.subnet4.is_none();
        if is_chosen && matches!(error, NetworkError::Overlap { subnet: Subnet::V4(_), .. }) {
            *self.lock() = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Networks>>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn_of_stranger(owner: &str, error: &HoldError) {
    let error = in_full(error);
    tracing::warn!(
        owner,
        error,
        "a port that leads to an allocation is not held: another process may lose its packets"
    );
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::{
        networks::{NetworkState, RequestedPort},
        socket::{Protocol, Socket},
        test_machine::on_machine,
    };

    fn settings(runtime: PathBuf) -> BridgeSettings {
        BridgeSettings {
            instance: "0123456789abcdef".to_owned(),
            name: None,
            subnet4: None,
            subnet6: None,
            mtu: None,
            hairpin: Hairpin::Off,
            runtime,
            name_serving: NameServing::On,
        }
    }

    #[test]
    fn a_network_is_connected_with_its_ports_held_and_disconnected() {
        on_machine(|machine| {
            link::set_up(&mut Socket::open(Protocol::Route).unwrap(), 1).unwrap();
            let bridge = Bridge::new(settings(machine.dir()));
            assert_eq!(bridge.name().unwrap().as_str(), "hl-01234567");
            assert!(!bridge.may_be_used() && !bridge.exists().unwrap() && bridge.opened().is_none());
            let ports = [RequestedPort { host_ip: "127.0.0.1".parse().ok(), host: 8080, inside: 80 }];
            let request = NetworkRequest { owner: "a", ports: &ports };
            let stranger = TcpListener::bind("127.0.0.1:8080").unwrap();
            assert!(matches!(bridge.connect(&request), Err(ConnectError::Port(HoldError::Taken { .. }))));
            drop(stranger);
            bridge.connect(&request).unwrap();
            assert!(TcpListener::bind("127.0.0.1:8080").is_err(), "it is held");
            assert!(bridge.may_be_used() && bridge.exists().unwrap());
            // The next agent: another process has the port by then.
            drop(bridge);
            let stranger = TcpListener::bind("127.0.0.1:8080").unwrap();
            let next = Bridge::new(settings(machine.dir()));
            next.connect(&request).unwrap();
            drop(stranger);
            next.hold(&request);
            assert!(TcpListener::bind("127.0.0.1:8080").is_err(), "it is held again");
            next.disconnect("a").unwrap();
            let networks = next.networks().unwrap();
            assert_eq!(networks.inspect(&request).unwrap(), NetworkState::Absent);
            TcpListener::bind("127.0.0.1:8080").unwrap();
            networks.remove().unwrap();
        });
    }
}
