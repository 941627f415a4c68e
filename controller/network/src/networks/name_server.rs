//! Sockets for a name server that allocations reach at the addresses of their bridge, port 53.
//!
//! In: a bridge. Out: sockets that receive only what comes through the bridge. They have another port, to which port 53 is mapped: a
//! program of the machine may have port 53 of all addresses, or get it later. The port is one that only root can take: while no
//! agent runs, no user of the machine can answer queries of allocations.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, PoisonError},
};

use herdlet_base::error::in_full;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt},
};

use super::{NetworkError, Networks, machine::gateways, open_netfilter, open_socket};
use crate::{
    firewall::PortMap,
    foreign::{self, Passage, Traffic},
    link::{self, InterfaceName},
    socket::bind_to_interface,
};

/// The port to which resolvers send queries.
const DOMAIN: u16 = 53;

/// The ports of the sockets: the first one is tried first. Services with a known number are below.
const PORTS: std::ops::RangeInclusive<u16> = 924..=1023;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The owner of the mapped port. No allocation has this name.
pub(super) const OWNER: &str = "name-server";

/// A name server.
#[derive(Debug)]
pub struct NameServer {
    /// Its sockets at each address of the bridge, IPv4 first.
    sockets: Vec<NameSockets>,
    /// The port of all of them.
    port: u16,
    /// The number of the bridge's interface. Another one, of the same name, is another bridge.
    bridge: u32,
}

/// The sockets of a name server at one address.
#[derive(Debug)]
pub struct NameSockets {
    /// The address of the bridge.
    pub ip: IpAddr,
    /// For datagrams; does not block.
    pub udp: UdpSocket,
    /// For connections; does not block.
    pub tcp: TcpListener,
}

impl NameServer {
    /// Its sockets at each address of the bridge, IPv4 first.
    pub fn sockets(&self) -> &[NameSockets] {
        &self.sockets
    }

    /// The address by which allocations know it.
    pub fn ip(&self) -> Option<IpAddr> {
        self.sockets.first().map(|first| first.ip)
    }
}

/// What is known of the name server of a bridge.
#[derive(Debug)]
pub(super) struct ServedNames {
    server: Arc<NameServer>,
    /// Whether queries reach it, as far as the rules of this machine say.
    is_reached: bool,
}

impl Networks {
    /// The name server of the bridge, made and mapped if it never was; none if there is no bridge, or another program drops queries.
    ///
    /// # Errors
    /// If no port is free.
    pub fn name_server(&self) -> Result<Option<Arc<NameServer>>, NetworkError> {
        let mut known = self.name_server.lock().unwrap_or_else(PoisonError::into_inner);
        let bridge = link::find(&mut open_socket()?, &self.config.name)?;
        let Some(bridge) = bridge.map(|bridge| bridge.index) else { return Ok(None) };
        let served = match known.take().filter(|known| known.server.bridge == bridge) {
            Some(served) => served,
            None => {
                let server = Arc::new(self.open_name_server(bridge)?);
                ServedNames { is_reached: self.leads_to(&server)?, server }
            }
        };
        let found = served.is_reached.then(|| Arc::clone(&served.server));
        *known = Some(served);
        Ok(found)
    }

    /// Examines again whether queries reach the name server, and repairs what prevents it.
    pub(super) fn lead_to_name_server(&self) {
        let mut known = self.name_server.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(served) = known.as_mut() else { return };
        match self.leads_to(&served.server) {
            Ok(is_reached) => served.is_reached = is_reached,
            Err(error) => {
                tracing::warn!(error = in_full(&error), "failed to map the port of the name server")
            }
        }
    }

    /// Leads queries to it. Returns whether all chains let them through.
    fn leads_to(&self, server: &NameServer) -> Result<bool, NetworkError> {
        let map = |sockets: &NameSockets| PortMap {
            host_ip: Some(sockets.ip),
            host_port: DOMAIN,
            target_ip: sockets.ip,
            target_port: server.port,
            owner: OWNER.to_owned(),
        };
        let maps: Vec<PortMap> = server.sockets.iter().map(map).collect();
        if !self.firewall.has_ports(&maps)? {
            self.map_ports(OWNER, maps)?;
        }
        Ok(self.lets_queries_pass(server.port))
    }

    fn open_name_server(&self, bridge: u32) -> Result<NameServer, NetworkError> {
        let what = "open the sockets of the name server";
        let failed = |source| NetworkError::Io { what, source };
        let gateways = gateways(&self.config);
        for port in PORTS.rev() {
            let opened = gateways.iter().map(|gateway| sockets((gateway.ip, port), &self.config.name));
            match opened.collect::<io::Result<Vec<NameSockets>>>() {
                Ok(sockets) => return Ok(NameServer { sockets, port, bridge }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::AddrInUse.into()))
    }

    /// Lets queries through chains of other programs. A resolver would wait for seconds if one of them drops queries.
    fn lets_queries_pass(&self, port: u16) -> bool {
        let traffic = Traffic::Queries { port };
        let (instance, bridge) = (&self.config.instance, &self.config.name);
        let passed = || -> Result<Option<Passage>, NetworkError> {
            let mut socket = open_netfilter()?;
            foreign::let_through(&mut socket, instance, bridge, traffic)?;
            let passages = foreign::passages(&mut socket, instance, bridge, traffic)?;
            Ok(passages.into_iter().find(|passage| !passage.has_rules))
        };
        match passed() {
            Ok(None) => true,
            Ok(Some(Passage { chain, .. })) => {
                tracing::warn!(table = chain.table, chain = chain.name, "{}", UNREACHABLE);
                false
            }
            Err(error) => {
                tracing::warn!(error = in_full(&error), "{}", UNREACHABLE);
                false
            }
        }
    }
}

const UNREACHABLE: &str =
    "allocations do not use the agent's name server: a chain of another program may drop their queries";

fn sockets((ip, port): (IpAddr, u16), bridge: &InterfaceName) -> io::Result<NameSockets> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = |kind| -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, None)?;
        bind_to_interface(&socket, bridge.as_str())?;
        // Connections of an earlier agent may not have ended completely.
        if kind == SocketType::STREAM {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        bind(&socket, &SocketAddr::new(ip, port)).map_err(|errno| match errno {
            Errno::ADDRINUSE => io::ErrorKind::AddrInUse.into(),
            errno => io::Error::from(errno),
        })?;
        Ok(socket)
    };
    let tcp = open(SocketType::STREAM)?;
    listen(&tcp, BACKLOG)?;
    Ok(NameSockets { ip, udp: open(SocketType::DGRAM)?.into(), tcp: tcp.into() })
}
