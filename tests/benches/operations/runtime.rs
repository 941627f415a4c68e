//! Operations of the runtime, with a world that only schedules wakes.

use std::hint::black_box;

use herdlet_runtime::{self as runtime, Dirty, Now, Reconciler, Release, Turn, Wake, WakeQueue};

/// Number of waiting keys.
const KEYS: u64 = 1_000;

/// Interval between the wakes of two keys.
const STEP_NS: u64 = 1_000_000;

pub(super) fn wake_and_cancel() -> Box<dyn FnMut()> {
    let mut queue = waiting();
    let mut key = 0;
    Box::new(move || {
        key = (key + 7) % KEYS;
        queue.cancel(black_box(&key));
        queue.wake(Wake { key, at_boot_ns: (KEYS - key) * STEP_NS, why: "again" });
    })
}

pub(super) fn wake_and_pop() -> Box<dyn FnMut()> {
    let mut queue = waiting();
    let mut now = 0;
    Box::new(move || {
        now += STEP_NS;
        while let Some(Wake { key, .. }) = queue.pop_due(black_box(now)) {
            queue.wake(Wake { key, at_boot_ns: now + KEYS * STEP_NS, why: "again" });
        }
    })
}

pub(super) fn turn() -> Box<dyn FnMut()> {
    let mut reconciler = Reconciler::new(Alarms);
    let mut boot_ns = 0;
    Box::new(move || {
        boot_ns += STEP_NS;
        let turn = reconciler.turn(Now { boot_ns, wall_ns: 0 }, 0..KEYS);
        assert_eq!(turn.counts.keys as u64, KEYS);
        black_box(turn.counts);
    })
}

fn waiting() -> WakeQueue<u64> {
    let mut queue = WakeQueue::default();
    for key in 0..KEYS {
        queue.wake(Wake { key, at_boot_ns: (key + 1) * STEP_NS, why: "first" });
    }
    queue
}

/// Marks the key of each event, and wakes it a minute later.
struct Alarms;

struct Nothing;

impl runtime::Action for Nothing {
    fn release(&self) -> Release {
        Release::AtOnce
    }
}

impl runtime::World for Alarms {
    type Key = u64;
    type Event = u64;
    type Action = Nothing;
    type Record = ();
    type Status = ();
    type Reply = ();

    fn apply(&mut self, _: Now, event: u64, dirty: &mut Dirty<u64>, _: &mut Turn<Self>) {
        dirty.mark(event);
    }

    fn reconcile(&mut self, now: Now, key: &u64, turn: &mut Turn<Self>) {
        turn.wake(*key, now.boot_ns + 60_000_000_000, "later");
    }

    fn quarantined(&mut self, _: Now, _: &u64, _: &str, _: &mut Turn<Self>) {}
}
