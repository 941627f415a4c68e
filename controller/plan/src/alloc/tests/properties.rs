//! Plans by property: total, idempotent, monotone, whatever the state.

use super::*;

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
        (0..200u64).prop_map(|at| PartState::Pending {
            on: String::new(),
            since_ns: 0,
            ask_at_ns: at * 1_000_000_000,
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
        TaskPart::Artifacts,
        TaskPart::Identity,
        TaskPart::Mounts,
        TaskPart::Process,
        TaskPart::Prestop,
    ];
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
            state.durable.restart = restart.map(|(all, delay)| {
                let phase = if all { RestartPhase::Delay } else { RestartPhase::Stopping };
                GroupRestart { all, delay, unhealthy: false, phase }
            });
            state
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
        Just(Outcome::Recovered(Recovered::NotStarted)),
        Just(Outcome::Recovered(Recovered::Running)),
        Just(Outcome::Recovered(Recovered::Exited(exit(1)))),
        Just(Outcome::Recovered(Recovered::Lost { why: String::new() })),
        Just(Outcome::Failed { class: FailureClass::Retry, why: String::new() }),
        Just(Outcome::Failed { class: FailureClass::Fatal, why: String::new() }),
        Just(Outcome::Failed { class: FailureClass::Recoverable, why: String::new() }),
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
        outcomes in prop::collection::vec((0..33usize, any_outcome()), 0..24),
    ) {
        let mut spec = alloc(vec![
            task("pre", Lifecycle::Prestart),
            task("side", Lifecycle::PrestartSidecar),
            fetching(task("main", Lifecycle::Main)),
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
