//! Tests of attempts: how they begin, are restarted, stopped and lost.

use super::*;

#[test]
fn live_process_of_a_finished_task_is_stopped() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut state = known(vec![failed()], Stage::Poststop, Parts::unknown());
    state.durable.status = ClientStatus::Failed;
    let mut life = Bench::new(&spec, state);
    life.settle();
    assert_eq!(life.issued, ["Recover { attempt: 1 }"]);
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    assert!(life.issued.last().is_some_and(|verb| verb.starts_with("Stop")));
    life.write(|writer| writer.exited("main", 1, exit(130)));
    let main = &life.state.durable.tasks[0];
    let kinds: Vec<&str> = main.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["Killing", "Terminated", "Killed"]);
    assert!(main.failed && main.run == Run::Dead);
    assert_eq!(life.state.durable.status, ClientStatus::Failed);
}

#[test]
fn requested_restart_uses_no_attempt() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("a running task"));
    life.settle();
    life.write(|writer| writer.exited("main", 1, exit(130)));
    let main = &life.state.durable.tasks[0];
    assert_eq!((main.counted, main.restarts, &main.run), (0, 1, &Run::Waiting));
}

/// A restart dropped the requests in progress: the task was asked to end at once, although it has a `shutdown_delay`.
#[test]
fn restart_uses_shutdown_delay() {
    let mut slow = task("main", Lifecycle::Main);
    slow.shutdown_delay = Duration::from_secs(7);
    let spec = alloc(vec![slow]);
    type Ask = fn(&mut Writer<'_>);
    let asks: [(&str, Ask); 4] = [
        ("one task", |writer| writer.restart(&RestartScope::Task("main".to_string())).expect("running")),
        ("what runs", |writer| writer.restart(&RestartScope::Running).expect("a running task")),
        ("all tasks", |writer| writer.restart(&RestartScope::All).expect("a running task")),
        ("a check", |writer| {
            writer.change(Change::Unhealthy { task: Some(0), check: String::new(), output: String::new() });
        }),
    ];
    for (name, ask) in asks {
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        life.write(ask);
        life.now = at(106);
        life.settle();
        let stops = |life: &Bench<'_>| life.issued.iter().filter(|verb| verb.starts_with("Stop")).count();
        assert_eq!(stops(&life), 0, "{name}");
        let last_event = life.state.durable.tasks[0].events.iter().last().map(|event| event.kind.as_str());
        assert_eq!(last_event, Some("Waiting for shutdown delay"), "{name}");
        life.now = at(113);
        life.settle();
        assert_eq!(stops(&life), 1, "{name}");
    }
}

/// Lets tasks end one by one. Returns, for each round, the names of the tasks that are asked to end.
fn restart_order(life: &mut Bench<'_>) -> Vec<String> {
    let mut order = Vec::new();
    for _ in 0..8 {
        life.settle();
        let tasks = (0..).zip(&life.state.durable.tasks);
        let asked = tasks.filter(|(_, known)| matches!(known.run, Run::Stopping { .. }));
        let asked: Vec<(u16, String)> = asked.map(|(index, known)| (index, known.name.to_string())).collect();
        let Some((index, name)) = asked.first().cloned() else { return order };
        order.push(asked.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join("+"));
        life.write(|writer| writer.exited(&name, 1, exit(0)));
        life.outcome(Part::Task(index, TaskPart::Process), Outcome::Done(None));
        life.outcome(Part::Task(index, TaskPart::Process), Outcome::Done(None));
    }
    order
}

/// All tasks were asked to end at once, the database before the tasks that depend on it.
#[test]
fn group_restart_keeps_stop_order() {
    let mut app = task("app", Lifecycle::Main);
    app.depends_on.push(Dependency { task: "db".to_string(), condition: DependencyCondition::Started });
    let leader = crate::fixture::leader(task("lead", Lifecycle::Main));
    let side = task("proxy", Lifecycle::PrestartSidecar);
    let spec = alloc(vec![side, task("db", Lifecycle::Main), app, leader]);
    for scope in [RestartScope::Running, RestartScope::All] {
        let parts = up(&[
            Part::Dir,
            TASK_DIR,
            PROCESS,
            Part::Task(1, TaskPart::Dir),
            Part::Task(1, TaskPart::Process),
            Part::Task(2, TaskPart::Dir),
            Part::Task(2, TaskPart::Process),
            Part::Task(3, TaskPart::Dir),
            Part::Task(3, TaskPart::Process),
        ]);
        let tasks = vec![running(), running(), running(), running()];
        let mut life = Bench::new(&spec, known(tasks, Stage::WaitAlloc, parts));
        for (known, name) in life.state.durable.tasks.iter_mut().zip(["proxy", "db", "app", "lead"]) {
            known.name = name.into();
        }
        life.write(|writer| writer.restart(&scope).expect("a running task"));
        assert_eq!(restart_order(&mut life), ["lead", "app", "db", "proxy"], "{scope:?}");
        assert!(life.state.durable.restart.is_none(), "{scope:?}: the restart is over");
        assert!(life.issued.iter().any(|verb| verb == "Start { attempt: 2 }"), "{:?}", life.issued);
    }
}

/// A restart of one task does not wait for tasks that keep running.
#[test]
fn one_task_restarts_alone() {
    let mut app = task("app", Lifecycle::Main);
    app.depends_on.push(Dependency { task: "db".to_string(), condition: DependencyCondition::Started });
    let spec = alloc(vec![task("db", Lifecycle::Main), app]);
    let other = [Part::Task(1, TaskPart::Dir), Part::Task(1, TaskPart::Process)];
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS, other[0], other[1]]);
    let mut life = Bench::new(&spec, known(vec![running(), running()], Stage::WaitAlloc, parts));
    for (known, name) in life.state.durable.tasks.iter_mut().zip(["db", "app"]) {
        known.name = name.into();
    }
    life.write(|writer| writer.restart(&RestartScope::Task("db".to_string())).expect("a running task"));
    assert_eq!(restart_order(&mut life), ["db"]);
    assert!(matches!(life.state.durable.tasks[1].run, Run::Running { .. }));
}

#[test]
fn restart_of_ended_tasks_is_refused() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("side", Lifecycle::PrestartSidecar)]);
    let refused = |tasks, status, scope| {
        let mut state = known(tasks, Stage::WaitAlloc, Parts::absent());
        state.durable.status = status;
        Bench::new(&spec, state).write(|writer| writer.restart(&scope)).is_err()
    };
    let one = |name: &str| RestartScope::Task(name.to_string());
    assert!(refused(vec![dead(), running()], ClientStatus::Running, one("main")));
    assert!(refused(vec![running(), running()], ClientStatus::Running, one("other")));
    assert!(refused(vec![dead(), dead()], ClientStatus::Complete, RestartScope::All));
    assert!(!refused(vec![dead(), running()], ClientStatus::Running, RestartScope::All));
    assert!(!refused(vec![dead(), running()], ClientStatus::Running, RestartScope::Running));
    // Nothing of an allocation that is to end can be restarted, even before its stop is planned.
    let mut unwanted = spec.clone();
    std_alloc::sync::Arc::make_mut(&mut unwanted).desired = Desired::Stop;
    let mut life =
        Bench::new(&unwanted, known(vec![running(), running()], Stage::WaitAlloc, Parts::absent()));
    assert!(life.write(|writer| writer.restart(&RestartScope::All)).is_err());
}

/// A start may wait for starts of higher priority. Ending its task does not wait for it.
#[test]
fn a_start_under_way_is_taken_back_when_its_task_is_to_end() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut unwanted = spec.clone();
    std_alloc::sync::Arc::make_mut(&mut unwanted).desired = Desired::Stop;
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    let start = life.generation;
    life.spec = &unwanted;
    life.settle();
    assert_eq!(life.issued, ["Start { attempt: 1 }", "Withdraw"]);
    assert_eq!(life.generation, start, "it refers to the number of the start");
    life.outcome(PROCESS, Outcome::Failed { class: FailureClass::Retry, why: String::new() });
    life.now = at(101);
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::NotStarted));
    assert_eq!(life.issued[2], "Recover { attempt: 1 }");
    assert!(life.issued[3].starts_with("Stop"), "{:?}", life.issued);
    assert_eq!(life.state.durable.tasks[0].restarts, 0);
}

/// In a simulated life, a task that ended while it was being stopped had two operations on its process at once.
#[test]
fn exit_during_a_stop_waits_for_the_stop() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("a running task"));
    life.settle();
    life.write(|writer| writer.exited("main", 1, exit(130)));
    life.settle();
    assert_eq!(life.issued.len(), 1, "{:?}", life.issued);
    life.outcome(PROCESS, Outcome::Failed { class: FailureClass::Retry, why: String::new() });
    assert_eq!(life.issued[1..], ["Destroy { attempt: 1 }"], "its leftovers are removed at once");
    life.outcome(PROCESS, Outcome::Done(None));
    assert_eq!(life.issued[2..], ["Start { attempt: 2 }"]);
}

/// In a simulated life, a process that ended before the outcome of its start arrived was forgotten.
#[test]
fn exit_may_arrive_before_the_start_outcome() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    assert_eq!(life.issued, ["Start { attempt: 1 }"]);
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    let main = &life.state.durable.tasks[0];
    let kinds: Vec<&str> = main.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["Started", "Terminated", "Restarting"]);
    assert_eq!(main.counted, 1, "a repeated exit counts once");
    assert_eq!(life.issued[1..], ["Destroy { attempt: 1 }"]);
}

/// The start may have ended before what the event is about.
#[test]
fn drift_noticed_during_a_start_is_inspected_after_it() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    life.write(|writer| writer.drift(PROCESS, Noticed::Event));
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    assert_eq!(life.issued, ["Start { attempt: 1 }", "Recover { attempt: 1 }"]);
}

#[test]
fn group_restart_is_forgotten_after_all_tasks_ended() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    for (stage, kept) in [(Stage::Main, true), (Stage::WaitAlloc, true), (Stage::Poststop, false)] {
        let mut life = Bench::new(&spec, known(vec![running()], Stage::Prestart, Parts::absent()));
        life.state.durable.restart = Some(GroupRestart {
            all: false,
            delay: Deadline::after(at(100), Duration::from_secs(9)),
            unhealthy: false,
            phase: RestartPhase::Delay,
        });
        life.write(|writer| writer.change(Change::Stage(stage)));
        assert_eq!(life.state.durable.restart.is_some(), kept, "{stage:?}");
    }
}

#[test]
fn shutdown_delay_precedes_each_stop() {
    for (delay, restart, expected) in [
        (0, false, &["Killing"][..]),
        (5, false, &["Waiting for shutdown delay"]),
        (0, true, &["Restart Signaled"]),
        (5, true, &["Restart Signaled", "Waiting for shutdown delay"]),
    ] {
        let mut main = task("main", Lifecycle::Main);
        main.shutdown_delay = Duration::from_secs(delay);
        let mut spec = alloc(vec![main]);
        if !restart {
            std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
        }
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        if restart {
            life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("running"));
        }
        life.settle();
        let kinds = life.state.durable.tasks[0].events.iter().map(|event| event.kind.as_str());
        assert_eq!(kinds.collect::<Vec<_>>(), expected, "{delay} s");
    }
}

/// Two starts. The first attempt ends after `lived` seconds; the second runs from 120 s on.
fn restarted<'a>(spec: &'a Arc<Allocation>, lived: u64) -> Bench<'a> {
    let first = TaskState { started_ns: at(100 - lived).boot_ns, ..running() };
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(spec, known(vec![first], Stage::WaitAlloc, parts));
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.settle();
    life.outcome(PROCESS, Outcome::Done(None));
    life.now = at(120);
    life.settle();
    life.outcome(PROCESS, Outcome::Started(Launch::of(2)));
    life
}

/// Whether its status is converged.
fn converged(life: &Bench<'_>) -> bool {
    let plan = plan(life.now, &life.ctx, life.spec, &life.state);
    let shown = crate::status::convergence(life.now, life.spec, &life.state, &plan, at(0).moment());
    shown.state == herdlet_api_types::view::ConvergenceState::Converged
}

/// A task that crashed every few seconds was shown as converged during each short run, and `--wait` returned.
#[test]
fn attempt_after_a_failure_counts_once_it_lived_longer() {
    // The policy's delay is 10 s, its interval 60 s.
    for (lived, counts_after) in [(1, 10), (20, 40), (40, 60)] {
        let spec = alloc(vec![task("main", Lifecycle::Main)]);
        let mut life = restarted(&spec, lived);
        assert_eq!(life.state.durable.tasks[0].attempt, 2);
        life.now = at(120 + counts_after - 1);
        assert!(!converged(&life), "{lived} s");
        let plan = plan(life.now, &life.ctx, &spec, &life.state);
        assert_eq!(plan.wake_ns, Some(at(120 + counts_after).boot_ns), "{lived} s");
        life.now = at(120 + counts_after);
        assert!(converged(&life), "{lived} s");
    }
}

#[test]
fn requested_restart_does_not_change_when_the_task_counts() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    for (asked_at, counts_after) in [(125, 5), (131, 0)] {
        let mut life = restarted(&spec, 1);
        life.now = at(asked_at);
        life.settle();
        life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("a running task"));
        life.settle();
        life.write(|writer| writer.exited("main", 2, exit(0)));
        life.settle();
        life.outcome(PROCESS, Outcome::Done(None));
        life.outcome(PROCESS, Outcome::Done(None));
        life.outcome(PROCESS, Outcome::Started(Launch::of(3)));
        assert_eq!(life.state.durable.tasks[0].attempt, 3);
        assert_eq!(converged(&life), counts_after == 0, "requested at {asked_at} s");
        life.now = at(asked_at + counts_after);
        assert!(converged(&life), "requested at {asked_at} s");
    }
}

/// Nothing runs yet, but the start may be in progress: it is fenced instead of carried out.
#[test]
fn unwanted_start_is_fenced() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let starting =
        TaskState { run: Run::Starting { attempt: 1, boot: BootId(1) }, attempt: 1, ..TaskState::default() };
    let mut life = Bench::new(&spec, known(vec![starting], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    assert_eq!(life.issued.len(), 1);
    assert!(life.issued[0].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
}

/// The `prestop` command of an ended attempt still runs: the next attempt waits for its end.
#[test]
fn attempt_begins_after_the_last_one_has_ended() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let prestop = Part::Task(0, TaskPart::Prestop);
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    parts.begin(prestop, 1, Doing::Up, 0);
    let waiting = TaskState { attempt: 1, ..pending() };
    let mut life = Bench::new(&spec, known(vec![waiting], Stage::Main, parts));
    life.settle();
    assert!(life.issued.is_empty(), "{:?}", life.issued);
    life.outcome(prestop, Outcome::Done(None));
    assert_eq!(life.issued, ["Start { attempt: 2 }"]);
}

fn with_prestop() -> herdlet_api_types::job::Task {
    let timeout = Duration::from_secs(20);
    let prestop = Prestop { command: "hook".to_string(), args: Vec::new(), timeout };
    herdlet_api_types::job::Task { prestop: Some(prestop), ..task("main", Lifecycle::Main) }
}

fn messages<'a>(life: &'a Bench<'_>) -> Vec<&'a str> {
    life.state.durable.tasks[0].events.iter().map(|event| event.message.as_str()).collect()
}

/// A command that lacked a file descriptor was treated as one that had run: the task was killed without it.
#[test]
fn prestop_that_could_not_begin_is_retried() {
    let mut spec = alloc(vec![with_prestop()]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let prestop = Part::Task(0, TaskPart::Prestop);
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.settle();
    let mut tries = 1;
    for second in 101..=120 {
        let class = FailureClass::Retry;
        life.outcome(prestop, Outcome::Failed { class, why: "too many open files".to_string() });
        life.now = at(second);
        life.settle();
        if second < 120 {
            tries = life.issued.len();
            assert!(life.issued.iter().all(|verb| verb == "Prestop { attempt: 1 }"), "{:?}", life.issued);
        }
    }
    assert!(tries > 2, "{tries}");
    assert!(life.issued[tries].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
    assert_eq!(life.state.durable.tasks[0].attempt, 1);
    assert!(messages(&life).contains(&"prestop did not run: too many open files"), "{:?}", messages(&life));
    // Once the machine has enough, the command runs, and the signal follows at once.
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.settle();
    life.outcome(prestop, Outcome::Done(None));
    assert!(life.issued[1].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
    assert!(!messages(&life).iter().any(|message| message.contains("did not run")), "{:?}", messages(&life));
}

/// The command was started in an attempt that the driver had not recovered yet, which failed: the task was killed without it.
#[test]
fn prestop_waits_for_recovery_after_a_crash() {
    let mut spec = alloc(vec![with_prestop()]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let stopping = TaskState {
        run: Run::Stopping {
            attempt: 1,
            boot: BootId(1),
            step: StopStep::Prestop { until: Deadline::after(at(100), Duration::from_secs(20)) },
            then: AfterStop::Dead,
            ran: true,
        },
        ..running()
    };
    let mut life = Bench::new(&spec, known(vec![stopping], Stage::Main, Parts::unknown()));
    life.settle();
    assert!(!life.issued.iter().any(|verb| verb.starts_with("Prestop")), "{:?}", life.issued);
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    assert!(life.issued.contains(&"Prestop { attempt: 1 }".to_string()), "{:?}", life.issued);
}

/// The signal came at the same moment, and the command's death by the signal was reported instead of its time limit.
#[test]
fn prestop_timeout_is_reported_before_the_kill() {
    let mut spec = alloc(vec![with_prestop()]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.settle();
    life.now = at(121);
    life.settle();
    assert_eq!(life.issued, ["Prestop { attempt: 1 }"]);
    let failed = Outcome::Failed { class: FailureClass::Fatal, why: "end a command within 20s".to_string() };
    life.outcome(Part::Task(0, TaskPart::Prestop), failed);
    assert!(life.issued[1].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
    // A command that reports nothing delays the signal no longer than that.
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.settle();
    life.now = at(125);
    life.settle();
    assert!(life.issued[1].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
}

#[test]
fn a_prestop_command_that_fails_is_noted_and_not_tried_again() {
    let mut spec = alloc(vec![with_prestop()]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.settle();
    let failed = Outcome::Failed { class: FailureClass::Fatal, why: "it ended with code 3".to_string() };
    life.outcome(Part::Task(0, TaskPart::Prestop), failed);
    assert!(life.issued[1].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
    let events = &life.state.durable.tasks[0].events;
    assert!(events.iter().any(|event| event.message == "prestop: it ended with code 3"), "{events:?}");
}

#[test]
fn a_process_that_should_not_live_gets_its_time_to_end() {
    let mut main = task("main", Lifecycle::Main);
    for (asked, given) in [(7, 7), (90, 30)] {
        main.kill_timeout = Duration::from_secs(asked);
        let spec = alloc(vec![main.clone()]);
        let mut life = Bench::new(&spec, known(vec![dead()], Stage::Poststop, Parts::unknown()));
        life.settle();
        life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
        let Run::Stopping { step: StopStep::Kill { until }, .. } = &life.state.durable.tasks[0].run else {
            panic!("expected a task that is being stopped")
        };
        assert_eq!(until.remaining(at(100)), Duration::from_secs(given), "30 s are the agent's limit");
    }
}

/// In a simulated life, an attempt of an earlier boot whose record was lost in the reboot was started again under its
/// number.
#[test]
fn an_attempt_of_an_earlier_boot_is_never_started_again() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let starting =
        TaskState { run: Run::Starting { attempt: 1, boot: BootId(0) }, attempt: 1, ..TaskState::default() };
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    parts.set_part(PROCESS, PartState::Unknown);
    let mut life = Bench::new(&spec, known(vec![starting], Stage::Main, parts));
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::NotStarted));
    life.outcome(PROCESS, Outcome::Done(None));
    assert_eq!(life.issued, ["Recover { attempt: 1 }", "Destroy { attempt: 1 }", "Start { attempt: 2 }"]);
    assert_eq!(life.state.durable.tasks[0].counted, 0);
}

/// In a simulated life, an allocation that was deleted before it ran started its poststop task.
#[test]
fn poststop_task_requires_a_previous_start() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main), task("stop", Lifecycle::Poststop)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])));
    life.settle();
    assert!(life.issued.is_empty(), "{:?}", life.issued);
    assert_eq!(life.state.durable.status, ClientStatus::Complete);
}

/// In a simulated life, a driver reported that a living process was stopped, and the planner asked again without a
/// pause.
#[test]
fn process_that_survives_its_stop_is_stopped_again() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.settle();
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    assert_eq!(life.issued.len(), 2, "{:?}", life.issued);
    assert!(matches!(life.state.parts.get(PROCESS), PartState::Failed { doing: Doing::Down, .. }));
}

/// While an engine was down, `explain` said that the task had got its signal, and named neither the engine nor its error.
#[test]
fn the_error_of_a_stop_is_shown_instead_of_a_signal_that_was_not_sent() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.settle();
    let shown = |life: &Bench<'_>| {
        let plan = plan(life.now, &life.ctx, life.spec, &life.state);
        let waits = plan.waits.iter();
        waits
            .map(|waiting| crate::status::describe(life.now, life.spec, &life.state, waiting).message)
            .collect::<Vec<_>>()
    };
    assert!(shown(&life)[0].starts_with("got SIG"), "{:?}", shown(&life));
    let why = "reach Docker at /x: connection refused".to_string();
    life.outcome(PROCESS, Outcome::Failed { class: FailureClass::Retry, why });
    assert_eq!(shown(&life), ["stopping it failed (try 1): reach Docker at /x: connection refused"]);
    // A daemon that hangs does not answer at all.
    let driver = spec.group().expect("a group").tasks[0].driver.clone();
    life.ctx.away.insert(driver.clone(), "it does not work: no answer".to_string());
    assert_eq!(
        shown(&life)[1],
        format!("its state is stale: the driver {driver} is not available: it does not work: no answer")
    );
}

/// The fate of a first attempt that a previous agent may have begun is inspected first. If the task is no longer
/// wanted, the start is fenced.
#[test]
fn possible_first_attempt_is_inspected_first() {
    let process = Part::Task(0, TaskPart::Process);
    let mut state = known(vec![pending(), pending()], Stage::Main, up(&[Part::Dir]));
    state.maybe_begun = [0].into();
    state.parts.set_part(process, PartState::Unknown);
    assert_eq!(changes(Desired::Run, &state), ["Task(0, Process) Recover { attempt: 1 }"]);
    state.parts.set_part(process, PartState::Absent);
    assert_eq!(changes(Desired::Run, &state), ["Task(0, Dir) Up"]);

    let delay = Deadline::after(at(100), Duration::ZERO);
    let reason = crate::state::StopReason::Desired;
    state.durable.get_mut_untracked().stop =
        Some(crate::state::Stop { reason, decided_at: at(100).wall, delay });
    assert_eq!(changes(Desired::Stop, &state)[..1], ["0 Begin"]);
    state.maybe_begun.clear();
    assert_eq!(changes(Desired::Stop, &state)[..1], ["0 Die"]);
}

/// No client was routed there before the first start, so none needs time to move elsewhere.
#[test]
fn group_delay_applies_only_after_a_possible_start() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    let spec_mut = std_alloc::sync::Arc::make_mut(&mut spec);
    spec_mut.desired = Desired::Stop;
    let delay = Duration::from_secs(9);
    std_alloc::sync::Arc::make_mut(&mut spec_mut.job).groups[0].shutdown_delay = delay;
    let mut maybe = known(vec![pending()], Stage::Main, Parts::unknown());
    maybe.maybe_begun.insert(0);
    for (state, expected) in [
        (known(vec![pending()], Stage::Main, Parts::absent()), Duration::ZERO),
        (known(vec![running()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])), delay),
        (maybe, delay),
    ] {
        let plan = super::plan(at(100), &context(), &spec, &state);
        let [Change::Stop(stop)] = &plan.changes[..] else { panic!("{:?}", plan.changes) };
        assert_eq!(stop.delay.length, expected);
    }
}

#[test]
fn failed_start_records_time_and_error() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    life.now = at(103);
    life.outcome(
        PROCESS,
        Outcome::Failed { class: FailureClass::NoProgram, why: "no such file".to_string() },
    );
    let exit = life.state.durable.tasks[0].exit.clone().expect("an exit");
    assert_eq!((exit.code, &*exit.error, exit.at), (127, "no such file", at(103).wall));
}

#[test]
fn live_process_of_a_waiting_task_is_stopped() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let waiting = TaskState { run: Run::Waiting, ..running() };
    let mut life = Bench::new(&spec, known(vec![waiting], Stage::WaitAlloc, Parts::unknown()));
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    assert!(life.issued.last().is_some_and(|verb| verb.starts_with("Stop")), "{:?}", life.issued);
    assert_eq!(life.state.durable.tasks[0].attempt, 1);
}
