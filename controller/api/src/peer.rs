//! Peers of connections and datagrams, as units for limits, and the number of connections of each.
//!
//! In: addresses. Out: [`Peer`], the key of limits, and slots for connections. It knows no protocol.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An IPv4 address, or an IPv6 network of 64 bits: a machine usually has such a network, and could use another address for each
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(ip: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(ip.into()),
            IpAddr::V6(ip) => Self(Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(ip) => write!(f, "{ip}"),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// Connections of a listener by peer. Only peers with connections are stored, so the listener's limit bounds the map.
#[derive(Debug)]
pub(crate) struct PerPeer {
    /// None: limited only by the listener.
    max: Option<usize>,
    counts: Mutex<HashMap<Peer, usize>>,
}

/// A slot for a connection; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct PeerPlace {
    of: Arc<PerPeer>,
    peer: Peer,
}

impl PerPeer {
    /// Allows `max` connections for each peer; 0 means no limit. A quarter of the listener's `total` always remains for others,
    /// so that one peer can't occupy all slots.
    pub(crate) fn new(max: usize, total: usize) -> Arc<Self> {
        let max = (max > 0).then(|| max.min(total - total / 4).max(1));
        Arc::new(Self { max, counts: Mutex::default() })
    }

    /// A slot for one more connection; none if the peer has reached its limit.
    pub(crate) fn take(self: &Arc<Self>, peer: Peer) -> Option<PeerPlace> {
        let mut counts = self.counts();
        let count = counts.entry(peer).or_default();
        if self.max.is_some_and(|max| *count >= max) {
            return None;
        }
        *count += 1;
        Some(PeerPlace { of: Arc::clone(self), peer })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Peer, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn ipv6_network_counts_as_one_peer() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.2"), peer("192.0.2.1"));
        assert_eq!(peer("2001:db8::1").to_string(), "2001:db8::/64");
    }

    #[test]
    fn each_peer_has_its_own_slots() {
        let places = PerPeer::new(2, 512);
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let held: Vec<_> = (0..3).map(|_| places.take(one)).collect();
        assert_eq!(held.iter().flatten().count(), 2);
        assert!(places.take(other).is_some());
        drop(held);
        assert!(places.counts().is_empty());
        assert!(places.take(one).is_some());
    }

    #[test]
    fn peer_limit_leaves_room_for_others_by_default() {
        let taken = |max, total| {
            let places = PerPeer::new(max, total);
            let held: Vec<_> = std::iter::from_fn(|| places.take(peer("192.0.2.1"))).take(total).collect();
            held.len()
        };
        for (max, total, expected) in [(100, 512, 100), (100, 32, 24), (100, 4, 3), (100, 1, 1), (0, 32, 32)]
        {
            assert_eq!(taken(max, total), expected, "{max} of {total}");
        }
    }
}
