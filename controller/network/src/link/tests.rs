//! Tests of bridges and pairs: made, made again, corrected, on a machine of their own.

use super::*;
use crate::{socket::Protocol, test_machine::on_machine};

const MAC: Mac = Mac([2, 0, 172, 26, 64, 1]);
const INNER_MAC: Mac = Mac([2, 0, 172, 26, 64, 9]);

fn name(name: &str) -> InterfaceName {
    InterfaceName::new(name).unwrap()
}

fn bridge<'b>(name: &'b InterfaceName) -> Bridge<'b> {
    Bridge { name, mtu: 1400, mac: MAC, alias: "herdlet test" }
}

/// Two names, the sockets of the machine and of a new namespace.
struct Bench {
    outer: InterfaceName,
    inner: InterfaceName,
    socket: Socket,
    inside: Socket,
    namespace: Namespace,
    bridge: u32,
}

impl Bench {
    fn new() -> Self {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let namespace = Namespace::new().unwrap();
        let inside = namespace.socket(Protocol::Route).unwrap();
        let bridge = make_bridge(&mut socket, &bridge(&name("br"))).unwrap().index;
        Self { outer: name("hlabc"), inner: name("eth0"), socket, inside, namespace, bridge }
    }

    fn make(&mut self, change: impl FnOnce(&mut Pair<'_>)) -> Result<(), LinkError> {
        let mut wanted = Pair {
            name: &self.outer,
            alias: "herdlet test a",
            bridge: self.bridge,
            mtu: 1400,
            hairpin: Hairpin::Off,
            inner_name: &self.inner,
            inner_mac: INNER_MAC,
        };
        change(&mut wanted);
        make_pair(&mut self.socket, &mut self.inside, &self.namespace, &wanted)
    }

    fn outer(&mut self) -> Link {
        find(&mut self.socket, &self.outer).unwrap().unwrap()
    }

    fn inner(&mut self) -> Link {
        find(&mut self.inside, &self.inner).unwrap().unwrap()
    }
}

#[test]
fn names_are_those_of_the_kernel() {
    for fits in ["a", "eth0", "hl0123456789ab", "br-1.2_3"] {
        assert_eq!(name(fits).as_str(), fits);
    }
    for refused in ["", ".", "..", "a b", "a/b", "a:b", "x%d", "0123456789abcdef", "ä"] {
        assert!(InterfaceName::new(refused).is_err(), "{refused}");
    }
}

/// Most bridges have no text.
#[test]
fn bridge_of_others_is_left_alone_and_a_half_made_one_completed() {
    on_machine(|_| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let name = name("br");
        let theirs =
            make_bridge(&mut socket, &Bridge { alias: "", mac: INNER_MAC, ..bridge(&name) }).unwrap();
        let refused = make_bridge(&mut socket, &bridge(&name)).unwrap_err();
        assert_eq!(refused.to_string(), "make the interface br: another bridge has this name");
        assert_eq!(find(&mut socket, &name).unwrap(), Some(theirs), "nothing has changed");
        delete(&mut socket, &name).unwrap();
        let half = make_bridge(&mut socket, &Bridge { alias: "", ..bridge(&name) }).unwrap();
        let whole = make_bridge(&mut socket, &bridge(&name)).unwrap();
        assert_eq!((whole.index, &*whole.alias), (half.index, "herdlet test"));
    });
}

#[test]
fn bridge_is_made_once_and_corrected() {
    on_machine(|_| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let name = name("br");
        assert_eq!(find(&mut socket, &name).unwrap(), None);
        let first = make_bridge(&mut socket, &bridge(&name)).unwrap();
        assert_eq!(Some(&first), find(&mut socket, &name).unwrap().as_ref());
        assert_eq!((first.is_up, first.mtu, first.mac), (true, 1400, Some(MAC)));
        let other = Bridge { mtu: 9000, mac: INNER_MAC, ..bridge(&name) };
        let changed = make_bridge(&mut socket, &other).unwrap();
        assert_eq!((changed.index, changed.mtu, changed.mac), (first.index, 9000, Some(INNER_MAC)));
        assert_eq!(Some(changed), find(&mut socket, &name).unwrap());
        let foreign = make_bridge(&mut socket, &Bridge { alias: "herdlet other", ..other }).unwrap_err();
        assert_eq!(foreign.to_string(), "make the interface br: a bridge of \"herdlet test\" has this name");
        delete(&mut socket, &name).unwrap();
        delete(&mut socket, &name).unwrap();
        assert_eq!(list(&mut socket).unwrap().len(), 1, "the loopback");
    });
}

#[test]
fn pair_is_made_once_and_corrected() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|_| ()).unwrap();
        let (outer, inner) = (bench.outer(), bench.inner());
        assert_eq!((outer.is_up, outer.mtu, outer.master), (true, 1400, bench.bridge));
        assert_eq!((&*outer.alias, outer.hairpin), ("herdlet test a", false));
        assert_eq!((inner.mtu, inner.mac, inner.is_up), (1400, Some(INNER_MAC), false));
        bench.make(|_| ()).unwrap();
        assert_eq!((bench.outer(), bench.inner()), (outer.clone(), inner.clone()), "nothing changes");
        bench.make(|pair| pair.hairpin = Hairpin::On).unwrap();
        assert!(bench.outer().hairpin);
        bench.make(|_| ()).unwrap();
        assert_eq!(bench.outer(), outer);
    });
}

/// A user has taken the end of the machine off its bridge, or has set it down.
#[test]
fn changed_end_is_put_back() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|_| ()).unwrap();
        let outer = bench.outer();
        let detached = Attributes::new().with_u32(MASTER, 0);
        let detach =
            Message { kind: NEW_LINK, flags: 0, fixed: header(outer.index, 0, UP), attributes: detached };
        bench.socket.request("detach", vec![detach]).unwrap();
        assert_eq!((bench.outer().master, bench.outer().is_up), (0, false));
        bench.make(|_| ()).unwrap();
        assert_eq!(bench.outer(), outer);
    });
}

#[test]
fn pair_of_another_namespace_is_replaced() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|_| ()).unwrap();
        let earlier = std::mem::replace(&mut bench.namespace, Namespace::new().unwrap());
        let mut earlier_inside = earlier.socket(Protocol::Route).unwrap();
        bench.inside = bench.namespace.socket(Protocol::Route).unwrap();
        bench.make(|_| ()).unwrap();
        assert_eq!(bench.inner().mac, Some(INNER_MAC));
        assert_eq!(find(&mut earlier_inside, &bench.inner).unwrap(), None);
    });
}

/// An interface inside that is not the other end: made by the allocation itself, or left of an address that it had before.
#[test]
fn other_interface_inside_is_replaced() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|_| ()).unwrap();
        bench.make(|pair| pair.inner_mac = MAC).unwrap();
        assert_eq!(bench.inner().mac, Some(MAC));
        delete(&mut bench.inside, &bench.inner.clone()).unwrap();
        let inner = bench.inner.clone();
        make_bridge(&mut bench.inside, &bridge(&inner)).unwrap();
        bench.make(|_| ()).unwrap();
        assert_eq!(bench.inner().kind, "veth");
    });
}

#[test]
fn foreign_interface_is_left_alone() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|pair| pair.alias = "another's").unwrap();
        let refused = bench.make(|_| ()).unwrap_err();
        assert!(matches!(refused, LinkError::Foreign { .. }), "{refused}");
        assert_eq!(bench.outer().alias, "another's");
    });
}

#[test]
fn pair_goes_with_its_namespace() {
    on_machine(|_| {
        let mut bench = Bench::new();
        bench.make(|_| ()).unwrap();
        let Bench { mut socket, inside, namespace, outer, .. } = bench;
        drop((inside, namespace));
        // The kernel takes it apart on a thread of its own, and reports nothing to this socket.
        while find(&mut socket, &outer).unwrap().is_some() {
            std::thread::yield_now();
        }
    });
}

#[test]
fn torn_objects_are_no_links() {
    for len in 0..12 {
        assert_eq!(read(&Object { kind: NEW_LINK, body: vec![0xff; len] }), None);
    }
    let link = read(&Object { kind: NEW_LINK, body: vec![0xff; 20] }).unwrap();
    assert_eq!(link.name, "");
}
