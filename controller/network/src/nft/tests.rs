//! Tests of messages of nf_tables: byte for byte, and against the kernel on a machine of their own.

use super::{
    expression::{
        Comparison, Field, Meta, Verdict, compare, decide, interface_bytes, load_field, load_meta, mask,
        masquerade,
    },
    *,
};
use crate::{
    socket::{Protocol, Socket},
    test_machine::on_machine,
};

const TABLE: Table<'_> = Table { family: Family::Inet, name: "herdlet-x" };
const PORTS: MapType = MapType {
    key: &[DataType::Ipv4, DataType::Protocol, DataType::Port],
    value: &[DataType::Ipv4, DataType::Port],
};

fn element(port: u16, comment: &str) -> Element {
    let [high, low] = port.to_be_bytes();
    Element {
        key: vec![10, 0, 0, 5, 6, 0, 0, 0, high, low, 0, 0],
        value: vec![172, 26, 64, 9, 0, 80, 0, 0],
        comment: comment.to_owned(),
    }
}

/// Everything after the header of the first message between the marks, in hexadecimal.
#[cfg(target_endian = "little")]
fn hex_of(change: impl FnOnce(&mut Batch<'_>)) -> String {
    let mut batch = Batch::new(TABLE);
    change(&mut batch);
    let mut bytes = Vec::new();
    batch.into_messages()[1].encode(1, &mut bytes).unwrap();
    bytes[16..].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same as `nft --debug=mnl` 1.0.6 prints for `elements = { 10.0.0.5 . tcp . 8080 comment "abc" : 172.26.64.9 . 80 }`, but for
/// the number of a map made in the same transaction.
#[cfg(target_endian = "little")]
#[test]
fn elements_are_those_of_nft() {
    let hex = hex_of(|batch| batch.add_elements("ports4", &[element(8080, "abc")]));
    assert_eq!(
        hex,
        "010000000e000100686572646c65742d780000000b000200706f727473340000380003803400018014000180100001000a000005\
         060000001f900000100002800c000100ac1a4009005000000a0006000004616263000000"
    );
}

/// As for `type filter hook prerouting priority raw`.
#[cfg(target_endian = "little")]
#[test]
fn chains_are_those_of_nft() {
    let hook = Hook { point: HookPoint::Prerouting, priority: -300, kind: ChainKind::Filter };
    assert_eq!(
        hex_of(|batch| batch.make_chain("arrive", Some(hook))),
        "010000000e000100686572646c65742d780000000b0003006172726976650000\
         0b00070066696c746572000014000480080001000000000008000200fffffed4"
    );
    assert_eq!(
        hex_of(|batch| batch.make_chain("admin", None)),
        "010000000e000100686572646c65742d780000000a00030061646d696e000000"
    );
}

/// As for `ip saddr 172.26.64.0/20 oifname != "br0" masquerade` and `jump admin`, without user data.
#[cfg(target_endian = "little")]
#[test]
fn rules_are_those_of_nft() {
    let expressions = vec![
        load_meta(Meta::Family, 0),
        compare(0, Comparison::Equal, &[2]),
        load_field(Field::Source4, 0),
        mask(0, &[255, 255, 240, 0]),
        compare(0, Comparison::Equal, &[172, 26, 64, 0]),
        load_meta(Meta::OutputName, 0),
        compare(0, Comparison::Different, &interface_bytes("br0")),
        masquerade(),
    ];
    let masquerading = "010000000e000100686572646c65742d7800000009000200706f737400000000680104802400018009000100\
         6d6574610000000014000280080002000000000f08000100000000012c00018008000100636d7000200002800800010000000001\
         080002000000000\
         00c0003800500010002000000340001800c0001007061796c6f6164002400028008000100000000010800020000000001\
         080003000000000c0800040000000004440001800c000100626974776973650034000280080001000000000108000200\
         00000001080003000000\
         00040c00048008000100fffff0000c00058008000100000000002c00018008000100636d70002000028008000100000000010800\
         0200000000000c00038008000100ac1a400024000180090001006d65746100000000140002800800020000000007080001000000\
         00013800018008000100636d70002c0002800800010000000001080002000000000118000380140001006272300000000000000000\
         000000000014000180090001006d6173710000000004000280";
    let rule = |expressions| Rule { expressions, comment: String::new() };
    // An empty comment.
    let user_data = "0700070000010000";
    let hex = hex_of(|batch| batch.append_rule("post", &rule(expressions)));
    assert_eq!(hex, format!("{masquerading}{user_data}"));
    let jumping = "010000000e000100686572646c65742d780000000c000200666f7277617264004000048\
         03c0001800e000100696d6d6564696174650000002800028008000100000000001c0002801800028008000100fffffffd0a000200\
         61646d696e000000";
    let jump = vec![decide(Verdict::Jump("admin"))];
    assert_eq!(hex_of(|batch| batch.append_rule("forward", &rule(jump))), format!("{jumping}{user_data}"));
}

#[test]
fn transaction_takes_effect_as_a_whole_or_not_at_all() {
    on_machine(|_| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let hook = Hook { point: HookPoint::Forward, priority: 0, kind: ChainKind::Filter };
        let make = |batch: &mut Batch<'_>| {
            batch.make_table();
            batch.make_map("ports4", PORTS, 1);
            batch.make_chain("admin", None);
            batch.make_chain("forward", Some(hook));
        };
        let mut batch = Batch::new(TABLE);
        make(&mut batch);
        batch.append_rule("nowhere", &Rule { expressions: Vec::new(), comment: String::new() });
        let refused = socket.commit("install", &batch.into_messages()).unwrap_err();
        assert_eq!(refused.errno(), Some(rustix::io::Errno::NOENT), "{refused}");
        assert_eq!(read::chains(&mut socket, Family::Inet, None).unwrap(), []);
        for _ in 0..2 {
            let mut batch = Batch::new(TABLE);
            make(&mut batch);
            batch.clear_chain("forward");
            let jump = vec![decide(Verdict::Jump("admin"))];
            batch.append_rule("forward", &Rule { expressions: jump, comment: "to admin".to_owned() });
            batch.append_rule("forward", &Rule { expressions: Vec::new(), comment: "nothing".to_owned() });
            socket.commit("install", &batch.into_messages()).unwrap();
        }
        let chains = read::chains(&mut socket, Family::Inet, Some("herdlet-x")).unwrap();
        let hooks: Vec<_> = chains.iter().map(|chain| (&*chain.name, chain.hook, chain.drops)).collect();
        assert_eq!(hooks, [("admin", None, false), ("forward", Some((2, 0)), false)]);
        let rules = read::rules(&mut socket, TABLE).unwrap();
        let found: Vec<_> = rules.iter().map(|rule| (&*rule.chain, &*rule.comment)).collect();
        assert_eq!(found, [("forward", "to admin"), ("forward", "nothing")]);
        let mut batch = Batch::new(TABLE);
        batch.remove_rule("forward", rules[0].handle);
        batch.prepend_rule("forward", &Rule { expressions: Vec::new(), comment: "first".to_owned() });
        socket.commit("change", &batch.into_messages()).unwrap();
        let rules = read::rules(&mut socket, TABLE).unwrap();
        assert_eq!(rules.iter().map(|rule| &*rule.comment).collect::<Vec<_>>(), ["first", "nothing"]);
        assert_eq!(read::maps(&mut socket, TABLE).unwrap(), ["ports4"]);
    });
}

#[test]
fn elements_are_added_replaced_and_removed() {
    on_machine(|_| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut commit = |change: &dyn Fn(&mut Batch<'_>)| {
            let mut batch = Batch::new(TABLE);
            change(&mut batch);
            socket.commit("change", &batch.into_messages()).map_err(|error| error.errno())
        };
        commit(&|batch| {
            batch.make_table();
            batch.make_map("ports4", PORTS, 1);
        })
        .unwrap();
        let many: Vec<Element> = (0..1_000).map(|port| element(20_000 + port, "many")).collect();
        commit(&|batch| batch.add_elements("ports4", &many)).unwrap();
        commit(&|batch| batch.add_elements("ports4", &many[..2])).expect("the same once more");
        let other = Element { value: vec![172, 26, 64, 7, 0, 80, 0, 0], ..many[0].clone() };
        let clash = commit(&|batch| batch.add_elements("ports4", std::slice::from_ref(&other)));
        use rustix::io::Errno;
        assert!(matches!(clash, Err(Some(Errno::EXIST | Errno::BUSY))), "{clash:?}");
        commit(&|batch| {
            batch.remove_elements("ports4", std::slice::from_ref(&other.key));
            batch.add_elements("ports4", std::slice::from_ref(&other));
        })
        .unwrap();
        let gone: Vec<Vec<u8>> = many[1..].iter().map(|element| element.key.clone()).collect();
        commit(&|batch| batch.remove_elements("ports4", &gone)).unwrap();
        assert_eq!(
            commit(&|batch| batch.remove_elements("ports4", &gone)),
            Err(Some(rustix::io::Errno::NOENT))
        );
        assert_eq!(read::elements(&mut socket, TABLE, "ports4").unwrap(), [other]);
        assert_eq!(read::elements(&mut socket, TABLE, "missing").unwrap(), []);
        let missing = Table { name: "missing", ..TABLE };
        assert_eq!(read::rules(&mut socket, missing).unwrap(), []);
    });
}

#[test]
fn overlong_comment_is_cut() {
    let data = user_data(&"x".repeat(1_000));
    assert_eq!((data[1], data.len(), data.last()), (255, 257, Some(&0)));
}
