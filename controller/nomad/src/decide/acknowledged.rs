//! What servers have acknowledged of a node's allocations, for an agent that comes after this one: then nothing is told twice.
//!
//! As a text: whoever keeps it need not know what it means, and need not keep it well. Where it is lost, damaged or older than what servers
//! know, all is told once more.
//!
//! ```text
//! <node> <index>
//! <allocation> <status> <digest>
//! ```
//!
//! The index is that of the last report, by which servers know it as well (`LastAllocUpdateIndex` of a node, from 1.3.10, 1.4.5 and 1.5.0 on):
//! what is remembered counts only where they say the same, and tell of no missed heartbeat since. So servers that were restored from an older
//! state, that are others, or that have taken a report whose answer was lost, are told everything. A missed heartbeat is forgotten once the
//! node is ready again; it has changed what goes on by then (lost or unknown), which is fetched and told again for that.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::wire::{AllocId, ClientStatus, Node, NodeId};

/// 128 bits of a report as it is sent. Another release may have another one of the same.
pub(crate) type Digest = [u64; 2];

/// What servers have acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Which node has told it.
    pub(crate) node: NodeId,
    /// The servers' index of the last report.
    pub(crate) index: u64,
    /// The status and a digest of the whole report.
    pub(crate) reports: BTreeMap<AllocId, (ClientStatus, Digest)>,
}

/// Whether servers know just what they have acknowledged with this index, and nothing has happened since by which they think otherwise.
/// `node` is what the leader says of the node.
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

/// It is no such text.
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
    fn what_is_written_is_read() {
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
        // Damage is found, or leaves less than there was.
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
        for wrong in ["n", "n x", "n 7\na", "n 7\na running", "n 7\na running 12", "\0\0\0"] {
            assert_eq!(wrong.parse::<Acknowledged>(), Err(Damaged), "{wrong:?}");
        }
    }

    #[test]
    fn it_counts_where_servers_know_the_same_and_have_missed_nothing() {
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
