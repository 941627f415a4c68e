//! Launches by example: on time, late, once, and without overlap.

use std_alloc::{
    borrow::ToOwned,
    collections::BTreeSet,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    fixture::{group, job, task},
    job::{JobType, Periodic},
};

use super::*;
use crate::{
    event::{Command, Event},
    fixture::at,
    world::tests::Bench,
};

/// Seconds from the start of the tests' clock (22:13:20) to 22:15.
const FIRST: u64 = 100;

fn nightly(prohibit_overlap: bool) -> Job {
    let periodic = Periodic {
        crons: vec!["*/5 * * * *".to_owned()],
        time_zone: "UTC".to_owned(),
        prohibit_overlap,
        enabled: true,
    };
    Job { periodic: Some(periodic), ..job("n", JobType::Batch, vec![group("g", 1, vec![task("main")])]) }
}

fn accepted(prohibit_overlap: bool) -> Bench {
    let mut bench = Bench::new();
    bench.apply(vec![nightly(prohibit_overlap)], Vec::new());
    bench.settle();
    bench
}

impl Bench {
    /// Sets the time, and plans the job.
    fn comes(&mut self, now: Now) {
        self.now = now;
        self.see(Event::ClockSet);
        self.settle();
    }
}

fn children(bench: &Bench) -> Vec<String> {
    bench.world.children(&nightly(false).key()).map(|(key, _)| key.id.to_string()).collect()
}

fn child(seconds: u64) -> String {
    format!("n/periodic-{}", 1_700_000_000 + seconds)
}

#[test]
fn each_moment_is_launched_once_also_over_restarts() {
    let mut bench = accepted(false);
    assert_eq!(children(&bench), Vec::<String>::new());
    bench.comes(at(FIRST - 1));
    assert!(children(&bench).is_empty());
    for _ in 0..3 {
        bench.comes(at(FIRST));
        assert_eq!(children(&bench), [child(FIRST)]);
    }
    bench.restart(at(FIRST + 1));
    bench.see(Event::Desired(crate::event::DesiredChange::Complete));
    assert_eq!(children(&bench), [child(FIRST)]);
    // Two were missed meanwhile: one launch makes up for them.
    bench.restart(at(FIRST + 700));
    assert_eq!(children(&bench), [child(FIRST)], "not before all sources are complete");
    bench.see(Event::Desired(crate::event::DesiredChange::Complete));
    bench.settle();
    assert_eq!(children(&bench), [child(FIRST), child(FIRST + 700)]);
    bench.comes(at(FIRST + 899));
    assert_eq!(children(&bench).len(), 2);
    bench.comes(at(FIRST + 900));
    assert_eq!(children(&bench).len(), 3);
}

#[test]
fn a_clock_that_is_set_launches_no_moment_again() {
    let mut bench = accepted(false);
    let set = |boot: u64, wall: u64| Now { wall: at(wall).wall, ..at(boot) };
    bench.comes(at(FIRST + 300));
    let launched = children(&bench);
    bench.comes(set(FIRST + 301, FIRST - 10));
    bench.comes(set(FIRST + 320, FIRST + 10));
    bench.comes(set(FIRST + 611, FIRST + 301));
    assert_eq!(children(&bench), launched);
    bench.comes(set(FIRST + 910, FIRST + 600));
    assert_eq!(children(&bench).len(), launched.len() + 1);
    // A year ahead and back again: the schedule continues from the present.
    bench.comes(set(FIRST + 920, 31_536_000));
    let ahead = children(&bench).len();
    bench.comes(set(FIRST + 930, FIRST + 620));
    assert_eq!(children(&bench).len(), ahead);
    bench.comes(set(FIRST + 1_210, FIRST + 900));
    assert_eq!(children(&bench).len(), ahead + 1);
}

#[test]
fn overlapping_launch_is_skipped_unless_forced() {
    for (prohibit_overlap, expected) in [(false, 3), (true, 1)] {
        let mut bench = accepted(prohibit_overlap);
        for moment in 0..3 {
            bench.comes(at(FIRST + moment * 300));
        }
        assert_eq!(children(&bench).len(), expected, "prohibit_overlap: {prohibit_overlap}");
        bench.now = at(FIRST + 700);
        let force = Command::ForceLaunch { job: nightly(false).key() };
        let reply = bench.ask(force.clone()).0;
        let Reply::Dispatched { job, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(*job.id, *child(FIRST + 700));
        assert_eq!(children(&bench).len(), expected + 1);
        let again = bench.ask(force.clone()).0;
        assert!(matches!(again, Reply::Dispatched { job: twin, .. } if twin == job));
        bench.ask(Command::Delete { job });
        let reply = bench.ask(force).0;
        assert!(matches!(reply, Reply::Refused(Refusal::Conflict(_))), "{reply:?}");
    }
}

#[test]
fn a_job_that_comes_back_to_life_has_missed_nothing() {
    let mut bench = accepted(false);
    bench.ask(Command::Delete { job: nightly(false).key() });
    bench.now = at(FIRST + 10);
    bench.apply(vec![nightly(false)], Vec::new());
    bench.settle();
    assert!(children(&bench).is_empty());
    bench.comes(at(FIRST + 300));
    assert_eq!(children(&bench), [child(FIRST + 300)]);
}

#[test]
fn stopped_job_is_not_launched_and_misses_nothing() {
    let mut bench = accepted(false);
    let job = nightly(false).key();
    bench.ask(Command::Stop { job: job.clone() });
    bench.comes(at(FIRST + 900));
    assert_eq!(bench.world.jobs[&job].next_launch, None);
    let forced = bench.ask(Command::ForceLaunch { job: job.clone() }).0;
    assert!(matches!(forced, Reply::Refused(Refusal::Conflict(_))), "{forced:?}");
    assert!(children(&bench).is_empty());
    bench.ask(Command::Start { job });
    bench.comes(at(FIRST + 901));
    assert!(children(&bench).is_empty());
    bench.comes(at(FIRST + 1_200));
    assert_eq!(children(&bench), [child(FIRST + 1_200)]);
}

#[test]
fn disabled_job_is_not_launched() {
    let mut bench = accepted(false);
    let mut off = nightly(false);
    if let Some(periodic) = &mut off.periodic {
        periodic.enabled = false;
    }
    bench.apply(vec![off.clone()], Vec::new());
    bench.comes(at(FIRST + 3_000));
    let forced = bench.ask(Command::ForceLaunch { job: off.key() }).0;
    assert!(matches!(forced, Reply::Refused(Refusal::Conflict(_))), "{forced:?}");
    assert!(children(&bench).is_empty());
    // Enabled again: moments that passed meanwhile were not missed.
    bench.apply(vec![nightly(false)], Vec::new());
    bench.comes(at(FIRST + 3_001));
    assert!(children(&bench).is_empty());
    bench.comes(at(FIRST + 3_300));
    assert_eq!(children(&bench), [child(FIRST + 3_300)]);
}

#[test]
fn a_job_says_when_it_is_launched_next_and_is_woken_then() {
    let mut bench = accepted(false);
    let key = nightly(false).key();
    let next = |bench: &Bench| bench.world.jobs[&key].next_launch;
    assert_eq!(next(&bench), Some(at(FIRST).wall));
    bench.turn.wakes.clear();
    bench.comes(at(FIRST + 1));
    assert_eq!(next(&bench), Some(at(FIRST + 300).wall));
    let wakes: Vec<_> = bench.turn.wakes.iter().filter(|(of, _)| *of == Key::Job(key.clone())).collect();
    assert_eq!(wakes.last().map(|(_, wake)| *wake), Some(at(FIRST + 300).boot_ns));
    bench.ask(Command::Delete { job: key.clone() });
    bench.comes(at(FIRST + 600));
    assert!(children(&bench).len() == 1, "a deleted job is not launched again; its children continue");
}

#[test]
fn a_job_that_is_left_alone_launches_nothing() {
    let mut bench = accepted(false);
    bench.world.jobs.get_mut(&nightly(false).key()).expect("the job").quarantine =
        Some("a defect".to_owned());
    let (mut dirty, mut turn) = (BTreeSet::new(), crate::turn::Turn::default());
    let mut open = OpenTurn { now: at(FIRST), dirty: &mut dirty, turn: &mut turn };
    assert_eq!(bench.world.launch_due(&mut open, &nightly(false).key()), None);
    assert!(children(&bench).is_empty());
}
