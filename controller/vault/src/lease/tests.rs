//! Examples and properties of leases.

use proptest::prelude::*;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

fn at(seconds: u64) -> BootTime {
    BootTime { boot_id: 7, ns: seconds * SECOND_NS }
}

fn terms(seconds: u64, kind: LeaseKind) -> LeaseTerms {
    LeaseTerms { duration: Duration::from_secs(seconds), kind }
}

fn renewable(seconds: u64) -> LeaseTerms {
    terms(seconds, LeaseKind::Renewable)
}

fn low() -> Spread {
    Spread::of_parts(0)
}

fn high() -> Spread {
    Spread::of_parts(u32::MAX)
}

/// The seconds until the next step.
fn wait_of(record: &LeaseRecord, now: BootTime) -> f64 {
    (record.next_at_boot_ns - now.ns) as f64 / SECOND_NS as f64
}

fn is_between(value: f64, low: f64, high: f64) -> bool {
    (low - 0.001..=high + 0.001).contains(&value)
}

const LATER: LeaseFailure = LeaseFailure::Later { retry_after: None };

#[test]
fn a_lease_is_renewed_at_its_half() {
    for (seconds, from, to) in [(30, 15.0, 15.0), (59, 29.5, 29.5), (60, 20.0, 40.0), (3600, 1790.0, 1810.0)]
    {
        for spread in [low(), high()] {
            let record = LeaseRecord::granted(renewable(seconds), at(5), spread);
            assert!(is_between(wait_of(&record, at(5)), from, to), "{seconds}: {record:?}");
            let due = BootTime { boot_id: 7, ns: record.next_at_boot_ns };
            assert_eq!(record.step(due), Step::Renew);
        }
    }
}

#[test]
fn a_lease_that_cannot_be_renewed_is_replaced_late() {
    let record = LeaseRecord::granted(terms(1000, LeaseKind::Fixed), at(0), low());
    assert!(is_between(wait_of(&record, at(0)), 850.0, 850.0));
    let record = LeaseRecord::granted(terms(1000, LeaseKind::Fixed), at(0), high());
    assert!(is_between(wait_of(&record, at(0)), 949.9, 950.0));
    assert_eq!(record.step(at(950)), Step::Replace(ReplaceReason::NotRenewable));
}

#[test]
fn a_rotating_secret_is_read_after_the_rotation() {
    let record = LeaseRecord::granted(terms(17, LeaseKind::Rotating), at(0), high());
    assert!(matches!(record.step(at(17)), Step::Wait { .. }));
    assert_eq!(record.step(at(18)), Step::Replace(ReplaceReason::Rotation));
}

#[test]
fn an_endless_token_is_left_alone() {
    let record = LeaseRecord::granted(terms(0, LeaseKind::Endless), at(0), high());
    let never = Step::Wait { until_ns: u64::MAX };
    assert_eq!(record.step(at(1 << 30)), never);
    assert_eq!(record.step(BootTime { boot_id: 8, ns: 0 }), never);
    assert!(!record.is_past_end(at(1 << 30)));
}

#[test]
fn a_lost_lease_is_replaced_at_once_and_then_with_waits() {
    let mut record = LeaseRecord::granted(renewable(60), at(0), low());
    record.failed(LeaseFailure::Lost, at(20), low());
    assert_eq!(record.step(at(20)), Step::Replace(ReplaceReason::Lost));
    // The log-in is refused too.
    record.failed(LeaseFailure::Lost, at(20), low());
    assert_eq!(record.step(at(20)), Step::Wait { until_ns: 25 * SECOND_NS });
    assert_eq!(record.step(at(25)), Step::Replace(ReplaceReason::Lost), "the reason stays");
    // One that was to be replaced later.
    let mut record = LeaseRecord::granted(terms(60, LeaseKind::Fixed), at(0), low());
    record.failed(LeaseFailure::Lost, at(5), low());
    assert_eq!(record.step(at(5)), Step::Replace(ReplaceReason::Lost));
}

#[test]
fn failures_wait_longer_and_longer_up_to_three_minutes() {
    let mut record = LeaseRecord::granted(renewable(100_000), at(0), low());
    let mut waits = Vec::new();
    for _ in 0..9 {
        record.failed(LATER, at(50_000), low());
        waits.push(wait_of(&record, at(50_000)));
    }
    assert_eq!(waits, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 180.0, 180.0, 180.0]);
    record.failed(LATER, at(50_000), high());
    assert!(is_between(wait_of(&record, at(50_000)), 224.9, 225.0), "with a quarter by chance");
}

#[test]
fn a_server_that_names_a_time_is_not_asked_before() {
    let mut record = LeaseRecord::granted(renewable(60), at(0), low());
    let failure = LeaseFailure::Later { retry_after: Some(Duration::from_secs(90)) };
    record.failed(failure, at(20), low());
    assert_eq!(record.step(at(109)), Step::Wait { until_ns: 110 * SECOND_NS });
    assert_eq!(record.step(at(110)), Step::Renew);
}

#[test]
fn tries_are_made_before_the_end_of_a_lease() {
    let mut record = LeaseRecord::granted(renewable(60), at(0), low());
    let mut now = at(20);
    let mut tries = 0;
    while !record.is_past_end(now) {
        record.failed(LATER, now, high());
        assert!(record.next_at_boot_ns > now.ns);
        now.ns = record.next_at_boot_ns;
        tries += 1;
    }
    assert!((4..=9).contains(&tries), "{tries} tries in 40 s");
    // The value stays, and so do the tries.
    assert_eq!(record.step(now), Step::Renew);
    assert!(record.failing_for(now).is_some_and(|time| time >= Duration::from_secs(40)));
    record.renewed(renewable(60), now, low());
    assert_eq!(record.failing_for(now), None);
    assert!(matches!(record.step(now), Step::Wait { .. }));
}

#[test]
fn a_recovered_token_is_renewed_and_keeps_no_false_end() {
    let mut record = LeaseRecord::recovered(at(9));
    assert_eq!(record.step(at(9)), Step::Renew);
    assert!(!record.is_past_end(at(9)));
    record.renewed(renewable(60), at(9), low());
    assert_eq!(record.step(at(9)), Step::Wait { until_ns: 29 * SECOND_NS });
}

#[test]
fn after_a_reboot_a_lease_is_renewed_not_replaced() {
    let mut record = LeaseRecord::granted(renewable(60), at(1000), low());
    let rebooted = BootTime { boot_id: 8, ns: 3 * SECOND_NS };
    assert_eq!(record.step(rebooted), Step::Renew);
    assert!(!record.is_past_end(rebooted));
    assert_eq!((record.age(rebooted), record.failing_for(rebooted)), (None, None));
    record.failed(LATER, rebooted, low());
    assert_eq!(record.step(rebooted), Step::Wait { until_ns: 8 * SECOND_NS });
}

#[test]
fn a_shorter_default_is_no_maximum() {
    let mut record = LeaseRecord::granted(renewable(3600), at(0), low());
    record.renewed(renewable(600), at(1790), low());
    assert_eq!(record.replace, None);
    // The next renewals move the end by what has passed.
    record.renewed(renewable(600), at(2080), low());
    assert_eq!(record.replace, None);
}

/// The server rounds down, and the agent has restarted in between.
#[test]
fn an_early_renewal_is_no_maximum() {
    let mut record = LeaseRecord::granted(renewable(60), at(0), low());
    let now = BootTime { boot_id: 7, ns: SECOND_NS / 2 };
    record.renewed(renewable(59), now, low());
    assert_eq!(record.replace, None);
}

/// A server with a maximum of lifetime. Returns the time of the replacement and the number of renewals.
fn live(duration: u64, maximum: u64, spread: Spread) -> (BootTime, u32) {
    let grant = |now: BootTime| {
        let left = Duration::from_secs(maximum).saturating_sub(Duration::from_nanos(now.ns));
        // Vault rounds down to seconds.
        renewable(duration.min(left.as_secs()))
    };
    let mut record = LeaseRecord::granted(grant(at(0)), at(0), spread);
    let (mut now, mut renewals) = (at(0), 0);
    loop {
        match record.step(now) {
            Step::Wait { until_ns } => now.ns = until_ns,
            Step::Renew => {
                renewals += 1;
                // The answer takes a moment.
                now.ns += SECOND_NS / 50;
                record.renewed(grant(now), now, spread);
            }
            Step::Replace(reason) => {
                assert_eq!(reason, ReplaceReason::MaxTtl);
                return (now, renewals);
            }
        }
        assert!(renewals < 100_000);
    }
}

fn spreads() -> impl Strategy<Value = Spread> {
    any::<u32>().prop_map(Spread::of_parts)
}

fn kinds() -> impl Strategy<Value = LeaseKind> {
    prop_oneof![
        Just(LeaseKind::Renewable),
        Just(LeaseKind::Fixed),
        Just(LeaseKind::Rotating),
        Just(LeaseKind::Endless)
    ]
}

/// What happens to a lease: a renewal with these seconds, or a failure.
fn results() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), (1_u64..100_000).prop_map(Some)]
}

proptest! {
    #[test]
    fn a_lease_is_replaced_before_its_maximum(
        duration in 20_u64..5000, times in 2_u64..20, extra in 0_u64..100, spread in spreads()
    ) {
        let maximum = duration * times + extra;
        let (replaced_at, renewals) = live(duration, maximum, spread);
        prop_assert!(replaced_at.ns < maximum * SECOND_NS, "{replaced_at:?} of {maximum}");
        // Not long before it either: at most a part of the last lease is given away.
        prop_assert!(replaced_at.ns + duration * SECOND_NS / 2 > maximum * SECOND_NS, "{replaced_at:?} of {maximum}");
        prop_assert!(u64::from(renewals) <= 4 * times + 8);
    }

    #[test]
    fn a_lease_without_a_maximum_is_never_replaced(
        duration in 2_u64..100_000, spread in spreads(), delay_ms in 0_u64..400
    ) {
        let mut record = LeaseRecord::granted(renewable(duration), at(0), spread);
        let mut now = at(0);
        for _ in 0..200 {
            now.ns = record.next_at_boot_ns + delay_ms * 1_000_000;
            prop_assert_eq!(record.step(now), Step::Renew);
            record.renewed(renewable(duration), now, spread);
        }
    }

    #[test]
    fn unreachable_servers_replace_nothing_that_can_be_renewed(
        duration in 1_u64..100_000, spreads in prop::collection::vec(spreads(), 1..60)
    ) {
        let mut record = LeaseRecord::granted(renewable(duration), at(0), spreads[0]);
        let mut now = at(0);
        for spread in spreads {
            now.ns = record.next_at_boot_ns;
            prop_assert_eq!(record.step(now), Step::Renew);
            record.failed(LATER, now, spread);
            let wait = wait_of(&record, now);
            prop_assert!(is_between(wait, 1.0, 225.0), "{}", wait);
        }
    }

    #[test]
    fn the_next_step_is_before_the_end(duration in 2_u64..1_000_000, kind in kinds(), spread in spreads()) {
        let record = LeaseRecord::granted(terms(duration, kind), at(10), spread);
        let end = at(10).ns + duration * SECOND_NS;
        match kind {
            LeaseKind::Renewable | LeaseKind::Fixed => prop_assert!(record.next_at_boot_ns < end),
            LeaseKind::Rotating => prop_assert!(record.next_at_boot_ns > end),
            LeaseKind::Endless => prop_assert_eq!(record.next_at_boot_ns, u64::MAX),
        }
    }

    /// A restart of the agent changes no step at any time, so it issues nothing.
    #[test]
    fn a_stored_record_goes_on_as_before(
        duration in 1_u64..100_000, kind in kinds(), spread in spreads(),
        results in prop::collection::vec(results(), 0..6), later_ns in any::<u32>()
    ) {
        let mut record = LeaseRecord::granted(terms(duration, kind), at(3), spread);
        let mut now = at(3);
        for result in results {
            now.ns = now.ns.max(record.next_at_boot_ns.min(1 << 60));
            match result {
                Some(seconds) => record.renewed(renewable(seconds), now, spread),
                None => record.failed(LATER, now, spread),
            }
        }
        let text = serde_json::to_string(&record).unwrap();
        let restored: LeaseRecord = serde_json::from_str(&text).unwrap();
        now.ns += u64::from(later_ns);
        prop_assert_eq!(restored.step(now), record.step(now));
        prop_assert_eq!(restored, record);
    }

    /// Whatever happens, a record gives a step and does not overflow.
    #[test]
    fn any_times_are_possible(
        a in any::<u64>(), b in any::<u64>(), duration in any::<u64>(), kind in kinds(), spread in spreads(),
        wait in any::<u64>(), is_lost in any::<bool>()
    ) {
        let (a, b) = (BootTime { boot_id: 1, ns: a }, BootTime { boot_id: b % 2, ns: b });
        let terms = LeaseTerms { duration: Duration::from_secs(duration), kind };
        let mut record = LeaseRecord::granted(terms, a, spread);
        let failure = if is_lost {
            LeaseFailure::Lost
        } else {
            LeaseFailure::Later { retry_after: Some(Duration::from_nanos(wait)) }
        };
        record.failed(failure, b, spread);
        record.renewed(terms, b, spread);
        record.failed(failure, a, spread);
        let _ = (record.step(b), record.age(b), record.failing_for(b), record.is_past_end(b));
    }
}
