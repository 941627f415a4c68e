//! Plans by example and by property: total, idempotent, monotone.

use std_alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    Duration,
    alloc::{ClientStatus, Desired},
    job::{
        ChangeMode, Check, CheckKind, Dependency, DependencyCondition, Identity, Lifecycle, Provider, Service,
    },
    service::{CheckResult, CheckStatus},
    task::TaskEventKind,
};
use proptest::prelude::*;

use super::*;
use crate::{
    action::{FailureClass, Outcome, Recovered, Verb},
    alloc::apply::Writer,
    event::{Noticed, RestartScope},
    fixture::{alloc, at, dead, exit, failed, pending, running, settings, task},
    op::{Part, TaskPart},
    state::{
        AfterStop, Doing, Doom, Durable, GroupRestart, Health, PartState, Parts, Run, Stage, StopStep,
        TaskState, Tracked,
    },
    time::BootId,
    turn::Note,
    world::{Context, World},
};

fn context() -> Context {
    World::new(settings()).ctx
}

fn known(tasks: Vec<TaskState>, stage: Stage, parts: Parts) -> AllocState {
    let durable = Durable { adopted: true, stage, tasks, ..Durable::default() };
    AllocState { durable: Tracked::stored(durable), parts, ..AllocState::default() }
}

fn up(all: &[Part]) -> Parts {
    let mut parts = Parts::absent();
    for part in all {
        parts.learn(*part, PartState::Up);
    }
    parts
}

/// The changes of a plan, a line each.
fn changes(desired: Desired, state: &AllocState) -> Vec<String> {
    let mut spec = alloc(vec![task("main", Lifecycle::Main), task("stop", Lifecycle::Poststop)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = desired;
    let plan = super::plan(at(100), &context(), &spec, state);
    plan.changes
        .iter()
        .filter(|change| !matches!(change, Change::Healthy(_)))
        .map(|change| match change {
            Change::Issue { part, verb, .. } => format!("{part:?} {verb:?}"),
            Change::Task(index, change) => format!("{index} {change:?}").chars().take(20).collect(),
            Change::Stop(stop) => format!("Stop {:?}", stop.reason),
            other @ (Change::Adopt
            | Change::Stage(_)
            | Change::RestartTasks(_)
            | Change::Healthy(_)
            | Change::Verdict(..)
            | Change::Forget) => format!("{other:?}"),
        })
        .collect()
}

fn tcp_check() -> Check {
    let second = Duration::from_secs(1);
    Check { name: "alive".to_string(), kind: CheckKind::Tcp, port: None, interval: second, timeout: second }
}

const PROCESS: Part = Part::Task(0, TaskPart::Process);
const TASK_DIR: Part = Part::Task(0, TaskPart::Dir);

#[test]
fn plans_by_example() {
    let fresh = AllocState { parts: Parts::absent(), ..AllocState::default() };
    let adopted = |tasks, stage, parts| known(tasks, stage, parts);
    let table: Vec<(&str, Desired, AllocState, Vec<&str>)> = vec![
        ("nothing is done in its name before that is written", Desired::Run, fresh.clone(), vec!["Adopt"]),
        ("what was never adopted is simply forgotten", Desired::Gone, fresh, vec!["Forget"]),
        (
            "the directory comes first",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[])),
            vec!["Dir Up"],
        ),
        (
            "then the task's",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])),
            vec!["Task(0, Dir) Up"],
        ),
        (
            "then an attempt begins",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])),
            vec!["0 Begin"],
        ),
        (
            "running + process alive: nothing",
            Desired::Run,
            adopted(vec![running(), pending()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])),
            vec![],
        ),
        (
            "running, after a start of the agent: a look",
            Desired::Run,
            adopted(vec![running(), pending()], Stage::WaitAlloc, Parts::unknown()),
            vec!["Dir Look", "Task(0, Process) Recover { attempt: 1 }", "Task(0, Dir) Look"],
        ),
        (
            "a stop is decided before anything is stopped",
            Desired::Stop,
            adopted(vec![running(), pending()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])),
            vec!["Stop Desired"],
        ),
        (
            "dead and complete, desired run: never started again",
            Desired::Run,
            adopted(vec![dead(), dead()], Stage::Poststop, up(&[Part::Dir, TASK_DIR])),
            vec![],
        ),
        (
            "dead, after a start of the agent: looked at, not started",
            Desired::Run,
            adopted(vec![dead(), dead()], Stage::Poststop, Parts::unknown()),
            vec!["Task(0, Process) Recover { attempt: 1 }", "Task(1, Process) Recover { attempt: 1 }"],
        ),
    ];
    for (name, desired, state, expected) in table {
        assert_eq!(changes(desired, &state), expected, "{name}");
    }
}

#[test]
fn a_live_process_under_a_finished_task_is_stopped_and_its_verdict_stays() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut state = known(vec![failed()], Stage::Poststop, Parts::unknown());
    state.durable.status = ClientStatus::Failed;
    let mut life = Bench::new(&spec, state);
    life.settle();
    assert_eq!(life.issued, ["Recover { attempt: 1 }"]);
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running));
    assert!(life.issued.last().is_some_and(|verb| verb.starts_with("Stop")));
    life.write(|writer| writer.exited("main", 1, exit(130)));
    let main = &life.state.durable.tasks[0];
    let kinds: Vec<&str> = main.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["Killing", "Terminated", "Killed"]);
    assert!(main.failed && main.run == Run::Dead);
    assert_eq!(life.state.durable.status, ClientStatus::Failed);
}

#[test]
fn a_user_restart_takes_no_attempt() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("it runs"));
    life.settle();
    life.write(|writer| writer.exited("main", 1, exit(130)));
    let main = &life.state.durable.tasks[0];
    assert_eq!((main.counted, main.restarts, &main.run), (0, 1, &Run::Waiting));
}

#[test]
fn what_can_not_be_restarted_says_so() {
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
}

/// A life in which a task ended while it was being stopped had two operations on its process at once.
#[test]
fn an_exit_seen_while_the_task_is_being_stopped_waits_for_the_stop_to_end() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("it runs"));
    life.settle();
    life.write(|writer| writer.exited("main", 1, exit(130)));
    life.settle();
    assert_eq!(life.issued.len(), 1, "{:?}", life.issued);
    life.outcome(PROCESS, Outcome::Failed { class: FailureClass::Retry, why: String::new() });
    assert_eq!(life.issued[1..], ["Destroy { attempt: 1 }"], "what is left of it is removed at once");
    life.outcome(PROCESS, Outcome::Done);
    assert_eq!(life.issued[2..], ["Start { attempt: 2 }"]);
}

/// A life in which a process ended before the word of its start came forgot that it had run.
#[test]
fn an_exit_may_come_before_the_word_of_the_start() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    assert_eq!(life.issued, ["Start { attempt: 1 }"]);
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.outcome(PROCESS, Outcome::Done);
    let main = &life.state.durable.tasks[0];
    let kinds: Vec<&str> = main.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["Started", "Terminated", "Restarting"]);
    assert_eq!(main.counted, 1, "the doubled exit counts once");
    assert_eq!(life.issued[1..], ["Destroy { attempt: 1 }"]);
}

/// The cause was in `status` alone; `explain` and the task's history said "Exit Code: 137, Signal: 9".
#[test]
fn a_task_that_was_out_of_memory_says_so() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, parts));
    let result = herdlet_api_types::task::ExitResult { signal: 9, oom_killed: true, ..exit(137) };
    life.write(|writer| writer.exited("main", 1, result));
    let said: Vec<&str> = life.state.durable.tasks[0].events.iter().map(|event| &*event.message).collect();
    assert!(said.contains(&"Exit Code: 137, Signal: 9, out of memory"), "{said:?}");
}

/// What becomes of a process is told by its exit: word of it during its start is not a reason to look once more.
#[test]
fn drift_noticed_during_a_start_changes_nothing() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    life.write(|writer| writer.drift(PROCESS, Noticed::Event));
    life.outcome(PROCESS, Outcome::Done);
    assert_eq!(life.issued, ["Start { attempt: 1 }"]);
    assert_eq!(*life.state.parts.get(PROCESS), PartState::Up);
}

#[test]
fn a_restart_of_the_group_is_forgotten_once_all_tasks_have_ended() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    for (stage, kept) in [(Stage::Main, true), (Stage::WaitAlloc, true), (Stage::Poststop, false)] {
        let mut life = Bench::new(&spec, known(vec![running()], Stage::Prestart, Parts::absent()));
        life.state.durable.restart =
            Some(GroupRestart { all: false, delay: Deadline::after(at(100), Duration::from_secs(9)) });
        life.write(|writer| writer.change(Change::Stage(stage)));
        assert_eq!(life.state.durable.restart.is_some(), kept, "{stage:?}");
    }
}

#[test]
fn live_tasks_are_told_that_the_allocation_is_unhealthy() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("pre", Lifecycle::Prestart)]);
    for (healthy, told) in [(true, vec![]), (false, vec!["Alloc Unhealthy"])] {
        let mut life = Bench::new(&spec, known(vec![running(), dead()], Stage::WaitAlloc, Parts::absent()));
        let verdict = Health { healthy, at: at(100).wall };
        life.write(|writer| writer.change(Change::Verdict(verdict, "too late".to_string())));
        let kinds = |at: usize| -> Vec<&str> {
            life.state.durable.tasks[at].events.iter().map(|event| event.kind.as_str()).collect()
        };
        assert_eq!((kinds(0), kinds(1)), (told, vec![]));
    }
}

/// Whom it dooms that an operation fails, of a task that waits and one that runs.
#[test]
fn what_can_never_be_set_up_fails_the_tasks_that_wait_for_it() {
    use FailureClass::{Fatal, Recoverable, Retry};
    let spec = alloc(vec![task("main", Lifecycle::Main), task("side", Lifecycle::PrestartSidecar)]);
    let own = |part| Part::Task(0, part);
    for (part, doing, class, expected) in [
        (Part::Dir, Doing::Up, Fatal, Some("Setup Failure")),
        (Part::Dir, Doing::Up, Retry, None),
        (Part::Dir, Doing::Up, Recoverable, None),
        (Part::Dir, Doing::Down, Fatal, None),
        (Part::Dir, Doing::Look(None), Fatal, None),
        (Part::Services, Doing::Up, Fatal, None),
        (Part::Checks, Doing::Up, Fatal, None),
        (own(TaskPart::Dir), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Identity), Doing::Up, Fatal, Some("Task hook failed")),
        (own(TaskPart::Identity), Doing::Renew, Fatal, None),
        (own(TaskPart::Mounts), Doing::Up, Fatal, Some("Task hook failed")),
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
        let doomed = |at: usize| life.state.durable.tasks[at].doom.as_ref().map(|doom| doom.kind.as_str());
        assert_eq!((doomed(0), doomed(1)), (expected, None), "{part:?} {doing:?} {class:?}");
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
            let doing = Doing::Look(Some(Noticed::Event));
            writer.change(Change::Issue { part, doing, verb: Verb::Look, timeout });
        });
        let generation = life.generation;
        life.write(|writer| writer.outcome(part, generation, Outcome::Absent));
        let doomed: Vec<bool> = life.state.durable.tasks.iter().map(|task| task.doom.is_some()).collect();
        assert_eq!(doomed, expected, "{part:?}");
    }
}

/// Under tasks that used it, and end because of that, it is not made anew.
#[test]
fn a_deleted_directory_is_made_again_once_its_users_have_ended() {
    let doomed = |task| TaskState {
        doom: Some(Doom { kind: TaskEventKind::HookFailed, message: "gone".to_string() }),
        ..task
    };
    let spec = alloc(vec![task("main", Lifecycle::Main), task("second", Lifecycle::Main)]);
    for (dir, main, made) in [
        (PartState::Absent, doomed(running()), false),
        (PartState::Absent, doomed(dead()), true),
        (PartState::Absent, running(), true),
        (PartState::Up, doomed(running()), false),
    ] {
        let mut parts = up(&[TASK_DIR, PROCESS]);
        parts.learn(Part::Dir, dir);
        let state = known(vec![main, running()], Stage::WaitAlloc, parts);
        let plan = super::plan(at(100), &context(), &spec, &state);
        let is_made =
            |change: &Change| matches!(change, Change::Issue { part: Part::Dir, verb: Verb::Up, .. });
        assert_eq!(plan.changes.iter().any(is_made), made, "{:?}", plan.changes);
    }
}

#[test]
fn an_allocation_is_healthy_when_each_task_runs_as_it_should() {
    for (lifecycle, well) in [
        // Pending, running, ended, failed.
        (Lifecycle::Prestart, [false, false, true, false]),
        (Lifecycle::PrestartSidecar, [false, true, false, false]),
        (Lifecycle::Main, [false, true, false, false]),
        (Lifecycle::Poststart, [false, true, true, false]),
        (Lifecycle::PoststartSidecar, [false, true, false, false]),
        (Lifecycle::Poststop, [true, true, true, true]),
    ] {
        let spec = alloc(vec![task("main", Lifecycle::Main), task("other", lifecycle)]);
        let group = spec.group().expect("a group");
        let healthy =
            |other| health::is_healthy(group, &known(vec![running(), other], Stage::Main, Parts::absent()));
        assert_eq!([pending(), running(), dead(), failed()].map(healthy), well, "{lifecycle:?}");
    }
}

#[test]
fn health_is_waited_for_where_there_is_a_check() {
    for checked in [false, true] {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let job = std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job);
        let mut service = crate::fixture::service("web");
        service.checks.extend(checked.then(tcp_check));
        job.groups[0].services.push(service);
        let state = known(vec![pending()], Stage::Main, Parts::absent());
        let plan = super::plan(at(100), &context(), &spec, &state);
        assert_eq!(plan.waits.contains(&Waiting::Health(None)), checked);
    }
}

/// Word that an operation's time is over is not its end: nothing else is begun on the part.
#[test]
fn an_overdue_operation_keeps_its_part() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[])));
    life.settle();
    let running = life.generation;
    for (generation, expected) in [(running - 1, false), (running, true)] {
        life.write(|writer| writer.outcome(Part::Dir, generation, Outcome::Overdue));
        let PartState::Busy { overdue, .. } = life.state.parts.get(Part::Dir) else { panic!("it runs on") };
        assert_eq!(*overdue, expected);
        life.settle();
    }
    assert_eq!(life.issued, ["Up"]);
    life.outcome(Part::Dir, Outcome::Done);
    assert_eq!(life.issued, ["Up", "Up"], "it has ended, and the next part's turn has come");
}

#[test]
fn only_a_task_that_does_not_come_back_gives_others_time_to_go_elsewhere() {
    for (delay, restart, expected) in [
        (0, false, &["Killing"][..]),
        (5, false, &["Waiting for shutdown delay"]),
        (0, true, &["Restart Signaled", "Killing"]),
        (5, true, &["Restart Signaled", "Killing"]),
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
            life.write(|writer| writer.restart(&RestartScope::Task("main".to_string())).expect("it runs"));
        }
        life.settle();
        let told = life.state.durable.tasks[0].events.iter().map(|event| event.kind.as_str());
        assert_eq!(told.collect::<Vec<_>>(), expected, "{delay} s");
    }
}

/// Nothing runs yet, but the start may be on its way: it is fenced, not made.
#[test]
fn a_start_that_is_not_wanted_any_more_is_fenced() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let starting =
        TaskState { run: Run::Starting { attempt: 1, boot: BootId(1) }, attempt: 1, ..TaskState::default() };
    let mut life = Bench::new(&spec, known(vec![starting], Stage::Main, up(&[Part::Dir, TASK_DIR])));
    life.settle();
    assert_eq!(life.issued.len(), 1);
    assert!(life.issued[0].starts_with("Stop { attempt: 1"), "{:?}", life.issued);
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
        state.renew_at_ns.insert(0, at(due).boot_ns);
        let plan = super::plan(at(100), &context(), &spec, &state);
        let renews = |change: &Change| matches!(change, Change::Issue { part, doing: Doing::Renew, .. } if *part == identity);
        assert_eq!(plan.changes.iter().any(renews), renewed, "{due}");
        assert_eq!(plan.wake_ns, (!renewed).then_some(at(due).boot_ns), "{due}");
    }
}

/// The `prestop` command of an attempt that has ended still runs: the next attempt waits for its end.
#[test]
fn an_attempt_begins_when_nothing_of_the_last_one_runs() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let prestop = Part::Task(0, TaskPart::Prestop);
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    parts.begin(prestop, 1, Doing::Up, 0);
    let waiting = TaskState { attempt: 1, ..pending() };
    let mut life = Bench::new(&spec, known(vec![waiting], Stage::Main, parts));
    life.settle();
    assert!(life.issued.is_empty(), "{:?}", life.issued);
    life.outcome(prestop, Outcome::Done);
    assert_eq!(life.issued, ["Start { attempt: 2 }"]);
}

/// Word of checks counts for the task that has them.
#[test]
fn a_task_may_wait_until_another_is_healthy() {
    let mut main = task("main", Lifecycle::Main);
    main.services.push(Service { checks: vec![tcp_check()], ..crate::fixture::service("web") });
    let mut second = task("second", Lifecycle::Main);
    let condition = DependencyCondition::Healthy;
    second.depends_on.push(Dependency { task: "main".to_string(), condition });
    let spec = alloc(vec![main, second]);
    for (by, status, starts) in [
        (None, CheckStatus::Success, false),
        (Some("main"), CheckStatus::Success, true),
        (Some("main"), CheckStatus::Failure, false),
        (Some("second"), CheckStatus::Success, false),
    ] {
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS, Part::Task(1, TaskPart::Dir)]);
        let mut life = Bench::new(&spec, known(vec![running(), pending()], Stage::Main, parts));
        life.write(|writer| {
            writer.checked(CheckResult {
                id: "1".to_string(),
                service: "web".to_string(),
                check: "alive".to_string(),
                task: by.map(ToString::to_string),
                status,
                output: String::new(),
                at: at(100).wall,
            });
        });
        life.settle();
        assert_eq!(
            life.issued.iter().any(|verb| verb == "Start { attempt: 1 }"),
            starts,
            "{by:?} {status:?}"
        );
    }
}

#[test]
fn only_checks_of_the_built_in_catalogue_are_made_here() {
    let alive = tcp_check();
    for (provider, checks, expected) in [
        (Provider::Nomad, vec![alive.clone()], true),
        (Provider::Nomad, vec![], false),
        (Provider::Consul, vec![alive], false),
        (Provider::Consul, vec![], false),
    ] {
        let service = Service { provider, checks, ..crate::fixture::service("web") };
        assert_eq!(checks::has_checks(&[service]), expected, "{provider:?}");
    }
}

#[test]
fn a_process_that_should_not_live_gets_its_time_to_end() {
    let mut main = task("main", Lifecycle::Main);
    for (asked, given) in [(7, 7), (90, 30)] {
        main.kill_timeout = Duration::from_secs(asked);
        let spec = alloc(vec![main.clone()]);
        let mut life = Bench::new(&spec, known(vec![dead()], Stage::Poststop, Parts::unknown()));
        life.settle();
        life.outcome(PROCESS, Outcome::Recovered(Recovered::Running));
        let Run::Stopping { step: StopStep::Kill { until }, .. } = &life.state.durable.tasks[0].run else {
            panic!("it is not being stopped")
        };
        assert_eq!(until.remaining(at(100)), Duration::from_secs(given), "30 s are the agent's limit");
    }
}

/// Something else stands in a part's place: that is drift, and repaired at once.
#[test]
fn what_is_damaged_is_brought_up_again_without_a_pause() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    life.outcome(TASK_DIR, Outcome::Foreign { why: "a file".to_string() });
    life.now = at(103);
    life.outcome(TASK_DIR, Outcome::Done);
    assert_eq!(life.issued, ["Look", "Up"]);
    let detected = Note::DriftDetected { kind: "task_dir", by: Noticed::Event };
    assert_eq!(
        life.notes,
        [detected, Note::DriftRepaired { kind: "task_dir", took_ns: Some(3_000_000_000) }]
    );
}

/// A life in which a mount went away while a look at it was under way never learned of it.
#[test]
fn drift_noticed_during_a_look_is_looked_at_again() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Look));
    life.settle();
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.outcome(TASK_DIR, Outcome::Present);
    assert_eq!(life.issued, ["Look", "Look"]);
}

/// A life in which an attempt of an earlier boot, whose record went with it, was started again under its number.
#[test]
fn an_attempt_of_an_earlier_boot_is_never_started_again() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let starting =
        TaskState { run: Run::Starting { attempt: 1, boot: BootId(0) }, attempt: 1, ..TaskState::default() };
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    parts.learn(PROCESS, PartState::Unknown);
    let mut life = Bench::new(&spec, known(vec![starting], Stage::Main, parts));
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::NotStarted));
    life.outcome(PROCESS, Outcome::Done);
    assert_eq!(life.issued, ["Recover { attempt: 1 }", "Destroy { attempt: 1 }", "Start { attempt: 2 }"]);
    assert_eq!(life.state.durable.tasks[0].counted, 0);
}

/// A life in which an allocation was deleted before it ran started its poststop task.
#[test]
fn a_poststop_task_does_not_run_where_nothing_ran() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main), task("stop", Lifecycle::Poststop)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])));
    life.settle();
    assert!(life.issued.is_empty(), "{:?}", life.issued);
    assert_eq!(life.state.durable.status, ClientStatus::Complete);
}

/// A life in which a driver said that a process was stopped while it lived asked again without a pause.
#[test]
fn a_process_that_outlives_its_stop_is_stopped_again_after_a_pause() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.settle();
    life.outcome(PROCESS, Outcome::Done);
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running));
    assert_eq!(life.issued.len(), 2, "{:?}", life.issued);
    assert!(matches!(life.state.parts.get(PROCESS), PartState::Failed { doing: Doing::Down, .. }));
}

/// A life in which a catalogue was down during a group's restart started tasks without asking for their registration, since
/// taking it back had failed and was to be tried again later.
#[test]
fn a_delay_after_a_failure_does_not_hold_back_the_opposite() {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    let group =
        &mut std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job).groups[0];
    group.services.push(crate::fixture::service("web"));
    let mut parts = up(&[Part::Dir, TASK_DIR]);
    let failed = |doing| PartState::Failed { doing, attempt: 5, retry_at_ns: u64::MAX, why: String::new() };
    parts.learn(Part::Services, failed(Doing::Down));
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, parts));
    life.settle();
    assert_eq!(life.issued, ["Up", "Start { attempt: 1 }"]);
    let mut parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    parts.learn(Part::Services, failed(Doing::Up));
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.settle();
    assert_eq!(life.issued[0], "Down");
    assert!(life.issued[1].starts_with("Stop"));
}

/// One that the task is told of by a signal when it is renewed.
fn expiring_identity() -> Identity {
    Identity {
        name: String::from("api"),
        aud: Vec::new(),
        ttl: Some(Duration::from_secs(60)),
        env: false,
        file: true,
        change_mode: ChangeMode::Signal,
        change_signal: Some(String::from("SIGUSR2")),
    }
}

/// An allocation without a world around it.
struct Bench<'a> {
    spec: &'a std_alloc::sync::Arc<Allocation>,
    state: AllocState,
    ctx: Context,
    generation: u64,
    issued: Vec<String>,
    notes: Vec<Note>,
    now: Now,
}

impl<'a> Bench<'a> {
    fn new(spec: &'a std_alloc::sync::Arc<Allocation>, state: AllocState) -> Self {
        Self {
            spec,
            state,
            ctx: context(),
            generation: 0,
            issued: Vec::new(),
            notes: Vec::new(),
            now: at(100),
        }
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut Writer<'_>) -> R) -> R {
        let mut issued = Vec::new();
        let result = change(&mut Writer {
            now: self.now,
            settings: &self.ctx.settings,
            spec: self.spec,
            state: &mut self.state,
            generation: &mut self.generation,
            issued: &mut issued,
            notes: &mut self.notes,
        });
        self.issued.extend(issued.iter().map(|issued| format!("{:?}", issued.verb)));
        result
    }

    /// As after a crash: what is stored, and nothing else.
    fn crash(&mut self) {
        let durable = Durable::clone(&self.state.durable);
        self.state = AllocState { durable: Tracked::stored(durable), ..AllocState::default() };
        self.issued.clear();
    }

    /// Plans until nothing changes; the rounds it took.
    fn settle(&mut self) -> usize {
        for round in 0..64 {
            let plan = super::plan(self.now, &self.ctx, self.spec, &self.state);
            if plan.changes.is_empty() || plan.changes.contains(&Change::Forget) {
                return round;
            }
            self.write(|writer| plan.changes.into_iter().for_each(|change| writer.change(change)));
        }
        64
    }

    fn outcome(&mut self, part: Part, outcome: Outcome) {
        if let PartState::Busy { generation, .. } = *self.state.parts.get(part) {
            self.write(|writer| writer.outcome(part, generation, outcome));
            self.settle();
        }
    }
}

fn any_deadline() -> impl Strategy<Value = Deadline> {
    (0..200u64, 0..60i64).prop_map(|(from, length)| Deadline::after(at(from), Duration::from_secs(length)))
}

fn any_run() -> impl Strategy<Value = Run> {
    let stop = (any_deadline(), 0..3u8, any::<bool>(), 0..3u32, 1..3u64).prop_map(
        |(until, step, dead, attempt, boot)| {
            let step = match step {
                0 => StopStep::Delay { until },
                1 => StopStep::Prestop { until },
                _ => StopStep::Kill { until },
            };
            let then = if dead { AfterStop::Dead } else { AfterStop::Restart };
            Run::Stopping { attempt, boot: BootId(boot), ran: true, step, then }
        },
    );
    prop_oneof![
        Just(Run::Waiting),
        any_deadline().prop_map(|until| Run::BackingOff { until }),
        (0..3u32, 1..3u64).prop_map(|(attempt, boot)| Run::Starting { attempt, boot: BootId(boot) }),
        (0..3u32, 1..3u64).prop_map(|(attempt, boot)| Run::Running { attempt, boot: BootId(boot) }),
        stop,
        Just(Run::Dead),
    ]
}

fn any_task() -> impl Strategy<Value = TaskState> {
    (any_run(), 0..4u32, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(run, attempt, failed, requested, doomed)| {
            let doom = doomed.then(|| Doom {
                kind: herdlet_api_types::task::TaskEventKind::HookFailed,
                message: String::new(),
            });
            TaskState { run, attempt, failed, restart_requested: requested, doom, ..TaskState::default() }
        },
    )
}

fn any_part_state() -> impl Strategy<Value = PartState> {
    let doing = prop_oneof![
        Just(Doing::Up),
        Just(Doing::Down),
        Just(Doing::Renew),
        Just(Doing::Look(None)),
        Just(Doing::Look(Some(Noticed::Look)))
    ];
    prop_oneof![
        Just(PartState::Unknown),
        Just(PartState::Suspect(Noticed::Event)),
        Just(PartState::Absent),
        Just(PartState::Up),
        (doing.clone(), any::<bool>()).prop_map(|(doing, overtaken)| PartState::Busy {
            generation: 0,
            doing,
            since_ns: 0,
            overtaken,
            overdue: false
        }),
        (doing, 0..200u64).prop_map(|(doing, at)| PartState::Failed {
            doing,
            attempt: 1,
            retry_at_ns: at * 1_000_000_000,
            why: String::new()
        }),
    ]
}

fn all_parts() -> Vec<Part> {
    let of_task = [TaskPart::Dir, TaskPart::Identity, TaskPart::Mounts, TaskPart::Process, TaskPart::Prestop];
    let tasks = (0..5u16).flat_map(move |index| of_task.map(|part| Part::Task(index, part)));
    [Part::Dir, Part::Services, Part::Checks].into_iter().chain(tasks).collect()
}

fn any_state() -> impl Strategy<Value = AllocState> {
    let stage = prop_oneof![
        Just(Stage::Init),
        Just(Stage::Prestart),
        Just(Stage::Main),
        Just(Stage::Poststart),
        Just(Stage::WaitAlloc),
        Just(Stage::Poststop)
    ];
    let count = all_parts().len();
    (
        (stage, any::<bool>(), prop::collection::vec(any_task(), 0..6)),
        (prop::option::of(any_deadline()), prop::option::of((any::<bool>(), any_deadline()))),
        prop::collection::vec(any_part_state(), count),
    )
        .prop_map(|((stage, adopted, tasks), (stop, restart), states)| {
            let mut parts = Parts::absent();
            for (part, state) in all_parts().into_iter().zip(states) {
                parts.learn(part, state);
            }
            let mut state = known(tasks, stage, parts);
            state.durable.adopted = adopted;
            state.durable.stop =
                stop.map(|delay| Stop { reason: StopReason::Desired, decided_at: at(0).wall, delay });
            state.durable.restart = restart.map(|(all, delay)| GroupRestart { all, delay });
            state
        })
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Done),
        Just(Outcome::Present),
        Just(Outcome::Absent),
        Just(Outcome::Foreign { why: String::new() }),
        Just(Outcome::Lost { why: String::new() }),
        Just(Outcome::Overdue),
        Just(Outcome::Issued { renew_in: Some(Duration::from_secs(30)) }),
        Just(Outcome::Recovered(Recovered::NotStarted)),
        Just(Outcome::Recovered(Recovered::Running)),
        Just(Outcome::Recovered(Recovered::Exited(exit(1)))),
        Just(Outcome::Recovered(Recovered::Lost { why: String::new() })),
        Just(Outcome::Failed { class: FailureClass::Retry, why: String::new() }),
        Just(Outcome::Failed { class: FailureClass::Fatal, why: String::new() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the state, there is a plan; carrying it out comes to an end after which nothing is left to do; and whatever
    /// happens then, a terminal status is never taken back and no part has two operations.
    #[test]
    fn plans_are_total_and_come_to_rest(
        state in any_state(),
        desired in prop_oneof![Just(Desired::Run), Just(Desired::Stop), Just(Desired::Gone)],
        outcomes in prop::collection::vec((0..28usize, any_outcome()), 0..24),
    ) {
        let mut spec = alloc(vec![
            task("pre", Lifecycle::Prestart),
            task("side", Lifecycle::PrestartSidecar),
            task("main", Lifecycle::Main),
            task("post", Lifecycle::Poststart),
            task("stop", Lifecycle::Poststop),
        ]);
        std_alloc::sync::Arc::make_mut(&mut spec).desired = desired;
        let mut life = Bench::new(&spec, state);
        prop_assert!(life.settle() < 64);
        let parts = all_parts();
        let mut terminal = None;
        for (at, outcome) in outcomes {
            life.outcome(parts[at % parts.len()], outcome);
            prop_assert!(life.settle() == 0, "a settled state plans nothing");
            let status = life.state.durable.status;
            prop_assert!(terminal.is_none_or(|was| was == status));
            terminal = terminal.or(status.is_terminal().then_some(status));
        }
    }
}

#[test]
fn parts_are_all_different() {
    assert_eq!(all_parts().into_iter().collect::<BTreeSet<_>>().len(), all_parts().len());
}

// The agent renewed a token and died before it had told the task: nobody ever did.
#[test]
fn a_renewal_that_the_agent_did_not_survive_is_told_by_the_next() {
    let mut main = task("main", Lifecycle::Main);
    main.identities.push(expiring_identity());
    let spec = alloc(vec![main]);
    let part = Part::Task(0, TaskPart::Identity);
    let issued = || Outcome::Issued { renew_in: Some(Duration::from_secs(30)) };
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
        bench.write(|writer| {
            let timeout = Duration::from_secs(1);
            writer.change(Change::Issue { part, doing: Doing::Look(None), verb: Verb::Look, timeout });
        });
        let generation = bench.generation;
        bench.write(|writer| writer.outcome(part, generation, issued()));
        bench.issued.iter().filter(|verb| verb.contains("SIGUSR2")).count()
    };
    assert_eq!(look(&mut bench), 1, "{:?}", bench.issued);
    let signal = bench.generation;
    assert_eq!(look(&mut bench), 1, "once as long as it is under way");
    // The signal was released and nobody knows whether it arrived: once more.
    bench.crash();
    assert_eq!(look(&mut bench), 1);
    let (again, process) = (bench.generation, Part::Task(0, TaskPart::Process));
    bench.write(|writer| writer.outcome(process, again, Outcome::Done));
    bench.write(|writer| writer.outcome(process, signal, Outcome::Done));
    bench.crash();
    assert_eq!(look(&mut bench), 0, "it was told");
}
