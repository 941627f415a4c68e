//! Networks as shown: those of allocations, and the bridge that connects them with the machine.

use std_alloc::{format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{AllocId, JobKey};

/// A network of this machine's allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NetworkView {
    /// The bridge.
    Bridge(BridgeView),
    /// That of one allocation.
    Alloc(AllocNetworkView),
}

/// The bridge of this agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeView {
    /// Its interface.
    pub name: String,
    /// Its address, with the prefix of its network.
    pub address: String,
    /// Its IPv6 address, with the prefix of its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
    /// The longest packet.
    pub mtu: u32,
    /// How many addresses allocations have.
    pub addresses_used: u32,
    /// How many they can have.
    pub addresses_max: u32,
    /// The table of nf_tables with its rules, as `nft list table` takes it.
    pub table: String,
    /// What is missing or wrong, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The chains of other programs that drop forwarded packets.
    pub dropping_chains: Vec<DroppingChain>,
}

impl BridgeView {
    /// The chains that drop packets of the bridge.
    pub fn obstacles(&self) -> impl Iterator<Item = &DroppingChain> {
        self.dropping_chains.iter().filter(|chain| !chain.is_passed)
    }
}

/// A chain of another program that drops forwarded packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppingChain {
    /// The family of its table: `ip`, `ip6`, `inet`.
    pub family: String,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
    /// The chain for the rules of the agent that let packets of the bridge through.
    pub rules_in: String,
    /// Whether these rules are there.
    pub is_passed: bool,
    /// Why the agent can't add them, if only another program can change the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<ChainLock>,
}

/// Why only another program can change a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ChainLock {
    /// A program has made the table as its property, as firewalld does.
    Owned {
        /// The program, as `PROGRAM (process PID)`, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It is a chain of iptables-legacy.
    Legacy,
}

impl DroppingChain {
    /// Its full name, as `nft list chain` takes it.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.chain)
    }
}

/// The network of one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocNetworkView {
    /// The allocation.
    pub alloc: AllocId,
    /// Its name.
    pub name: String,
    /// Its job.
    pub job: JobKey,
    /// `bridge`, `none` or `cni/NAME`.
    pub mode: String,
    /// Its interface; empty if it has none.
    pub interface: String,
    /// Its address; empty if it has none.
    pub address: String,
    /// Its IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
    /// The file that keeps its namespace, as `nsenter --net=` takes it.
    pub namespace: String,
    /// The ports of the machine that lead to it.
    pub ports: Vec<PortView>,
    /// What is missing or wrong, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A port of the machine that leads to an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// Its label.
    pub label: String,
    /// The address of the machine.
    pub host_ip: String,
    /// The port of the machine.
    pub host_port: u16,
    /// The port of the allocation.
    pub port: u16,
    /// The process that has the port of the machine, as `PROGRAM (process PID)`: the agent, or a stranger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}
