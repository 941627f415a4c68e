//! Tests of the token of Vault: what concerns a running task, and what losing Vault does not change.

use herdlet_api_types::{fixture, job::VaultAccess};

use super::*;
use crate::facts::Revision;

const VAULT: Part = Part::Task(0, TaskPart::Vault);

fn spec(change_mode: ChangeMode) -> Arc<Allocation> {
    let mut main = task("main", Lifecycle::Main);
    main.vault = Some(VaultAccess { change_mode, ..fixture::vault_access() });
    alloc(vec![main])
}

/// The token with this number, which is due for renewal after 30 seconds.
fn token(number: u64, now: Now) -> Option<Arc<Facts>> {
    let renew_at = Some(Deadline::after(now, Duration::from_secs(30)));
    Some(Arc::new(Facts { revision: Revision(number), renew_at, ..Facts::none() }))
}

/// A task that runs with its token 1.
fn life(spec: &Arc<Allocation>) -> Bench<'_> {
    let mut state = known(vec![running()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS, VAULT]));
    state.facts.set(VAULT, token(1, at(100)).unwrap());
    Bench::new(spec, state)
}

fn kept() -> Outcome {
    let on = "Vault, which has not renewed it since noon: no answer".to_string();
    Outcome::Outdated { on, ask_in: Duration::from_secs(20), since_ns: 7 }
}

/// Nomad's client 2.0.5 restarts the task after each renewal.
#[test]
fn only_another_token_concerns_a_running_task() {
    for (change_mode, expected) in
        [(ChangeMode::Restart, "restart"), (ChangeMode::Signal, "signal"), (ChangeMode::Noop, "nothing")]
    {
        let spec = spec(change_mode);
        let mut life = life(&spec);
        let mut effects = Vec::new();
        for (second, number) in [(130, 1), (160, 2)] {
            life.now = at(second);
            life.settle();
            assert!(matches!(life.state.parts.get(VAULT), PartState::Busy { doing: Doing::Renew, .. }));
            life.outcome(VAULT, Outcome::Done(token(number, at(second))));
            let restarts = life.state.durable.tasks[0].events.iter().any(|event| {
                event.kind == TaskEventKind::RestartSignaled
                    && event.message == "Vault: new Vault token acquired"
            });
            let signalled = life.issued.iter().any(|verb| verb.contains("SIGHUP"));
            effects.push(match (restarts, signalled) {
                (true, _) => "restart",
                (false, true) => "signal",
                (false, false) => "nothing",
            });
        }
        assert_eq!(effects, ["nothing", expected], "{:?}", life.issued);
    }
}

#[test]
fn losing_vault_leaves_a_running_task_alone() {
    let spec = spec(ChangeMode::Restart);
    let mut life = life(&spec);
    life.now = at(130);
    life.settle();
    life.outcome(VAULT, kept());
    let plan = super::plan(life.now, &life.ctx, &spec, &life.state);
    let explanation = show::explain(life.now, &spec, &life.state, &plan);
    let wait = explanation.waits.iter().find(|wait| wait.part == "task main: Vault token").unwrap();
    let message = "the last token is kept: waits for Vault, which has not renewed it since noon: no answer";
    let since = herdlet_api_types::UnixNanos(at(0).wall.0 + 7);
    assert_eq!((&*wait.message, wait.since), (message, Some(since)), "the agent may run for a shorter time");
    for (second, tries) in [(149, 1), (150, 2)] {
        life.now = at(second);
        life.settle();
        assert_eq!(life.issued.iter().filter(|verb| *verb == "Up").count(), tries, "{second}");
    }
    life.outcome(VAULT, kept());
    assert!(matches!(life.state.durable.tasks[0].run, Run::Running { .. }));
    // Vault is back, and the token is still good.
    life.now = at(170);
    life.settle();
    life.outcome(VAULT, Outcome::Done(token(1, at(170))));
    assert!(!life.state.durable.tasks[0].restart_requested);
    assert_eq!(*life.state.parts.get(VAULT), PartState::Up);
}

/// Also if its templates are to be rendered for each start.
#[test]
fn a_task_restarts_with_its_last_token() {
    for render_templates in [false, true] {
        let mut spec = spec(ChangeMode::Noop);
        let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
        job.groups[0].tasks[0].restart.render_templates = render_templates;
        let mut state = known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR]));
        state.facts.set(VAULT, token(1, at(100)).unwrap());
        let mut life = Bench::new(&spec, state);
        life.settle();
        life.outcome(VAULT, kept());
        assert!(matches!(life.state.durable.tasks[0].run, Run::Starting { .. }), "{render_templates}");
    }
}

#[test]
fn a_task_that_never_had_a_token_waits() {
    let spec = spec(ChangeMode::Restart);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    let why = "log in at auth/jwt-nomad: no answer".to_string();
    life.outcome(VAULT, Outcome::Failed { class: FailureClass::Retry, why });
    assert_eq!(life.state.durable.tasks[0].run, Run::Waiting);
    assert!(!life.state.durable.tasks[0].failed);
    life.now = at(200);
    life.settle();
    life.outcome(VAULT, Outcome::Done(token(1, at(200))));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Starting { attempt: 1, .. }));
}
