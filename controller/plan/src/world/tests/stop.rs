//! Stopping one allocation by request: its job creates a replacement.

use herdlet_api_types::Duration;

use super::*;
use crate::{
    event::Ending,
    job::placed::has_ended,
    state::{Run, StopStep},
};

fn stop(bench: &mut Bench, alloc: AllocId) -> Reply {
    bench.ask(Command::StopAlloc { alloc }).0
}

#[test]
fn stopped_allocation_is_replaced() {
    let mut bench = running();
    let old = bench.id();
    assert!(matches!(stop(&mut bench, old), Reply::Accepted { .. }));
    let wanted = |bench: &Bench| bench.world.allocs.get(old).map(|entry| entry.spec.desired);
    assert_eq!(wanted(&bench), Some(Desired::Stop));
    // A repeated request while it stops changes nothing.
    assert!(matches!(stop(&mut bench, old), Reply::Accepted { .. }));
    bench.settle();
    let next = bench.world.allocs.iter().find(|(_, entry)| entry.spec.previous == Some(old));
    let next = next.map(|(id, entry)| (id, entry.spec.desired, entry.spec.job_version));
    assert_eq!(next.map(|(_, desired, version)| (desired, version)), Some((Desired::Run, 0)));
    assert!(
        matches!(stop(&mut bench, old), Reply::Refused(Refusal::Conflict(_))),
        "the allocation has ended"
    );
    assert!(!bench.job().deleting);
}

#[test]
fn unknown_allocation_is_not_stopped() {
    let mut bench = running();
    let reply = stop(&mut bench, AllocId::from_hash([9; 16]));
    assert!(matches!(reply, Reply::Refused(Refusal::NotFound(_))));
    let known = bench.world.allocs.iter().next().map(|(_, entry)| entry.spec.desired);
    assert_eq!(known, Some(Desired::Run));
}

#[test]
fn a_stop_by_request_is_one_change() {
    let mut bench = running();
    let alloc = bench.id();
    let mut grown = || bench.ask(Command::StopAlloc { alloc }).1;
    assert_eq!([grown(), grown()], [1, 0]);
}

/// Two delays of an hour each, the group's and then the task's.
fn delayed() -> Bench {
    let hour = Duration::from_secs(3_600);
    let mut jobs = one_task();
    jobs[0].groups[0].shutdown_delay = hour;
    jobs[0].groups[0].tasks[0].shutdown_delay = hour;
    let mut bench = Bench::new();
    bench.apply(jobs, Vec::new());
    bench.settle();
    bench
}

fn skip(bench: &mut Bench, of: Ending) -> u64 {
    let (reply, grown) = bench.ask(Command::SkipShutdownDelay { of });
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    grown
}

/// Whether a stop of the task was requested.
fn begin_stop(bench: &mut Bench) -> bool {
    let is_stop = |action: &Action| matches!(action.verb, Verb::Stop { .. });
    bench.turn.actions.iter().any(is_stop)
}

/// A delay of an hour was configured by mistake for a second. Only the agent's end could shorten it.
#[test]
fn running_delay_ends_on_request() {
    let key = one_task()[0].key();
    for asked in [Command::Delete { job: key.clone() }, Command::Stop { job: key.clone() }] {
        let mut bench = delayed();
        bench.ask(asked.clone());
        bench.now = at(100);
        assert!(!begin_stop(&mut bench), "its delay is running: {asked:?}");
        assert_eq!(skip(&mut bench, Ending::Job(key.clone())), 1);
        assert!(begin_stop(&mut bench), "{asked:?}");
        assert_eq!(skip(&mut bench, Ending::Job(key.clone())), 0, "a second request changes nothing");
        bench.settle();
        let left = bench.world.allocations().any(|(_, state)| !has_ended(&state.durable));
        assert!(!left, "{asked:?}");
        assert_eq!(skip(&mut bench, Ending::Job(key.clone())), 0, "a removed job needs nothing");
    }
}

#[test]
fn skipped_task_delay_is_stored() {
    let mut bench = delayed();
    let alloc = bench.id();
    assert_eq!(skip(&mut bench, Ending::Alloc(alloc)), 0, "it is not being stopped");
    stop(&mut bench, alloc);
    // The group's delay is over, and the task's runs.
    bench.now = at(3_700);
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    bench.settle();
    let step = |bench: &Bench| {
        let (_, state) = bench.world.allocation(alloc).expect("the allocation");
        match &state.durable.tasks[0].run {
            Run::Stopping { step, .. } => Some(core::mem::discriminant(step)),
            Run::Waiting
            | Run::BackingOff { .. }
            | Run::Starting { .. }
            | Run::Running { .. }
            | Run::Dead => None,
        }
    };
    let until = Deadline::after(at(1), Duration::ZERO);
    assert_eq!(step(&bench), Some(core::mem::discriminant(&StopStep::Delay { until })));
    // It runs, and receives signals.
    let signal = Command::Signal { alloc, task: None, signal: "SIGHUP".to_owned() };
    assert!(matches!(bench.ask(signal.clone()).0, Reply::Accepted { .. }));
    let is_signal = |action: &Action| matches!(&action.verb, Verb::Signal { attempt: 1, .. });
    assert!(bench.turn.actions.iter().any(is_signal), "{:?}", bench.turn.actions);
    bench.turn.actions.clear();
    assert_eq!(skip(&mut bench, Ending::Alloc(alloc)), 1);
    assert!(begin_stop(&mut bench));
    assert!(matches!(bench.ask(signal).0, Reply::Refused(Refusal::Conflict(_))), "the task is being stopped");
    bench.restart(at(3_701));
    let (_, state) = bench.world.allocation(alloc).expect("the allocation");
    assert!(state.durable.no_shutdown_delay);
    assert_eq!(step(&bench), Some(core::mem::discriminant(&StopStep::Kill { until })));
}

#[test]
fn skipped_delay_does_not_affect_the_replacement() {
    let mut bench = delayed();
    let old = bench.id();
    stop(&mut bench, old);
    skip(&mut bench, Ending::Alloc(old));
    bench.restart(at(2));
    bench.settle();
    assert!(bench.world.allocation(old).is_none_or(|(_, state)| has_ended(&state.durable)));
    let next = bench.world.allocations().find(|(spec, _)| spec.previous == Some(old));
    let (_, state) = next.expect("the allocation of its job");
    assert!(!state.durable.no_shutdown_delay);
}

/// A job was deleted without its delays before all folders were read, and a folder turned out to want it.
#[test]
fn resumed_allocation_keeps_its_delay() {
    let mut bench = delayed();
    let (alloc, key) = (bench.id(), one_task()[0].key());
    bench.world.ctx.complete = false;
    bench.ask(Command::Delete { job: key.clone() });
    assert_eq!(skip(&mut bench, Ending::Job(key)), 1);
    let (text, hurried) = (Job::clone(&bench.job().job), |bench: &Bench| {
        let (spec, state) = bench.world.allocation(alloc).expect("the allocation");
        (spec.desired, state.durable.no_shutdown_delay)
    });
    assert_eq!(hurried(&bench), (Desired::Run, true));
    bench.apply(vec![text], Vec::new());
    assert_eq!(hurried(&bench), (Desired::Run, false));
    bench.restart(at(3));
    assert_eq!(hurried(&bench), (Desired::Run, false), "the request is stored");
}
