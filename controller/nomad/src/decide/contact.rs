//! When to register, and when to send the next heartbeat.

use std::time::Duration;

use herdlet_rpc::{
    error::{CallError, ErrorKind},
    pool::{Chance, jitter},
};
use tokio::time::Instant;

use super::tokens::Next;

const SECOND: Duration = Duration::from_secs(1);

/// The first heartbeat comes within this time after a registration for each of the cluster's nodes, so that not all send theirs at once,
const FIRST_EACH: Duration = Duration::from_millis(10);

/// and within this time however many they are, as stock clients'.
const FIRST: Duration = Duration::from_secs(10);

/// A server that fails is left alone for this long, and up to as much again.
const RETRY: Duration = Duration::from_secs(15);

/// Servers that nobody reaches may just be starting, as after a power cut: for this long they are tried again and again, as stock clients do,
const STARTING: Duration = Duration::from_secs(5);

/// with this between two tries, and up to as much again.
const STARTING_EACH: Duration = Duration::from_millis(500);

/// What changes at a node within this time, and up to as much again, is told at once.
const CHANGES: Duration = Duration::from_secs(5);

/// Who tells us to send heartbeats without pause (a node that is down gets a TTL of zero) gets one a second.
const TTL_MIN: Duration = SECOND;

/// Who is told to send the next one in years gets one an hour: a cluster of 90,000 nodes has them as rarely.
const TTL_MAX: Duration = Duration::from_secs(3_600);

/// A heartbeat that is not answered within this time is sent to another server: after the 5 s for which servers wait for a leader, and
/// early in the 10 s for which they wait for nodes beyond the TTL.
pub const HEARD_WITHIN: Duration = Duration::from_secs(6);

/// The last heartbeat that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// When.
    pub at: Instant,
    /// When the next one was due after that.
    pub ttl: Duration,
}

/// What a failed call means for the registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The servers know nothing of the node, or nothing of its token: it has to register.
    Unregistered,
    /// There is no leader.
    NoLeader,
    /// Anything else.
    Failed,
}

/// What a heartbeat's failure means. Servers with ACLs, and all from 1.11 on, deny a node that they don't know: its secret is an
/// unknown token.
#[must_use]
pub fn meaning(error: &CallError) -> Meaning {
    match kind(error) {
        ErrorKind::NodeNotFound | ErrorKind::PermissionDenied | ErrorKind::NodeSecret | ErrorKind::Token => {
            Meaning::Unregistered
        }
        ErrorKind::NoLeader => Meaning::NoLeader,
        ErrorKind::NotReady
        | ErrorKind::Region
        | ErrorKind::UnknownAllocation
        | ErrorKind::NoPathToNode
        | ErrorKind::UnknownMethod
        | ErrorKind::Transport
        | ErrorKind::Other => Meaning::Failed,
    }
}

pub(crate) fn kind(error: &CallError) -> ErrorKind {
    match error {
        CallError::Server(error) => error.kind(),
        CallError::NoServers
        | CallError::Unreachable(_)
        | CallError::NotSent(_)
        | CallError::NoRoom(_)
        | CallError::Lost(_)
        | CallError::Late(_)
        | CallError::Message(_)
        | CallError::Sequence { .. } => ErrorKind::Other,
    }
}

/// Whether a heartbeat may find a better ear elsewhere.
#[must_use]
pub fn asks_another(error: &CallError) -> bool {
    matches!(error, CallError::Late(_)) || error.is_lost() || error.nothing_was_done()
}

/// When to register again after a refusal, showing `next`. `servers`: how many are known. Who has only shown what servers have forgotten
/// (a node that was purged is denied by its secret) need not be left alone.
pub fn register_again(error: &CallError, next: Next, servers: usize, chance: &mut Chance) -> Duration {
    let is_alone = servers == 0 || kind(error) == ErrorKind::Region;
    jitter(if is_alone || next == Next::Another { SECOND } else { RETRY }, chance)
}

/// When to register again at servers of which none could be reached, where that is tried since `tried`; none once they are left alone.
pub fn reach_again(error: &CallError, tried: Duration, chance: &mut Chance) -> Option<Duration> {
    let is_unreachable = matches!(error, CallError::Unreachable(_));
    (is_unreachable && tried < STARTING).then(|| jitter(STARTING_EACH, chance))
}

/// When a node that was denied right after it had registered registers again.
pub fn denied_again(chance: &mut Chance) -> Duration {
    jitter(RETRY, chance)
}

/// When to tell of a change at the node.
pub fn tell_changes(chance: &mut Chance) -> Duration {
    jitter(CHANGES, chance)
}

/// When to send the first heartbeat after a registration, in a cluster of so many `nodes`.
pub fn first_beat(nodes: u32, chance: &mut Chance) -> Duration {
    chance.below(FIRST.min(FIRST_EACH * nodes))
}

/// When to send the next one after an answer.
#[must_use]
pub fn next_beat(ttl: Duration) -> Duration {
    ttl.clamp(TTL_MIN, TTL_MAX)
}

/// When to send the next one after a failure that is no loss of the registration. `last`: none where none was answered ever.
pub fn beat_again(last: Option<Beat>, meaning: Meaning, now: Instant, chance: &mut Chance) -> Duration {
    let (Some(last), Meaning::Failed | Meaning::Unregistered) = (last, meaning) else {
        return jitter(RETRY, chance);
    };
    let due = last.at + last.ttl;
    let left = due.saturating_duration_since(now);
    let late = now.saturating_duration_since(due);
    if !late.is_zero() && late <= 30 * SECOND {
        return jitter(SECOND, chance);
    }
    let spread = chance.below(left.max(late));
    if spread < SECOND {
        jitter(SECOND, chance)
    } else if spread > 30 * SECOND {
        25 * SECOND + chance.below(5 * SECOND)
    } else {
        spread
    }
}

#[cfg(test)]
mod tests {
    use herdlet_rpc::error::ServerError;

    use super::*;

    fn error(text: &str) -> CallError {
        ServerError::new(text).into()
    }

    /// The least and the longest of many waits, in milliseconds.
    fn range(mut wait: impl FnMut(&mut Chance) -> Duration) -> (u128, u128) {
        let mut chance = Chance::of(7);
        let waits: Vec<_> = (0..20_000).map(|_| wait(&mut chance).as_millis()).collect();
        (waits.iter().copied().min().unwrap(), waits.iter().copied().max().unwrap())
    }

    #[track_caller]
    fn within(found: (u128, u128), least: u128, most: u128) {
        let room = (most - least) / 50 + 1;
        assert!(found.0 >= least && found.0 <= least + room, "{found:?} for {least}..{most}");
        assert!(found.1 < most && found.1 + room >= most, "{found:?} for {least}..{most}");
    }

    #[test]
    fn heartbeats_that_fail_are_tried_again_by_how_late_they_are() {
        let at = Instant::now();
        let last = Some(Beat { at, ttl: Duration::from_secs(20) });
        let after = |seconds, last, meaning| {
            range(|chance| beat_again(last, meaning, at + Duration::from_secs(seconds), chance))
        };
        within(after(5, last, Meaning::Failed), 1_000, 15_000);
        within(after(19, last, Meaning::Failed), 1_000, 2_000);
        within(after(21, last, Meaning::Failed), 1_000, 2_000);
        within(after(49, last, Meaning::Failed), 1_000, 2_000);
        within(after(60, last, Meaning::Failed), 1_000, 30_000);
        within(after(5, last, Meaning::NoLeader), 15_000, 30_000);
        within(after(5, None, Meaning::Failed), 15_000, 30_000);
        // Up to 30 s as they come, and what is longer is spread over five seconds.
        let long = Some(Beat { at, ttl: Duration::from_secs(3_600) });
        let waits: Vec<_> = {
            let mut chance = Chance::of(1);
            (0..1_000).map(|_| beat_again(long, Meaning::Failed, at, &mut chance).as_secs()).collect()
        };
        assert!(waits.iter().filter(|&&wait| (25..30).contains(&wait)).count() > 950);
    }

    #[test]
    fn servers_that_may_just_be_starting_are_tried_more_often() {
        let unreachable = |at: u64| {
            let address: herdlet_rpc::address::Address = "10.0.0.1".parse().unwrap();
            let late = herdlet_rpc::error::DialError::Late { address, within: SECOND };
            let error = CallError::Unreachable(std::sync::Arc::new(late));
            reach_again(&error, Duration::from_millis(at), &mut Chance::of(1))
        };
        assert!(unreachable(0).is_some_and(|pause| pause < SECOND) && unreachable(4_900).is_some());
        assert_eq!(unreachable(5_000), None);
        assert_eq!(reach_again(&error("No cluster leader"), Duration::ZERO, &mut Chance::of(1)), None);
    }

    #[test]
    fn registrations_are_tried_again() {
        within(range(|chance| register_again(&error("boom"), Next::Same, 3, chance)), 15_000, 30_000);
        within(
            range(|chance| register_again(&error("Permission denied"), Next::Same, 3, chance)),
            15_000,
            30_000,
        );
        within(
            range(|chance| register_again(&error("Permission denied"), Next::Another, 3, chance)),
            1_000,
            2_000,
        );
        within(
            range(|chance| register_again(&error("No path to region"), Next::Same, 3, chance)),
            1_000,
            2_000,
        );
        within(range(|chance| register_again(&error("boom"), Next::Same, 0, chance)), 1_000, 2_000);
        within(range(tell_changes), 5_000, 10_000);
        within(range(|chance| first_beat(100, chance)), 0, 1_000);
        within(range(|chance| first_beat(90_000, chance)), 0, 10_000);
        assert_eq!(first_beat(0, &mut Chance::of(7)), Duration::ZERO);
        assert_eq!(next_beat(Duration::from_secs(12)), Duration::from_secs(12));
        assert_eq!(next_beat(Duration::ZERO), SECOND);
        assert_eq!(next_beat(Duration::MAX), TTL_MAX);
    }

    #[test]
    fn failures_have_meanings() {
        for (text, expected) in [
            ("node not found", Meaning::Unregistered),
            ("rpc error: Permission denied", Meaning::Unregistered),
            ("node secret ID does not match. Not registering node.", Meaning::Unregistered),
            ("rpc error: No cluster leader", Meaning::NoLeader),
            ("EOF", Meaning::Failed),
            ("invalid status for node", Meaning::Failed),
        ] {
            assert_eq!(meaning(&error(text)), expected, "{text}");
        }
        assert_eq!(meaning(&CallError::Late(SECOND)), Meaning::Failed);
        assert_eq!(meaning(&CallError::NoServers), Meaning::Failed);
    }

    #[test]
    fn another_server_is_told_where_nobody_has_answered() {
        for error in [CallError::Late(SECOND), CallError::NoServers, error("EOF")] {
            assert!(asks_another(&error), "{error}");
        }
        assert!(asks_another(&error("No cluster leader")) && !asks_another(&error("node not found")));
    }
}
