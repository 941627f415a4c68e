//! A server's desired state of the allocations that it has placed here.

use herdlet_api_types::{
    Duration,
    alloc::{ClientStatus, DiskMigration, ServerSide},
    job::{HealthCheck, Lifecycle, Migrate, Task, VolumeRequest},
    task::{TaskEventKind, TaskStatus},
};

use super::*;
use crate::{
    action::FailureClass,
    state::{PartState, TaskState},
    time::BootId,
};

/// The allocation as of the server's change with this number.
fn server_alloc(modify_index: u64, desired: Desired) -> Allocation {
    let spec = (*crate::fixture::alloc(vec![task("main")])).clone();
    let server =
        ServerSide { modify_index, create_index: 900, ..herdlet_api_types::fixture::server_side(&spec.job) };
    Allocation { desired, server: Some(server.into()), ..spec }
}

/// The same with these tasks.
fn of_tasks(modify_index: u64, tasks: Vec<Task>) -> Allocation {
    let spec = server_alloc(modify_index, Desired::Run);
    let mut job = (*spec.job).clone();
    job.groups[0].tasks = tasks;
    let job = Arc::new(job);
    with(Allocation { job: Arc::clone(&job), ..spec }, |server| server.job = job)
}

impl Bench {
    fn deliver(&mut self, spec: Allocation) {
        self.see(Event::Desired(DesiredChange::Contact));
        self.see(Event::Desired(DesiredChange::Alloc(spec.into())));
        self.settle();
    }

    /// The machine and its agent restart: nothing from before runs.
    fn reboot(&mut self) {
        self.restart(Now { boot: BootId(2), ..at(100) });
        self.settle_but(|action| {
            let lost = Recovered::Lost { why: "the machine was started again".into() };
            matches!(action.verb, Verb::Recover { .. }).then_some(Outcome::Recovered(lost))
        });
    }

    fn desired(&self) -> Option<Desired> {
        self.world.allocations().next().map(|(spec, _)| spec.desired)
    }

    fn status(&self) -> Vec<TaskStatus> {
        let states = self.world.allocations().flat_map(|(_, state)| &state.durable.tasks);
        states.map(TaskState::status).collect()
    }
}

#[test]
fn server_allocation_runs_stops_and_is_removed() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    assert_eq!(bench.status(), [TaskStatus::Running]);
    bench.restart(at(2));
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Running], "the next agent adopts the task");
    bench.deliver(server_alloc(12, Desired::Stop));
    assert_eq!(bench.status(), [TaskStatus::Dead]);
    assert_eq!(bench.desired(), Some(Desired::Stop), "the allocation is kept until the server forgets it");
    let id = bench.id();
    bench.see(Event::Desired(DesiredChange::AllocGone(id)));
    bench.settle();
    assert_eq!(bench.world.allocations().count(), 0);
    assert!(
        !bench.stored.keys().any(|key| matches!(key, RecordKey::AllocSpec(_) | RecordKey::AllocState(_)))
    );
}

#[test]
fn repeated_delivery_changes_nothing() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    bench.deliver(server_alloc(10, Desired::Stop));
    assert_eq!(bench.desired(), Some(Desired::Run));
    bench.deliver(server_alloc(11, Desired::Stop));
    bench.deliver(server_alloc(12, Desired::Run));
    assert_eq!((bench.desired(), bench.status()), (Some(Desired::Stop), vec![TaskStatus::Dead]));
}

#[test]
fn allocation_stopped_before_delivery_never_starts() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Stop));
    assert_eq!(bench.status(), [TaskStatus::Dead], "servers and its successor wait for its end");
    let (_, state) = bench.world.allocations().next().unwrap();
    assert!(state.durable.tasks.iter().all(|task| task.newest() == 0), "no attempt was started");
    assert_eq!(state.durable.status, ClientStatus::Complete);
    let id = bench.id();
    bench.see(Event::Desired(DesiredChange::AllocGone(id)));
    bench.settle();
    assert_eq!(bench.world.allocations().count(), 0);
}

/// Only its name in a removal removes it, not a desired list without it.
#[test]
fn complete_job_list_ignores_server_allocations() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    bench.see(Event::Desired(DesiredChange::Complete));
    bench.apply(Vec::new(), Vec::new());
    assert_eq!(bench.status(), [TaskStatus::Running]);
}

#[test]
fn changed_server_job_keeps_its_tasks() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let attempts = |bench: &Bench| {
        let states = bench.world.allocations().flat_map(|(_, state)| &state.durable.tasks);
        states.map(|task| task.attempt).collect::<Vec<_>>()
    };
    let before = attempts(&bench);
    let mut spec = server_alloc(11, Desired::Run);
    let mut job = (*spec.job).clone();
    job.groups[0].services = vec![crate::fixture::service("web")];
    spec.server = spec.server.map(|server| ServerSide { job: job.into(), ..(*server).clone() }.into());
    bench.deliver(spec);
    assert_eq!((attempts(&bench), bench.status()), (before, vec![TaskStatus::Running]));
    let (spec, state) = bench.world.allocations().next().expect("the allocation");
    assert_eq!(spec.group().map(|group| group.services.len()), Some(1));
    assert_eq!(state.parts.get(Part::Services), &PartState::Up, "its services are registered");
}

#[test]
fn servers_do_not_change_local_allocations() {
    let mut bench = running();
    let own = bench.id();
    bench.deliver(Allocation { id: own, ..server_alloc(10, Desired::Stop) });
    bench.see(Event::Desired(DesiredChange::AllocGone(own)));
    bench.settle();
    assert_eq!((bench.desired(), bench.status()), (Some(Desired::Run), vec![TaskStatus::Running]));
}

/// The same with a change of its server side.
fn with(spec: Allocation, change: impl FnOnce(&mut ServerSide)) -> Allocation {
    let mut server = (**spec.server.as_ref().unwrap()).clone();
    change(&mut server);
    Allocation { server: Some(server.into()), ..spec }
}

#[test]
fn refused_server_allocation_fails_with_a_reason() {
    let mut bench = Bench::new();
    bench.deliver(with(server_alloc(10, Desired::Run), |server| {
        server.refused = Some("`vault` is not built".into())
    }));
    let (_, state) = bench.world.allocations().next().unwrap();
    let known = &state.durable.tasks[0];
    assert_eq!(
        (state.durable.status, known.status(), known.attempt),
        (ClientStatus::Failed, TaskStatus::Dead, 0)
    );
    let failure = known.events.iter().find(|event| event.kind == TaskEventKind::SetupFailure).unwrap();
    assert_eq!(failure.message, "`vault` is not built");
}

/// Its group claims the volume `data`.
fn claiming(mut spec: Allocation) -> Allocation {
    let job = Arc::make_mut(&mut spec.job);
    let request = VolumeRequest { source: "data".into(), read_only: false, per_alloc: false };
    job.groups[0].volumes.insert("store".into(), request);
    let job = Arc::clone(&spec.job);
    with(spec, |server| server.job = job)
}

/// It waits for a volume that is being created, but not for an unknown one, as no server would have placed it here.
#[test]
fn missing_volume_fails_unstarted_server_tasks() {
    let mut bench = Bench::new();
    bench.deliver(claiming(server_alloc(10, Desired::Run)));
    let (_, state) = bench.world.allocations().next().unwrap();
    assert_eq!(state.durable.status, ClientStatus::Failed);
    let permanent_failure = state.durable.tasks[0].permanent_failure.as_ref().unwrap();
    assert_eq!(
        (permanent_failure.kind, &*permanent_failure.message),
        (TaskEventKind::SetupFailure, "failed to set up: host volume validation error: missing data")
    );
}

/// Its servers would have placed another one beside the main task, which was never stopped.
#[test]
fn missing_volume_keeps_running_main_tasks() {
    for (lifecycle, ends) in [
        (Lifecycle::Poststop, false),
        (Lifecycle::Poststart, true),
        (Lifecycle::Main, true),
        (Lifecycle::PrestartSidecar, true),
    ] {
        let mut bench = Bench::new();
        bench.apply(Vec::new(), vec![data(false)]);
        bench.settle();
        let other = Task { lifecycle, ..task("other") };
        bench.deliver(claiming(of_tasks(10, vec![task("main"), other])));
        let id = bench.id();
        if ends {
            let result = crate::fixture::exit(1);
            bench.see(Event::Exited { alloc: id, task: "other".to_owned(), attempt: 1, result });
            bench.settle();
        }
        let known = [TaskStatus::Running, TaskStatus::Pending];
        assert_eq!(bench.status(), known, "{lifecycle:?}");
        bench.stored.retain(|key, _| !matches!(key, RecordKey::Volume(_)));
        bench.restart(at(2));
        bench.see(Event::Desired(DesiredChange::Complete));
        bench.see(Event::Desired(DesiredChange::Contact));
        bench.settle_but(|action| {
            let of_other = matches!(action.op.target, Target::Alloc(_, Part::Task(1, _)));
            let exited = Outcome::Recovered(Recovered::Exited(crate::fixture::exit(1)));
            (of_other && matches!(action.verb, Verb::Recover { .. })).then_some(exited)
        });
        bench.now = at(100);
        bench.dirty = bench.world.keys();
        bench.plan();
        bench.settle();
        assert_eq!(bench.status(), known, "{lifecycle:?}");
        let (_, state) = bench.world.allocations().next().unwrap();
        assert_eq!(state.durable.status, ClientStatus::Running, "{lifecycle:?}");
        bench.apply(Vec::new(), vec![data(false)]);
        bench.settle();
        let expected = if ends { TaskStatus::Running } else { TaskStatus::Pending };
        assert_eq!(bench.status(), [TaskStatus::Running, expected], "{lifecycle:?}");
    }
}

/// An attempt that a dead agent started runs, though nothing of it is stored yet.
#[test]
fn missing_volume_keeps_a_recovered_first_attempt() {
    let mut bench = Bench::new();
    bench.apply(Vec::new(), vec![data(false)]);
    bench.settle();
    bench.deliver(claiming(server_alloc(10, Desired::Run)));
    let (_, state) = bench.world.allocations().next().unwrap();
    let mut unstored = (*state.durable).clone();
    unstored.tasks[0] = TaskState { name: "main".into(), ..TaskState::default() };
    let key = RecordKey::AllocState(bench.id());
    assert!(bench.stored.insert(key, RecordValue::AllocState(unstored.into())).is_some());
    bench.stored.retain(|key, _| !matches!(key, RecordKey::Volume(_)));
    bench.restart(at(2));
    bench.see(Event::Desired(DesiredChange::Complete));
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Running]);
    let (_, state) = bench.world.allocations().next().unwrap();
    assert!(state.durable.tasks[0].permanent_failure.is_none());
}

#[test]
fn it_has_completed_once_it_was_made_too_long_ago() {
    let mut bench = Bench::new();
    let made = bench.now.wall;
    let spec = with(server_alloc(10, Desired::Run), |server| {
        server.max_run_duration = Some(Duration::from_secs(60))
    });
    let id = spec.id;
    bench.deliver(Allocation { create_time: made, ..spec });
    assert_eq!(bench.status(), [TaskStatus::Running]);
    let look = |bench: &mut Bench, now| {
        bench.now = now;
        bench.dirty.insert(Key::Alloc(id));
        bench.plan();
        bench.settle();
    };
    look(&mut bench, at(60));
    assert_eq!(bench.status(), [TaskStatus::Running]);
    look(&mut bench, at(61));
    let (_, state) = bench.world.allocations().next().unwrap();
    let known = &state.durable;
    assert_eq!(
        (known.status, &*known.description),
        (ClientStatus::Complete, "allocation exceeded max_run_duration")
    );
    let killing = known.tasks[0].events.iter().find(|event| event.kind == TaskEventKind::Killing).unwrap();
    assert_eq!(killing.message, known.description);
}

#[test]
fn update_without_the_tasks_fails_like_nomad() {
    let of =
        |modify_index, names: &[&str]| of_tasks(modify_index, names.iter().map(|name| task(name)).collect());
    let mut bench = Bench::new();
    bench.deliver(of(10, &["other", "main"]));
    assert_eq!(bench.status(), [TaskStatus::Running, TaskStatus::Running]);
    bench.deliver(of(11, &["main", "other"]));
    assert_eq!(bench.status(), [TaskStatus::Running, TaskStatus::Running]);
    bench.deliver(of(12, &["main"]));
    assert_eq!(bench.status(), [TaskStatus::Dead, TaskStatus::Dead]);
    let (spec, state) = bench.world.allocations().next().unwrap();
    let known = &state.durable;
    assert_eq!((spec.group().unwrap().tasks.len(), known.status), (2, ClientStatus::Failed));
    assert_eq!(known.tasks.iter().map(|task| task.failed).collect::<Vec<_>>(), [true, false]);
    let message = |kind| {
        let mut events = known.tasks.iter().flat_map(|task| task.events.iter());
        events.find(|event| event.kind == kind).map(|event| &*event.message)
    };
    assert_eq!(message(TaskEventKind::Killing), Some("update missing task"));
    assert_eq!(message(TaskEventKind::NotRestarting), Some("update missing task"));
    assert_eq!(message(TaskEventKind::SiblingFailed), Some("Task's sibling \"other\" failed"));
}

#[test]
fn refused_update_keeps_the_allocation_running() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    bench.deliver(with(server_alloc(11, Desired::Run), |server| server.refused = Some("no".into())));
    assert_eq!(bench.status(), [TaskStatus::Running]);
    bench.deliver(with(server_alloc(12, Desired::Stop), |server| server.refused = Some("no".into())));
    assert_eq!(bench.status(), [TaskStatus::Dead]);
}

/// Nomad issue: a task that was rescheduled elsewhere during a long reboot must not run twice.
#[test]
fn reboot_waits_for_servers_except_system_jobs() {
    for (kind, meta, starts) in [
        (JobType::Service, None, false),
        (JobType::Batch, None, false),
        (JobType::System, None, true),
        (JobType::Service, Some("true"), true),
    ] {
        let mut bench = Bench::new();
        let mut job = (*server_alloc(10, Desired::Run).job).clone();
        job.kind = kind;
        job.meta.extend(meta.map(|word| (String::from("herdlet.start_offline"), String::from(word))));
        bench.deliver(with(server_alloc(10, Desired::Run), |server| server.job = job.into()));
        assert_eq!(bench.status(), [TaskStatus::Running]);
        bench.reboot();
        let expected = if starts { TaskStatus::Running } else { TaskStatus::Pending };
        assert_eq!(bench.status(), [expected], "{kind:?} {meta:?}");
        bench.see(Event::Desired(DesiredChange::Contact));
        bench.settle();
        assert_eq!(bench.status(), [TaskStatus::Running], "{kind:?}");
    }
}

#[test]
fn replacement_starts_after_the_previous_has_ended() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let first = bench.id();
    let next = AllocId::from_hash([9; 16]);
    bench.deliver(Allocation { id: next, previous: Some(first), ..server_alloc(11, Desired::Run) });
    let status = |bench: &Bench, id| bench.world.allocation(id).unwrap().1.durable.tasks[0].status();
    assert_eq!(status(&bench, next), TaskStatus::Pending);
    // Also for an agent that starts meanwhile.
    bench.restart(at(3));
    bench.see(Event::Desired(DesiredChange::Contact));
    bench.settle_but(|action| {
        let of_next = matches!(action.op.target, Target::Alloc(id, _) if id == next);
        let recovers = matches!(action.verb, Verb::Recover { .. });
        (of_next && recovers).then_some(Outcome::Recovered(Recovered::NotStarted))
    });
    assert_eq!(status(&bench, next), TaskStatus::Pending);
    bench.deliver(server_alloc(12, Desired::Stop));
    assert_eq!((status(&bench, first), status(&bench, next)), (TaskStatus::Dead, TaskStatus::Running));
}

#[test]
fn replacement_waits_for_the_end_on_another_node() {
    let mut bench = Bench::new();
    let elsewhere = AllocId::from_hash([8; 16]);
    bench.deliver(Allocation { previous: Some(elsewhere), ..server_alloc(10, Desired::Run) });
    assert_eq!(bench.status(), [TaskStatus::Pending]);
    bench.see(Event::Desired(DesiredChange::EndedElsewhere(elsewhere)));
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Running]);
}

#[test]
fn preempted_allocation_ends_before_the_new_one() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let (first, elsewhere, next) = (bench.id(), AllocId::from_hash([8; 16]), AllocId::from_hash([9; 16]));
    let other = AllocId::from_hash([10; 16]);
    let preempting = |id| {
        let spec = with(server_alloc(11, Desired::Run), |server| server.preempted = vec![first, elsewhere]);
        Allocation { id, ..spec }
    };
    bench.deliver(preempting(next));
    bench.deliver(preempting(other));
    let status = |bench: &Bench, id| bench.world.allocation(id).unwrap().1.durable.tasks[0].status();
    bench.see(Event::Desired(DesiredChange::EndedElsewhere(elsewhere)));
    bench.settle();
    assert_eq!((status(&bench, next), status(&bench, other)), (TaskStatus::Pending, TaskStatus::Pending));
    bench.deliver(server_alloc(12, Desired::Stop));
    assert_eq!((status(&bench, next), status(&bench, other)), (TaskStatus::Running, TaskStatus::Running));
}

fn of_dir(id: AllocId, verb: &Verb) -> impl Fn(&Action) -> bool {
    move |action| action.op.target == Target::Alloc(id, Part::Dir) && action.verb == *verb
}

/// A disk is not migrated while its tasks still write to it, and not removed before it was migrated.
#[test]
fn disk_is_taken_over_after_the_end() {
    let mut bench = Bench::new();
    let mut asked = Vec::new();
    let sticky = |spec| with(spec, |server| server.heritage = DiskMigration::SameNode);
    bench.deliver(sticky(server_alloc(10, Desired::Run)));
    let (first, next) = (bench.id(), AllocId::from_hash([9; 16]));
    let successor = Allocation { id: next, previous: Some(first), ..sticky(server_alloc(11, Desired::Run)) };
    bench.see(Event::Desired(DesiredChange::Alloc(successor.into())));
    asked.extend(bench.settle());
    assert!(!asked.iter().any(of_dir(next, &Verb::Up)), "{asked:?}");
    // Servers end and remove it at once, and its successor's directory can't be created at first.
    bench.see(Event::Desired(DesiredChange::AllocGone(first)));
    let slow = |action: &Action| {
        of_dir(next, &Verb::Up)(action)
            .then(|| Outcome::Failed { class: FailureClass::Retry, why: "busy".into() })
    };
    let asked = bench.settle_but(slow);
    assert!(asked.iter().any(of_dir(next, &Verb::Up)), "{asked:?}");
    assert!(!asked.iter().any(of_dir(first, &Verb::Down)), "{asked:?}");
    bench.now = at(100);
    bench.dirty = bench.world.keys();
    bench.plan();
    let asked = bench.settle();
    let at = |what: &dyn Fn(&Action) -> bool| asked.iter().position(what).unwrap();
    assert!(at(&of_dir(next, &Verb::Up)) < at(&of_dir(first, &Verb::Down)), "{asked:?}");
    assert!(bench.world.allocation(first).is_none());
    assert_eq!(bench.status(), [TaskStatus::Running]);
}

#[test]
fn unclaimed_disk_is_released() {
    let mut bench = Bench::new();
    let sticky = |spec| with(spec, |server| server.heritage = DiskMigration::SameNode);
    bench.deliver(sticky(server_alloc(10, Desired::Run)));
    let (first, next) = (bench.id(), AllocId::from_hash([9; 16]));
    let successor = |index, desired| Allocation {
        id: next,
        previous: Some(first),
        ..sticky(server_alloc(index, desired))
    };
    bench.deliver(successor(11, Desired::Run));
    bench.deliver(successor(12, Desired::Stop));
    bench.see(Event::Desired(DesiredChange::AllocGone(first)));
    bench.settle();
    assert!(bench.world.allocation(first).is_none());
}

#[test]
fn long_disconnection_stops_the_allocation() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let id = bench.id();
    bench.see(Event::Desired(DesiredChange::AllocOutOfContact(id)));
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Dead]);
    let (spec, state) = bench.world.allocation(id).unwrap();
    assert!(spec.desired_description.contains("stop_on_client_after"));
    assert_eq!(state.durable.status, ClientStatus::Complete);
    bench.deliver(server_alloc(11, Desired::Run));
    assert_eq!(bench.status(), [TaskStatus::Dead]);
}

/// Drains need it, for services that no deployment judges.
#[test]
fn health_outside_of_deployments_is_judged_by_migrate() {
    for (kind, verdict) in [(JobType::Service, Some(true)), (JobType::Batch, None)] {
        let mut bench = Bench::new();
        let mut job = (*server_alloc(10, Desired::Run).job).clone();
        job.kind = kind;
        let second = herdlet_api_types::Duration::from_secs(1);
        let migrate =
            Migrate { health_check: HealthCheck::Checks, min_healthy_time: second, healthy_deadline: second };
        bench.deliver(with(server_alloc(10, Desired::Run), |server| {
            server.job = job.into();
            server.migrate = Some(migrate);
        }));
        for seconds in [2, 4] {
            bench.now = at(seconds);
            bench.dirty = bench.world.keys();
            bench.plan();
        }
        assert_eq!(
            bench.world.allocations().next().unwrap().1.durable.health.map(|health| health.healthy),
            verdict
        );
    }
}

#[test]
fn local_stop_of_a_server_allocation_is_refused() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let alloc = bench.id();
    let (reply, _) = bench.ask(Command::StopAlloc { alloc });
    assert!(matches!(reply, Reply::Refused(Refusal::Conflict(why)) if why.contains("nomad alloc stop")));
    assert_eq!(bench.desired(), Some(Desired::Run));
}

/// A job of this machine with the same name has its own allocations.
#[test]
fn a_job_of_this_machine_leaves_the_servers_alone() {
    let mut bench = Bench::new();
    bench.deliver(server_alloc(10, Desired::Run));
    let key = bench.world.allocations().next().unwrap().0.job_key.clone();
    bench.ask(Command::Delete { job: key });
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Running]);
}
