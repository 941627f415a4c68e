//! Tests of `secret` blocks: fetched before the first start and before everything that may use them, and never again.

use herdlet_api_types::{fixture, job::TemplateChange};

use super::*;
use crate::plan::Waiting;

const SECRETS: Part = Part::Task(0, TaskPart::Secrets);
const ARTIFACTS: Part = Part::Task(0, TaskPart::Artifacts);

fn spec() -> Arc<Allocation> {
    let mut main = fetching(task("main", Lifecycle::Main));
    main.secrets = [fixture::secret("db", "nomad/jobs/web")].into();
    alloc(vec![main])
}

fn messages(life: &Bench<'_>) -> Vec<String> {
    let events = life.state.durable.tasks[0].events.iter();
    events.map(|event| format!("{}: {}", event.kind.as_str(), event.message)).collect()
}

#[test]
fn secrets_are_waited_for_before_anything_uses_them() {
    let spec = spec();
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    assert!(matches!(life.state.parts.get(SECRETS), PartState::Busy { doing: Doing::Up, .. }));
    assert_eq!(*life.state.parts.get(ARTIFACTS), PartState::Absent, "their headers may have values");
    let on = "nomad/jobs/web".to_string();
    life.outcome(SECRETS, Outcome::Pending { on, ask_in: Duration::from_secs(60) });
    assert!(
        messages(&life).contains(&"Template: Missing: nomad/jobs/web".to_string()),
        "{:?}",
        messages(&life)
    );
    let plan = super::plan(life.now, &life.ctx, &spec, &life.state);
    assert!(plan.waits.contains(&Waiting::Part(SECRETS)));
    life.write(|writer| writer.source_changed(SECRETS));
    life.settle();
    assert!(life.state.parts.get(SECRETS).is_busy(), "it is read at once");
    life.outcome(SECRETS, Outcome::Done(None));
    assert!(life.state.parts.get(ARTIFACTS).is_busy());
    life.outcome(ARTIFACTS, Outcome::Done(None));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Starting { attempt: 1, .. }));
}

#[test]
fn a_task_whose_secrets_cannot_be_fetched_fails() {
    let spec = spec();
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    let why = "fetch the secret \"db\": the plugin says no".to_string();
    life.outcome(SECRETS, Outcome::Failed { class: FailureClass::Fatal, why });
    let known = &life.state.durable.tasks[0];
    assert!(known.failed && known.restarts == 0, "{known:?}");
    let expected = "secrets: fetch the secret \"db\": the plugin says no";
    assert!(messages(&life).iter().any(|text| text.contains(expected)), "{:?}", messages(&life));
}

/// Templates of a running task waited for the inspection of its secrets, which only a start needs.
#[test]
fn templates_of_a_running_task_do_not_wait_for_its_secrets() {
    let mut spec = spec();
    let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
    job.groups[0].tasks[0].templates.push(fixture::template(TemplateChange::Restart));
    let mut parts = Parts::unknown();
    for part in [Part::Dir, TASK_DIR, PROCESS] {
        parts.set_part(part, PartState::Up);
    }
    let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, parts));
    life.settle();
    assert!(life.state.parts.get(Part::Task(0, TaskPart::Templates)).is_busy(), "{:?}", life.issued);
}

/// Nomad fetches again after a restart of its agent; the running task keeps what it has read.
#[test]
fn a_running_task_and_a_new_agent_fetch_nothing() {
    let spec = spec();
    let mut parts = Parts::unknown();
    for part in [Part::Dir, TASK_DIR, PROCESS] {
        parts.set_part(part, PartState::Up);
    }
    let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, parts));
    life.settle();
    assert_eq!(life.issued, [""; 0]);
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    assert!(!life.issued.contains(&"Up".to_string()), "{:?}", life.issued);
    assert_eq!(*life.state.parts.get(SECRETS), PartState::Unknown);
}
