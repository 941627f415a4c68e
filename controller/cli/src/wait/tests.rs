//! The result of a wait, by the states of jobs and allocations.

use std::sync::Arc;

use herdlet_api_types::{
    alloc::{ClientStatus, Desired},
    job::Job,
};

use super::*;
use herdlet_manifest::fixture::{alloc_view, ended, job, job_view, verdict};

fn waited(goal: Goal, version: Option<u64>, view: Option<JobView>, allocs: Vec<AllocView>) -> Option<Waited> {
    let wanted = WaitTarget { version, ..WaitTarget::any(&job("web", "g", "t").key()) };
    let mut shown = Shown::default();
    if let Some(view) = view {
        shown.apply(Change::Job(Arc::new(view)));
    }
    for view in allocs {
        shown.apply(Change::Alloc(Arc::new(view)));
    }
    shown.apply(Change::Index(9));
    Waiting { wanted: vec![wanted], index: 0, goal }.verdict(&shown)
}

fn code(waited: Option<Waited>) -> Option<u8> {
    waited.map(|waited| waited.code())
}

/// A failed deployment stays failed until the next version, and is irrelevant for a restart.
#[test]
fn wait_for_a_restart_ignores_a_failed_deployment() {
    let web = job("web", "g", "t");
    let failed = JobView { convergence: verdict(ConvergenceState::Failed, "rollout"), ..job_view(&web, 1) };
    let waited = |state, desired| {
        let mut view = AllocView { convergence: verdict(state, "why"), ..alloc_view(&web, 0, 1) };
        Arc::make_mut(&mut view.spec).desired = desired;
        let wanted = WaitTarget { allocs: vec![view.spec.id], ..WaitTarget::any(&web.key()) };
        let mut shown = Shown::default();
        shown.apply(Change::Job(Arc::new(failed.clone())));
        shown.apply(Change::Alloc(Arc::new(view)));
        shown.apply(Change::Index(9));
        Waiting { wanted: vec![wanted], index: 0, goal: Goal::Converged }.verdict(&shown)
    };
    use ConvergenceState as C;
    assert_eq!(waited(C::Progressing, Desired::Run), None);
    assert_eq!(waited(C::Converged, Desired::Run), Some(Waited::Reached));
    assert_eq!(waited(C::Failed, Desired::Run), Some(Waited::Failed("web.g[0]: why".to_owned())));
    assert_eq!(code(waited(C::Progressing, Desired::Stop)), Some(FAILED));
}

/// `restart shop.worker --wait` reported the whole job as converged while another group waited.
#[test]
fn a_wait_for_single_allocations_names_and_shows_only_them() {
    let web = job("web", "g", "t");
    let allocs = [alloc_view(&web, 0, 1), alloc_view(&web, 1, 1)];
    let wanted = WaitTarget { allocs: vec![allocs[1].spec.id], ..WaitTarget::any(&web.key()) };
    let mut shown = Shown::default();
    shown.apply(Change::Job(Arc::new(job_view(&web, 1))));
    for view in allocs {
        shown.apply(Change::Alloc(Arc::new(view)));
    }
    shown.apply(Change::Index(9));
    let waiting = Waiting { wanted: vec![wanted], index: 0, goal: Goal::Converged };
    assert_eq!(waiting.names(&shown), "web.g[1]");
    assert_eq!(waiting.allocs(&shown).len(), 1);
    assert!(waiting.jobs(&shown).is_empty());
}

#[test]
fn each_failed_job_is_named() {
    let mut shown = Shown::default();
    let mut wanted = Vec::new();
    for name in ["api", "web"] {
        let view = job_view(&job(name, "g", "t"), 0);
        wanted.push(WaitTarget::any(&view.key));
        let convergence = verdict(ConvergenceState::Failed, "why");
        shown.apply(Change::Job(Arc::new(JobView { convergence, ..view })));
    }
    shown.apply(Change::Index(9));
    let waited = Waiting { wanted, index: 0, goal: Goal::Converged }.verdict(&shown);
    assert_eq!(waited, Some(Waited::Failed("api: why; web: why".to_owned())));
}

#[test]
fn exit_code_follows_the_wait_result() {
    let web = job("web", "g", "t");
    let view = |version, state| JobView { convergence: verdict(state, "why"), ..job_view(&web, version) };
    let running = || vec![alloc_view(&web, 0, 1)];
    use ConvergenceState as C;
    assert_eq!(code(waited(Goal::Converged, Some(0), Some(view(0, C::Converged)), running())), Some(0));
    assert_eq!(code(waited(Goal::Converged, Some(0), Some(view(0, C::Progressing)), running())), None);
    assert_eq!(code(waited(Goal::Converged, Some(0), Some(view(0, C::Waiting)), running())), None);
    assert_eq!(code(waited(Goal::Converged, Some(0), Some(view(0, C::Failed)), running())), Some(FAILED));
    assert_eq!(
        code(waited(Goal::Converged, Some(0), Some(view(1, C::Converged)), running())),
        Some(SUPERSEDED)
    );
    assert_eq!(code(waited(Goal::Converged, Some(0), None, Vec::new())), Some(FAILED));
    assert_eq!(code(waited(Goal::Deleted, None, None, Vec::new())), Some(0));
    assert_eq!(code(waited(Goal::Deleted, None, Some(view(0, C::Converged)), running())), None);
    assert_eq!(code(waited(Goal::Complete, None, Some(view(0, C::Converged)), running())), None);
    let stopped = Arc::new(Job { stop: true, ..Job::clone(&web) });
    let stopped = || Some(job_view(&stopped, 1));
    assert_eq!(code(waited(Goal::Converged, None, stopped(), Vec::new())), Some(0));
    assert_eq!(code(waited(Goal::Complete, None, stopped(), Vec::new())), Some(FAILED));
    let done = vec![ended(alloc_view(&web, 0, 1))];
    assert_eq!(code(waited(Goal::Complete, None, Some(view(0, C::Converged)), done)), Some(0));
    let mut replaced = alloc_view(&web, 0, 2);
    Arc::make_mut(&mut replaced.spec).desired = Desired::Stop;
    replaced.status = ClientStatus::Failed;
    let followed = vec![replaced, ended(alloc_view(&web, 0, 1))];
    assert_eq!(code(waited(Goal::Complete, None, Some(view(0, C::Converged)), followed)), Some(0));
    let unhealthy = vec![AllocView { healthy: Some(false), ..alloc_view(&web, 0, 1) }];
    assert_eq!(code(waited(Goal::Healthy, None, Some(view(0, C::Converged)), unhealthy)), None);
    assert_eq!((Waited::TimedOut.code(), Waited::Interrupted.code()), (3, 130));
}
