//! The synchronous core, driven as a simulator would: no tokio, the time is an argument.

use herdlet_runtime::{Now, Reconciler};

use crate::fake::{Event, Numbers, Planned};

fn at(boot_ns: u64) -> Now {
    Now { boot_ns, wall_ns: 0 }
}

fn begun() -> (Reconciler<Numbers>, crate::fake::Log) {
    let world = Numbers::default();
    let log = world.log.clone();
    let mut reconciler = Reconciler::new(world);
    assert_eq!(reconciler.next_at(), Some(0), "the first turn is due at once");
    reconciler.turn(at(0), []);
    assert_eq!(reconciler.next_at(), None);
    (reconciler, log)
}

#[test]
fn first_turn_reconciles_restored_keys() {
    let world = Numbers { restored: vec![2, 1, 3], held: vec![3], ..Numbers::default() };
    let log = world.log.clone();
    let mut reconciler = Reconciler::new(world);
    reconciler.turn(at(5), []);
    assert_eq!(log.take(), ["reconcile 1", "reconcile 2"]);
    assert!(reconciler.quarantine().contains(&3), "a remembered quarantine holds");
}

#[test]
fn marked_key_is_reconciled_once_per_turn() {
    let (mut reconciler, log) = begun();
    let turn = reconciler.turn(at(1), (0..100).map(|n| Event::Mark(n % 2)));
    assert_eq!(log.take(), ["reconcile 0", "reconcile 1"]);
    assert_eq!((turn.counts.events, turn.counts.keys), (100, 2));
}

#[test]
fn earliest_wake_wins_and_reconcile_replaces_wakes() {
    let (mut reconciler, log) = begun();
    reconciler.turn(at(1), [Event::Plan(7, Planned { wakes: vec![50, 20, 90], ..Planned::default() })]);
    assert_eq!(reconciler.next_at(), Some(20));
    assert_eq!(reconciler.wakes().of(&7), Some((20, "planned")));
    // Reconciled before its wake, requesting another one: the old wake is gone.
    reconciler.turn(at(10), [Event::Plan(7, Planned { wakes: vec![u64::MAX], ..Planned::default() })]);
    assert_eq!(reconciler.next_at(), Some(u64::MAX));
    assert!(!reconciler.is_due(at(u64::MAX - 1)));
    log.take();
    let turn = reconciler.turn(at(u64::MAX), []);
    assert_eq!((log.take(), turn.counts.wakes), (vec!["reconcile 7".to_owned()], 1));
}

#[test]
fn a_reconcile_may_dirty_other_keys_of_the_same_turn() {
    let (mut reconciler, log) = begun();
    let other = |key| Planned { dirty: vec![key], ..Planned::default() };
    reconciler.turn(at(1), [Event::Plan(5, other(3))]);
    assert_eq!(log.take(), ["reconcile 5", "reconcile 3"]);
    assert_eq!(reconciler.next_at(), None);
    // A key that was already reconciled comes again in the next turn, which is due at once, so a cycle never delays
    // other events.
    reconciler.turn(at(2), [Event::Plan(3, other(5))]);
    assert_eq!(log.take(), ["reconcile 3", "reconcile 5"]);
    assert_eq!(reconciler.next_at(), Some(0));
    reconciler.turn(at(2), []);
    assert_eq!(log.take(), ["reconcile 3", "reconcile 5"]);
}

#[test]
fn a_panic_while_planning_quarantines_its_key_alone() {
    let (mut reconciler, log) = begun();
    let bad = Planned {
        start: true,
        record: true,
        wakes: vec![9],
        dirty: vec![4],
        panic: true,
        ..Planned::default()
    };
    let good = Planned { start: true, record: true, ..Planned::default() };
    let turn =
        reconciler.turn(at(1), [Event::Plan(1, good.clone()), Event::Plan(2, bad), Event::Plan(3, good)]);
    assert_eq!(log.take(), ["reconcile 1", "reconcile 2", "quarantined 2: cannot plan 2", "reconcile 3"]);
    assert_eq!(turn.records, ["1", "quarantine 2", "3"], "no partial decision remains");
    assert_eq!(turn.actions.iter().map(|deed| deed.1).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((turn.counts.panics, reconciler.next_at()), (1, None));
    reconciler.turn(at(2), [Event::Mark(2)]);
    assert!(log.take().is_empty(), "not reconciled");
    let turn = reconciler.turn(at(3), [Event::Release(2)]);
    assert_eq!(log.take(), ["reconcile 2", "reconcile 4"]);
    assert_eq!(turn.records, ["2"]);
}

#[test]
fn a_panic_while_applying_quarantines_the_key_of_the_event() {
    let (mut reconciler, log) = begun();
    let turn =
        reconciler.turn(at(1), [Event::Panic(Some(8)), Event::Panic(None), Event::Mark(1), Event::Mark(8)]);
    assert_eq!(log.take(), ["quarantined 8: cannot apply to Some(8)", "reconcile 1"]);
    assert_eq!((turn.records, turn.counts.panics), (vec!["quarantine 8".to_owned()], 2));
}
