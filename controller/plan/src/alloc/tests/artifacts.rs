//! Tests of artifacts: the fetch before a task's first start, and failures.

use super::*;
use crate::{plan::Waiting, state::PermanentFailure as Why};

const ARTIFACTS: Part = Part::Task(0, TaskPart::Artifacts);

fn refused(class: FailureClass) -> Outcome {
    Outcome::Failed { class, why: "fetch https://example.test/a.tgz: 404 Not Found".to_string() }
}

/// The task's events, one per line.
fn messages(life: &Bench<'_>) -> Vec<String> {
    life.state.durable.tasks[0]
        .events
        .iter()
        .map(|event| format!("{}: {}", event.kind.as_str(), event.message))
        .collect()
}

#[test]
fn artifacts_follow_the_directory_and_precede_the_process() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir])));
    life.settle();
    assert_eq!(life.issued, ["Up"], "the directory");
    life.outcome(TASK_DIR, Outcome::Done(None));
    assert!(matches!(life.state.parts.get(ARTIFACTS), PartState::Busy { doing: Doing::Up, .. }));
    assert_eq!(messages(&life), ["Downloading Artifacts: Client is downloading artifacts"]);
    let plan = super::plan(life.now, &life.ctx, &spec, &life.state);
    assert!(plan.waits.contains(&Waiting::Part(ARTIFACTS)));
    life.outcome(ARTIFACTS, Outcome::Done(None));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Starting { attempt: 1, .. }));
}

#[test]
fn new_agent_inspects_artifacts_without_fetching() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let task = TaskState { attempt: 1, ..pending() };
    let parts = || {
        let mut parts = Parts::unknown();
        for part in [Part::Dir, TASK_DIR] {
            parts.set_part(part, PartState::Up);
        }
        parts.set_part(PROCESS, PartState::Absent);
        parts
    };
    for (seen, fetched) in [(Outcome::Present(None), false), (Outcome::Absent, true)] {
        let mut life = Bench::new(&spec, known(vec![task.clone()], Stage::Main, parts()));
        life.settle();
        assert_eq!(life.issued, ["Inspect"]);
        life.outcome(ARTIFACTS, seen);
        assert_eq!(life.issued.contains(&"Up".to_string()), fetched);
        assert_eq!(life.issued.contains(&"Start { attempt: 2 }".to_string()), !fetched);
    }
    // A running task has fetched them.
    let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, parts()));
    life.state.parts.set_part(PROCESS, PartState::Up);
    life.settle();
    assert_eq!(life.issued, [""; 0]);
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    assert_eq!(*life.state.parts.get(ARTIFACTS), PartState::Unknown);
}

#[test]
fn failed_artifact_counts_as_failed_start() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    for round in 1..=2 {
        life.outcome(ARTIFACTS, refused(FailureClass::Recoverable));
        let known = &life.state.durable.tasks[0];
        assert!(matches!(known.run, Run::BackingOff { .. }), "{known:?}");
        assert_eq!((known.restarts, known.attempt), (round, 0));
        let failed = known.events.iter().find(|event| event.kind == TaskEventKind::FailedArtifactDownload);
        assert!(failed.unwrap().details["download_error"].ends_with("404 Not Found"));
        life.now = at(100 + 20 * u64::from(round));
        life.settle();
        assert!(life.state.parts.get(ARTIFACTS).is_busy(), "the download is retried");
    }
    life.outcome(ARTIFACTS, refused(FailureClass::Recoverable));
    let known = &life.state.durable.tasks[0];
    assert!(known.run == Run::Dead && known.failed);
    assert_eq!(life.state.durable.status, ClientStatus::Failed);
    let last = messages(&life).pop().unwrap();
    assert!(last.starts_with("Not Restarting: Exceeded allowed attempts 2"), "{last}");
}

#[test]
fn fatal_artifact_failure_is_not_retried() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    life.outcome(ARTIFACTS, refused(FailureClass::Fatal));
    let known = &life.state.durable.tasks[0];
    assert!(known.run == Run::Dead && known.failed);
    assert_eq!(messages(&life).pop().unwrap(), "Not Restarting: Error was unrecoverable");
}

/// The machine lacks something, which is not the task's fault.
#[test]
fn artifact_failure_of_the_machine_does_not_count() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    life.outcome(ARTIFACTS, refused(FailureClass::Retry));
    let known = &life.state.durable.tasks[0];
    assert_eq!((&known.run, known.restarts), (&Run::Waiting, 0));
    assert!(matches!(life.state.parts.get(ARTIFACTS), PartState::Failed { .. }));
    life.now = at(101);
    life.settle();
    assert!(life.state.parts.get(ARTIFACTS).is_busy());
}

#[test]
fn stop_cancels_a_download() {
    let mut spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    let state = life.state;
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Gone;
    let mut life = Bench::new(&spec, state);
    life.generation = 1;
    life.settle();
    assert_eq!(life.issued, ["Withdraw"]);
    assert!(life.state.parts.get(ARTIFACTS).is_busy(), "the directory is not removed during a download");
    assert_eq!(life.state.durable.tasks[0].run, Run::Dead);
    life.outcome(ARTIFACTS, refused(FailureClass::Recoverable));
    let known = &life.state.durable.tasks[0];
    assert!(known.run == Run::Dead && !known.failed);
    assert_eq!(life.issued, ["Withdraw", "Down"], "the directory is removed");
}

/// An agent died that may have started the first attempt. Its successor could not fetch the artifacts any more, and
/// died too.
#[test]
fn possible_start_is_fenced_despite_failed_artifacts() {
    let spec = alloc(vec![fetching(task("main", Lifecycle::Main))]);
    let backing_off = |permanent_failure| TaskState {
        run: Run::BackingOff { until: crate::time::Deadline::after(at(100), Duration::from_secs(60)) },
        permanent_failure,
        ..pending()
    };
    let permanent_failure = Why { kind: TaskEventKind::NotRestarting, message: "no".to_string() };
    let durable = Durable {
        adopted: true,
        boot: Some(at(100).boot),
        stage: Stage::Main,
        tasks: vec![backing_off(Some(permanent_failure))],
        ..Durable::default()
    };
    let mut life = Bench::new(&spec, AllocState::restored(&spec, durable, at(100)));
    assert_eq!(life.state.maybe_begun, [0].into());
    life.settle();
    assert!(matches!(life.state.durable.tasks[0].run, Run::Stopping { attempt: 1, ran: false, .. }));
    assert!(life.issued.iter().any(|verb| verb.starts_with("Stop { attempt: 1")), "{:?}", life.issued);
}
