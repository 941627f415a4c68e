//! Ports for programs that can't be given a socket.
//!
//! In: how many. Out: numbers that nobody has and no other test is given, of a range the kernel takes no port of a connection from (see
//! `net.ipv4.ip_local_port_range`): what is free now stays free until the program that it is for has it.

use std::{
    hash::{BuildHasher, RandomState},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{Mutex, PoisonError},
};

/// Below the kernel's own range, and below the range agents give to their tasks.
const RANGE: std::ops::Range<u16> = 10_000..20_000;

/// How many dynamic ports the tasks of one test have: more than a service of a few replicas needs that is replaced.
const FOR_TASKS: u16 = 50;

/// What reserves the ports that this process was given. They are its own until it ends.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Ports of the loopback address that are free now, each another one.
///
/// # Panics
/// When there are none.
pub fn free<const N: usize>() -> [u16; N] {
    [(); N].map(|()| (0..1_000_u16).find_map(|_| reserved(any())).expect("a free port"))
}

/// A line of an agent's config: the dynamic ports of its tasks, which no other test's agent with this line gives to its own. Tasks that
/// listen on them need it, as agents know nothing of each other.
///
/// # Panics
/// When all are in use.
pub fn for_tasks() -> String {
    const FIRST: u16 = 20_000;
    let found = (0..1_000).find_map(|_| {
        let min = FIRST + (any() - RANGE.start) / FOR_TASKS * FOR_TASKS;
        reserve(&format!("herdlet-test-ports-{min}")).then_some(min)
    });
    let min = found.expect("ports for tasks");
    format!("dynamic_ports: {{min: {min}, max: {}}}\n", min + FOR_TASKS - 1)
}

/// The port, if nobody listens on it and no test of this machine has reserved it.
fn reserved(port: u16) -> Option<u16> {
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    UdpSocket::bind(("127.0.0.1", port)).ok()?;
    reserve(&format!("herdlet-test-port-{port}")).then_some(port)
}

/// Takes a name of the abstract namespace: it has one owner at a time, goes with its process, and is seen as far as ports are, in this
/// network namespace.
fn reserve(name: &str) -> bool {
    let taken = SocketAddr::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name));
    taken.map(|taken| RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(taken)).is_ok()
}

fn any() -> u16 {
    let random = RandomState::new().hash_one(()) % u64::from(RANGE.end - RANGE.start);
    RANGE.start + u16::try_from(random).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let [port] = free();
        assert_eq!(reserved(port), None, "nobody listens on it yet, and it is not given again");
        let [other] = free();
        assert_ne!(port, other);
    }
}
