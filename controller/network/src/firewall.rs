//! The rules of this instance: one table of nf_tables, with maps that have one element for each mapped port.
//!
//! In: bridges, port maps. Out: the table, made, changed and compared with what is wanted. An accept in this table can't
//! override another table's drop.
//!
//! | chain | called at | rules |
//! | --- | --- | --- |
//! | `arrive` | prerouting, raw | what comes from a bridge must not go to the machine's loopback addresses, and must come from an address of the bridge's network |
//! | `map_in`, `map_out` | prerouting and output, dstnat | look up destination, protocol and port in the maps, and translate; 127.0.0.0/8 only for the machine itself |
//! | `leave` | postrouting, srcnat | masquerade what leaves a bridge, what returns to it, and what the machine sends from 127.0.0.0/8 |
//! | `forward` | forward, filter | calls `admin`; then drops what comes from elsewhere to an allocation, unless it is an answer or its port is mapped |
//! | `admin` | – | the administrator's: made if it is missing, and never changed |
//!
//! The comment of each rule is a digest of its content, so that a comparison needs no more than comments.

mod layout;
pub mod published;
mod rules;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;

use crate::{
    link::InterfaceName,
    message::Message,
    nft::{Batch, Element, Family, Table, read},
    socket::{NetlinkError, Protocol, Socket},
    subnet::{Subnet4, Subnet6},
};
use layout::Layout;
use rules::{CHAINS, MAPS, rules_of};

/// A bridge whose packets are translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeRules {
    /// Its name.
    pub name: InterfaceName,
    /// Its network.
    pub subnet4: Subnet4,
    /// Its IPv6 network.
    pub subnet6: Option<Subnet6>,
}

/// A port of the machine that leads to an allocation, for TCP and UDP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortMap {
    /// The machine's address; `None` for all of them.
    pub host_ip: Option<IpAddr>,
    /// The machine's port.
    pub host_port: u16,
    /// The allocation's address.
    pub target_ip: IpAddr,
    /// The allocation's port.
    pub target_port: u16,
    /// The allocation.
    pub owner: String,
}

/// How the table differs from what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A chain or a map is missing, or is called elsewhere.
    Structure,
    /// Rules are missing, or others are there.
    Rules,
    /// Mapped ports are missing, or others are there.
    Ports,
}

/// What became of mapped ports when the rules were installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installation {
    /// They are still there.
    PortsKept,
    /// There are none.
    WithoutPorts,
}

/// The table.
#[derive(Debug)]
pub struct Firewall {
    table: String,
    bridges: Vec<BridgeRules>,
    /// Its lock makes changes that depend on what is there one at a time.
    socket: Mutex<Socket>,
}

/// The protocols of a mapped port.
const PROTOCOLS: [u8; 2] = [6, 17];

impl Firewall {
    /// The rules of this instance, in the network namespace of this thread. Changes nothing.
    ///
    /// # Errors
    /// If the kernel has no netfilter.
    pub fn open(instance: &str, bridges: Vec<BridgeRules>) -> std::io::Result<Self> {
        let socket = Mutex::new(Socket::open(Protocol::Netfilter)?);
        Ok(Self { table: format!("herdlet-{instance}"), bridges, socket })
    }

    /// The name of the table.
    pub fn table_name(&self) -> &str {
        &self.table
    }

    /// The address of the socket that changes the table: [`RuleWatch`](crate::watch::RuleWatch) does not report its changes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn port(&self) -> std::io::Result<u32> {
        self.lock().port()
    }

    /// Makes the table, its chains, maps and rules as wanted, in one step: no packet sees anything in between. Mapped ports stay,
    /// unless the table has chains or maps that are something else: then it is replaced.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn install(&self) -> Result<Installation, NetlinkError> {
        self.layout().install(&mut self.lock())
    }

    /// Maps these ports. Ports that lead elsewhere, of an allocation that has ended, are taken from it.
    ///
    /// # Errors
    /// If the kernel refuses, for instance because another program has deleted the table.
    pub fn map_ports(&self, ports: &[PortMap]) -> Result<(), NetlinkError> {
        let wanted = elements_of(ports);
        // Kernels differ in whether they acknowledge an empty transaction.
        if wanted.is_empty() {
            return Ok(());
        }
        let mut socket = self.lock();
        let what = "map ports";
        match socket.commit(what, &self.added(&wanted, &Elements::new())) {
            // An element exists with another value.
            Err(error) if matches!(error.errno(), Some(Errno::EXIST | Errno::BUSY)) => {
                let taken = self.present(&mut socket, &wanted)?;
                socket.commit(what, &self.added(&wanted, &taken))
            }
            result => result,
        }
    }

    fn added(&self, wanted: &Elements, taken: &Elements) -> Vec<Message> {
        let mut batch = Batch::new(self.table());
        for (map, elements) in taken {
            let keys: Vec<Vec<u8>> = elements.iter().map(|element| element.key.clone()).collect();
            batch.remove_elements(map, &keys);
        }
        for (map, elements) in wanted {
            batch.add_elements(map, elements);
        }
        batch.into_messages()
    }

    /// Removes the ports of an allocation; without effect if it has none, or there is no table. If its ports are not known, all
    /// maps are searched for them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unmap_ports(&self, owner: &str, known: Option<&[PortMap]>) -> Result<(), NetlinkError> {
        let mut socket = self.lock();
        match self.unmap_found(&mut socket, owner, known) {
            // A user has removed one of them, or the table, and the others are still there.
            Err(error) if error.errno() == Some(Errno::NOENT) => self.unmap_found(&mut socket, owner, known),
            result => result,
        }
    }

    fn unmap_found(
        &self,
        socket: &mut Socket,
        owner: &str,
        known: Option<&[PortMap]>,
    ) -> Result<(), NetlinkError> {
        let found = match known {
            Some(ports) => self.present(socket, &elements_of(ports))?,
            None => self.all_elements(socket)?,
        };
        let mut batch = Batch::new(self.table());
        for (map, elements) in found {
            let own = elements.into_iter().filter(|element| element.comment == owner);
            let keys: Vec<Vec<u8>> = own.map(|element| element.key).collect();
            batch.remove_elements(map, &keys);
        }
        if batch.is_empty() {
            return Ok(());
        }
        socket.commit("remove mapped ports", &batch.into_messages())
    }

    /// The allocations that have mapped ports.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn owners(&self) -> Result<BTreeSet<String>, NetlinkError> {
        let all = self.all_elements(&mut self.lock())?;
        Ok(all.into_values().flatten().map(|element| element.comment).collect())
    }

    /// Whether these ports are mapped.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn has_ports(&self, ports: &[PortMap]) -> Result<bool, NetlinkError> {
        let wanted = elements_of(ports);
        Ok(self.present(&mut self.lock(), &wanted)? == wanted)
    }

    fn all_elements(&self, socket: &mut Socket) -> Result<Elements, NetlinkError> {
        let all = MAPS.map(|(map, _)| Ok((map, read::elements(socket, self.table(), map)?)));
        all.into_iter().collect()
    }

    /// The elements that have the keys of these.
    fn present(&self, socket: &mut Socket, wanted: &Elements) -> Result<Elements, NetlinkError> {
        let mut present = Elements::new();
        for (map, elements) in wanted {
            for element in elements {
                let found = read::element(socket, self.table(), map, &element.key)?;
                present.entry(map).or_default().extend(found);
            }
        }
        Ok(present)
    }

    /// How the table differs from what is wanted; `None` if it does not.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn compare(&self, ports: &[PortMap]) -> Result<Option<Difference>, NetlinkError> {
        let mut socket = self.lock();
        if let Some(difference) = self.layout().compare(&mut socket)? {
            return Ok(Some(difference));
        }
        let mut wanted = elements_of(ports);
        for (map, _) in MAPS {
            let wanted: BTreeSet<Element> = wanted.remove(map).unwrap_or_default().into_iter().collect();
            let found: BTreeSet<Element> =
                read::elements(&mut socket, self.table(), map)?.into_iter().collect();
            if wanted != found {
                return Ok(Some(Difference::Ports));
            }
        }
        Ok(None)
    }

    /// Whether there is a table.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn has_table(&self) -> Result<bool, NetlinkError> {
        Ok(!read::chains(&mut self.lock(), Family::Inet, Some(&self.table))?.is_empty())
    }

    /// Whether chains, maps and rules are as wanted; mapped ports are not compared.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn has_rules(&self) -> Result<bool, NetlinkError> {
        Ok(self.layout().compare(&mut self.lock())?.is_none())
    }

    /// Removes the table; without effect if there is none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self) -> Result<(), NetlinkError> {
        let mut batch = Batch::new(self.table());
        batch.delete_table();
        match self.lock().commit("remove the rules", &batch.into_messages()) {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout { table: self.table(), chains: &CHAINS, maps: &MAPS, rules: rules_of(&self.bridges) }
    }

    fn table(&self) -> Table<'_> {
        Table { family: Family::Inet, name: &self.table }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Elements by map.
type Elements = BTreeMap<&'static str, Vec<Element>>;

/// The elements for these ports, each once: a transaction that removes one twice fails.
fn elements_of(ports: &[PortMap]) -> Elements {
    let mut all = Elements::new();
    for port in ports {
        let (exact, any, host) = match (port.target_ip, port.host_ip) {
            (IpAddr::V4(_), Some(IpAddr::V4(ip))) => (rules::PORTS4, rules::ANY4, padded4(ip)),
            (IpAddr::V4(_), None) => (rules::PORTS4, rules::ANY4, Vec::new()),
            (IpAddr::V6(_), Some(IpAddr::V6(ip))) => (rules::PORTS6, rules::ANY6, padded6(ip)),
            (IpAddr::V6(_), None) => (rules::PORTS6, rules::ANY6, Vec::new()),
            // No packet has addresses of both families.
            (IpAddr::V4(_), Some(IpAddr::V6(_))) | (IpAddr::V6(_), Some(IpAddr::V4(_))) => continue,
        };
        let map = if host.is_empty() { any } else { exact };
        let target = match port.target_ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        for protocol in PROTOCOLS {
            let key = [&*host, &[protocol, 0, 0, 0], &padded(port.host_port)].concat();
            let value = [&*target, &padded(port.target_port)].concat();
            let element = Element { key, value, comment: port.owner.clone() };
            all.entry(map).or_default().push(element);
        }
    }
    for elements in all.values_mut() {
        elements.sort();
        elements.dedup();
    }
    all
}

/// The unspecified address stands for all of them.
fn padded4(ip: Ipv4Addr) -> Vec<u8> {
    if ip.is_unspecified() { Vec::new() } else { ip.octets().to_vec() }
}

fn padded6(ip: Ipv6Addr) -> Vec<u8> {
    if ip.is_unspecified() { Vec::new() } else { ip.octets().to_vec() }
}

/// A port as in a register.
fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

#[cfg(test)]
mod tests;
