//! Whole networks of allocations that CNI plugins set up.
//!
//! In: what is wanted for an allocation. Out: a network that is as wanted; its interface and addresses. Everything is found by the
//! allocation's name, so after any interruption the same call completes or removes what is there.
//!
//! ```text
//! up     config ─► [undo what is there] ─► record ─► namespace with a file ─► STATUS, ADD ─► inspection ─► record with the result
//! down   DEL in reverse order ─► file of the namespace ─► record
//! ```
//!
//! Nothing is repaired: plugins can only attach and detach. What is damaged is detached and attached again, in the same namespace if
//! it is there. The plugins' command GC is not used: it would also detach the allocations of other agents, and containers, of the
//! same network; the records serve the same purpose.

use std::{
    io,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use herdlet_base::{clock::boot_id, error::in_full};
use herdlet_network::{
    address,
    link::{self, InterfaceName},
    namespace::{Namespace, NamespaceId, Pin, Pins},
    networks::{INTERFACE, LoneNetworks, NetworkError},
    port_owner::HeldPort,
    ports::{HoldError, PortHolder},
    socket::Protocol,
};
use serde_json::Value;

use crate::{
    chain::{Chain, PLUGIN_TIME_MAX, PortMapping, maps_ports},
    config::{self, ConfigError, Directories, NetworkConfig},
    plugin::{Attachment, CallError},
    process,
    record::{Phase, Record, RecordError, Records},
    result::{self, Connection, Place},
};

/// How often the removal of a network is tried, until what its plugins may have left is reported and forgotten: a plugin that was
/// uninstalled must not keep its allocations forever.
const REMOVALS_MAX: u32 = 10;

/// How long the removal of networks without an allocation may delay the start of the agent. The next start continues.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(60);

/// What an allocation wants.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    /// The allocation.
    pub owner: &'r str,
    /// The name of the network.
    pub network: &'r str,
    /// Further arguments of the plugins: `KEY=VALUE;KEY=VALUE`.
    pub args: &'r str,
    /// The ports that lead to it, if a plugin of the network maps ports.
    pub ports: &'r [PortMapping],
}

/// A network that is as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedNetwork {
    pub connection: Connection,
    pub namespace: NamespaceId,
    /// Whether a plugin maps ports of the machine.
    pub maps_ports: bool,
}

/// What an inspection has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The network is as its plugins have made it.
    Complete(AttachedNetwork),
    /// Something is missing or wrong; completes "its".
    Incomplete { what: String },
    /// There is nothing.
    Absent,
}

/// How thorough an inspection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// It reads from the kernel.
    Kernel,
    /// It also runs the plugins' CHECK.
    Plugins,
}

/// Why a network can't be made or removed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Hold(#[from] HoldError),
    #[error("use the CNI network {network}: the result of its plugins {why}")]
    Result { network: String, why: String },
    /// An attempt failed, and what it has done can't be undone.
    #[error("{first}; then, to clean up, failed to {left}")]
    Cleanup { first: String, left: String },
    #[error("use the CNI network {network}: its plugins report success, but the {what}")]
    HalfMade { network: String, what: String },
}

/// The networks that plugins set up.
#[derive(Debug)]
pub struct CniNetworks {
    directories: Directories,
    lone: LoneNetworks,
    pins: Pins,
    records: Records,
    holder: PortHolder,
    boot: u64,
    /// The longest time of one plugin.
    time: Duration,
}

impl CniNetworks {
    /// Those of an agent with these directories. Changes nothing.
    pub fn new(directories: Directories, state: &Path, runtime: &Path) -> Self {
        Self {
            directories,
            lone: LoneNetworks::in_runtime(runtime),
            pins: Pins::in_dir(runtime.join("netns")),
            records: Records::in_dir(state.join("cni")),
            holder: PortHolder::default(),
            boot: boot_id(),
            time: PLUGIN_TIME_MAX,
        }
    }

    /// Makes an allocation's network. One that is as wanted stays; another one is detached first.
    ///
    /// # Errors
    /// [`CniError`]. Nothing is left then, except what plugins could not detach; the record keeps that.
    pub fn up(&self, request: &Request<'_>) -> Result<AttachedNetwork, CniError> {
        let Request { owner, network, args, ports } = *request;
        if let State::Complete(made) = self.inspect(owner, Depth::Kernel)? {
            return Ok(made);
        }
        // Without it nothing is begun, and what is there stays for the tasks in it.
        let network = config::find(&self.directories, network)?;
        let mut record = Record {
            boot: self.boot,
            interface: INTERFACE.to_owned(),
            args: args.to_owned(),
            ports: if maps_ports(&network) { ports.to_vec() } else { Vec::new() },
            network,
            plugins: self.directories.plugins.clone(),
            phase: Phase::Begun,
            result: None,
            failures: 0,
            fault: None,
        };
        self.hold(owner, &record.ports)?;
        if let Some(earlier) = self.record_of(owner)? {
            self.undo(owner, &earlier).map_err(|left| with_cause(earlier.fault, left))?;
        }
        self.records.write(owner, &record)?;
        let attached = self.attach(owner, &record).and_then(|(made, result)| {
            (record.phase, record.result) = (Phase::Attached, Some(result));
            self.records.write(owner, &record)?;
            Ok(made)
        });
        // The next attempt begins with a namespace that no plugin has touched.
        if let Err(error) = &attached
            && let Err(left) = self.down(owner)
        {
            tracing::warn!(alloc = owner, error = in_full(&left), "failed to detach a network that failed");
            self.keep_fault(owner, error);
        }
        attached
    }

    /// Inspects an allocation's network.
    ///
    /// # Errors
    /// If the kernel does not answer, or the record can't be read.
    pub fn inspect(&self, owner: &str, depth: Depth) -> Result<State, CniError> {
        let incomplete = |what: &str| Ok(State::Incomplete { what: what.to_owned() });
        let (record, pin) = (self.record_of(owner)?, self.pins.find(owner).map_err(NetworkError::from)?);
        let (record, namespace) = match (record, pin) {
            (None, Pin::Absent) => return Ok(State::Absent),
            (None, Pin::Kept(_) | Pin::Empty) => return incomplete("record is gone"),
            (Some(_), Pin::Absent | Pin::Empty) => return incomplete("namespace is gone"),
            (Some(record), Pin::Kept(namespace)) => (record, namespace),
        };
        let is_attached = record.phase == Phase::Attached && record.boot == self.boot;
        let Some(result) = record.result.as_ref().filter(|_| is_attached) else {
            return incomplete("setup or removal was interrupted");
        };
        let made = match self.made(&record, result, &namespace) {
            Ok(made) => made,
            Err(CniError::HalfMade { what, .. }) => return Ok(State::Incomplete { what }),
            Err(error) => return Err(error),
        };
        if depth == Depth::Plugins {
            // The sockets have ended with the earlier agent.
            if let Err(error) = self.hold(owner, &record.ports) {
                let error = in_full(&error);
                tracing::warn!(alloc = owner, error, "a port that leads to an allocation is not held");
            }
            match self.with_chain(owner, &record, |chain| chain.check(result)) {
                Ok(()) => {}
                Err(error) if error.is_verdict() => {
                    return Ok(State::Incomplete {
                        what: format!("plugins object: failed to {}", in_full(&error)),
                    });
                }
                // A plugin that hangs, or was removed, reports nothing about the network.
                Err(error) => {
                    tracing::warn!(alloc = owner, error = in_full(&error), "failed to check a network")
                }
            }
        }
        Ok(State::Complete(made))
    }

    /// Removes an allocation's network; without effect if there is none. Each step is tried even if another one fails.
    ///
    /// # Errors
    /// That of the first step that failed. The record then stays.
    pub fn down(&self, owner: &str) -> Result<(), CniError> {
        let undone = match self.record_of(owner)? {
            Some(record) => self.undo(owner, &record),
            None => Ok(()),
        };
        let removed = self.lone.down(owner);
        self.holder.release(owner);
        undone?;
        removed?;
        Ok(self.records.remove(owner)?)
    }

    /// The allocations that plugins have set up a network for, or have begun to.
    ///
    /// # Errors
    /// If the records can't be listed.
    pub fn owners(&self) -> Result<Vec<String>, CniError> {
        Ok(self.records.owners()?)
    }

    /// Removes the networks of allocations that satisfy `is_leak`. Returns the numbers of those removed, and of those left.
    pub fn sweep(&self, is_leak: impl Fn(&str) -> bool) -> (u64, u64) {
        self.records.remove_parts();
        let (begun, mut counts) = (Instant::now(), (0, 0));
        let owners = self.records.owners().unwrap_or_else(|error| {
            tracing::warn!(error = in_full(&error), "failed to list the networks of plugins");
            Vec::new()
        });
        for owner in owners.iter().filter(|owner| is_leak(owner)) {
            if begun.elapsed() > SWEEP_TIME_MAX {
                counts.1 += 1;
                continue;
            }
            tracing::warn!(alloc = owner, "detaching a network whose owner does not exist");
            match self.down(owner) {
                Ok(()) => counts.0 += 1,
                Err(error) => {
                    tracing::warn!(alloc = owner, error = in_full(&error), "failed to detach the network");
                    counts.1 += 1;
                }
            }
        }
        counts
    }

    /// Removes all networks, at the end of an instance. Each one is tried even if another one fails.
    ///
    /// # Errors
    /// That of the first one that failed.
    pub fn remove_all(&self) -> Result<(), CniError> {
        let mut removed = Ok(());
        for owner in self.records.owners()? {
            removed = removed.and(self.down(&owner));
        }
        removed
    }

    /// The ports that are held, in order.
    pub fn held_ports(&self) -> Vec<HeldPort> {
        self.holder.held()
    }

    /// Holds the ports that lead to an allocation, so that no other process gets them.
    fn hold(&self, owner: &str, ports: &[PortMapping]) -> Result<(), HoldError> {
        let held = |port: &PortMapping| HeldPort::held_for(port.host_ip, port.host);
        let ports: Vec<HeldPort> = ports.iter().flat_map(held).collect();
        self.holder.hold(owner, &ports)
    }

    /// Keeps why a network could not be attached, for the attempts that fail already when they detach what it has left.
    fn keep_fault(&self, owner: &str, fault: &CniError) {
        let Ok(Some(record)) = self.record_of(owner) else { return };
        let kept = self.records.write(owner, &Record { fault: Some(in_full(fault)), ..record });
        if let Err(error) = kept {
            tracing::warn!(alloc = owner, error = in_full(&error), "failed to keep why a network failed");
        }
    }

    fn attach(&self, owner: &str, record: &Record) -> Result<(AttachedNetwork, Value), CniError> {
        self.lone.up(owner)?;
        let result = self.with_chain(owner, record, |chain| {
            chain.status()?;
            chain.add()
        })?;
        let Pin::Kept(namespace) = self.pins.find(owner).map_err(NetworkError::from)? else {
            return Err(half_made(&record.network, "namespace is gone"));
        };
        Ok((self.made(record, &result, &namespace)?, result))
    }

    /// Reads a result, and compares it with what is in the namespace.
    fn made(
        &self,
        record: &Record,
        result: &Value,
        namespace: &Namespace,
    ) -> Result<AttachedNetwork, CniError> {
        let requested = requested(record)?;
        let connection = result::read(result, &requested)
            .map_err(|why| CniError::Result { network: record.network.name.clone(), why })?;
        if connection.place == Place::Inside
            && let Some(what) = difference(namespace, &connection)?
        {
            return Err(half_made(&record.network, &what));
        }
        let namespace = namespace.id().map_err(inspecting)?;
        Ok(AttachedNetwork { connection, namespace, maps_ports: maps_ports(&record.network) })
    }

    /// Detaches what is in a record.
    fn undo(&self, owner: &str, record: &Record) -> Result<(), CniError> {
        match record.phase {
            Phase::Attached => {
                self.records.write(owner, &Record { phase: Phase::Ending, ..record.clone() })?;
            }
            // Of an interrupted attempt, processes may still attach or detach it.
            Phase::Begun | Phase::Ending => process::end_marked(&self.mark(owner)),
        }
        let Err(error) = self.with_chain(owner, record, |chain| chain.del(record.result.as_ref())) else {
            return Ok(());
        };
        let failures = record.failures.saturating_add(1);
        if failures >= REMOVALS_MAX {
            let error = in_full(&error);
            tracing::error!(
                alloc = owner,
                error,
                network = record.network.name,
                "failed to detach a network {failures} times: its plugins may have left an address or rules"
            );
            return Ok(());
        }
        self.records.write(owner, &Record { failures, phase: Phase::Ending, ..record.clone() })?;
        Err(error.into())
    }

    fn with_chain<T>(
        &self,
        owner: &str,
        record: &Record,
        work: impl FnOnce(&Chain<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let (path, mark) = (self.pins.path(owner), self.mark(owner));
        let namespace = matches!(self.pins.find(owner), Ok(Pin::Kept(_))).then_some(&*path);
        let attachment =
            Attachment { owner, mark: &mark, namespace, interface: &record.interface, args: &record.args };
        let mut dirs = self.directories.plugins.clone();
        let moved = record.plugins.iter().filter(|dir| !self.directories.plugins.contains(dir));
        dirs.extend(moved.cloned());
        let Record { network, ports, .. } = record;
        work(&Chain { dirs: &dirs, network, attachment, ports, time: self.time })
    }

    /// No other allocation of the machine has this path.
    fn mark(&self, owner: &str) -> String {
        self.pins.path(owner).display().to_string()
    }

    /// A record that can't be read is of no use, and must not keep the allocation.
    fn record_of(&self, owner: &str) -> Result<Option<Record>, CniError> {
        match self.records.find(owner) {
            Err(error) if error.is_damaged() => {
                let error = in_full(&error);
                tracing::error!(
                    alloc = owner,
                    error,
                    "a record of a network is damaged: its plugins may have left something"
                );
                Ok(None)
            }
            found => Ok(found?),
        }
    }
}

/// How the inside differs from a result.
fn difference(namespace: &Namespace, connection: &Connection) -> Result<Option<String>, CniError> {
    let mut inside = namespace.socket(Protocol::Route).map_err(inspecting)?;
    let name = &connection.interface;
    let Some(found) = link::find(&mut inside, name).map_err(NetworkError::from)? else {
        return Ok(Some(format!("interface {} is not in the namespace", name.as_str())));
    };
    let addresses = address::list(&mut inside).map_err(NetworkError::from)?;
    let has =
        |wanted: &&IpAddr| addresses.iter().any(|(index, has)| *index == found.index && has.ip == **wanted);
    let missing = connection.addresses.iter().find(|wanted| !has(wanted));
    Ok(missing.map(|ip| format!("interface {} lacks the address {ip}", name.as_str())))
}

fn requested(record: &Record) -> Result<InterfaceName, CniError> {
    InterfaceName::new(&record.interface).map_err(|error| {
        let source = io::Error::other(error);
        NetworkError::Io { what: "name an interface", source }.into()
    })
}

/// The failure of a cleanup, after the failure that made it necessary. If no plugin reports it, it is a matter of its own, such as
/// a plugin that is missing.
fn with_cause(first: Option<String>, left: CniError) -> CniError {
    match (first, left) {
        (Some(first), CniError::Call(call)) if call.is_verdict() => {
            CniError::Cleanup { first, left: in_full(&call) }
        }
        (_, left) => left,
    }
}

fn half_made(network: &NetworkConfig, what: &str) -> CniError {
    CniError::HalfMade { network: network.name.clone(), what: what.to_owned() }
}

fn inspecting(source: io::Error) -> NetworkError {
    NetworkError::Io { what: "inspect a network namespace", source }
}

#[cfg(test)]
mod tests;
