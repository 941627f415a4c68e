//! Ports of the machine that lead to several targets: a table of nf_tables whose map has elements for each such port.
//!
//! In: ports, each with its targets. Out: the table, made, changed, and removed with the last port. It is independent of services and
//! their health.
//!
//! Each port has [`SLOTS`] elements, which its targets share evenly. The kernel chooses one at random for each new connection, by TCP and
//! by UDP, and remembers the choice: a change of the targets affects no open connection. A port without a target has no element, so that
//! the machine itself answers, as for any port without a listener.
//!
//! | chain | called at | rules |
//! | --- | --- | --- |
//! | `publish_in`, `publish_out` | prerouting and output, dstnat | look up destination, port and a random slot, and translate; 127.0.0.0/8 only for the machine itself |

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_base::error::in_full;
use rustix::io::Errno;

use super::{
    layout::Layout,
    padded,
    rules::{
        DESTINATION_NAT, FAMILY4, FAMILY6, REGISTER, digested, hook, not_of_the_machine_alone, of_family,
    },
};
use crate::{
    address::{bytes_of, ip_of},
    conntrack,
    nft::{
        Batch, ChainKind,
        DataType::{Ipv4, Ipv6, Mark, Port},
        Element, Family, Hook, HookPoint, MapType, Table,
        expression::{
            Comparison, Expression, Field, Meta, TargetFamily, compare, load_field, load_meta, load_random,
            look_up, translate_destination,
        },
        read,
    },
    socket::{NetlinkError, Protocol, Socket},
};

/// Elements of a port. Many numbers of targets divide it, so that each gets the same share of connections. Further targets get none.
const SLOTS: u32 = 120;

const TARGETS4: &str = "targets4";
const TARGETS6: &str = "targets6";

const MAPS: [(&str, MapType); 2] = [
    (TARGETS4, MapType { key: &[Ipv4, Port, Mark], value: &[Ipv4, Port] }),
    (TARGETS6, MapType { key: &[Ipv6, Port, Mark], value: &[Ipv6, Port] }),
];

const PUBLISH_IN: &str = "publish_in";
const PUBLISH_OUT: &str = "publish_out";

const CHAINS: [(&str, Option<Hook>); 2] = [
    (PUBLISH_IN, hook(HookPoint::Prerouting, DESTINATION_NAT, ChainKind::Nat)),
    (PUBLISH_OUT, hook(HookPoint::Output, DESTINATION_NAT, ChainKind::Nat)),
];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A port of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedPort {
    /// Its address and number.
    pub at: SocketAddr,
    /// Where it leads. Targets of the other family get nothing: no packet has addresses of both.
    pub targets: BTreeSet<Target>,
}

/// Where a published port leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The address and port.
    pub at: SocketAddr,
    /// The allocation.
    pub owner: String,
}

/// The table.
#[derive(Debug)]
pub struct PublishedPorts {
    table: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    socket: Socket,
    /// What the kernel has, unless that is uncertain: before the first change, and after one that has failed.
    known: Option<Slots>,
}

/// The elements of each port.
type Slots = BTreeMap<SocketAddr, BTreeSet<Element>>;

impl PublishedPorts {
    /// The table of this instance, in the network namespace of this thread. Changes nothing.
    ///
    /// # Errors
    /// If the kernel has no netfilter.
    pub fn open(instance: &str) -> std::io::Result<Self> {
        let state = State { socket: Socket::open(Protocol::Netfilter)?, known: None };
        Ok(Self { table: format!("herdlet-{instance}-services"), state: Mutex::new(state) })
    }

    /// Makes exactly these ports lead to their targets. Each port changes in one step. Datagrams of clients whose target is gone lead to
    /// another one from then on.
    ///
    /// # Errors
    /// If the kernel refuses. The next call then corrects everything.
    pub fn set(&self, ports: &[PublishedPort]) -> Result<(), NetlinkError> {
        let wanted = slots_of(ports);
        let state = &mut *self.lock();
        if state.known.as_ref() == Some(&wanted) {
            return Ok(());
        }
        match self.change(state, &wanted) {
            // Another program has removed the table, or elements of it.
            Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::EXIST)) => {
                self.change(state, &wanted)
            }
            result => result,
        }
    }

    /// Compares everything with the kernel, and corrects it. Returns whether it differed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn repair(&self, ports: &[PublishedPort]) -> Result<bool, NetlinkError> {
        let wanted = slots_of(ports);
        let state = &mut *self.lock();
        let layout = self.layout();
        let is_whole = if wanted.is_empty() {
            !self.has_table(&mut state.socket)?
        } else {
            layout.compare(&mut state.socket)?.is_none() && self.read(&mut state.socket)? == wanted
        };
        if !is_whole {
            state.known = None;
            self.change(state, &wanted)?;
        }
        Ok(!is_whole)
    }

    /// Takes the targets of an allocation from all ports, which then lead to the others.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw(&self, owner: &str) -> Result<(), NetlinkError> {
        let state = &mut *self.lock();
        let present = match &state.known {
            Some(known) => known.clone(),
            None => self.read(&mut state.socket)?,
        };
        if !present.values().flatten().any(|element| element.comment == owner) {
            return Ok(());
        }
        let left = |elements: &BTreeSet<Element>| -> BTreeSet<Target> {
            let others = elements.iter().filter(|element| element.comment != owner);
            let target = |element: &Element| {
                Some(Target { at: read_target(&element.value)?, owner: element.comment.clone() })
            };
            others.filter_map(target).collect()
        };
        let ports: Vec<PublishedPort> =
            present.iter().map(|(at, elements)| PublishedPort { at: *at, targets: left(elements) }).collect();
        self.change(state, &slots_of(&ports))
    }

    /// The ports that lead somewhere now.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn open_ports(&self) -> Result<BTreeSet<SocketAddr>, NetlinkError> {
        let state = &mut *self.lock();
        match &state.known {
            Some(known) => Ok(known.keys().copied().collect()),
            None => Ok(self.read(&mut state.socket)?.into_keys().collect()),
        }
    }

    /// Removes the table; without effect if there is none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self) -> Result<(), NetlinkError> {
        self.remove_table(&mut self.lock())
    }

    fn change(&self, state: &mut State, wanted: &Slots) -> Result<(), NetlinkError> {
        let before = match state.known.take() {
            Some(known) if !known.is_empty() => known,
            // What an earlier agent has left.
            Some(_) | None if wanted.is_empty() => self.read(&mut state.socket)?,
            Some(_) | None => {
                self.layout().install(&mut state.socket)?;
                self.read(&mut state.socket)?
            }
        };
        if wanted.is_empty() {
            self.remove_table(state)?;
        } else {
            self.replace(&mut state.socket, &before, wanted)?;
            state.known = Some(wanted.clone());
        }
        self.forget_datagrams(state, &before);
        Ok(())
    }

    /// Ports that go come first: their targets may have gone to others.
    fn replace(&self, socket: &mut Socket, before: &Slots, wanted: &Slots) -> Result<(), NetlinkError> {
        let none = BTreeSet::new();
        let gone = before.keys().filter(|at| !wanted.contains_key(at));
        for at in gone.chain(wanted.keys()) {
            let (before, wanted) = (before.get(at).unwrap_or(&none), wanted.get(at).unwrap_or(&none));
            let mut batch = Batch::new(self.table());
            let removed: Vec<Vec<u8>> =
                before.difference(wanted).map(|element| element.key.clone()).collect();
            batch.remove_elements(map_of(at), &removed);
            let added: Vec<Element> = wanted.difference(before).cloned().collect();
            batch.add_elements(map_of(at), &added);
            if !batch.is_empty() {
                socket.commit(&format!("publish {at}"), &batch.into_messages())?;
            }
        }
        Ok(())
    }

    /// Where that fails, clients that send on reach a target that is gone.
    fn forget_datagrams(&self, state: &mut State, before: &Slots) {
        let targets = |slots: &Slots| -> BTreeSet<SocketAddr> {
            slots.values().flatten().filter_map(|element| read_target(&element.value)).collect()
        };
        let left = state.known.as_ref().map(targets).unwrap_or_default();
        let gone = targets(before).difference(&left).copied().collect();
        if let Err(error) = conntrack::forget_datagrams(&mut state.socket, &gone) {
            tracing::debug!(targets = ?gone, error = in_full(&error), "failed to forget connections to targets");
        }
    }

    fn remove_table(&self, state: &mut State) -> Result<(), NetlinkError> {
        state.known = None;
        let mut batch = Batch::new(self.table());
        batch.delete_table();
        match state.socket.commit("remove published ports", &batch.into_messages()) {
            Err(error) if error.errno() != Some(Errno::NOENT) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        state.known = Some(Slots::new());
        Ok(())
    }

    fn has_table(&self, socket: &mut Socket) -> Result<bool, NetlinkError> {
        Ok(!read::chains(socket, Family::Inet, Some(&self.table))?.is_empty())
    }

    /// What the kernel has. Elements of another form count as those of a port that nobody wants.
    fn read(&self, socket: &mut Socket) -> Result<Slots, NetlinkError> {
        let mut slots = Slots::new();
        for (map, kind) in MAPS {
            let unknown = unspecified(&kind);
            for element in read::elements(socket, self.table(), map)? {
                let at = read_target(&element.key).filter(|at| at.is_ipv4() == unknown.is_ipv4());
                slots.entry(at.unwrap_or(unknown)).or_default().insert(element);
            }
        }
        Ok(slots)
    }

    fn layout(&self) -> Layout<'_> {
        let look_ups = || {
            let families = [TargetFamily::V4, TargetFamily::V6];
            let each = |family| [TCP, UDP].map(|protocol| digested(look_up_of(family, protocol)));
            families.into_iter().flat_map(each)
        };
        let alone = digested(not_of_the_machine_alone());
        let rules = [
            (PUBLISH_IN, std::iter::once(alone).chain(look_ups()).collect()),
            (PUBLISH_OUT, look_ups().collect()),
        ];
        Layout { table: self.table(), chains: &CHAINS, maps: &MAPS, rules: rules.into() }
    }

    fn table(&self) -> Table<'_> {
        Table { family: Family::Inet, name: &self.table }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_up_of(family: TargetFamily, protocol: u8) -> Vec<Expression> {
    let (number, map, destination, words) = match family {
        TargetFamily::V4 => (&FAMILY4, TARGETS4, Field::Destination4, 1),
        TargetFamily::V6 => (&FAMILY6, TARGETS6, Field::Destination6, 4),
    };
    let mut rule = of_family(number);
    rule.push(load_meta(Meta::Protocol, REGISTER));
    rule.push(compare(REGISTER, Comparison::Equal, &[protocol]));
    rule.push(load_field(destination, REGISTER));
    rule.push(load_field(Field::DestinationPort, REGISTER + words));
    rule.push(load_random(SLOTS, REGISTER + words + 1));
    rule.push(look_up(map, REGISTER));
    rule.push(translate_destination(family, REGISTER));
    rule
}

fn map_of(at: &SocketAddr) -> &'static str {
    if at.is_ipv4() { TARGETS4 } else { TARGETS6 }
}

/// The port of elements of another form.
fn unspecified(kind: &MapType) -> SocketAddr {
    let ip = if kind.key.contains(&Ipv4) {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    SocketAddr::new(ip, 0)
}

fn slots_of(ports: &[PublishedPort]) -> Slots {
    let mut slots = Slots::new();
    for PublishedPort { at, targets } in ports {
        let reached: Vec<&Target> =
            targets.iter().filter(|target| target.at.is_ipv4() == at.is_ipv4()).collect();
        let element = |(slot, target): (u32, &&Target)| Element {
            key: [&*bytes_at(*at), &slot.to_ne_bytes()].concat(),
            value: bytes_at(target.at),
            comment: target.owner.clone(),
        };
        if !reached.is_empty() {
            slots.insert(*at, (0..SLOTS).zip(reached.iter().cycle()).map(element).collect());
        }
    }
    slots
}

/// An address and a port as in registers.
fn bytes_at(at: SocketAddr) -> Vec<u8> {
    [&*bytes_of(at.ip()), &padded(at.port())].concat()
}

/// The address and the port of a value, or at the start of a key, which also has a slot. The family follows from the length.
fn read_target(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, rest) = bytes.split_at_checked(if bytes.len() < 16 { 4 } else { 16 })?;
    Some(SocketAddr::new(ip_of(ip)?, u16::from_be_bytes(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests;
