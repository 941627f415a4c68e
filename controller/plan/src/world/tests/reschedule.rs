//! Allocations that fail for good, and their replacements.

use herdlet_api_types::{
    Duration,
    job::{Network, PortRequest},
    view::{Reason, Wait},
};

use super::*;

/// A job that is not restarted, and rescheduled once within an hour.
fn fragile() -> Job {
    let mut job = one_task().remove(0);
    job.groups[0].tasks[0].restart.attempts = 0;
    job.groups[0].reschedule = fixture::reschedule();
    job
}

fn broken() -> (Bench, AllocId) {
    let mut bench = Bench::new();
    bench.apply(vec![fragile()], Vec::new());
    bench.settle();
    let first = bench.id();
    bench.fail(first);
    bench.settle();
    (bench, first)
}

impl Bench {
    /// Lets time pass, and plans the job as it requested.
    fn pass(&mut self, now: Now) {
        self.now = now;
        self.dirty.insert(Key::Job(one_task()[0].key()));
        self.plan();
        self.settle();
    }

    fn other_than(&self, known: &[AllocId]) -> Option<AllocId> {
        self.world.allocs.iter().map(|(id, _)| id).find(|id| !known.contains(id))
    }
}

#[test]
fn reschedule_follows_the_delay_up_to_its_limit() {
    let (mut bench, first) = broken();
    let verdict = bench.convergence(&one_task()[0].key());
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Backoff)));
    assert!(verdict.message.ends_with("a replacement starts 5s later"), "{}", verdict.message);
    let wakes = bench.turn.wakes.iter().filter(|(key, _)| matches!(key, Key::Job(_)));
    assert!(wakes.clone().any(|(_, at_ns)| *at_ns == at(6).boot_ns));
    let shown = bench.last_view().expect("a published view");
    assert_eq!(shown.reschedule_at, Some(at(6).wall));

    // Neither another agent nor a change of the clock brings it nearer.
    bench.restart(at(4));
    bench.pass(Now { wall: at(9_999).wall, ..at(5) });
    assert_eq!(bench.other_than(&[first]), None);
    bench.pass(at(6));
    let second = bench.other_than(&[first]).expect("a replacement");
    let (spec, _) = bench.world.allocation(second).expect("the replacement");
    assert_eq!((spec.previous, spec.index), (Some(first), 0));
    let [event] = &spec.rescheduled[..] else { panic!("expected one event: {:?}", spec.rescheduled) };
    assert_eq!((event.previous, event.delay), (first, Duration::from_secs(5)));
    let (before, _) = bench.world.allocation(first).expect("the failed allocation, kept for its logs");
    assert_eq!((before.next, before.desired), (Some(second), Desired::Stop));
    assert_eq!(before.desired_description, "alloc was rescheduled because it failed");

    bench.fail(second);
    bench.settle();
    assert_eq!(bench.convergence(&one_task()[0].key()).state, ConvergenceState::Failed);
    // The decision stands, although its attempt no longer counts.
    bench.pass(at(9_999));
    assert_eq!(bench.other_than(&[first, second]), None);
}

#[test]
fn version_with_equal_tasks_decides_reschedule_again() {
    let (mut bench, first) = broken();
    let mut job = fragile();
    job.groups[0].reschedule.attempts = 0;
    bench.apply(vec![job.clone()], Vec::new());
    assert_eq!(
        bench.convergence(&job.key()).state,
        ConvergenceState::Failed,
        "no reschedule is allowed any more"
    );
    bench.pass(at(100));
    assert_eq!(bench.other_than(&[first]), None);
    job.groups[0].reschedule.attempts = 1;
    bench.apply(vec![job], Vec::new());
    bench.pass(at(105));
    assert!(bench.other_than(&[first]).is_some());
}

#[test]
fn version_with_other_tasks_is_placed_at_once() {
    let (mut bench, first) = broken();
    let mut job = fragile();
    job.groups[0].tasks[0].env.insert("A".to_owned(), "1".to_owned());
    bench.apply(vec![job], Vec::new());
    bench.settle();
    let second = bench.other_than(&[first]).expect("an immediate replacement");
    assert!(bench.world.allocation(second).is_some_and(|(spec, _)| spec.rescheduled.is_empty()));
}

/// A user who waits for the job would have given up.
#[test]
fn job_is_not_failed_before_reschedule_is_decided() {
    let mut bench = Bench::new();
    bench.apply(vec![fragile()], Vec::new());
    bench.settle();
    bench.turn.views.clear();
    bench.fail(bench.id());
    let state = |view: &View| if let View::Job(view) = view { Some(view.convergence.state) } else { None };
    let states: Vec<ConvergenceState> = bench.turn.views.iter().filter_map(state).collect();
    assert!(states.contains(&ConvergenceState::Waiting), "{states:?}");
    assert!(!states.contains(&ConvergenceState::Failed), "{states:?}");
}

#[test]
fn reschedule_wait_is_explained() {
    let (mut bench, first) = broken();
    let (reply, _) = bench.ask(Command::Explain { alloc: first });
    let Reply::Explanation(explanation) = reply else { panic!("{reply:?}") };
    let waits: Vec<_> = explanation.waits.iter().map(|wait| (&*wait.part, wait.reason, wait.until)).collect();
    assert!(waits.contains(&("allocation", Reason::Backoff, Some(at(6).wall))), "{waits:?}");
}

#[test]
fn an_allocation_remembers_only_the_attempts_that_still_count() {
    let (mut bench, first) = broken();
    bench.pass(at(6));
    let second = bench.other_than(&[first]).expect("a replacement");
    bench.now = at(9_000);
    bench.fail(second);
    bench.settle();
    bench.pass(at(9_005));
    let third = bench.other_than(&[first, second]).expect("a replacement");
    let (spec, _) = bench.world.allocation(third).expect("the replacement");
    let previous: Vec<AllocId> = spec.rescheduled.iter().map(|event| event.previous).collect();
    assert_eq!(previous, [second]);
}

/// A failed job could not be started again without a change.
#[test]
fn stop_request_replaces_a_failed_allocation() {
    let (mut bench, first) = broken();
    bench.ask(Command::StopAlloc { alloc: first });
    bench.settle();
    let second = bench.other_than(&[first]).expect("a replacement");
    let (spec, _) = bench.world.allocation(second).expect("the replacement");
    assert_eq!((spec.previous, spec.index), (Some(first), 0));
    assert_eq!(bench.convergence(&one_task()[0].key()).state, ConvergenceState::Converged);
    let (reply, _) = bench.ask(Command::StopAlloc { alloc: first });
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
}

/// The task's own message is often lost in its log.
#[test]
fn port_in_use_is_named_after_the_tasks_ended() {
    let mut job = fragile();
    let ports = [("http".to_owned(), PortRequest { fixed: Some(8080), to: None })].into();
    job.groups[0].network = Some(Network { ports, ..Network::default() });
    let request = PortRequest { fixed: Some(8081), to: None };
    job.groups[0].tasks[0].ports = [("http".to_owned(), request)].into();
    let task = job.groups[0].tasks[0].name.clone();
    let mut bench = Bench::new();
    bench.apply(vec![job], Vec::new());
    bench.settle();
    let alloc = bench.id();
    bench.see(Event::Listening([8080, 8081].into()));
    let waits = |bench: &mut Bench| {
        let Reply::Explanation(explained) = bench.ask(Command::Explain { alloc }).0 else {
            panic!("no explanation")
        };
        explained.waits
    };
    let is_of_group = |wait: &Wait| wait.part == "port http" && wait.message.contains("listens on port 8080");
    let part = std_alloc::format!("port {task}/http");
    let is_of_task = |wait: &Wait| wait.part == part && wait.message.contains("listens on port 8081");
    let are_named = |waits: &[Wait]| [waits.iter().any(is_of_group), waits.iter().any(is_of_task)];
    assert_eq!(are_named(&waits(&mut bench)), [false, false], "its own task listens there");
    bench.fail(alloc);
    bench.settle();
    assert_eq!(are_named(&waits(&mut bench)), [true, true]);
    bench.see(Event::Listening([].into()));
    assert_eq!(are_named(&waits(&mut bench)), [false, false]);
}
