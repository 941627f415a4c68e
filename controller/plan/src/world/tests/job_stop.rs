//! A job that is stopped and kept: nothing of it runs or is created, its state stays, and it can start again.

use herdlet_api_types::{
    deployment::DeploymentStatus,
    view::{ConvergenceState, Reason},
};
use std_alloc::{format, string::String};

use super::*;
use crate::event::JobChange;

fn key() -> JobKey {
    one_task()[0].key()
}

/// Version and change that a request resulted in, and whether anything was stored.
fn ask(bench: &mut Bench, command: Command) -> (u64, JobChange, bool) {
    let (reply, grown) = bench.ask(command);
    let Reply::Applied { jobs, .. } = reply else { panic!("{reply:?}") };
    bench.settle();
    (jobs[0].version, jobs[0].change, grown > 0)
}

fn stop(bench: &mut Bench) -> (u64, JobChange, bool) {
    ask(bench, Command::Stop { job: key() })
}

/// The desired state of all allocations with reasons, oldest first.
fn desired(bench: &Bench) -> Vec<(Desired, String)> {
    let mut all: Vec<_> = bench.world.allocations().map(|(spec, _)| spec).collect();
    all.sort_by_key(|spec| spec.create_index);
    all.into_iter().map(|spec| (spec.desired, spec.desired_description.clone())).collect()
}

#[test]
fn a_stopped_job_stays_with_its_versions_and_allocations() {
    let mut bench = running();
    assert_eq!(stop(&mut bench), (1, JobChange::Updated, true));
    for _ in 0..2 {
        assert_eq!(desired(&bench), [(Desired::Stop, "job was stopped".to_owned())]);
        assert_eq!(bench.convergence(&key()).state, ConvergenceState::Converged);
        let job = bench.job();
        assert_eq!((job.version, job.job.stop, job.past.len(), job.allocs.len()), (1, true, 1, 1));
        bench.restart(at(9));
        bench.settle();
    }
    let stored = format!("{:?}", bench.stored);
    assert_eq!(stop(&mut bench), (1, JobChange::Unchanged, false));
    assert_eq!(format!("{:?}", bench.stored), stored);
}

#[test]
fn stopped_job_returns_by_start_apply_or_rollback() {
    let start = Command::Start { job: key() };
    let apply = Command::Apply { jobs: one_task(), volumes: Vec::new() };
    let revert = Command::Revert { job: key(), to: 0, prior: None };
    for command in [start, apply, revert] {
        let mut bench = running();
        stop(&mut bench);
        assert_eq!(ask(&mut bench, command), (2, JobChange::Updated, true));
        let desired: Vec<Desired> = desired(&bench).into_iter().map(|(desired, _)| desired).collect();
        assert_eq!(desired, [Desired::Stop, Desired::Run]);
        assert_eq!(*bench.world.jobs[&key()].current, one_task()[0]);
    }
    let mut bench = running();
    assert_eq!(ask(&mut bench, Command::Start { job: key() }), (0, JobChange::Unchanged, false));
}

#[test]
fn scaling_a_stopped_job_applies_at_its_start() {
    let mut bench = running();
    stop(&mut bench);
    let (group, note) = ("g".to_owned(), Default::default());
    ask(&mut bench, Command::Scale { job: key(), group, count: Some(2), note });
    assert_eq!(desired(&bench).len(), 1, "the job is still stopped");
    ask(&mut bench, Command::Start { job: key() });
    let running = desired(&bench).into_iter().filter(|(desired, _)| *desired == Desired::Run);
    assert_eq!(running.count(), 2);
}

#[test]
fn a_stop_ends_a_deployment_and_a_start_begins_another() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].update = Some(fixture::update());
    bench.apply(jobs, Vec::new());
    bench.settle();
    let status = |bench: &Bench| -> Vec<(DeploymentStatus, String)> {
        let deployments = bench.job().deployments;
        deployments.iter().map(|known| (known.status, known.description.clone())).collect()
    };
    stop(&mut bench);
    let cancelled = (DeploymentStatus::Cancelled, "Cancelled because job is stopped".to_owned());
    assert_eq!(status(&bench), core::slice::from_ref(&cancelled));
    ask(&mut bench, Command::Start { job: key() });
    assert_eq!(status(&bench), [(DeploymentStatus::Running, "Deployment is running".to_owned()), cancelled]);
}

#[test]
fn failed_allocation_of_a_stopped_job_is_not_replaced() {
    let mut bench = Bench::new();
    let mut job = one_task().remove(0);
    job.groups[0].tasks[0].restart.attempts = 0;
    job.groups[0].reschedule = fixture::reschedule();
    bench.apply(vec![job], Vec::new());
    bench.settle();
    let first = bench.id();
    bench.fail(first);
    bench.settle();
    assert_eq!(bench.convergence(&key()).reason, Some(Reason::Backoff));
    stop(&mut bench);
    assert_eq!(bench.convergence(&key()).state, ConvergenceState::Converged);
    bench.restart(at(9_999));
    bench.settle();
    assert_eq!(desired(&bench).len(), 1);
}

#[test]
fn stopped_job_no_longer_waits_for_room() {
    let mut bench = Bench::new();
    bench.world.ctx.settings.room.memory_mib = 100;
    let mut job = one_task().remove(0);
    job.groups[0].tasks[0].resources.memory_mib = Some(200);
    bench.apply(vec![job], Vec::new());
    assert_eq!(bench.convergence(&key()).reason, Some(Reason::Capacity));
    stop(&mut bench);
    assert_eq!(bench.convergence(&key()).state, ConvergenceState::Converged);
}

#[test]
fn stopped_job_is_collected_after_its_end() {
    let collect = |bench: &mut Bench| {
        let (reply, _) = bench.ask(Command::Collect { jobs: vec![key()], allocs: Vec::new() });
        let Reply::Collected { jobs, .. } = reply else { panic!("{reply:?}") };
        jobs.len()
    };
    let mut bench = running();
    bench.ask(Command::Stop { job: key() });
    assert_eq!(collect(&mut bench), 0, "the job is still stopping");
    bench.settle();
    assert_eq!(collect(&mut bench), 1);
    bench.settle();
    assert!(bench.world.jobs.is_empty() && bench.stored.keys().all(|key| *key == RecordKey::Meta));
}

#[test]
fn only_what_is_there_and_stays_is_stopped() {
    let mut bench = Bench::new();
    let refused = |bench: &mut Bench| {
        let reply = bench.ask(Command::Stop { job: key() }).0;
        let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
        refusal
    };
    assert_eq!(refused(&mut bench), Refusal::NotFound("there is no job \"j\"".to_owned()));
    let mut bench = running();
    bench.ask(Command::Delete { job: key() });
    assert_eq!(refused(&mut bench), Refusal::Conflict("job \"j\" is being deleted".to_owned()));
}

/// Their logs show why nobody wanted to promote them.
#[test]
fn canaries_of_a_stopped_job_stay_until_collected() {
    let version = |canary, color: &str| {
        let mut jobs = one_task();
        jobs[0].groups[0].update = Some(herdlet_api_types::job::Update {
            health_check: herdlet_api_types::job::HealthCheck::Manual,
            canary,
            ..fixture::update()
        });
        jobs[0].groups[0].tasks[0].env.insert("COLOR".to_owned(), color.to_owned());
        jobs
    };
    let mut bench = Bench::new();
    bench.apply(version(0, "blue"), Vec::new());
    bench.settle();
    let id = bench.job().deployments[0].id;
    bench.ask(Command::SetAllocHealth { id, healthy: vec![bench.id()], unhealthy: Vec::new() });
    bench.settle();
    bench.apply(version(1, "green"), Vec::new());
    bench.settle();
    assert_eq!(desired(&bench).len(), 2);
    stop(&mut bench);
    let stopped = (Desired::Stop, "job was stopped".to_owned());
    for _ in 0..2 {
        assert_eq!(desired(&bench), [stopped.clone(), stopped.clone()]);
        assert_eq!(bench.convergence(&key()).state, ConvergenceState::Converged);
        bench.restart(at(9));
        bench.settle();
    }
    let all: Vec<AllocId> = bench.world.allocations().map(|(spec, _)| spec.id).collect();
    let (reply, _) = bench.ask(Command::Collect { jobs: Vec::new(), allocs: all });
    let Reply::Collected { allocs, .. } = reply else { panic!("{reply:?}") };
    bench.settle();
    assert_eq!((allocs.len(), desired(&bench).len()), (2, 0), "nothing else is kept");
    ask(&mut bench, Command::Start { job: key() });
    assert_eq!(desired(&bench), [(Desired::Run, String::new())]);
}
