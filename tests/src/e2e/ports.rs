//! Ports for programs that can't be given a socket.
//!
//! In: how many. Out: numbers that nobody has, of a range the kernel takes no port of a connection from (see
//! `net.ipv4.ip_local_port_range`): what was free a moment ago is not taken by somebody's connection meanwhile.

use std::{
    hash::{BuildHasher, RandomState},
    net::TcpListener,
};

/// Below the kernel's own range, and below the range agents give to their tasks.
const RANGE: std::ops::Range<u16> = 10_000..20_000;

/// Ports of the loopback address that are free now, each another one.
///
/// # Panics
/// When there are none.
pub fn free<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| {
        let listener = (0..1000_u16).find_map(|_| TcpListener::bind(("127.0.0.1", any())).ok());
        listener.expect("a free port")
    });
    held.map(|listener| listener.local_addr().expect("a bound socket has an address").port())
}

fn any() -> u16 {
    let random = RandomState::new().hash_one(()) % u64::from(RANGE.end - RANGE.start);
    RANGE.start + u16::try_from(random).unwrap_or(0)
}
