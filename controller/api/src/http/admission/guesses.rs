//! Wrong tokens: how many a peer may send before its answers are delayed.
//!
//! In: peers that sent a wrong token. Out: whether the peer has sent too many. Right tokens bypass this check, so a peer can't
//! lock out others who share its address. The length of the token protects it against guessing; this limit only makes guessing
//! slow and visible.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::NoOpMiddleware,
    state::{InMemoryState, NotKeyed, keyed::HashMapStateStore},
};

use crate::peer::Peer;

/// This many wrong tokens in a row are normal for a misconfigured script.
const BURST: NonZeroU32 = NonZeroU32::new(10).expect("it is not zero");

/// After the burst, one wrong token per period is free.
const PERIOD: Duration = Duration::from_secs(10);

/// The table holds this many peers. All others share one limit.
const PEERS_MAX: usize = 4_096;

/// Log lines: this many at once, then one per period. The metric counts every wrong token.
const LINES: NonZeroU32 = NonZeroU32::new(5).expect("it is not zero");
/// See [`LINES`].
const LINES_PERIOD: Duration = Duration::from_secs(60);

type Direct<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;
type Keyed<C> = RateLimiter<Peer, HashMapStateStore<Peer>, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub(super) struct Guesses<C: Clock = DefaultClock> {
    by_peer: Keyed<C>,
    of_others: Direct<C>,
    /// Limits how often the table is searched for peers to forget.
    searches: Direct<C>,
    lines: Direct<C>,
}

impl Default for Guesses {
    fn default() -> Self {
        Self::by(DefaultClock::default())
    }
}

impl<C: Clock + Clone> Guesses<C> {
    fn by(clock: C) -> Self {
        let every = |period: Duration, burst: NonZeroU32| {
            // None only for a period of zero.
            Quota::with_period(period).unwrap_or_else(|| Quota::per_second(burst)).allow_burst(burst)
        };
        let quota = every(PERIOD, BURST);
        Self {
            by_peer: RateLimiter::hashmap_with_clock(quota, clock.clone()),
            of_others: RateLimiter::direct_with_clock(quota, clock.clone()),
            searches: RateLimiter::direct_with_clock(every(PERIOD, NonZeroU32::MIN), clock.clone()),
            lines: RateLimiter::direct_with_clock(every(LINES_PERIOD, LINES), clock),
        }
    }

    /// Counts a wrong token, and returns whether the peer has sent too many.
    pub(super) fn is_too_many(&self, peer: Peer) -> bool {
        if self.by_peer.len() >= PEERS_MAX {
            // The search is limited too, so that many guesses don't each cause one.
            if self.searches.check().is_ok() {
                self.by_peer.retain_recent();
            }
            if self.by_peer.len() >= PEERS_MAX {
                return self.of_others.check().is_err();
            }
        }
        self.by_peer.check_key(&peer).is_err()
    }

    pub(super) fn may_be_logged(&self) -> bool {
        self.lines.check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use governor::clock::FakeRelativeClock;

    use super::*;

    fn peer(number: u32) -> Peer {
        IpAddr::from(Ipv4Addr::from_bits(number)).into()
    }

    #[test]
    fn a_peer_may_be_wrong_ten_times_and_then_once_in_ten_seconds() {
        let clock = FakeRelativeClock::default();
        let guesses = Guesses::by(clock.clone());
        let right = |peer| (0..100).filter(|_| !guesses.is_too_many(peer)).count();
        assert_eq!(right(peer(1)), 10);
        assert_eq!(right(peer(2)), 10, "other addresses are not limited");
        clock.advance(PERIOD);
        assert_eq!(right(peer(1)), 1);
        clock.advance(PERIOD * 100);
        assert_eq!(right(peer(1)), 10);
    }

    #[test]
    fn guesses_are_bounded() {
        let clock = FakeRelativeClock::default();
        let guesses = Guesses::by(clock.clone());
        let most = u32::try_from(PEERS_MAX).unwrap();
        assert!((0..most).all(|number| !guesses.is_too_many(peer(number))));
        let passed = (most..3 * most).filter(|number| !guesses.is_too_many(peer(*number))).count();
        assert_eq!(passed, 10, "further addresses share one limit");
        assert_eq!(guesses.by_peer.len(), PEERS_MAX);
        clock.advance(PERIOD * 11);
        assert!(!guesses.is_too_many(peer(7 * most)), "old guesses are forgotten");
        assert_eq!(guesses.by_peer.len(), 1);
    }

    #[test]
    fn lines_of_the_log_are_few() {
        let guesses = Guesses::by(FakeRelativeClock::default());
        assert_eq!((0..1_000).filter(|_| guesses.may_be_logged()).count(), 5);
    }
}
