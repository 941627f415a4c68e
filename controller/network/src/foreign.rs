//! Chains of others that drop forwarded packets, and the rules that let those of a bridge through.
//!
//! In: a bridge. Out: two rules in each such chain, marked with the instance. An accept in a table of ours can't override
//! another table's drop, so the rules must be in the chain that drops: the first of Docker's chain for administrators if the table
//! has it, else of the chain itself. Rules that drop, in chains that accept by default, are left alone.

use crate::{
    link::InterfaceName,
    nft::{
        Batch, Family, HookPoint, Rule, Table,
        expression::{Comparison, Meta, Verdict, compare, decide, interface_bytes, load_meta},
        read::{self, FoundChain},
    },
    socket::{NetlinkError, Socket},
};

/// Docker calls it before its own rules, and never changes it.
const DOCKER: &str = "DOCKER-USER";

/// The families of chains that forwarded packets go through.
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

/// The chains that drop forwarded packets by default.
///
/// # Errors
/// If the kernel does not answer.
pub fn dropping(socket: &mut Socket) -> Result<Vec<ForeignChain>, NetlinkError> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let drops = |chain: &FoundChain| {
            chain.drops && chain.hook.is_some_and(|(point, _)| point == HookPoint::Forward.number())
        };
        let chains = read::chains(socket, family, None)?;
        let named = |FoundChain { table, name, .. }| ForeignChain { family, table, name };
        found.extend(chains.into_iter().filter(drops).map(named));
    }
    Ok(found)
}

/// Lets packets from and to this bridge through each chain that drops by default. Returns the chains that lacked the rules.
///
/// # Errors
/// If the kernel refuses, for instance because another program owns the table.
pub fn let_through(
    socket: &mut Socket,
    instance: &str,
    bridge: &InterfaceName,
) -> Result<Vec<ForeignChain>, NetlinkError> {
    let mut changed = Vec::new();
    for chain in dropping(socket)? {
        let table = Table { family: chain.family, name: &chain.table };
        let chains = read::chains(socket, chain.family, Some(&chain.table))?;
        let has_docker = chains.iter().any(|found| found.name == DOCKER);
        let place = if has_docker { DOCKER } else { &chain.name };
        let rules = rules(instance, bridge);
        let found = read::rules(socket, table)?;
        let is_there =
            |rule: &Rule| found.iter().any(|found| found.chain == place && found.comment == rule.comment);
        let missing: Vec<&Rule> = rules.iter().filter(|rule| !is_there(rule)).collect();
        if missing.is_empty() {
            continue;
        }
        let mut batch = Batch::new(table);
        missing.into_iter().for_each(|rule| batch.prepend_rule(place, rule));
        let what = format!("let packets of {bridge} through {} {place}", chain.table);
        socket.commit(&what, &batch.into_messages())?;
        changed.push(chain);
    }
    Ok(changed)
}

/// Removes all rules of this instance from chains of others.
///
/// # Errors
/// If the kernel refuses.
pub fn withdraw(socket: &mut Socket, instance: &str) -> Result<(), NetlinkError> {
    let mark = mark(instance);
    for family in FAMILIES {
        let mut tables: Vec<String> =
            read::chains(socket, family, None)?.into_iter().map(|chain| chain.table).collect();
        tables.dedup();
        for table in tables {
            let table = Table { family, name: &table };
            let found =
                read::rules(socket, table)?.into_iter().filter(|rule| rule.comment.starts_with(&mark));
            let mut batch = Batch::new(table);
            found.for_each(|rule| batch.remove_rule(&rule.chain, rule.handle));
            if !batch.is_empty() {
                socket.commit("remove rules from the chains of others", &batch.into_messages())?;
            }
        }
    }
    Ok(())
}

/// Whatever leaves or enters the bridge: what allocations may reach is decided elsewhere.
fn rules(instance: &str, bridge: &InterfaceName) -> [Rule; 2] {
    let accepted = |side: Meta, word: &str| Rule {
        expressions: vec![
            load_meta(side, 0),
            compare(0, Comparison::Equal, &interface_bytes(bridge.as_str())),
            decide(Verdict::Accept),
        ],
        comment: format!("{}{word} {bridge}", mark(instance)),
    };
    [accepted(Meta::InputName, "from"), accepted(Meta::OutputName, "to")]
}

fn mark(instance: &str) -> String {
    format!("herdlet {instance}: ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        nft::{ChainKind, Hook},
        socket::Protocol,
        test_machine::on_machine,
    };

    const FORWARD: Hook = Hook { point: HookPoint::Forward, priority: 0, kind: ChainKind::Filter };

    fn commit(socket: &mut Socket, table: Table<'_>, change: impl FnOnce(&mut Batch<'_>)) {
        let mut batch = Batch::new(table);
        change(&mut batch);
        socket.commit("change", &batch.into_messages()).unwrap();
    }

    fn comments(socket: &mut Socket, table: Table<'_>, chain: &str) -> Vec<String> {
        let rules = read::rules(socket, table).unwrap().into_iter().filter(|rule| rule.chain == chain);
        rules.map(|rule| rule.comment).collect()
    }

    #[test]
    fn rules_are_added_once_where_packets_are_dropped_and_removed() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            let bridge = InterfaceName::new("br").unwrap();
            let filter = Table { family: Family::Ip, name: "filter" };
            let other = Table { family: Family::Inet, name: "other" };
            commit(&mut socket, filter, |batch| {
                batch.make_table();
                batch.make_chain("FORWARD", Some(FORWARD));
                batch.append_rule("FORWARD", &Rule { expressions: Vec::new(), comment: "own".to_owned() });
            });
            commit(&mut socket, other, |batch| {
                batch.make_table();
                batch.make_chain("accepts", Some(FORWARD));
            });
            assert_eq!(dropping(&mut socket).unwrap(), []);
            assert_eq!(let_through(&mut socket, "x", &bridge).unwrap(), []);
            commit(&mut socket, filter, |batch| batch.drop_by_default("FORWARD"));
            let chain =
                ForeignChain { family: Family::Ip, table: "filter".to_owned(), name: "FORWARD".to_owned() };
            let first = let_through(&mut socket, "x", &bridge).unwrap();
            assert_eq!(first, std::slice::from_ref(&chain));
            assert_eq!(let_through(&mut socket, "x", &bridge).unwrap(), [], "once");
            let expected = ["herdlet x: to br", "herdlet x: from br", "own"];
            assert_eq!(comments(&mut socket, filter, "FORWARD"), expected);
            withdraw(&mut socket, "y").unwrap();
            withdraw(&mut socket, "x").unwrap();
            assert_eq!(comments(&mut socket, filter, "FORWARD"), ["own"]);
            commit(&mut socket, filter, |batch| batch.make_chain(DOCKER, None));
            assert_eq!(let_through(&mut socket, "x", &bridge).unwrap(), [chain]);
            assert_eq!(comments(&mut socket, filter, "FORWARD"), ["own"]);
            assert_eq!(comments(&mut socket, filter, DOCKER).len(), 2);
            assert_eq!(comments(&mut socket, other, "accepts"), Vec::<String>::new());
        });
    }
}
