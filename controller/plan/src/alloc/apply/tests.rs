//! Tests of single changes to an allocation's state: ends of attempts, requests, histories.

use std_alloc::{borrow::ToOwned, vec, vec::Vec};

use herdlet_api_types::{alloc::Allocation, job::Lifecycle};

use super::*;
use crate::{
    action::{FailureClass, Outcome, Recovered, Started},
    facts::Facts,
    fixture::{alloc, at, dead, exit, failed, pending, running, settings, task},
    launch::{Handle, Launch},
    network::DriverNetwork,
    plan::TaskChange,
    state::{
        AfterStop, Durable, GroupRestart, Noticed, Parts, RestartPhase, Run, StopReason, StopStep, Tracked,
    },
    time::{BootId, Deadline},
};

/// An allocation of a main, a sidecar and a poststop task, and the output of its changes.
struct Desk {
    spec: Arc<Allocation>,
    settings: Settings,
    state: AllocState,
    generation: u64,
    issued: Vec<Issued>,
    notes: Vec<Note>,
}

const PROCESS: Part = Part::Task(0, TaskPart::Process);

impl Desk {
    fn new(main: TaskState) -> Self {
        Self::with(vec![main, running(), pending()])
    }

    fn with(mut tasks: Vec<TaskState>) -> Self {
        let kinds =
            [("main", Lifecycle::Main), ("side", Lifecycle::PrestartSidecar), ("stop", Lifecycle::Poststop)];
        for (known, (name, _)) in tasks.iter_mut().zip(kinds) {
            known.name = name.into();
        }
        let durable = Durable { adopted: true, stage: Stage::WaitAlloc, tasks, ..Durable::default() };
        Self {
            spec: alloc(kinds.map(|(name, lifecycle)| task(name, lifecycle)).into()),
            settings: settings(),
            state: AllocState {
                durable: Tracked::stored(durable),
                parts: Parts::absent(),
                ..AllocState::default()
            },
            generation: 7,
            issued: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut Writer<'_>) -> R) -> R {
        change(&mut Writer {
            now: at(100),
            settings: &self.settings,
            spec: &AllocSpec::read(self.spec.clone()),
            state: &mut self.state,
            generation: &mut self.generation,
            issued: &mut self.issued,
            notes: &mut self.notes,
        })
    }

    /// Runs an operation on the main task's process to its end.
    fn process(&mut self, doing: Doing, verb: Verb, outcome: Outcome) {
        self.write(|writer| {
            writer.change(Change::Issue { part: PROCESS, doing, verb, timeout: Duration::from_secs(1) });
        });
        let generation = self.generation;
        self.write(|writer| writer.outcome(PROCESS, generation, outcome));
    }

    fn main(&self) -> &TaskState {
        &self.state.durable.tasks[0]
    }

    /// The kinds of a task's events.
    fn event_kinds(&self, index: usize) -> Vec<&'static str> {
        self.state.durable.tasks[index].events.iter().map(|event| event.kind.as_str()).collect()
    }

    fn stop(&mut self) {
        let delay = Deadline::after(at(100), Duration::ZERO);
        let stop = Stop { reason: StopReason::Desired, decided_at: at(100).wall, delay };
        self.state.durable.stop = Some(stop);
    }
}

fn starting() -> TaskState {
    TaskState { run: Run::Starting { attempt: 1, boot: BootId(1) }, attempt: 1, ..TaskState::default() }
}

fn stopping(then: AfterStop) -> TaskState {
    let step = StopStep::Kill { until: Deadline::after(at(100), Duration::from_secs(5)) };
    let run = Run::Stopping { attempt: 1, boot: BootId(1), ran: true, step, then };
    TaskState { run, ..running() }
}

fn is_backing_off(known: &TaskState) -> bool {
    matches!(known.run, Run::BackingOff { .. })
}

#[test]
fn failed_start_counts_unless_it_is_fatal() {
    for (class, again, code) in [
        (FailureClass::Recoverable, true, 0),
        (FailureClass::Fatal, false, 0),
        (FailureClass::NoProgram, false, 127),
    ] {
        let mut desk = Desk::new(starting());
        let failed = Outcome::Failed { class, why: "no such program".to_owned() };
        desk.process(Doing::Up, Verb::Start { attempt: 1 }, failed);
        assert_eq!(
            (is_backing_off(desk.main()), desk.main().failed, desk.main().counted),
            (again, !again, 1)
        );
        assert_eq!(desk.event_kinds(0)[0], "Driver Failure");
        let exit = desk.main().exit.as_ref().map(|exit| (exit.code, &*exit.error));
        assert_eq!(exit, Some((code, "no such program")));
    }
}

/// Drift that was reported while the process was started or inspected was dropped, and its cgroup was never repaired.
#[test]
fn drift_of_a_busy_process_is_inspected_after_the_operation() {
    for (doing, verb, main, outcome) in [
        (Doing::Up, Verb::Start { attempt: 1 }, starting(), Outcome::Started(Launch::of(1))),
        (
            Doing::Inspect(None),
            Verb::Recover { attempt: 1 },
            running(),
            Outcome::Recovered(Recovered::Running(Started::default())),
        ),
    ] {
        let mut desk = Desk::new(main);
        desk.write(|writer| {
            writer.change(Change::Issue { part: PROCESS, doing, verb, timeout: Duration::from_secs(1) });
            writer.drift(PROCESS, Noticed::Event);
        });
        let generation = desk.generation;
        desk.write(|writer| writer.outcome(PROCESS, generation, outcome));
        assert_eq!(*desk.state.parts.get(PROCESS), PartState::Suspect(Noticed::Event));
        let lives = Outcome::Recovered(Recovered::Running(Started::default()));
        desk.process(Doing::Inspect(Some(Noticed::Event)), Verb::Recover { attempt: 1 }, lives);
        assert_eq!(*desk.state.parts.get(PROCESS), PartState::Up, "once");
    }
}

/// The agent died after a start and before its result was stored: the next one had neither the handle nor the network.
#[test]
fn recovery_stores_the_result_of_a_start() {
    let mut desk = Desk::new(starting());
    let network = DriverNetwork { ip: "10.0.0.2".to_owned(), ..DriverNetwork::default() };
    let started =
        Started { handle: Some(Handle { version: 1, state: vec![7] }), network: Some(network.clone()) };
    let running = Outcome::Recovered(Recovered::Running(started.clone()));
    desk.process(Doing::Inspect(None), Verb::Recover { attempt: 1 }, running.clone());
    assert!(matches!(desk.main().run, Run::Running { .. }));
    let launch = desk.main().launch_of(1).expect("it is stored");
    assert_eq!((launch.handle.clone(), launch.network.clone()), (started.handle.clone(), started.network));
    // A driver that has given it another network since.
    let moved = DriverNetwork { ip: "10.0.0.3".to_owned(), ..network };
    let running = Recovered::Running(Started { handle: started.handle, network: Some(moved.clone()) });
    desk.process(Doing::Inspect(None), Verb::Recover { attempt: 1 }, Outcome::Recovered(running));
    assert_eq!(desk.main().launch_of(1).and_then(|launch| launch.network.clone()), Some(moved));
}

/// The machine lacked file descriptors, and a batch task with `attempts: 0` failed for good, although nothing was wrong
/// with it.
#[test]
fn start_failed_by_the_machine_does_not_count() {
    let mut desk = Desk::new(starting());
    let why = "too many open files".to_owned();
    let failed = Outcome::Failed { class: FailureClass::Retry, why: why.clone() };
    desk.process(Doing::Up, Verb::Start { attempt: 1 }, failed);
    assert_eq!((desk.main().run.clone(), desk.main().counted), (starting().run, 0));
    let reported = desk.state.parts.get(PROCESS);
    assert!(matches!(reported, PartState::Failed { why: reported, .. } if *reported == why), "{reported:?}");
    desk.process(
        Doing::Inspect(None),
        Verb::Recover { attempt: 1 },
        Outcome::Recovered(Recovered::NotStarted),
    );
    assert_eq!(*desk.state.parts.get(PROCESS), PartState::Absent, "the same attempt is started again");
}

#[test]
fn lost_attempt_counts_unless_it_was_stopping() {
    let lost = || Outcome::Recovered(Recovered::Lost { why: "killed".to_owned() });
    let recover = |main: TaskState| {
        let mut desk = Desk::new(main);
        desk.process(Doing::Inspect(None), Verb::Recover { attempt: 1 }, lost());
        desk
    };
    let earlier = |run| TaskState { run, ..running() };
    let desk = recover(running());
    assert!(is_backing_off(desk.main()), "like any exit");
    assert_eq!((desk.main().counted, desk.main().exit.as_ref().map(|exit| exit.code)), (1, Some(-1)));
    let desk = recover(earlier(Run::Running { attempt: 1, boot: BootId(0) }));
    assert_eq!((&desk.main().run, desk.main().counted), (&Run::Waiting, 0), "a reboot counts for nothing");
    let Run::Stopping { step, .. } = stopping(AfterStop::Dead).run else { return };
    let then = AfterStop::Dead;
    let run = Run::Stopping { attempt: 1, boot: BootId(0), ran: true, step, then };
    assert_eq!(recover(earlier(run)).main().run, Run::Dead, "it was being stopped anyway");
}

#[test]
fn exit_leads_to_restart_or_end() {
    let asked = || TaskState { restart_requested: true, ..running() };
    for (name, main, group_stops, restarts, run, failed) in [
        ("its policy decides", running(), false, 1, "BackingOff", false),
        ("the group stops", running(), true, 0, "Dead", false),
        ("a restart was asked for", asked(), false, 1, "Waiting", false),
        ("but the group stops", asked(), true, 0, "Dead", false),
        ("it was stopped", stopping(AfterStop::Dead), false, 0, "Dead", false),
        ("it was stopped to restart", stopping(AfterStop::Restart), false, 1, "Waiting", false),
        ("but the group stops meanwhile", stopping(AfterStop::Restart), true, 0, "Dead", false),
    ] {
        let mut desk = Desk::new(main);
        if group_stops {
            desk.stop();
        }
        desk.write(|writer| writer.exited("main", 1, exit(3)));
        let run_is = std_alloc::format!("{:?}", desk.main().run);
        assert!(run_is.starts_with(run), "{name}: {run_is}");
        assert_eq!((desk.main().restarts, desk.main().failed), (restarts, failed), "{name}");
    }
}

#[test]
fn a_poststop_task_runs_while_the_group_stops() {
    let mut desk = Desk::with(vec![dead(), dead(), running()]);
    desk.stop();
    desk.write(|writer| writer.exited("stop", 1, exit(1)));
    let stop = &desk.state.durable.tasks[2];
    assert!(is_backing_off(stop), "its policy decides: {:?}", stop.run);
}

#[test]
fn a_task_fails_for_good_once_and_not_after_its_end() {
    let mut desk = Desk::with(vec![running(), dead(), pending()]);
    for why in ["first", "second"] {
        desk.write(|writer| writer.fail_permanently(0, TaskEventKind::HookFailed, why.to_owned()));
        desk.write(|writer| writer.fail_permanently(1, TaskEventKind::HookFailed, why.to_owned()));
    }
    assert_eq!(
        desk.main().permanent_failure.as_ref().map(|permanent_failure| &*permanent_failure.message),
        Some("first")
    );
    assert!(desk.state.durable.tasks[1].permanent_failure.is_none());
    assert_eq!((desk.event_kinds(0).len(), desk.event_kinds(1).len()), (1, 0));
}

#[test]
fn newer_attempt_than_stored_is_recovered() {
    for (stage, after) in [(Stage::Init, Stage::Prestart), (Stage::Main, Stage::Main)] {
        let mut desk = Desk::new(pending());
        desk.state.durable.stage = stage;
        desk.write(|writer| writer.on_attempt_found("main", 4));
        assert_eq!(desk.main().run, Run::Starting { attempt: 4, boot: BootId(1) });
        assert_eq!((desk.main().attempt, desk.state.durable.stage), (4, after));
    }
    let mut desk = Desk::new(running());
    desk.write(|writer| writer.on_attempt_found("main", 1));
    assert_eq!(desk.main(), &TaskState { name: "main".into(), ..running() }, "the attempt is known");
}

#[test]
fn live_tasks_record_why_they_are_stopped() {
    let because =
        |reason| Stop { reason, decided_at: at(100).wall, delay: Deadline::after(at(100), Duration::ZERO) };
    for (reason, kind, cause) in [
        (StopReason::Desired, None, "stop"),
        (StopReason::LeaderDead, Some("Leader Task Dead"), "leader"),
        (StopReason::SiblingFailed("side".to_owned()), Some("Sibling Task Failed"), "sibling"),
        (StopReason::MainDead, Some("Main Tasks Dead"), "main"),
    ] {
        let mut desk = Desk::with(vec![running(), failed(), pending()]);
        desk.write(|writer| writer.change(Change::Stop(because(reason))));
        assert_eq!(desk.event_kinds(0), Vec::from_iter(kind));
        assert_eq!(
            (desk.event_kinds(1), desk.event_kinds(2)),
            (vec![], vec![]),
            "dead tasks and poststop tasks get no event"
        );
        assert_eq!(desk.notes, [Note::Disruption { job: desk.spec.job_key.clone(), cause }]);
        // Regression: allocations whose tasks never ran were counted too.
        let mut desk = Desk::with(vec![pending(), failed(), pending()]);
        desk.write(|writer| writer.change(Change::Stop(because(StopReason::Desired))));
        assert_eq!(desk.notes, []);
    }
}

#[test]
fn a_driver_is_heard() {
    let mut desk = Desk::new(running());
    desk.write(|writer| writer.driver_message("main", "pulling".to_owned()));
    desk.write(|writer| writer.driver_message("nobody", "pulling".to_owned()));
    let event = desk.main().events.iter().next().expect("an event");
    assert_eq!((event.kind.as_str(), &*event.message, event.time), ("Driver", "pulling", at(100).wall));
}

#[test]
fn signals_are_operations_of_their_own() {
    let mut desk = Desk::new(running());
    desk.write(|writer| writer.signal(None, "SIGHUP")).expect("two running tasks");
    let sent: Vec<_> = desk.issued.iter().map(|issued| (issued.part, issued.generation)).collect();
    assert_eq!(sent, [(PROCESS, 8), (Part::Task(1, TaskPart::Process), 9)]);
    assert!(desk.write(|writer| writer.signal(Some("stop"), "SIGHUP")).is_err());
}

#[test]
fn restart_of_running_tasks_keeps_ended_ones() {
    for (all, expected) in [(false, Run::Dead), (true, Run::Waiting)] {
        let mut desk = Desk::with(vec![failed(), running(), dead()]);
        let delay = Deadline::after(at(100), Duration::ZERO);
        let restart = GroupRestart { all, delay, unhealthy: false, phase: RestartPhase::Delay };
        desk.write(|writer| writer.change(Change::RestartTasks(restart)));
        assert_eq!((&desk.main().run, desk.main().failed), (&expected, !all));
        assert!(desk.state.durable.tasks[1].restart_requested);
        assert_eq!(desk.state.durable.tasks[2].run, Run::Dead, "poststop");
    }
}

#[test]
fn adopted_allocation_has_a_state_per_task() {
    let mut desk = Desk::with(Vec::new());
    desk.write(|writer| writer.change(Change::Adopt));
    let names: Vec<&str> = desk.state.durable.tasks.iter().map(|known| &*known.name).collect();
    assert_eq!(names, ["main", "side", "stop"]);
    assert_eq!(desk.event_kinds(0), ["Received"]);
}

#[test]
fn token_change_is_settled_after_the_last_signal() {
    use herdlet_api_types::job::{ChangeMode, Identity};
    let mut desk = Desk::new(running());
    for signal in ["SIGUSR1", "SIGUSR2"] {
        let job = Arc::make_mut(&mut Arc::make_mut(&mut desk.spec).job);
        job.groups[0].tasks[0].identities.push(Identity {
            extra_claims: Vec::new(),
            name: signal.to_owned(),
            aud: Vec::new(),
            ttl: Some(Duration::from_secs(60)),
            env: false,
            file: true,
            filepath: None,
            change_mode: ChangeMode::Signal,
            change_signal: Some(signal.to_owned()),
        });
    }
    let part = Part::Task(0, TaskPart::Identity);
    desk.write(|writer| {
        let timeout = Duration::from_secs(1);
        writer.change(Change::Issue { part, doing: Doing::Renew, verb: Verb::Up, timeout });
    });
    let renewed =
        Outcome::Done(Some(Facts::renewed_at(Some(Deadline::after(at(100), Duration::from_secs(30))))));
    desk.write(|writer| writer.outcome(part, 8, renewed));
    desk.write(|writer| writer.change(Change::Task(0, TaskChange::Settle(TaskPart::Identity))));
    for (signal, owed) in [(9, true), (10, false)] {
        desk.write(|writer| writer.outcome(PROCESS, signal, Outcome::Done(None)));
        assert_eq!(desk.main().owed.contains_key(&TaskPart::Identity), owed, "{signal}");
    }
}

/// A desk whose main task's first attempt may have been begun by a dead agent.
fn maybe_begun() -> Desk {
    let mut desk = Desk::new(pending());
    desk.state.durable.get_mut_untracked().boot = Some(BootId(1));
    desk.state.parts = Parts::unknown();
    desk.state.maybe_begun = [0].into();
    desk
}

#[test]
fn unstored_first_attempt_is_recovered() {
    let recovered = |recovered: Recovered| {
        let mut desk = maybe_begun();
        let verb = Verb::Recover { attempt: 1 };
        desk.process(Doing::Inspect(None), verb, Outcome::Recovered(recovered));
        desk
    };
    let lives = recovered(Recovered::Running(Default::default()));
    assert_eq!(lives.main().run, Run::Running { attempt: 1, boot: BootId(1) });
    assert_eq!((lives.main().restarts, lives.state.maybe_begun.len()), (0, 0));

    let ended = recovered(Recovered::Exited(exit(1)));
    assert!(is_backing_off(ended.main()), "{:?}", ended.main().run);
    assert_eq!((ended.main().attempt, ended.main().counted), (1, 1), "it counts like any other attempt");

    let never = recovered(Recovered::NotStarted);
    assert_eq!((&never.main().run, never.main().attempt), (&Run::Waiting, 0));
    assert_eq!(*never.state.parts.get(PROCESS), PartState::Absent);
    assert!(never.state.maybe_begun.contains(&0), "its start may still arrive");

    let lost = recovered(Recovered::Lost { why: "its record is gone".to_owned() });
    assert_eq!((&lost.main().run, lost.main().attempt, lost.main().used), (&Run::Waiting, 0, 1));
    assert_eq!((lost.main().counted, lost.main().exit.clone()), (0, None), "a lost attempt does not count");
    assert_eq!(*lost.state.parts.get(PROCESS), PartState::Up, "its leftovers are removed");
}

#[test]
fn exit_may_arrive_before_recovery_has_ended() {
    let mut desk = maybe_begun();
    let (doing, verb) = (Doing::Inspect(None), Verb::Recover { attempt: 1 });
    desk.write(|writer| {
        writer.change(Change::Issue { part: PROCESS, doing, verb, timeout: Duration::from_secs(1) });
    });
    desk.write(|writer| writer.exited("main", 1, exit(1)));
    assert!(is_backing_off(desk.main()), "{:?}", desk.main().run);
    // The inspection's observation is outdated.
    let generation = desk.generation;
    desk.write(|writer| {
        writer.outcome(PROCESS, generation, Outcome::Recovered(Recovered::Running(Default::default())))
    });
    assert!(is_backing_off(desk.main()), "{:?}", desk.main().run);
}

#[test]
fn first_attempt_is_unwritten_only_in_its_adoption_boot() {
    for (boot, attempts, is_written) in
        [(Some(BootId(1)), 0, false), (Some(BootId(7)), 0, true), (None, 0, true), (Some(BootId(1)), 1, true)]
    {
        let main = TaskState { attempt: attempts, ..pending() };
        let mut desk = Desk::with(vec![main, pending(), pending()]);
        desk.state.durable.get_mut_untracked().boot = boot;
        desk.write(|writer| writer.change(Change::Task(0, TaskChange::Begin)));
        assert_eq!(desk.main().attempt, attempts + 1);
        assert_eq!(desk.state.durable.is_touched(), is_written, "{boot:?} {attempts}");
    }
}

#[test]
fn restart_of_all_ends_possible_first_attempts() {
    let mut desk = maybe_begun();
    let delay = Deadline::after(at(100), Duration::ZERO);
    desk.write(|writer| {
        writer.change(Change::RestartTasks(GroupRestart {
            all: true,
            delay,
            unhealthy: false,
            phase: RestartPhase::Delay,
        }))
    });
    assert!(
        matches!(desk.main().run, Run::Stopping { attempt: 1, ran: false, then: AfterStop::Restart, .. }),
        "{:?}",
        desk.main().run
    );
    // It was only fenced: nothing is known to have begun, and its number is used.
    let lost = Recovered::Lost { why: "it was cancelled".to_owned() };
    desk.process(Doing::Inspect(None), Verb::Recover { attempt: 1 }, Outcome::Recovered(lost));
    assert_eq!((&desk.main().run, desk.main().attempt, desk.main().used), (&Run::Waiting, 0, 1));
}

#[test]
fn missing_directory_dooms_the_tasks_that_used_it() {
    for (known, is_failing) in [
        (TaskState { begun_in: Some(BootId(1)), ..running() }, true),
        (TaskState { begun_in: Some(BootId(7)), ..running() }, false),
        (running(), true),
        (pending(), false),
        (TaskState { used: 1, ..pending() }, false),
        (TaskState { begun_in: Some(BootId(1)), ..stopping(AfterStop::Dead) }, true),
    ] {
        let mut desk = Desk::new(known.clone());
        let (part, doing, verb) = (Part::Task(0, TaskPart::Dir), Doing::Inspect(None), Verb::Inspect);
        desk.write(|writer| {
            writer.change(Change::Issue { part, doing, verb, timeout: Duration::from_secs(1) });
        });
        let generation = desk.generation;
        desk.write(|writer| writer.outcome(part, generation, Outcome::Absent));
        assert_eq!(desk.main().permanent_failure.is_some(), is_failing, "{known:?}");
    }
}

/// A part that derives its revision from its content: the launch record holds the revision that the task has read.
#[test]
fn change_without_an_agent_is_owed() {
    use herdlet_api_types::job::{ChangeMode, Identity};

    use crate::{
        facts::{ChangeAction, Revision},
        launch::Launch,
    };
    let part = Part::Task(0, TaskPart::Identity);
    for (mode, revision, owed) in [
        (ChangeMode::Signal, 7, None),
        (ChangeMode::Signal, 8, Some(ChangeAction::Signal([String::from("SIGHUP")].into()))),
        (ChangeMode::Restart, 8, Some(ChangeAction::Restart("Identity[api]: new token acquired".to_owned()))),
        (ChangeMode::Noop, 8, None),
    ] {
        let launch = Launch { revisions: [(part, Revision(7))].into(), ..Launch::of(1) };
        let mut desk = Desk::new(TaskState { launch: Some(Arc::new(launch)), ..running() });
        let job = Arc::make_mut(&mut Arc::make_mut(&mut desk.spec).job);
        job.groups[0].tasks[0].identities.push(Identity {
            extra_claims: Vec::new(),
            name: "api".to_owned(),
            aud: Vec::new(),
            ttl: Some(Duration::from_secs(60)),
            env: false,
            file: true,
            filepath: None,
            change_mode: mode,
            change_signal: None,
        });
        let (doing, timeout) = (Doing::Inspect(None), Duration::from_secs(1));
        desk.write(|writer| writer.change(Change::Issue { part, doing, verb: Verb::Inspect, timeout }));
        let found = Facts { revision: Revision(revision), ..Facts::none() };
        desk.write(|writer| writer.outcome(part, 8, Outcome::Present(Some(Arc::new(found)))));
        let known = desk.main().owed.get(&TaskPart::Identity).map(|owed| owed.action.clone());
        assert_eq!(known, owed, "{mode:?} {revision}");
        assert!(!desk.main().restart_requested, "the request is stored first");
        desk.write(|writer| writer.change(Change::Task(0, TaskChange::Settle(TaskPart::Identity))));
        assert_eq!(desk.main().restart_requested, owed.is_some() && mode == ChangeMode::Restart);
        desk.write(|writer| writer.outcome(PROCESS, 9, Outcome::Done(None)));
        assert!(desk.main().owed.is_empty(), "{mode:?} {revision}");
    }
}
