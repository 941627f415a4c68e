//! Tests of an allocation's parts: failures, drift and renewal of directories, tokens and services.

use super::*;

/// Which tasks a failed operation fails, given one that waits and one that runs.
#[test]
fn fatal_part_failure_fails_waiting_tasks() {
    use FailureClass::{Fatal, Recoverable, Retry};
    let spec = alloc(vec![task("main", Lifecycle::Main), task("side", Lifecycle::PrestartSidecar)]);
    let own = |part| Part::Task(0, part);
    for (part, doing, class, expected) in [
        (Part::Dir, Doing::Up, Fatal, Some("Setup Failure")),
        (Part::Dir, Doing::Up, Retry, None),
        (Part::Dir, Doing::Up, Recoverable, None),
        (Part::Dir, Doing::Down, Fatal, None),
        (Part::Dir, Doing::Inspect(None), Fatal, None),
        (Part::Network, Doing::Up, Fatal, Some("Setup Failure")),
        (Part::Network, Doing::Up, Retry, None),
        (Part::Services, Doing::Up, Fatal, None),
        (Part::Checks, Doing::Up, Fatal, None),
        (own(TaskPart::Dir), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Identity), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Identity), Doing::Renew, Fatal, Some("Task hook failed")),
        (own(TaskPart::Vault), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Vault), Doing::Up, Retry, None),
        (own(TaskPart::Consul), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Consul), Doing::Up, Retry, None),
        (own(TaskPart::Templates), Doing::Up, Fatal, Some("Killing")),
        (own(TaskPart::Templates), Doing::Renew, Fatal, Some("Killing")),
        (own(TaskPart::Templates), Doing::Renew, Retry, None),
        (own(TaskPart::Mounts), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::CsiPlugin), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::CsiPlugin), Doing::Up, Retry, None),
        (own(TaskPart::Services), Doing::Up, Fatal, None),
        (Part::Task(1, TaskPart::Mounts), Doing::Up, Fatal, None),
    ] {
        let mut life = Bench::new(&spec, known(vec![pending(), running()], Stage::Main, Parts::absent()));
        life.write(|writer| {
            let timeout = Duration::from_secs(1);
            writer.change(Change::Issue { part, doing, verb: Verb::Up, timeout });
        });
        let generation = life.generation;
        let failed = Outcome::Failed { class, why: "no".to_string() };
        life.write(|writer| writer.outcome(part, generation, failed));
        let failing = |at: usize| {
            life.state.durable.tasks[at]
                .permanent_failure
                .as_ref()
                .map(|permanent_failure| permanent_failure.kind.as_str())
        };
        assert_eq!((failing(0), failing(1)), (expected, None), "{part:?} {doing:?} {class:?}");
    }
}

#[test]
fn a_directory_that_is_gone_dooms_the_tasks_that_have_used_it() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("side", Lifecycle::PrestartSidecar)]);
    for (part, expected) in [
        (Part::Dir, [false, true]),
        (TASK_DIR, [false, false]),
        (Part::Task(1, TaskPart::Dir), [false, true]),
    ] {
        let parts = up(&[Part::Dir, TASK_DIR]);
        let mut life = Bench::new(&spec, known(vec![pending(), running()], Stage::Main, parts));
        life.write(|writer| {
            let timeout = Duration::from_secs(1);
            let doing = Doing::Inspect(Some(Noticed::Event));
            writer.change(Change::Issue { part, doing, verb: Verb::Inspect, timeout });
        });
        let generation = life.generation;
        life.write(|writer| writer.outcome(part, generation, Outcome::Absent));
        let failing: Vec<bool> =
            life.state.durable.tasks.iter().map(|task| task.permanent_failure.is_some()).collect();
        assert_eq!(failing, expected, "{part:?}");
    }
}

/// It is not recreated while tasks that used it are being ended because of its loss.
#[test]
fn a_deleted_directory_is_made_again_once_its_users_have_ended() {
    let failing = |task| TaskState {
        permanent_failure: Some(PermanentFailure {
            kind: TaskEventKind::HookFailed,
            message: "gone".to_string(),
        }),
        ..task
    };
    let spec = alloc(vec![task("main", Lifecycle::Main), task("second", Lifecycle::Main)]);
    for (dir, main, made) in [
        (PartState::Absent, failing(running()), false),
        (PartState::Absent, failing(dead()), true),
        (PartState::Absent, running(), true),
        (PartState::Up, failing(running()), false),
    ] {
        let mut parts = up(&[TASK_DIR, PROCESS]);
        parts.set_part(Part::Dir, dir);
        let state = known(vec![main, running()], Stage::WaitAlloc, parts);
        let plan = super::plan(at(100), &context(), &spec, &state);
        let is_made =
            |change: &Change| matches!(change, Change::Issue { part: Part::Dir, verb: Verb::Up, .. });
        assert_eq!(plan.changes.iter().any(is_made), made, "{:?}", plan.changes);
    }
}

/// An overdue operation has not ended: no other operation begins on the part.
#[test]
fn an_overdue_operation_keeps_its_part() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[])));
    life.settle();
    let running = life.generation;
    for (generation, expected) in [(running - 1, false), (running, true)] {
        life.write(|writer| writer.outcome(Part::Dir, generation, Outcome::Overdue));
        let PartState::Busy { overdue, .. } = life.state.parts.get(Part::Dir) else {
            panic!("expected an operation in progress")
        };
        assert_eq!(*overdue, expected);
        life.settle();
    }
    assert_eq!(life.issued, ["Up"]);
    life.outcome(Part::Dir, Outcome::Done(None));
    assert_eq!(life.issued, ["Up", "Up"], "the operation has ended, and the next part starts");
}

#[test]
fn tokens_are_renewed_when_they_fall_due() {
    let mut main = task("main", Lifecycle::Main);
    main.identities.push(expiring_identity());
    let spec = alloc(vec![main]);
    let identity = Part::Task(0, TaskPart::Identity);
    for (due, renewed) in [(99, true), (100, true), (101, false)] {
        let mut state =
            known(vec![running()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS, identity]));
        let renew_at = Some(Deadline::after(at(due), Duration::ZERO));
        state.facts.set(identity, Facts::renewed_at(renew_at));
        let plan = super::plan(at(100), &context(), &spec, &state);
        let renews = |change: &Change| matches!(change, Change::Issue { part, doing: Doing::Renew, .. } if *part == identity);
        assert_eq!(plan.changes.iter().any(renews), renewed, "{due}");
        assert_eq!(plan.wake_ns, (!renewed).then_some(at(due).boot_ns), "{due}");
    }
}

/// Something else is in a part's place: that is drift, and is repaired at once.
#[test]
fn damaged_part_is_repaired_without_a_pause() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    life.outcome(TASK_DIR, Outcome::Foreign { why: "a file".to_string() });
    life.now = at(103);
    life.outcome(TASK_DIR, Outcome::Done(None));
    assert_eq!(life.issued, ["Inspect", "Up"]);
    let (job, name) = (spec.job_key.clone(), spec.name());
    let drifted = Drifted { alloc: spec.id, job, name, task: Some("main".to_string()), kind: "task_dir" };
    let detected = Note::DriftDetected { of: drifted.clone(), by: Noticed::Event, why: "a file".to_string() };
    assert_eq!(life.notes, [detected, Note::DriftRepaired { of: drifted, took_ns: Some(3_000_000_000) }]);
}

/// In a simulated life, a mount that vanished during its inspection was never noticed.
#[test]
fn drift_during_an_inspection_causes_another() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Periodic));
    life.settle();
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.outcome(TASK_DIR, Outcome::Present(None));
    assert_eq!(life.issued, ["Inspect", "Inspect"]);
}

/// In a simulated life, a catalogue was down during a group's restart. The tasks started without a request to register
/// them, because the deregistration had failed and awaited its retry.
#[test]
fn a_delay_after_a_failure_does_not_hold_back_the_opposite() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    let group =
        &mut std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job).groups[0];
    group.services.push(crate::fixture::service("web"));
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    let failed = |doing| PartState::Failed { doing, attempt: 5, retry_at_ns: u64::MAX, why: String::new() };
    parts.set_part(Part::Services, failed(Doing::Down));
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, parts));
    life.settle();
    assert_eq!(life.issued, ["Up", "Start { attempt: 1 }"]);
    let mut parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    parts.set_part(Part::Services, failed(Doing::Up));
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.settle();
    assert_eq!(life.issued[0], "Down");
    assert!(life.issued[1].starts_with("Stop"));
}

/// An identity whose renewal is notified by a signal.
fn expiring_identity() -> Identity {
    Identity {
        extra_claims: Vec::new(),
        name: String::from("api"),
        aud: Vec::new(),
        ttl: Some(Duration::from_secs(60)),
        env: false,
        file: true,
        filepath: None,
        change_mode: ChangeMode::Signal,
        change_signal: Some(String::from("SIGUSR2")),
    }
}

// An agent renewed a token and died before it notified the task: no later agent did.
#[test]
fn next_agent_notifies_the_task_of_a_renewal() {
    let mut main = task("main", Lifecycle::Main);
    main.identities.push(expiring_identity());
    let spec = alloc(vec![main]);
    let part = Part::Task(0, TaskPart::Identity);
    let issued =
        || Outcome::Present(Some(Facts::renewed_at(Some(Deadline::after(at(100), Duration::from_secs(30))))));
    let mut bench = Bench::new(
        &spec,
        known(vec![TaskState { name: "main".into(), ..running() }], Stage::Main, up(&[part])),
    );
    bench.write(|writer| {
        let timeout = Duration::from_secs(1);
        writer.change(Change::Issue { part, doing: Doing::Renew, verb: Verb::Up, timeout });
    });
    bench.crash();
    let look = |bench: &mut Bench<'_>| {
        bench.write(|writer| writer.drift(part, Noticed::Periodic));
        bench.settle();
        // A driver sends nothing to an attempt that it has not recovered.
        bench.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
        bench.outcome(part, issued());
        bench.issued.iter().filter(|verb| verb.contains("SIGUSR2")).count()
    };
    assert_eq!(look(&mut bench), 1, "{:?}", bench.issued);
    let in_flight =
        |bench: &Bench<'_>| *bench.state.notices_in_flight.keys().next().expect("a signal in flight");
    let signal = in_flight(&bench);
    assert_eq!(look(&mut bench), 1, "one signal while it is in flight");
    // The signal was released, and whether it arrived is unknown: it is sent once more.
    bench.crash();
    assert_eq!(look(&mut bench), 1);
    let (again, process) = (in_flight(&bench), Part::Task(0, TaskPart::Process));
    bench.write(|writer| writer.outcome(process, again, Outcome::Done(None)));
    bench.write(|writer| writer.outcome(process, signal, Outcome::Done(None)));
    bench.crash();
    assert_eq!(look(&mut bench), 0, "the process was notified");
}

#[test]
fn allocation_is_forgotten_once_no_catalogue_has_it() {
    let service = || vec![crate::fixture::service("web")];
    let of_task = Part::Task(0, TaskPart::Services);
    let failed =
        || PartState::Failed { doing: Doing::Down, attempt: 1, retry_at_ns: u64::MAX, why: String::new() };
    for (serves, part, known_of_it, forgotten) in [
        (true, Part::Services, PartState::Absent, true),
        (true, Part::Services, failed(), false),
        (true, of_task, failed(), false),
        (false, Part::Services, PartState::Unknown, true),
    ] {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let spec_mut = std_alloc::sync::Arc::make_mut(&mut spec);
        spec_mut.desired = Desired::Gone;
        if serves {
            let group = &mut std_alloc::sync::Arc::make_mut(&mut spec_mut.job).groups[0];
            (group.services, group.tasks[0].services) = (service(), service());
        }
        let mut parts = Parts::absent();
        parts.set_part(part, known_of_it);
        let mut state = known(vec![dead()], Stage::Poststop, parts);
        let delay = Deadline::after(at(1), Duration::ZERO);
        let reason = crate::state::StopReason::Desired;
        state.durable.stop = Some(crate::state::Stop { reason, decided_at: at(1).wall, delay });
        let plan = super::plan(at(100), &context(), &spec, &state);
        assert_eq!(plan.changes.contains(&Change::Forget), forgotten, "{part:?} {:?}", plan.changes);
    }
}

/// This may last for days: no operation runs meanwhile, people see what is missing, and an event triggers a new
/// inspection at once.
#[test]
fn a_part_waits_for_what_it_needs_without_an_operation() {
    let mut main = task("main", Lifecycle::Main);
    main.identities.push(expiring_identity());
    let spec = alloc(vec![main]);
    let part = Part::Task(0, TaskPart::Identity);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    let missing = || Outcome::Pending { on: "the key colour".to_string(), ask_in: Duration::from_secs(60) };
    life.settle();
    life.outcome(part, missing());
    assert_eq!(life.issued, ["Up"], "no task starts without it");
    for (second, asked) in [(159, 1), (160, 2)] {
        life.now = at(second);
        life.settle();
        assert_eq!(life.issued.len(), asked, "{second}");
    }
    life.outcome(part, missing());
    let plan = super::plan(life.now, &life.ctx, &spec, &life.state);
    let explanation = show::explain(life.now, &spec, &life.state, &plan);
    let wait =
        explanation.waits.iter().find(|wait| wait.part == "task main: tokens").expect("the wait for tokens");
    assert_eq!((&*wait.message, wait.since), ("waits for the key colour", Some(at(100).wall)));
    life.write(|writer| writer.drift(part, Noticed::Event));
    life.settle();
    assert_eq!(life.issued[2..], ["Inspect"]);
    life.outcome(part, Outcome::Absent);
    life.outcome(part, Outcome::Done(None));
    assert_eq!(life.issued[3..], ["Up", "Start { attempt: 1 }"]);
}
