//! What servers have acknowledged of a node's allocations, stored for the next agent so that it does not repeat reports.
//!
//! The stored form is an opaque text that need not be durable. If it is lost, damaged or older than the servers' state, everything is
//! reported once more.
//!
//! ```text
//! <node> <index>
//! <allocation> <status> <digest>
//! ```
//!
//! The index is that of the last report. Servers store it too (a node's `LastAllocUpdateIndex`, since 1.3.10, 1.4.5 and 1.5.0). The stored
//! reports count only if the servers' index is the same and they have recorded no missed heartbeat since. So servers that were restored
//! from an older state, that belong to another cluster, or that received a report whose response was lost, get everything again. Servers
//! forget a missed heartbeat once the node is ready again; by then they have changed the running allocations (to lost or unknown), so those
//! are fetched and reported again.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::wire::{AllocId, ClientStatus, Node, NodeId};

/// A 128-bit digest of an encoded report. Another release may compute a different one for the same report.
pub(crate) type Digest = [u64; 2];

/// The reports that servers have acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The node that sent the reports.
    pub(crate) node: NodeId,
    /// The servers' index of the last report.
    pub(crate) index: u64,
    /// The status of each allocation, and a digest of the whole report.
    pub(crate) reports: BTreeMap<AllocId, (ClientStatus, Digest)>,
}

/// Whether the servers' state is the one acknowledged with this index: no other update has arrived and no heartbeat was missed since.
/// `node` is the node as the leader returns it.
pub(crate) fn is_known_to(index: u64, node: Option<&Node>) -> bool {
    node.is_some_and(|node| {
        index != 0 && node.last_alloc_update_index == index && node.last_missed_heartbeat_index < index
    })
}

impl fmt::Display for Acknowledged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.node, self.index)?;
        for (id, (status, [high, low])) in &self.reports {
            writeln!(f, "{id} {status} {high:016x}{low:016x}")?;
        }
        Ok(())
    }
}

/// The text is not in the stored format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read what was acknowledged")]
pub struct Damaged;

impl FromStr for Acknowledged {
    type Err = Damaged;

    fn from_str(text: &str) -> Result<Self, Damaged> {
        let mut lines = text.lines().map(|line| line.split(' '));
        let mut head = lines.next().ok_or(Damaged)?;
        let node = head.next().ok_or(Damaged)?.into();
        let index = head.next().and_then(|index| index.parse().ok()).ok_or(Damaged)?;
        let report = |mut words: std::str::Split<'_, char>| {
            let (id, status) = (words.next()?.into(), words.next()?.to_owned().into());
            let (high, low) = words.next()?.split_at_checked(16)?;
            let half = |text| u64::from_str_radix(text, 16).ok();
            Some((id, (status, [half(high)?, half(low)?])))
        };
        let reports = lines.map(|words| report(words).ok_or(Damaged)).collect::<Result<_, _>>()?;
        Ok(Self { node, index, reports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_acknowledgements_are_read_back() {
        let report = |id: &str, status, digest| (id.into(), (status, digest));
        let known = Acknowledged {
            node: "n".into(),
            index: 7,
            reports: [
                report("a", ClientStatus::Running, [1, u64::MAX]),
                report("b", ClientStatus::Complete, [0, 2]),
            ]
            .into(),
        };
        let text = known.to_string();
        assert_eq!(text.parse(), Ok(known));
        let whole = text.parse::<Acknowledged>().unwrap().reports;
        // A truncated text is refused, or holds fewer reports.
        for len in 0..text.len() {
            if let Ok(Acknowledged { node, index, reports }) = text[..len].parse() {
                let is_right = |(id, known): (&AllocId, &(ClientStatus, Digest))| {
                    whole.get(id).is_some_and(|right| right.0 == known.0)
                };
                assert!(
                    text.starts_with(node.as_str()) && index == 7 && reports.iter().all(is_right),
                    "{len}"
                );
            }
        }
        for damaged in ["n", "n x", "n 7\na", "n 7\na running", "n 7\na running 12", "\0\0\0"] {
            assert_eq!(damaged.parse::<Acknowledged>(), Err(Damaged), "{damaged:?}");
        }
    }

    #[test]
    fn acknowledgements_count_if_servers_missed_nothing() {
        let node = |last_alloc_update_index, last_missed_heartbeat_index| Node {
            last_alloc_update_index,
            last_missed_heartbeat_index,
            ..Node::default()
        };
        let known = |index, node: Node| is_known_to(index, Some(&node));
        assert!(known(7, node(7, 0)) && known(7, node(7, 6)));
        for (index, other) in
            [(7, node(6, 0)), (7, node(8, 0)), (7, node(7, 7)), (7, node(7, 9)), (0, node(0, 0))]
        {
            assert!(!known(index, other.clone()), "{index} {other:?}");
        }
        assert!(!is_known_to(7, None));
    }
}
