//! Chains of others that drop packets, and the rules that let those of a bridge through.
//!
//! In: a bridge, a kind of traffic. Out: two rules in each such chain, marked with the instance. An accept in a table of ours can't override
//! another table's drop, so the rules must be in the chain that drops: the first of Docker's chain for administrators if the table
//! has it, else of the chain itself. A chain drops if no rule of it decides and that is its policy, or if it comes to a rule that drops
//! or rejects every packet, as those of firewalld do. Rules with conditions are left alone.

use std::collections::BTreeMap;

use crate::{
    legacy_tables,
    link::InterfaceName,
    nft::{
        Batch, Family, HookPoint, Rule, Table,
        decision::Decision,
        expression::{
            Comparison, Expression, Field, Meta, Verdict, compare, decide, interface_bytes, load_field,
            load_meta,
        },
        read::{self, FoundChain},
    },
    socket::{NetlinkError, Socket},
};

/// Docker calls it before its own rules, and never changes it.
const DOCKER: &str = "DOCKER-USER";

/// What of a bridge a chain lets through or drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Packets between allocations and others.
    Forwarded,
    /// Queries of allocations to the name server at the bridge's address.
    Queries {
        /// Its port, after the translation.
        port: u16,
    },
}

impl Traffic {
    fn hook(self) -> HookPoint {
        match self {
            Self::Forwarded => HookPoint::Forward,
            Self::Queries { .. } => HookPoint::Input,
        }
    }
}

/// A chain that drops packets, and whether it lets those of a bridge through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The chain that drops.
    pub chain: ForeignChain,
    /// The chain of the same table for rules that let packets through.
    pub place: String,
    /// Whether the rules of this bridge are there.
    pub has_rules: bool,
    /// Why they can't be, if nobody but another program can change the chain.
    pub lock: Option<ChainLock>,
}

/// Why only another program can change a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainLock {
    /// Its table belongs to the socket with this address: usually the number of its process.
    Owned {
        /// The address.
        port: u32,
    },
    /// It is one of iptables-legacy.
    Legacy,
}

/// The families of chains that such packets go through.
const FAMILIES: [Family; 3] = [Family::Inet, Family::Ip, Family::Ip6];

/// A chain of another program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignChain {
    /// The family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
}

/// Begins the names of our tables, of every instance. What their administrators drop there is dropped.
const OURS: &str = "herdlet-";

const TCP: u8 = 6;
const UDP: u8 = 17;

/// How many chains that a forward chain calls are read. Firewalls call about twenty.
const CHAINS_MAX: usize = 200;

/// The chains that drop this traffic, unless an earlier rule with a condition accepts it.
///
/// # Errors
/// If the kernel does not answer.
pub fn dropping(socket: &mut Socket, traffic: Traffic) -> Result<Vec<ForeignChain>, NetlinkError> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let is_meant = |chain: &FoundChain| {
            let point = chain.hook.map(|(point, _)| point);
            point == Some(traffic.hook().number()) && !chain.table.starts_with(OURS)
        };
        for chain in read::chains(socket, family, None)?.into_iter().filter(is_meant) {
            let table = Table { family, name: &chain.table };
            let policy = if chain.drops { End::Drop } else { End::Accept };
            let end = end_in(socket, (table, &chain.name), &mut { CHAINS_MAX })?;
            if end.unwrap_or(policy) == End::Drop {
                found.push(ForeignChain { family, table: chain.table, name: chain.name });
            }
        }
    }
    Ok(found)
}

/// Where a packet ends about which no rule with a condition decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drop,
    Accept,
}

/// Its end in this chain; none if it goes on after it. `left`: how many chains may still be read.
fn end_in(
    socket: &mut Socket,
    (table, chain): (Table<'_>, &str),
    left: &mut usize,
) -> Result<Option<End>, NetlinkError> {
    let Some(fewer) = left.checked_sub(1) else { return Ok(None) };
    *left = fewer;
    for rule in read::rules_of_chain(socket, table, chain)? {
        match rule.decision {
            None => {}
            Some(Decision::Drop) => return Ok(Some(End::Drop)),
            Some(Decision::Accept) => return Ok(Some(End::Accept)),
            Some(Decision::Return) => return Ok(None),
            Some(Decision::Goto(next)) => return end_in(socket, (table, &next), left),
            Some(Decision::Jump(next)) => {
                let end = end_in(socket, (table, &next), left)?;
                if end.is_some() {
                    return Ok(end);
                }
            }
        }
    }
    Ok(None)
}

/// The chains that drop this traffic, and whether they let that of a bridge through.
///
/// # Errors
/// If the kernel does not answer.
pub fn passages(
    socket: &mut Socket,
    instance: &str,
    bridge: &InterfaceName,
    traffic: Traffic,
) -> Result<Vec<Passage>, NetlinkError> {
    let rules = rules(instance, bridge, traffic);
    let mut passages = obstacles(socket, traffic)?;
    for Passage { chain, place, has_rules, .. } in
        passages.iter_mut().filter(|passage| passage.lock != Some(ChainLock::Legacy))
    {
        *place = self::place(socket, chain, traffic)?;
        let found = read::rules(socket, Table { family: chain.family, name: &chain.table })?;
        let is_there =
            |rule: &Rule| found.iter().any(|found| found.chain == *place && found.comment == rule.comment);
        *has_rules = rules.iter().all(is_there);
    }
    Ok(passages)
}

/// The chains that drop this traffic, of iptables-legacy too, as if no bridge had rules in them.
///
/// # Errors
/// If the kernel does not answer.
pub fn obstacles(socket: &mut Socket, traffic: Traffic) -> Result<Vec<Passage>, NetlinkError> {
    let mut owned = BTreeMap::new();
    for family in FAMILIES {
        owned.insert(family, read::owned_tables(socket, family)?);
    }
    let owner = |chain: &ForeignChain| {
        let port = owned.get(&chain.family).and_then(|tables| tables.get(&chain.table)).copied();
        port.map(|port| ChainLock::Owned { port })
    };
    let unpassed = |chain: ForeignChain, lock: Option<ChainLock>| Passage {
        place: chain.name.clone(),
        has_rules: false,
        lock,
        chain,
    };
    let found = dropping(socket, traffic)?.into_iter().map(|chain| (owner(&chain), chain));
    let legacy = legacy_tables::dropping(traffic.hook()).into_iter().map(|family| {
        let name = legacy_tables::chain_at(traffic.hook()).to_owned();
        (Some(ChainLock::Legacy), ForeignChain { family, table: legacy_tables::TABLE.to_owned(), name })
    });
    Ok(found.chain(legacy).map(|(lock, chain)| unpassed(chain, lock)).collect())
}

fn place(socket: &mut Socket, chain: &ForeignChain, traffic: Traffic) -> Result<String, NetlinkError> {
    let mut chains = read::chains(socket, chain.family, Some(&chain.table))?.into_iter();
    let has_docker = traffic == Traffic::Forwarded && chains.any(|found| found.name == DOCKER);
    Ok(if has_docker { DOCKER.to_owned() } else { chain.name.clone() })
}

/// What was done to let packets through.
#[derive(Debug, Default)]
pub struct PassageChange {
    /// The chains that lacked the rules, and have them now.
    pub changed: Vec<ForeignChain>,
    /// One for each chain that can't be changed, for instance because another program owns its table.
    pub failures: Vec<NetlinkError>,
}

/// Lets this traffic of the bridge through each chain that drops it, and removes the rules for an earlier bridge or port of the instance.
///
/// # Errors
/// If the chains can't be read.
pub fn let_through(
    socket: &mut Socket,
    instance: &str,
    bridge: &InterfaceName,
    traffic: Traffic,
) -> Result<PassageChange, NetlinkError> {
    let (rules, mark) = (rules(instance, bridge, traffic), mark(instance));
    let mut opened = PassageChange::default();
    for chain in dropping(socket, traffic)? {
        let table = Table { family: chain.family, name: &chain.table };
        let place = place(socket, &chain, traffic)?;
        match open_chain(socket, (table, &place), (&rules, &mark)) {
            Ok(true) => opened.changed.push(chain),
            Ok(false) => {}
            Err(error) => opened.failures.push(error),
        }
    }
    Ok(opened)
}

/// Corrects the rules with our mark in one chain. Returns whether they differed.
fn open_chain(
    socket: &mut Socket,
    (table, chain): (Table<'_>, &str),
    (rules, mark): (&[Rule], &str),
) -> Result<bool, NetlinkError> {
    let mut found = read::rules(socket, table)?;
    found.retain(|found| found.chain == chain && found.comment.starts_with(mark));
    let is_there = |rule: &&Rule| found.iter().any(|found| found.comment == rule.comment);
    let is_wanted = |comment: &str| rules.iter().any(|rule| rule.comment == comment);
    let mut batch = Batch::new(table);
    rules.iter().filter(|rule| !is_there(rule)).for_each(|rule| batch.prepend_rule(chain, rule));
    let earlier = found.iter().filter(|found| !is_wanted(&found.comment));
    earlier.for_each(|rule| batch.remove_rule(&rule.chain, rule.handle));
    if batch.is_empty() {
        return Ok(false);
    }
    let what = format!("let packets of the bridge through {} {chain}", table.name);
    socket.commit(&what, &batch.into_messages())?;
    Ok(true)
}

/// Removes all rules of this instance from chains of others. Each table is tried even if another one fails.
///
/// # Errors
/// That of the first table that can't be read or changed.
pub fn withdraw(socket: &mut Socket, instance: &str) -> Result<(), NetlinkError> {
    let mark = mark(instance);
    let mut result = Ok(());
    for family in FAMILIES {
        let mut tables: Vec<String> =
            read::chains(socket, family, None)?.into_iter().map(|chain| chain.table).collect();
        tables.dedup();
        for table in tables {
            let withdrawn = withdraw_from(socket, Table { family, name: &table }, &mark);
            result = result.and(withdrawn);
        }
    }
    result
}

fn withdraw_from(socket: &mut Socket, table: Table<'_>, mark: &str) -> Result<(), NetlinkError> {
    let found = read::rules(socket, table)?.into_iter().filter(|rule| rule.comment.starts_with(mark));
    let mut batch = Batch::new(table);
    found.for_each(|rule| batch.remove_rule(&rule.chain, rule.handle));
    if batch.is_empty() {
        return Ok(());
    }
    socket.commit("remove rules from the chains of others", &batch.into_messages())
}

/// Whatever leaves or enters the bridge, because what allocations may reach is decided elsewhere; or only queries to name servers.
fn rules(instance: &str, bridge: &InterfaceName, traffic: Traffic) -> [Rule; 2] {
    let at = |side: Meta| {
        vec![load_meta(side, 0), compare(0, Comparison::Equal, &interface_bytes(bridge.as_str()))]
    };
    let queries = |protocol: u8, port: u16| {
        let mut all = at(Meta::InputName);
        all.extend([load_meta(Meta::Protocol, 0), compare(0, Comparison::Equal, &[protocol])]);
        all.extend([
            load_field(Field::DestinationPort, 0),
            compare(0, Comparison::Equal, &port.to_be_bytes()),
        ]);
        all
    };
    let accepted = |mut expressions: Vec<Expression>, word: &str| {
        expressions.push(decide(Verdict::Accept));
        Rule { expressions, comment: format!("{}{word} {bridge}", mark(instance)) }
    };
    match traffic {
        Traffic::Forwarded => [accepted(at(Meta::InputName), "from"), accepted(at(Meta::OutputName), "to")],
        Traffic::Queries { port } => [
            accepted(queries(TCP, port), &format!("queries by TCP to port {port} from")),
            accepted(queries(UDP, port), &format!("queries by UDP to port {port} from")),
        ],
    }
}

fn mark(instance: &str) -> String {
    format!("herdlet {instance}: ")
}

#[cfg(test)]
mod tests;
