//! The list of servers and its order. Knows no connection.

use std::{fmt, time::Duration};

use super::{Chance, jitter};
use crate::address::Address;

/// Servers; the first one is asked.
#[derive(Debug, Clone, Default)]
pub struct ServerList(Vec<Address>);

impl ServerList {
    /// Replaces the servers, in random order. Returns false, and changes nothing, if the set is the same or empty.
    pub fn replace(&mut self, mut servers: Vec<Address>, chance: &mut Chance) -> bool {
        servers.sort();
        servers.dedup();
        let mut before = self.0.clone();
        before.sort();
        if servers.is_empty() || servers == before {
            return false;
        }
        chance.shuffle(&mut servers);
        self.0 = servers;
        true
    }

    /// The server to ask.
    #[must_use]
    pub fn first(&self) -> Option<Address> {
        self.0.first().cloned()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Address> {
        self.0.clone()
    }

    /// Whether `server` is in the list.
    #[must_use]
    pub fn contains(&self, server: &Address) -> bool {
        self.0.contains(server)
    }

    /// Moves a failed server to the end, but only from the front: when several calls fail together, only one moves it. Returns whether it
    /// moved.
    pub fn failed(&mut self, server: &Address) -> bool {
        let is_left = self.0.len() > 1 && self.0.first() == Some(server);
        if is_left {
            self.0.rotate_left(1);
        }
        is_left
    }

    /// A shuffled copy.
    pub fn shuffled(&self, chance: &mut Chance) -> Vec<Address> {
        let mut servers = self.0.clone();
        chance.shuffle(&mut servers);
        servers
    }

    /// Adopts this order if it has the same servers.
    pub fn reorder(&mut self, order: Vec<Address>) {
        if order.len() == self.0.len() && order.iter().all(|server| self.contains(server)) {
            self.0 = order;
        }
    }
}

impl fmt::Display for ServerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, server) in self.0.iter().enumerate() {
            write!(f, "{}{server}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// When to spread clients over servers again: after 5 minutes, or longer in large clusters, such that all clients together move at most 64
/// times a second per server; plus up to the same again at random. `nodes` is the count that a server last reported, 0 if none has.
pub fn rebalance_after(nodes: u32, servers: usize, chance: &mut Chance) -> Duration {
    const LEAST: Duration = Duration::from_secs(300);
    const MOVES_A_SECOND: f64 = 64.0;
    let servers = u32::try_from(servers).unwrap_or(u32::MAX);
    let spread = f64::from(nodes) / (MOVES_A_SECOND * f64::from(servers.max(1)));
    jitter(LEAST.max(Duration::from_secs_f64(spread)), chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &str) -> Vec<Address> {
        names.split(' ').map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn the_same_servers_keep_their_order() {
        let (mut list, mut chance) = (ServerList::default(), Chance::of(7));
        assert!(list.replace(servers("a b c"), &mut chance));
        let first = list.first().unwrap();
        assert!(list.failed(&first) && !list.failed(&first));
        let after = list.all();
        assert_eq!(after.last(), Some(&first), "the server has moved once");
        assert!(!list.replace(servers("c b a b"), &mut chance) && list.all() == after);
        assert!(!list.replace(Vec::new(), &mut chance) && list.all() == after);
        assert!(list.replace(servers("a b d"), &mut chance) && !list.contains(&servers("c")[0]));
        list.reorder(servers("a b"));
        list.reorder(servers("a b c"));
        assert_eq!(list.all().len(), 3);
        list.reorder(servers("d b a"));
        assert_eq!(list.to_string(), "d:4647 b:4647 a:4647");
    }

    #[test]
    fn clients_move_rarely() {
        let mut chance = Chance::of(1);
        for (nodes, servers, least) in [(0, 0, 300), (100, 3, 300), (1_000_000, 3, 5_208)] {
            let after = rebalance_after(nodes, servers, &mut chance).as_secs();
            assert!((least..2 * least + 2).contains(&after), "{nodes} {servers}: {after}");
        }
    }
}
