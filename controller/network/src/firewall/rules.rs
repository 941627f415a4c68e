//! The chains, the maps and the rules, as data.

use std::collections::BTreeMap;

use crate::nft::{
    ChainKind, DataType, Hook, HookPoint, MapType, Rule,
    expression::{
        Comparison, Expression, Field, Meta, TargetFamily, Verdict, compare, decide, interface_bytes,
        is_local, keep_known, keep_translated, load_connection_state, load_connection_status,
        load_destination_type, load_field, load_meta, look_up, mask, masquerade, translate_destination,
    },
};

use super::BridgeRules;

/// Ports of one IPv4 address of the machine.
pub(super) const PORTS4: &str = "ports4";
/// Ports of all IPv4 addresses of the machine.
pub(super) const ANY4: &str = "any4";
/// Ports of one IPv6 address of the machine.
pub(super) const PORTS6: &str = "ports6";
/// Ports of all IPv6 addresses of the machine.
pub(super) const ANY6: &str = "any6";

use DataType::{Ipv4, Ipv6, Port, Protocol};

pub(super) const MAPS: [(&str, MapType); 4] = [
    (PORTS4, MapType { key: &[Ipv4, Protocol, Port], value: &[Ipv4, Port] }),
    (ANY4, MapType { key: &[Protocol, Port], value: &[Ipv4, Port] }),
    (PORTS6, MapType { key: &[Ipv6, Protocol, Port], value: &[Ipv6, Port] }),
    (ANY6, MapType { key: &[Protocol, Port], value: &[Ipv6, Port] }),
];

const ARRIVE: &str = "arrive";
const MAP_IN: &str = "map_in";
const MAP_OUT: &str = "map_out";
const LEAVE: &str = "leave";
const FORWARD: &str = "forward";
const ADMIN: &str = "admin";

const RAW: i32 = -300;
pub(super) const DESTINATION_NAT: i32 = -100;
const SOURCE_NAT: i32 = 100;
const FILTER: i32 = 0;

/// The chains; those that are called by rules come first.
pub(super) const CHAINS: [(&str, Option<Hook>); 6] = [
    (ADMIN, None),
    (ARRIVE, hook(HookPoint::Prerouting, RAW, ChainKind::Filter)),
    (MAP_IN, hook(HookPoint::Prerouting, DESTINATION_NAT, ChainKind::Nat)),
    (MAP_OUT, hook(HookPoint::Output, DESTINATION_NAT, ChainKind::Nat)),
    (LEAVE, hook(HookPoint::Postrouting, SOURCE_NAT, ChainKind::Nat)),
    (FORWARD, hook(HookPoint::Forward, FILTER, ChainKind::Filter)),
];

pub(super) const fn hook(point: HookPoint, priority: i32, kind: ChainKind) -> Option<Hook> {
    Some(Hook { point, priority, kind })
}

/// The family of a packet, as the kernel numbers it.
pub(super) const FAMILY4: [u8; 1] = [2];
pub(super) const FAMILY6: [u8; 1] = [10];

/// fe80::/10, the addresses that interfaces give themselves, with its mask.
const LINK_LOCAL6: ([u8; 16], [u8; 16]) = (
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0xff, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
);

/// The register that rules without a look-up use.
pub(super) const REGISTER: u32 = 0;

/// The rules for these bridges, by chain. The administrator's chain is not among them.
pub(super) fn rules_of(bridges: &[BridgeRules]) -> BTreeMap<&'static str, Vec<Rule>> {
    let of_bridges =
        |rules: fn(&BridgeRules) -> Vec<Vec<Expression>>| bridges.iter().flat_map(rules).collect();
    let all: [(&'static str, Vec<Vec<Expression>>); 5] = [
        (ARRIVE, of_bridges(arriving)),
        (MAP_IN, std::iter::once(not_of_the_machine_alone()).chain(look_ups()).collect()),
        (MAP_OUT, look_ups()),
        (LEAVE, of_bridges(leaving)),
        (FORWARD, forwarding(bridges)),
    ];
    let digested = |rules: Vec<Vec<Expression>>| rules.into_iter().map(digested).collect();
    all.into_iter().map(|(chain, rules)| (chain, digested(rules))).collect()
}

/// A task could otherwise reach services that listen only on 127.0.0.1: the bridge routes such addresses, so that the machine
/// itself reaches mapped ports there. And no process on the bridge can use an address of another network.
fn arriving(bridge: &BridgeRules) -> Vec<Vec<Expression>> {
    let mut to_loopback = from(bridge, Meta::InputName, Comparison::Equal);
    to_loopback.extend(in_network(Field::Destination4, &FAMILY4, &[127, 0, 0, 0], &[255, 0, 0, 0]));
    let (base4, mask4) = bridge.subnet4.base_and_mask();
    let mut pretended4 = from(bridge, Meta::InputName, Comparison::Equal);
    pretended4.extend(of_family(&FAMILY4));
    pretended4.extend(outside(Field::Source4, &base4, &mask4));
    let mut pretended6 = from(bridge, Meta::InputName, Comparison::Equal);
    pretended6.extend(of_family(&FAMILY6));
    if let Some(subnet6) = bridge.subnet6 {
        let (base6, mask6) = subnet6.base_and_mask();
        pretended6.extend(outside(Field::Source6, &base6, &mask6));
        pretended6.extend(outside(Field::Source6, &LINK_LOCAL6.0, &LINK_LOCAL6.1));
    }
    let mut rules = vec![to_loopback, pretended4, pretended6];
    rules.iter_mut().for_each(|rule| rule.push(decide(Verdict::Drop)));
    rules
}

/// Ports of 127.0.0.0/8 are for the machine alone. A neighbour can send packets to such addresses; the kernel would drop them,
/// unless they had been translated before.
pub(super) fn not_of_the_machine_alone() -> Vec<Expression> {
    let mut rule = in_network(Field::Destination4, &FAMILY4, &[127, 0, 0, 0], &[255, 0, 0, 0]);
    rule.push(decide(Verdict::Accept));
    rule
}

/// The administrator decides first. Then others than the machine and the allocations of the same bridge get only what belongs to
/// a connection that an allocation has opened, or that leads to a mapped port.
fn forwarding(bridges: &[BridgeRules]) -> Vec<Vec<Expression>> {
    let only_answers = |bridge: &BridgeRules| {
        let mut rule = from(bridge, Meta::OutputName, Comparison::Equal);
        rule.extend(from(bridge, Meta::InputName, Comparison::Different));
        rule.extend([load_connection_status(REGISTER), keep_translated(REGISTER)]);
        rule.push(compare(REGISTER, Comparison::Equal, &[0; 4]));
        rule.extend([load_connection_state(REGISTER), keep_known(REGISTER)]);
        rule.extend([compare(REGISTER, Comparison::Equal, &[0; 4]), decide(Verdict::Drop)]);
        rule
    };
    let admin = vec![decide(Verdict::Jump(ADMIN))];
    std::iter::once(admin).chain(bridges.iter().map(only_answers)).collect()
}

fn look_ups() -> Vec<Vec<Expression>> {
    let look_up_in = |map: &str, family: TargetFamily, destination: Option<Field>| {
        let (number, words) = match family {
            TargetFamily::V4 => (&FAMILY4, 1),
            TargetFamily::V6 => (&FAMILY6, 4),
        };
        let mut rule = of_family(number);
        let next = match destination {
            Some(field) => {
                rule.push(load_field(field, REGISTER));
                REGISTER + words
            }
            None => {
                rule.extend([load_destination_type(REGISTER), is_local(REGISTER)]);
                REGISTER
            }
        };
        rule.extend([load_meta(Meta::Protocol, next), load_field(Field::DestinationPort, next + 1)]);
        rule.extend([look_up(map, REGISTER), translate_destination(family, REGISTER)]);
        rule
    };
    vec![
        look_up_in(PORTS4, TargetFamily::V4, Some(Field::Destination4)),
        look_up_in(ANY4, TargetFamily::V4, None),
        look_up_in(PORTS6, TargetFamily::V6, Some(Field::Destination6)),
        look_up_in(ANY6, TargetFamily::V6, None),
    ]
}

fn leaving(bridge: &BridgeRules) -> Vec<Vec<Expression>> {
    let (base4, mask4) = bridge.subnet4.base_and_mask();
    let from_subnet4 = || in_network(Field::Source4, &FAMILY4, &base4, &mask4);
    let mut rules = to_and_within(bridge, &from_subnet4);
    // The machine itself, to a mapped port of 127.0.0.1.
    let mut own = in_network(Field::Source4, &FAMILY4, &[127, 0, 0, 0], &[255, 0, 0, 0]);
    own.extend(from(bridge, Meta::OutputName, Comparison::Equal));
    own.push(masquerade());
    rules.push(own);
    if let Some(subnet6) = bridge.subnet6 {
        let (base6, mask6) = subnet6.base_and_mask();
        rules.extend(to_and_within(bridge, &|| in_network(Field::Source6, &FAMILY6, &base6, &mask6)));
    }
    rules
}

/// Masquerades what an allocation sends to others than those on the bridge, and what it sends to them through a mapped port:
/// the answer would else bypass the translation.
fn to_and_within(bridge: &BridgeRules, from_subnet: &dyn Fn() -> Vec<Expression>) -> Vec<Vec<Expression>> {
    let mut to_others = from_subnet();
    to_others.extend(from(bridge, Meta::OutputName, Comparison::Different));
    to_others.push(masquerade());
    let mut within = from_subnet();
    within.extend(from(bridge, Meta::OutputName, Comparison::Equal));
    within.extend([load_connection_status(REGISTER), keep_translated(REGISTER)]);
    within.extend([compare(REGISTER, Comparison::Different, &[0; 4]), masquerade()]);
    vec![to_others, within]
}

fn from(bridge: &BridgeRules, interface: Meta, how: Comparison) -> Vec<Expression> {
    let name = interface_bytes(bridge.name.as_str());
    vec![load_meta(interface, REGISTER), compare(REGISTER, how, &name)]
}

pub(super) fn of_family(family: &[u8]) -> Vec<Expression> {
    vec![load_meta(Meta::Family, REGISTER), compare(REGISTER, Comparison::Equal, family)]
}

/// Goes on only if the address is not of this network.
fn outside(field: Field, base: &[u8], bits: &[u8]) -> [Expression; 3] {
    [load_field(field, REGISTER), mask(REGISTER, bits), compare(REGISTER, Comparison::Different, base)]
}

fn in_network(field: Field, family: &[u8], base: &[u8], bits: &[u8]) -> Vec<Expression> {
    let mut rule = of_family(family);
    rule.extend([load_field(field, REGISTER), mask(REGISTER, bits)]);
    rule.push(compare(REGISTER, Comparison::Equal, base));
    rule
}

/// A rule whose comment changes with its content (64-bit FNV-1a, which is the same in every build).
pub(super) fn digested(expressions: Vec<Expression>) -> Rule {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for byte in expressions.iter().flat_map(Expression::content) {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Rule { expressions, comment: format!("herdlet {digest:016x}") }
}
