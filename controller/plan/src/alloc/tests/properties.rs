//! Properties of plans: total, idempotent, monotone, for any state.

use super::*;
use crate::facts::{ChangeAction, Owed, Revision};
use crate::state::LastValue;
use herdlet_api_types::{fixture, job::TemplateChange};

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
    let owed = prop::option::of(any_owed());
    (any_run(), 0..4u32, any::<bool>(), any::<bool>(), any::<bool>(), owed).prop_map(
        |(run, attempt, failed, requested, failing, owed)| {
            let permanent_failure = failing.then(|| PermanentFailure {
                kind: herdlet_api_types::task::TaskEventKind::HookFailed,
                message: String::new(),
            });
            let owed = owed.into_iter().map(|owed| (TaskPart::Templates, owed)).collect();
            let restart_requested = requested;
            TaskState {
                run,
                attempt,
                failed,
                restart_requested,
                permanent_failure,
                owed,
                ..TaskState::default()
            }
        },
    )
}

fn any_part_state() -> impl Strategy<Value = PartState> {
    let doing = prop_oneof![
        Just(Doing::Up),
        Just(Doing::Down),
        Just(Doing::Renew),
        Just(Doing::Inspect(None)),
        Just(Doing::Inspect(Some(Noticed::Periodic)))
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
        (0..200u64, any::<bool>()).prop_map(|(at, kept)| PartState::Pending {
            on: String::new(),
            since_ns: 0,
            ask_at_ns: at * 1_000_000_000,
            last: if kept { LastValue::Kept } else { LastValue::Gone },
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
    let of_task = [
        TaskPart::Dir,
        TaskPart::Identity,
        TaskPart::Vault,
        TaskPart::Consul,
        TaskPart::Secrets,
        TaskPart::Artifacts,
        TaskPart::Mounts,
        TaskPart::Templates,
        TaskPart::ApiSocket,
        TaskPart::CsiPlugin,
        TaskPart::Probe,
        TaskPart::ProbeReader,
        TaskPart::Process,
        TaskPart::Prestop,
    ];
    let tasks = (0..5u16).flat_map(move |index| of_task.map(|part| Part::Task(index, part)));
    Part::OWN.into_iter().chain(tasks).collect()
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
                parts.set_part(part, state);
            }
            let mut state = known(tasks, stage, parts);
            state.durable.adopted = adopted;
            state.durable.stop =
                stop.map(|delay| Stop { reason: StopReason::Desired, decided_at: at(0).wall, delay });
            state.durable.restart = restart.map(|(all, delay)| {
                let phase = if all { RestartPhase::Delay } else { RestartPhase::Stopping };
                GroupRestart { all, delay, unhealthy: false, phase }
            });
            state
        })
}

/// A task with templates of all kinds.
fn templated(mut task: herdlet_api_types::job::Task) -> herdlet_api_types::job::Task {
    let mut script = fixture::change_script("/bin/reload");
    (script.fail_on_error, script.run_on_first_render) = (true, true);
    let changes = [
        TemplateChange::Restart,
        TemplateChange::Signal(String::from("SIGHUP")),
        TemplateChange::Script(script),
    ];
    task.templates = changes.into_iter().map(fixture::template).collect();
    task
}

/// A task with a secret.
fn secretive(mut task: herdlet_api_types::job::Task) -> herdlet_api_types::job::Task {
    task.secrets = [fixture::secret("db", "nomad/jobs/web")].into();
    task
}

/// A task with the parts that only tests have.
fn probing(mut task: herdlet_api_types::job::Task) -> herdlet_api_types::job::Task {
    task.config = serde_json::json!({ "probe": true });
    task
}

fn any_facts() -> impl Strategy<Value = Arc<Facts>> {
    let root = prop::option::of("[a-z/]{0,8}");
    let env = prop::collection::btree_map("[A-Z]{1,4}", ".{0,8}", 0..3);
    let outputs = prop::collection::vec(any::<u64>().prop_map(Revision), 0..3);
    (any::<u64>(), root, env, prop::option::of(any_deadline()), outputs).prop_map(
        |(revision, root, env, renew_at, outputs)| {
            Arc::new(Facts { revision: Revision(revision), root, env, renew_at, outputs, ..Facts::none() })
        },
    )
}

fn any_owed() -> impl Strategy<Value = Owed> {
    let restart = ".{0,8}".prop_map(ChangeAction::Restart);
    let signals = || prop::collection::btree_set("SIG[A-Z]{1,4}", 0..3);
    let scripts = prop::collection::btree_set(0..3u16, 1..3);
    let signal = signals().prop_map(ChangeAction::Signal);
    let run = (signals(), scripts).prop_map(|(signals, scripts)| ChangeAction::Run { signals, scripts });
    (prop_oneof![restart, signal, run], any::<u64>(), any_deadline())
        .prop_map(|(action, revision, due)| Owed { action, revision: Revision(revision), due })
}

/// A part of a probe, as a key of stored maps.
fn any_probe() -> impl Strategy<Value = TaskPart> {
    prop_oneof![Just(TaskPart::Probe), Just(TaskPart::ProbeReader), Just(TaskPart::Templates)]
}

/// Stored state of probes, in a task and beside it.
fn any_record() -> impl Strategy<Value = Durable> {
    let of_task = |index: u16| any_probe().prop_map(move |part| Part::Task(index, part));
    let facts = prop::collection::btree_map(of_task(0), any_facts(), 0..3);
    let owed = prop::collection::btree_map(any_probe(), any_owed(), 0..3);
    let sets = (
        prop::option::of(prop::collection::btree_set(of_task(0), 0..3)),
        prop::collection::btree_set(any_probe(), 0..3),
        prop::collection::btree_map(of_task(0), any::<u64>().prop_map(Revision), 0..3),
    );
    (any_task(), facts, owed, sets).prop_map(|(task, facts, owed, (offered, changing, revisions))| {
        let launch = Some(Arc::new(Launch { revisions, ..Launch::of(task.attempt) }));
        let task = TaskState { owed, changing, launch, ..task };
        Durable { adopted: true, stage: Stage::Main, tasks: vec![task], facts, offered, ..Durable::default() }
    })
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Done(None)),
        Just(Outcome::Present(None)),
        Just(Outcome::Absent),
        Just(Outcome::Foreign { why: String::new() }),
        Just(Outcome::Lost { why: String::new() }),
        Just(Outcome::Overdue),
        any_deadline().prop_map(|at| Outcome::Done(Some(Facts::renewed_at(Some(at))))),
        Just(Outcome::Started(Launch::of(1))),
        Just(Outcome::Pending { on: String::new(), ask_in: Duration::from_secs(30) }),
        Just(Outcome::Outdated { on: String::new(), ask_in: Duration::from_secs(30), since_ns: 7 }),
        prop::collection::vec(0..3u64, 3).prop_map(|outputs| {
            let outputs = outputs.into_iter().map(Revision).collect();
            Outcome::Done(Some(Arc::new(Facts { outputs, ..Facts::none() })))
        }),
        Just(Outcome::Recovered(Recovered::NotStarted)),
        Just(Outcome::Recovered(Recovered::Running(Default::default()))),
        Just(Outcome::Recovered(Recovered::Exited(exit(1)))),
        Just(Outcome::Recovered(Recovered::Lost { why: String::new() })),
        Just(Outcome::Failed { class: FailureClass::Retry, why: String::new() }),
        Just(Outcome::Failed { class: FailureClass::Fatal, why: String::new() }),
        Just(Outcome::Failed { class: FailureClass::Recoverable, why: String::new() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every state has a plan. Carrying it out reaches an end after which nothing is left to do. After any further
    /// events, a terminal status has not changed and no part has two operations.
    #[test]
    fn plans_are_total_and_come_to_rest(
        state in any_state(),
        desired in prop_oneof![Just(Desired::Run), Just(Desired::Stop), Just(Desired::Gone)],
        outcomes in prop::collection::vec((0..50usize, any_outcome()), 0..24),
    ) {
        let mut spec = alloc(vec![
            task("pre", Lifecycle::Prestart),
            task("side", Lifecycle::PrestartSidecar),
            probing(templated(secretive(fetching(task("main", Lifecycle::Main))))),
            task("post", Lifecycle::Poststart),
            task("stop", Lifecycle::Poststop),
        ]);
        std_alloc::sync::Arc::make_mut(&mut spec).desired = desired;
        let mut life = Bench::new(&spec, state);
        prop_assert!(life.settle() < 64);
        let parts = all_parts();
        let mut terminal = None;
        for (at, outcome) in outcomes {
            // A signal or a script ends, data of templates changes, or another operation ends.
            match (parts.get(at), life.state.notices_in_flight.keys().next().copied()) {
                (Some(part), _) => life.outcome(*part, outcome),
                (None, Some(sent)) => {
                    let process = Part::Task(2, TaskPart::Process);
                    life.write(|writer| writer.outcome(process, sent, outcome));
                    life.settle();
                }
                (None, None) => {
                    life.write(|writer| writer.source_changed(Part::Task(2, TaskPart::Templates)));
                    life.settle();
                }
            }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any stored state of probes is read back unchanged, and an agent that begins with it comes to rest.
    #[test]
    fn records_of_probes_are_read_back_and_planned(record in any_record()) {
        let text = serde_json::to_string(&record).expect("text");
        let read: Durable = serde_json::from_str(&text).expect("a record");
        prop_assert_eq!(&read, &record);
        let spec = alloc(vec![probing(templated(task("main", Lifecycle::Main)))]);
        let mut life = Bench::new(&spec, AllocState::restored(&spec, read, at(100)));
        prop_assert!(life.settle() < 64);
        prop_assert!(plan(life.now, &life.ctx, &spec, &life.state).changes.is_empty());
    }
}
