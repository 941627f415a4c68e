//! Ports for programs that can't use a unix socket.
//!
//! In: how many. Out: free ports that no other test gets. They are outside of the range for outgoing
//! connections (see `net.ipv4.ip_local_port_range`), so they stay free until the program binds them.

use std::{
    hash::{BuildHasher, RandomState},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{Mutex, PoisonError},
};

/// Below the kernel's own range, and below the agents' range of dynamic ports.
const RANGE: std::ops::Range<u16> = 10_000..20_000;

/// Number of dynamic ports for the tasks of one test: enough to replace a service with a few replicas.
const FOR_TASKS: u16 = 50;

/// Sockets that reserve the ports of this process until it ends.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Returns distinct free ports of the loopback address.
///
/// # Panics
/// If there are none.
pub fn free<const N: usize>() -> [u16; N] {
    [(); N].map(|()| (0..1_000_u16).find_map(|_| reserved(any())).expect("a free port"))
}

/// Returns a line for an agent's config with a range of dynamic ports that no other test's agent with this
/// line uses. Tests whose tasks listen on dynamic ports need it, because agents don't know of each other.
///
/// # Panics
/// If all ranges are in use.
pub fn for_tasks() -> String {
    const FIRST: u16 = 20_000;
    let found = (0..1_000).find_map(|_| {
        let min = FIRST + (any() - RANGE.start) / FOR_TASKS * FOR_TASKS;
        reserve(&format!("herdlet-test-ports-{min}")).then_some(min)
    });
    let min = found.expect("ports for tasks");
    format!("dynamic_ports: {{min: {min}, max: {}}}\n", min + FOR_TASKS - 1)
}

/// Returns the port if nobody listens on it and no test on this machine has reserved it.
fn reserved(port: u16) -> Option<u16> {
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    UdpSocket::bind(("127.0.0.1", port)).ok()?;
    reserve(&format!("herdlet-test-port-{port}")).then_some(port)
}

/// Binds a name in the abstract namespace. It has one owner at a time, is released with the process, and has
/// the same scope as ports: the network namespace.
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
    fn port_is_reserved_once() {
        let [port] = free();
        assert_eq!(reserved(port), None, "no process listens on the port yet, and it is returned only once");
        let [other] = free();
        assert_ne!(port, other);
    }
}
