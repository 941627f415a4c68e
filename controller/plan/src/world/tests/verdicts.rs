//! Views of jobs and allocations: whether and since when they have converged.

use herdlet_api_types::{
    UnixNanos,
    alloc::ClientStatus,
    deployment::DeploymentStatus,
    job::Service,
    service::CheckStatus,
    task::{TaskEvent, TaskEventKind},
};

use super::*;

#[test]
fn allocation_shows_since_when_it_converged() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    bench.now = at(2);
    bench.settle();
    let shown = bench.last_view().expect("a published view").convergence;
    assert_eq!((shown.state, shown.since), (ConvergenceState::Converged, at(2).moment()));
    let job = |bench: &Bench| bench.world.jobs.values().next().and_then(|job| job.shown.clone());
    assert_eq!(job(&bench).map(|job| job.convergence.state), Some(ConvergenceState::Converged));
    // An event that does not change its state.
    bench.now = at(3);
    let alloc = bench.id();
    bench.see(Event::Driver { alloc, task: "main".to_owned(), message: "hello".to_owned() });
    assert_eq!(bench.last_view().map(|view| view.convergence.since), Some(at(2).moment()));
    // Its process is inspected, and found.
    bench.now = at(4);
    let process = Part::Task(0, TaskPart::Process);
    bench.see(Event::Drift { alloc, part: Part::Dir, by: Noticed::Periodic });
    bench.see(Event::Drift { alloc, part: process, by: Noticed::Periodic });
    bench.settle();
    assert_eq!(bench.last_view().map(|view| view.convergence.since), Some(at(2).moment()));
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert!(bench.last_view().is_none(), "nothing visible has changed");
    // Its process ends: from now on it has not converged, whatever it waits for.
    bench.now = at(5);
    let result = crate::fixture::exit(1);
    bench.see(Event::Exited { alloc, task: "main".to_owned(), attempt: 1, result });
    assert_eq!(bench.last_view().map(|view| view.convergence.since), Some(at(5).moment()));
    bench.now = at(6);
    let action = bench.turn.actions.remove(0);
    bench.see(Event::Outcome(action.op, Outcome::Done(None)));
    let shown = bench.last_view().expect("a published view").convergence;
    assert_ne!(shown.state, ConvergenceState::Converged);
    assert_eq!(shown.since, at(5).moment());
}

/// How far the pull of an image was could be seen in the task's events only, every 20 seconds.
#[test]
fn a_start_shows_what_its_driver_prepares() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    let alloc = bench.id();
    let process = Target::Alloc(alloc, Part::Task(0, TaskPart::Process));
    let start = loop {
        let action = bench.turn.actions.remove(0);
        if action.op.target == process {
            break action;
        }
        bench.see(Event::Outcome(action.op, Outcome::Done(None)));
    };
    let progress = |bench: &mut Bench, what: &str| {
        bench.see(Event::Progress { alloc, task: "main".to_owned(), what: what.to_owned() });
        bench.last_view().expect("a published view").convergence.message
    };
    bench.now = at(3);
    assert!(progress(&mut bench, "pulling image a").ends_with(": pulling image a"));
    bench.now = at(4);
    let message = progress(&mut bench, "pulling image a: 1 of 2 MiB (50 %)");
    assert!(message.ends_with("pulling image a: 1 of 2 MiB (50 %)"), "{message}");
    assert_eq!(bench.world.allocs.get(alloc).unwrap().state.progress[&0].since_ns, at(3).boot_ns);
    assert!(!progress(&mut bench, "").contains("pulling"));
    progress(&mut bench, "pulling image a");
    // The next start shows nothing of this one.
    let class = crate::action::FailureClass::Retry;
    let failed = Outcome::Failed { class, why: "it was withdrawn".to_owned() };
    bench.see(Event::Outcome(start.op, failed));
    bench.now = at(1_000);
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert!(bench.turn.actions.iter().any(|action| action.op.target == process));
    assert!(!bench.last_view().unwrap().convergence.message.contains("pulling"));
}

#[test]
fn job_shows_since_when_it_converged() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    let since = |bench: &Bench| (bench.job().convergence.state, bench.job().convergence.since);
    assert_eq!(since(&bench), (ConvergenceState::Progressing, at(1).moment()));
    bench.now = at(3);
    bench.settle();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(3).moment()));
    assert_eq!(bench.converged(), [(2, "apply")]);
    bench.now = at(5);
    bench.fail(bench.id());
    assert_eq!(since(&bench), (ConvergenceState::Waiting, at(5).moment()));
    bench.now = at(9);
    bench.settle();
    bench.dirty.insert(Key::Alloc(bench.id()));
    bench.plan();
    bench.settle();
    // It failed after two seconds, and has to live for five.
    assert_eq!(since(&bench), (ConvergenceState::Waiting, at(5).moment()));
    bench.now = at(14);
    bench.dirty.insert(Key::Alloc(bench.id()));
    bench.plan();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(14).moment()));
    assert_eq!(bench.converged(), [(9, "exit")]);
    bench.see(Event::Drift { alloc: bench.id(), part: Part::Dir, by: Noticed::Periodic });
    let look = bench.turn.actions.remove(0);
    assert_eq!(since(&bench).0, ConvergenceState::Converged, "an inspection is not a change");
    bench.see(Event::Outcome(look.op, Outcome::Foreign { why: "a file".to_owned() }));
    bench.settle();
    assert_eq!(since(&bench).0, ConvergenceState::Converged);
    assert_eq!(bench.converged(), [(0, "drift")]);
    bench.restart(at(20));
    assert_ne!(since(&bench).0, ConvergenceState::Converged);
    bench.now = at(21);
    bench.settle();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(21).moment()));
    assert_eq!(bench.converged(), [(1, "boot")]);
}

#[test]
fn job_is_published_when_its_view_changes() {
    let mut bench = running();
    let key = Key::Job(one_task()[0].key());
    let shown = |bench: &mut Bench| {
        let views = core::mem::take(&mut bench.turn.views);
        views.iter().filter(|view| matches!(view, View::Job(_))).count()
    };
    shown(&mut bench);
    for stale in [false, true] {
        bench.world.jobs.values_mut().for_each(|job| job.stale = stale);
        bench.dirty.insert(key.clone());
        bench.plan();
        assert_eq!(shown(&mut bench), 0, "nothing has changed");
    }
    // A new version that no task could notice.
    let mut jobs = one_task();
    jobs[0].priority += 1;
    bench.apply(jobs, Vec::new());
    assert_eq!(shown(&mut bench), 1);
    assert_eq!(bench.job().version, 1);
    // One of its allocations is removed.
    let mut jobs = one_task();
    jobs[0].groups[0].tasks[0].user = Some("www".to_owned());
    bench.apply(jobs, Vec::new());
    bench.settle();
    let old = bench.world.allocs.iter().find(|(_, entry)| entry.spec.desired != Desired::Run);
    let (old, _) = old.expect("the replaced allocation, kept for its logs");
    assert_eq!(bench.job().allocs.len(), 2);
    shown(&mut bench);
    let mut open = OpenTurn { now: bench.now, dirty: &mut bench.dirty, turn: &mut bench.turn };
    bench.world.remove_alloc(&mut open, old);
    bench.plan();
    assert_eq!(shown(&mut bench), 1);
    assert_eq!(bench.job().allocs, [bench.id()]);
}

#[test]
fn a_job_says_which_of_its_allocations_has_not_converged() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].count = 2;
    jobs[0].groups.push(group("h", 2, vec![task("main")]));
    bench.apply(jobs, Vec::new());
    bench.settle();
    assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
    let named = |bench: &Bench, name: &str| {
        let found = bench.world.allocs.iter().find(|(_, entry)| entry.spec.name() == name);
        found.expect("an allocation").0
    };
    for name in ["j.h[1]", "j.g[1]"] {
        bench.fail(named(&bench, name));
        let Convergence { state, message, .. } = bench.job().convergence;
        assert_eq!(state, ConvergenceState::Waiting);
        assert!(message.starts_with(name), "{message}");
        bench.now.boot_ns += 60_000_000_000;
        bench.settle();
        bench.dirty.insert(Key::Alloc(named(&bench, name)));
        bench.plan();
        bench.settle();
        assert_eq!(bench.job().convergence.state, ConvergenceState::Waiting, "it may fail again");
        bench.now.boot_ns += 3_600_000_000_000;
        bench.dirty.insert(Key::Alloc(named(&bench, name)));
        bench.plan();
        assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
    }
}

/// A job with `update`, whose allocation is healthy while its check passes.
fn checked() -> Vec<Job> {
    let mut jobs = one_task();
    let group = &mut jobs[0].groups[0];
    let checks = vec![herdlet_api_types::fixture::check("alive")];
    group.services.push(Service { checks, ..crate::fixture::service("web") });
    group.update = Some(fixture::update());
    jobs
}

fn check(bench: &mut Bench, status: CheckStatus) {
    let result = herdlet_api_types::fixture::check_result("alive", status);
    bench.see(Event::Check { alloc: bench.id(), result });
    bench.settle();
}

/// Plans everything at this second.
fn wait_until(bench: &mut Bench, second: u64) {
    bench.now = at(second);
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
}

/// The states that the allocation and its job show.
fn shown(bench: &Bench) -> [ConvergenceState; 2] {
    let alloc = bench.world.allocs.get(bench.id()).expect("the allocation");
    [alloc.verdict.as_ref().expect("a published verdict").state, bench.job().convergence.state]
}

/// When the allocation is overdue, by the boot clock.
fn overdue_at(bench: &Bench) -> Option<u64> {
    let alloc = bench.world.allocs.get(bench.id()).expect("the allocation");
    alloc.verdict.as_ref().and_then(|verdict| verdict.overdue_at).map(|at| at.boot_ns)
}

/// The status of the job's deployment, and its verdict on the allocation.
fn judgement(bench: &Bench) -> (DeploymentStatus, Option<bool>) {
    let job = bench.world.jobs.values().next().expect("the job");
    let alloc = bench.world.allocs.get(bench.id()).expect("the allocation");
    let status = job.state.deployment().expect("a deployment").deployment.status;
    (status, alloc.state.durable.health.map(|verdict| verdict.healthy))
}

/// It stayed failed for as long as it existed, although everything worked.
#[test]
fn an_allocation_that_is_healthy_late_is_not_failed() {
    use ConvergenceState::{Converged, Failed, Progressing};
    let mut bench = Bench::new();
    bench.apply(checked(), Vec::new());
    bench.settle();
    check(&mut bench, CheckStatus::Failure);
    wait_until(&mut bench, 30);
    assert_eq!(shown(&bench), [Failed, Failed]);
    let message = "j.g[0]: not healthy within healthy_deadline (20s)";
    assert!(bench.job().convergence.message.starts_with(message), "{}", bench.job().convergence.message);
    check(&mut bench, CheckStatus::Success);
    assert_eq!(shown(&bench), [Failed, Failed], "not healthy for min_healthy_time yet");
    wait_until(&mut bench, 31);
    assert_eq!(shown(&bench), [Converged, Failed], "the deployment counts the verdict, as in Nomad");
    let message = "j.g[0]: its deployment counts it as unhealthy (not healthy within healthy_deadline (20s))";
    assert_eq!(bench.job().convergence.message, message);
    // The progress_deadline.
    wait_until(&mut bench, 70);
    assert_eq!(judgement(&bench), (DeploymentStatus::Failed, Some(false)));
    assert_eq!(shown(&bench), [Converged, Converged]);
    // The next agent knows this, too.
    bench.restart(at(80));
    bench.settle();
    assert_eq!(shown(&bench), [Converged, Converged]);
    check(&mut bench, CheckStatus::Success);
    // It gets a new deadline.
    wait_until(&mut bench, 90);
    check(&mut bench, CheckStatus::Failure);
    assert_eq!(shown(&bench), [Progressing, Failed], "the roll-out of a job that is not up has failed");
    assert_eq!(overdue_at(&bench), Some(at(110).boot_ns));
    assert_eq!(judgement(&bench), (DeploymentStatus::Failed, Some(false)));
}

/// Each failure began a new wait, whose end was the deadline: a crash loop was never overdue.
#[test]
fn a_crash_loop_is_overdue() {
    let mut bench = running();
    let fails_at = |bench: &mut Bench, second: u64| {
        bench.now = at(second);
        let alloc = bench.id();
        let attempt = bench.world.allocation(alloc).expect("the allocation").1.durable.tasks[0].attempt;
        let (task, result) = ("main".to_owned(), crate::fixture::exit(1));
        bench.see(Event::Exited { alloc, task, attempt, result });
        bench.settle();
    };
    fails_at(&mut bench, 3_000);
    let restarts_at = overdue_at(&bench).expect("the end of the delay");
    assert!((at(3_001).boot_ns..at(3_030).boot_ns).contains(&restarts_at), "{restarts_at}");
    // The second attempt has to live for a minute, and lives for two seconds.
    wait_until(&mut bench, 3_030);
    let due = Some(at(3_090).boot_ns);
    assert_eq!(overdue_at(&bench), due);
    fails_at(&mut bench, 3_032);
    for second in [3_060, 3_062, 3_090, 3_092] {
        assert!(overdue_at(&bench).is_some_and(|at_ns| Some(at_ns) <= due), "at {second}");
        match second % 10 {
            0 => wait_until(&mut bench, second),
            _ => fails_at(&mut bench, second),
        }
    }
    assert_eq!(overdue_at(&bench), due);
    // The next agent knows this, too.
    bench.restart(at(3_093));
    bench.settle();
    assert_eq!(overdue_at(&bench), due);
    // An attempt that counts, after an hour, ends it, and the next failure begins another wait.
    wait_until(&mut bench, 3_200);
    wait_until(&mut bench, 7_000);
    assert_eq!((shown(&bench)[0], overdue_at(&bench)), (ConvergenceState::Converged, None));
    fails_at(&mut bench, 7_100);
    assert!(overdue_at(&bench).is_some_and(|due| due > at(7_100).boot_ns));
}

/// A restart kept the verdict of a roll-out: only another allocation could be healthy.
#[test]
fn a_restart_by_a_user_gives_a_full_deadline() {
    use ConvergenceState::{Converged, Failed, Progressing};
    let mut bench = Bench::new();
    bench.apply(checked(), Vec::new());
    bench.settle();
    check(&mut bench, CheckStatus::Failure);
    wait_until(&mut bench, 70);
    assert_eq!(judgement(&bench), (DeploymentStatus::Failed, Some(false)));
    assert_eq!(shown(&bench), [Failed, Failed]);
    let scope = crate::event::RestartScope::Running;
    bench.ask(Command::Restart { alloc: bench.id(), scope });
    bench.settle();
    assert_eq!(shown(&bench), [Progressing, Failed]);
    assert_eq!(overdue_at(&bench), Some(at(90).boot_ns));
    check(&mut bench, CheckStatus::Success);
    assert_eq!(shown(&bench), [Converged, Converged]);
    assert_eq!(judgement(&bench), (DeploymentStatus::Failed, Some(false)));
}

#[test]
fn outdated_allocation_is_not_converged() {
    let mut bench = running();
    let mut jobs = one_task();
    jobs[0].groups[0].tasks[0].user = Some("www".to_owned());
    bench.apply(jobs, Vec::new());
    // Restores its desired state, as if the roll-out left it alone for now.
    let id = bench.id();
    let entry = bench.world.allocs.get_mut(id).expect("the allocation");
    entry.spec.change(|spec| spec.desired = Desired::Run);
    let (_, job) = bench.world.jobs.first_key_value().expect("the job");
    let open = Open::of(&one_task()[0].key(), job, &bench.world.allocs);
    bench.world.jobs.values_mut().next().expect("the job").open = open;
    let Convergence { state, message, .. } = bench.convergence(&one_task()[0].key());
    assert_eq!((state, &*message), (ConvergenceState::Progressing, "j.g[0] is being replaced"));
}

/// `--wait` printed the operation before the failure as the reason: the job was planned before its allocation.
#[test]
fn job_verdict_names_the_failed_allocation() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    let key = bench.job().key;
    assert!(!bench.convergence(&key).message.contains("not found"));
    let id = bench.id();
    let alloc = bench.world.allocs.get_mut(id).expect("a known allocation");
    let durable = &mut alloc.state.durable;
    durable.status = ClientStatus::Failed;
    durable.tasks[0].failed = true;
    let event = TaskEvent {
        kind: TaskEventKind::DriverFailure,
        time: UnixNanos(1),
        message: String::from("exec \"nosuch\": not found"),
        details: Default::default(),
    };
    durable.tasks[0].events.remember(event, 10);
    let verdict = bench.convergence(&key);
    assert_eq!(verdict.state, ConvergenceState::Failed);
    assert!(verdict.message.ends_with("task main failed: exec \"nosuch\": not found"), "{}", verdict.message);
}
