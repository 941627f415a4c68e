//! Tests with the parts that only tests have: pending needs, stored and unknown facts, notifications of a running task.

use super::*;
use crate::facts::{Fact, Revision};

const PROBE: Part = Part::Task(0, TaskPart::Probe);
const READER: Part = Part::Task(0, TaskPart::ProbeReader);

fn probing() -> Arc<Allocation> {
    let mut main = task("main", Lifecycle::Main);
    main.config = serde_json::json!({ "probe": true });
    alloc(vec![main])
}

/// A task that waits only for its probe, and has never had one.
fn life(spec: &Arc<Allocation>) -> Bench<'_> {
    let mut state = known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR]));
    state.durable.offered = Some(BTreeSet::new());
    state.durable.boot = Some(at(0).boot);
    Bench::new(spec, state)
}

fn made(revision: u64) -> Outcome {
    Outcome::Done(Some(Arc::new(Facts { revision: Revision(revision), ..Facts::none() })))
}

/// A running task, with these values of both parts.
fn running_with(spec: &Arc<Allocation>, revision: u64) -> Bench<'_> {
    let mut life = life(spec);
    life.settle();
    life.outcome(PROBE, made(revision));
    life.outcome(READER, made(revision));
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Running { .. }), "{:?}", life.issued);
    life
}

/// The next agent, which knows only the stored state.
fn restored(life: &mut Bench<'_>) {
    let durable = Durable::clone(&life.state.durable);
    life.state = AllocState::restored(life.spec, durable, life.now);
    life.issued.clear();
}

#[test]
fn start_waits_for_a_pending_part() {
    let spec = probing();
    let mut life = life(&spec);
    life.settle();
    let wait = Outcome::Pending { on: "a key".to_string(), ask_in: Duration::from_secs(30) };
    life.outcome(PROBE, wait);
    assert!(matches!(life.state.parts.get(PROBE), PartState::Pending { .. }));
    assert_eq!(
        *life.state.parts.get(READER),
        PartState::Absent,
        "the reader is not created without its source"
    );
    let plan = plan(life.now, &life.ctx, &spec, &life.state);
    assert!(plan.waits.contains(&Waiting::Part(PROBE)) && plan.wake_ns == Some(at(130).boot_ns));
    life.now = at(130);
    life.settle();
    assert!(life.state.parts.get(PROBE).is_busy(), "the operation is retried");
}

#[test]
fn launch_records_revisions_of_its_parts() {
    let spec = probing();
    let mut life = life(&spec);
    life.settle();
    assert!(life.state.durable.may_be_held(PROBE), "the state is stored first");
    life.outcome(PROBE, made(4));
    assert!(life.state.parts.get(READER).is_busy());
    life.outcome(READER, made(4));
    assert_eq!(
        life.state.durable.facts.keys().collect::<Vec<_>>(),
        [&READER],
        "an inspection finds the other"
    );
    let launch = life.state.launch(PROCESS).expect("a launch");
    assert_eq!(launch.revisions, [(PROBE, Revision(4)), (READER, Revision(4))].into());
}

#[test]
fn new_agent_inspects_unstored_parts_before_a_start() {
    let spec = probing();
    let mut life = running_with(&spec, 4);
    restored(&mut life);
    assert_eq!(life.state.fact(PROBE), Fact::Unknown);
    assert!(matches!(life.state.fact(READER), Fact::Known(facts) if facts.revision == Revision(4)));
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.now = at(120);
    life.settle();
    let starts = |life: &Bench<'_>| life.issued.iter().any(|verb| verb.starts_with("Start"));
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Exited(exit(1))));
    life.outcome(PROCESS, Outcome::Done(None));
    for part in [Part::Dir, TASK_DIR] {
        life.outcome(part, Outcome::Present(None));
    }
    assert!(!starts(&life), "{:?}", life.issued);
    let Outcome::Done(facts) = made(4) else { panic!("expected facts") };
    life.outcome(PROBE, Outcome::Present(facts));
    life.outcome(READER, made(4));
    assert!(starts(&life), "{:?}", life.issued);
}

/// The probe vanishes and is created again with another value: the process gets a signal, and restarts because its
/// reader has another value too. Both are stored before they are executed.
#[test]
fn a_running_task_is_owed_what_its_parts_have_changed() {
    let spec = probing();
    let mut life = running_with(&spec, 4);
    life.write(|writer| writer.drift(PROBE, Noticed::Event));
    life.settle();
    life.outcome(PROBE, Outcome::Absent);
    assert!(life.state.fact(PROBE) != Fact::Unknown, "the last good value is kept");
    let signals = |life: &Bench<'_>| life.issued.iter().filter(|verb| verb.starts_with("Signal")).count();
    assert_eq!(signals(&life), 0);
    life.outcome(PROBE, made(5));
    assert_eq!(signals(&life), 1, "{:?}", life.issued);
    assert!(
        life.state.durable.tasks[0].owed.contains_key(&TaskPart::Probe),
        "the notification is owed until it arrives"
    );
    assert!(life.state.parts.get(READER).is_busy(), "the reader is created again");
    restored(&mut life);
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    for part in [Part::Dir, TASK_DIR] {
        life.outcome(part, Outcome::Present(None));
    }
    let now = Facts { revision: Revision(5), ..Facts::none() };
    life.outcome(PROBE, Outcome::Present(Some(Arc::new(now))));
    assert_eq!(signals(&life), 1, "the next agent sends it again: {:?}", life.issued);
    life.outcome(READER, made(5));
    let recorded = life.state.durable.tasks[0].events.iter().map(|event| event.message.clone());
    assert!(recorded.into_iter().any(|message| message == "the probe has changed"));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Stopping { then: AfterStop::Restart, .. }));
}

#[test]
fn unrequested_part_is_not_taken_down() {
    let mut spec = probing();
    Arc::make_mut(&mut spec).desired = Desired::Stop;
    for (offered, taken_down) in [(BTreeSet::new(), false), (BTreeSet::from([PROBE]), true)] {
        let mut life = life(&spec);
        life.state.durable.offered = Some(offered);
        life.state.parts.set_part(PROBE, PartState::Unknown);
        life.settle();
        assert_eq!(life.state.parts.get(PROBE).is_busy(), taken_down, "{:?}", life.issued);
    }
}
