//! When to register, and when to send the next heartbeat.

use std::time::Duration;

use herdlet_rpc::{
    error::{CallError, ErrorKind},
    pool::{Chance, jitter},
};
use tokio::time::Instant;

use super::tokens::Next;

const SECOND: Duration = Duration::from_secs(1);

/// The first heartbeat after a registration is spread over this time per node of the cluster, so that nodes do not send theirs all at once,
const FIRST_EACH: Duration = Duration::from_millis(10);

/// up to this maximum, as in stock clients.
const FIRST: Duration = Duration::from_secs(10);

/// Wait before a failing server is asked again, plus up to the same at random.
const RETRY: Duration = Duration::from_secs(15);

/// When no server is reachable they may be starting, as after a power cut: retry quickly for this long, as stock clients do,
const STARTING: Duration = Duration::from_secs(5);

/// with this pause, plus up to the same at random.
const STARTING_EACH: Duration = Duration::from_millis(500);

/// Changes of the node's description are sent after this delay, plus up to the same at random.
const CHANGES: Duration = Duration::from_secs(5);

/// Minimum heartbeat interval. Servers send a TTL of zero to a node that is down.
const TTL_MIN: Duration = SECOND;

/// Maximum heartbeat interval, whatever TTL servers send: as long as in a cluster of 90,000 nodes.
const TTL_MAX: Duration = Duration::from_secs(3_600);

/// Time limit for a heartbeat before another server gets it: longer than the 5 s for which servers wait for a leader, and well within
/// the grace period of 10 s that servers add to the TTL.
pub const HEARD_WITHIN: Duration = Duration::from_secs(6);

/// The last answered heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// When it was sent.
    pub at: Instant,
    /// How long after it the next one was due.
    pub ttl: Duration,
}

/// What a failed call means for the registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The servers do not know the node or its token: register again.
    Unregistered,
    /// There is no leader.
    NoLeader,
    /// Anything else.
    Failed,
}

/// Interprets a failed heartbeat. Servers with ACLs, and all from 1.11 on, deny an unknown node: its secret is an unknown token.
#[must_use]
pub fn meaning(error: &CallError) -> Meaning {
    match error.kind() {
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

/// Whether to send the heartbeat to another server.
#[must_use]
pub fn should_switch_server(error: &CallError) -> bool {
    matches!(error, CallError::Late(_)) || error.is_lost() || error.nothing_was_done()
}

/// The wait before the next registration after a refusal. `next`: whether it presents another token; `servers`: number of known servers. If
/// the refused token is merely one that servers have forgotten (a purged node is denied its secret), a short wait is enough.
pub fn register_again(error: &CallError, next: Next, servers: usize, chance: &mut Chance) -> Duration {
    let is_alone = servers == 0 || error.kind() == ErrorKind::Region;
    jitter(if is_alone || next == Next::Another { SECOND } else { RETRY }, chance)
}

/// The wait before the next attempt if no server is reachable. `tried`: how long that has been tried; `None` once the quick retries end.
pub fn reach_again(error: &CallError, tried: Duration, chance: &mut Chance) -> Option<Duration> {
    let is_unreachable = matches!(error, CallError::Unreachable(_));
    (is_unreachable && tried < STARTING).then(|| jitter(STARTING_EACH, chance))
}

/// The wait before a node that was denied right after registering registers again.
pub fn denied_again(chance: &mut Chance) -> Duration {
    jitter(RETRY, chance)
}

/// The wait before a change of the node's description is sent.
pub fn change_delay(chance: &mut Chance) -> Duration {
    jitter(CHANGES, chance)
}

/// The wait before the first heartbeat after a registration, in a cluster of `nodes`.
pub fn first_beat(nodes: u32, chance: &mut Chance) -> Duration {
    chance.below(FIRST.min(FIRST_EACH * nodes))
}

/// The wait before the next heartbeat after a response.
#[must_use]
pub fn next_beat(ttl: Duration) -> Duration {
    ttl.clamp(TTL_MIN, TTL_MAX)
}

/// The wait before the next heartbeat after a failure that keeps the registration. `last`: `None` if none was ever answered.
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

    /// The shortest and longest of many waits, in milliseconds.
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
    fn failed_heartbeat_is_retried_by_lateness() {
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
        // Waits up to 30 s are used as drawn; longer ones are spread over five seconds.
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
        within(range(change_delay), 5_000, 10_000);
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
    fn server_is_switched_if_none_answered() {
        for error in [CallError::Late(SECOND), CallError::NoServers, error("EOF")] {
            assert!(should_switch_server(&error), "{error}");
        }
        assert!(
            should_switch_server(&error("No cluster leader"))
                && !should_switch_server(&error("node not found"))
        );
    }
}
