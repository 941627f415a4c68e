//! Tests of chains of others that drop packets, on a machine of their own.

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

fn changed(socket: &mut Socket, bridge: &InterfaceName) -> Vec<ForeignChain> {
    let opened = let_through(socket, "x", bridge, Traffic::Forwarded).unwrap();
    assert!(opened.failures.is_empty(), "{:?}", opened.failures);
    opened.changed
}

/// As firewalld makes it: only its owner may change the table.
#[test]
fn table_that_refuses_rules_keeps_no_other_closed() {
    on_machine(|_| {
        let mut owner = Socket::open(Protocol::Netfilter).unwrap();
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let owned = Table { family: Family::Inet, name: "firewalld" };
        let filter = Table { family: Family::Ip, name: "filter" };
        commit(&mut owner, owned, |batch| batch.make_owned_table());
        for (socket, table) in [(&mut owner, owned), (&mut socket, filter)] {
            commit(socket, table, |batch| {
                if table.name == filter.name {
                    batch.make_table();
                }
                batch.make_chain("FORWARD", Some(FORWARD));
                batch.drop_by_default("FORWARD");
            });
        }
        let bridge = InterfaceName::new("br").unwrap();
        let opened = let_through(&mut socket, "x", &bridge, Traffic::Forwarded).unwrap();
        assert_eq!(opened.changed.len(), 1, "{opened:?}");
        assert_eq!(opened.failures.len(), 1, "{opened:?}");
        let found = passages(&mut socket, "x", &bridge, Traffic::Forwarded).unwrap();
        let port = owner.port().unwrap();
        for passage in &found {
            let lock = (passage.chain.table == "firewalld").then_some(ChainLock::Owned { port });
            assert_eq!((passage.lock, passage.has_rules), (lock, lock.is_none()), "{passage:?}");
        }
        assert_eq!(found.len(), 2);
        assert_eq!(comments(&mut socket, filter, "FORWARD").len(), 2);
        withdraw(&mut socket, "x").unwrap();
        assert_eq!(comments(&mut socket, filter, "FORWARD").len(), 0);
    });
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
        assert_eq!(dropping(&mut socket, Traffic::Forwarded).unwrap(), []);
        assert_eq!(changed(&mut socket, &bridge), []);
        commit(&mut socket, filter, |batch| batch.drop_by_default("FORWARD"));
        let chain =
            ForeignChain { family: Family::Ip, table: "filter".to_owned(), name: "FORWARD".to_owned() };
        let earlier = InterfaceName::new("earlier").unwrap();
        assert_eq!(changed(&mut socket, &earlier), std::slice::from_ref(&chain));
        assert_eq!(changed(&mut socket, &bridge), std::slice::from_ref(&chain));
        assert_eq!(changed(&mut socket, &bridge), [], "once");
        let expected = ["herdlet x: to br", "herdlet x: from br", "own"];
        assert_eq!(comments(&mut socket, filter, "FORWARD"), expected, "not those of the earlier bridge");
        withdraw(&mut socket, "y").unwrap();
        withdraw(&mut socket, "x").unwrap();
        assert_eq!(comments(&mut socket, filter, "FORWARD"), ["own"]);
        commit(&mut socket, filter, |batch| batch.make_chain(DOCKER, None));
        assert_eq!(changed(&mut socket, &bridge), [chain]);
        assert_eq!(comments(&mut socket, filter, "FORWARD"), ["own"]);
        assert_eq!(comments(&mut socket, filter, DOCKER).len(), 2);
        assert_eq!(comments(&mut socket, other, "accepts"), Vec::<String>::new());
    });
}

/// Queries go to the machine itself: a chain that drops them is another one, and lets nothing else through.
#[test]
fn queries_pass_chains_that_drop_what_goes_to_the_machine() {
    const QUERIES: Traffic = Traffic::Queries { port: 1023 };
    const INPUT: Hook = Hook { point: HookPoint::Input, priority: 0, kind: ChainKind::Filter };
    on_machine(|_| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let bridge = InterfaceName::new("br").unwrap();
        let filter = Table { family: Family::Ip, name: "filter" };
        commit(&mut socket, filter, |batch| {
            batch.make_table();
            batch.make_chain(DOCKER, None);
            batch.make_chain("INPUT", Some(INPUT));
            batch.drop_by_default("INPUT");
        });
        assert_eq!(dropping(&mut socket, Traffic::Forwarded).unwrap(), []);
        let found = |socket: &mut Socket| {
            let passages = passages(socket, "x", &bridge, QUERIES).unwrap();
            passages.into_iter().map(|passage| (passage.place, passage.has_rules)).collect::<Vec<_>>()
        };
        assert_eq!(found(&mut socket), [("INPUT".to_owned(), false)]);
        for changed in [1, 0] {
            let chains = let_through(&mut socket, "x", &bridge, QUERIES).unwrap().changed;
            assert_eq!(chains.len(), changed, "once");
        }
        assert_eq!(found(&mut socket), [("INPUT".to_owned(), true)]);
        let expected =
            ["UDP", "TCP"].map(|protocol| format!("herdlet x: queries by {protocol} to port 1023 from br"));
        assert_eq!(comments(&mut socket, filter, "INPUT"), expected);
        withdraw(&mut socket, "x").unwrap();
        assert_eq!(comments(&mut socket, filter, "INPUT"), Vec::<String>::new());
    });
}

/// As firewalld and ufw have it: the policy accepts, and the last rule of a chain that is called rejects.
#[test]
fn chain_that_comes_to_a_rule_which_drops_everything_is_found() {
    let rule = |expressions: Vec<Expression>| Rule { expressions, comment: String::new() };
    let from_lan = |verdict| {
        vec![
            load_meta(Meta::InputName, 0),
            compare(0, Comparison::Equal, &interface_bytes("lan")),
            decide(verdict),
        ]
    };
    for (first, called, drops) in [
        (vec![], vec![decide(Verdict::Drop)], true),
        (vec![], from_lan(Verdict::Drop), false),
        (from_lan(Verdict::Accept), vec![decide(Verdict::Drop)], true),
        (vec![decide(Verdict::Accept)], vec![decide(Verdict::Drop)], false),
    ] {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            for name in ["wall", "herdlet-x"] {
                commit(&mut socket, Table { family: Family::Inet, name }, |batch| {
                    batch.make_table();
                    batch.make_chain("forward", Some(FORWARD));
                    batch.make_chain("last", None);
                    if !first.is_empty() {
                        batch.append_rule("forward", &rule(first.clone()));
                    }
                    batch.append_rule("forward", &rule(vec![decide(Verdict::Jump("last"))]));
                    batch.append_rule("last", &rule(called.clone()));
                });
            }
            let found = dropping(&mut socket, Traffic::Forwarded).unwrap();
            let tables: Vec<&str> = found.iter().map(|chain| chain.table.as_str()).collect();
            assert_eq!(tables, if drops { vec!["wall"] } else { vec![] }, "{first:?} {called:?}");
            if drops {
                let bridge = InterfaceName::new("br").unwrap();
                assert_eq!(changed(&mut socket, &bridge), found);
                assert_eq!(changed(&mut socket, &bridge), [], "once");
            }
        });
    }
}
