//! Which slot is replaced when.

use core::cell::Cell;
use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::ToString, sync::Arc, vec, vec::Vec};

use herdlet_api_types::{
    DeploymentId, Duration, JobKey, UnixNanos,
    alloc::{AllocDeployment, ClientStatus},
    fixture,
    job::{Job, Lifecycle, ReschedulePolicy, Update},
};

use super::*;
use crate::{
    fixture::{alloc, at, dead, failed, running, task},
    job::deployment,
    state::{Health, TaskState},
};

/// State of a slot's allocation, or of one that has left its slot.
struct Slotted {
    outdated: bool,
    desired: Desired,
    known: Durable,
    /// The slot that it has left; these come after all others.
    left: Option<u32>,
    /// It was removed, and its slot not assigned to another yet.
    forgotten: bool,
    /// It has not left its slot: it is the canary beside that slot's allocation, of this deployment or an older one.
    canary_of: Option<CanaryOf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CanaryOf {
    This,
    Older,
}

fn slotted(outdated: bool, desired: Desired, task: TaskState, healthy: Option<bool>) -> Slotted {
    let status = if task.failed { ClientStatus::Failed } else { ClientStatus::Running };
    let health = healthy.map(|healthy| Health { healthy, at: at(0).wall });
    let known = Durable { adopted: true, tasks: vec![task], status, health, ..Durable::default() };
    Slotted { outdated, desired, known, left: None, forgotten: false, canary_of: None }
}

/// The next steps of a job with these slots, of which `max_parallel` may be between versions.
fn steps(slots: &[Slotted], max_parallel: u32, deleting: bool) -> (Vec<AllocId>, Vec<Step>) {
    steps_in(None, slots, &Update { max_parallel, ..fixture::update() }, deleting)
}

/// State of a deployment of the new version.
struct Deploys {
    status: DeploymentStatus,
    /// Allocations of the new version were created for it.
    joined: bool,
    reschedule: ReschedulePolicy,
    progress_deadline: Duration,
}

/// The next steps of one slot with this state of its allocation of the new version, and of one that is outdated.
fn steps_beside(known: Durable, deploys: &Deploys) -> Vec<Step> {
    let slots = [
        Slotted { known, ..slotted(false, Desired::Run, running(), None) },
        slotted(true, Desired::Run, running(), Some(true)),
    ];
    let update =
        Update { max_parallel: 2, progress_deadline: deploys.progress_deadline, ..fixture::update() };
    steps_of(Some("i"), &slots, &update, false, Some(deploys)).1
}

/// The next steps if a deployment has just begun.
fn steps_of_deployment(slots: &[Slotted], max_parallel: u32) -> (Vec<AllocId>, Vec<Step>) {
    steps_in(Some("i"), slots, &Update { max_parallel, ..fixture::update() }, false)
}

fn steps_in(
    deploys: Option<&str>,
    slots: &[Slotted],
    update: &Update,
    deleting: bool,
) -> (Vec<AllocId>, Vec<Step>) {
    steps_of(deploys, slots, update, deleting, None)
}

fn steps_of(
    deploys: Option<&str>,
    slots: &[Slotted],
    update: &Update,
    deleting: bool,
    stands: Option<&Deploys>,
) -> (Vec<AllocId>, Vec<Step>) {
    let mut old = (*alloc(vec![task("main", Lifecycle::Main)]).job).clone();
    let count = slots.iter().filter(|slot| slot.left.is_none()).count();
    old.groups[0].count = u32::try_from(count).expect("a small number");
    old.groups[0].update = Some(update.clone());
    old.groups[0].reschedule = stands.map(|stands| stands.reschedule).unwrap_or_default();
    let mut new = old.clone();
    new.groups[0].tasks[0].env.insert("COLOR".to_string(), "green".to_string());
    let ids: Vec<AllocId> = (0..slots.len()).map(|at| AllocId::from_hash([at as u8; 16])).collect();
    let mut state = JobState {
        key: JobKey { namespace: "default".into(), id: "j".into() },
        version: 1,
        versions: [0, 1].into(),
        submitted: [].into(),
        create_index: 1,
        modify_index: 2,
        submit_time: UnixNanos(0),
        deleting,
        slots: BTreeMap::from([(
            "g".to_owned(),
            ids.iter()
                .take(count)
                .map(|id| Slot { had: 1, alloc: Some(*id), canary: None, rescheduled: Vec::new() })
                .collect(),
        )]),
        deployments: Vec::new(),
        launches: None,
        definition: None,
        scaled: std_alloc::sync::Arc::default(),
        stable: [].into(),
        tags: [].into(),
    };
    let (old, new) = (Arc::new(old), Arc::new(new));
    let of = Cell::new(None);
    let find = |id: AllocId| {
        let at = ids.iter().position(|known| *known == id)?;
        let slot = slots.get(at).filter(|slot| !slot.forgotten)?;
        let index = slot.left.unwrap_or(at as u32);
        let job = if slot.outdated { &*old } else { &*new };
        let version = u64::from(!slot.outdated);
        let (desired, known) = (slot.desired, &slot.known);
        let older = AllocDeployment { id: DeploymentId::from_hash([9; 16]), canary: true };
        let deployment = match slot.canary_of {
            Some(CanaryOf::Older) => Some(older),
            Some(CanaryOf::This) | None => of.get().filter(|_| !slot.outdated),
        };
        Some(Placed { job, version, group: "g", index, deployment, desired, previous: None, known })
    };
    if let Some(instance) = deploys {
        let begun = deployment::begin(&pass(&new, &state, &ids, &find), instance);
        state.deployments.extend(begun);
    }
    for (known, stands) in state.deployments.iter_mut().zip(stands) {
        Arc::make_mut(&mut known.deployment).status = stands.status;
        of.set(stands.joined.then_some(AllocDeployment { id: known.deployment.id, canary: false }));
    }
    for (id, slot) in ids.iter().zip(slots) {
        let (Some(canary_of), Some(index)) = (slot.canary_of, slot.left) else { continue };
        let beside = state.slots.get_mut("g").and_then(|slots| slots.get_mut(index as usize));
        beside.expect("a slot").canary = Some(*id);
        let known = state.deployments.first_mut().expect("a deployment with canaries");
        if canary_of == CanaryOf::This {
            known.place(at(0), "g", *id, deployment::Role::Canary);
            of.set(Some(AllocDeployment { id: known.deployment.id, canary: true }));
        }
    }
    let steps = plan(&pass(&new, &state, &ids, &find), &|_| true);
    (ids, steps)
}

fn pass<'p, 'w>(
    job: &'p Job,
    state: &'p JobState,
    allocs: &'p [AllocId],
    find: &'p dyn Fn(AllocId) -> Option<Placed<'w>>,
) -> JobPass<'p, 'w> {
    JobPass { now: at(0), job, state, allocs, find, version: &|_| None }
}

/// The indexes that a roll-out stops and creates next.
fn next_of(max_parallel: u32, slots: &[Slotted]) -> (Vec<usize>, Vec<u32>) {
    moves(steps(slots, max_parallel, false))
}

fn moves((ids, steps): (Vec<AllocId>, Vec<Step>)) -> (Vec<usize>, Vec<u32>) {
    let (mut stops, mut creates) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Want { alloc, .. } | Step::Replace(alloc) => {
                stops.extend(ids.iter().position(|id| *id == alloc))
            }
            Step::Create { index, .. } => creates.push(index),
            Step::Canary { .. }
            | Step::Follow { .. }
            | Step::TakeOver(_)
            | Step::Hold { .. }
            | Step::Forget => {}
        }
    }
    (stops, creates)
}

fn next(slots: &[Slotted]) -> (Vec<usize>, Vec<u32>) {
    next_of(1, slots)
}

#[test]
fn promoted_canary_is_replaced_after_its_predecessor_ended() {
    let beside = |index, task| Slotted { left: Some(index), ..slotted(true, Desired::Gone, task, None) };
    for forgotten in [false, true] {
        let canary = || Slotted { forgotten, ..slotted(false, Desired::Stop, failed(), None) };
        assert_eq!(next(&[canary(), beside(0, running())]), (vec![], vec![]), "{forgotten}");
        assert_eq!(
            next(&[canary(), beside(1, running())]),
            (vec![], vec![0]),
            "the slot belongs to another allocation"
        );
        assert_eq!(next(&[canary(), beside(0, dead())]), (vec![], vec![0]), "{forgotten}");
    }
}

#[test]
fn a_canary_waits_for_what_has_left_its_slot() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let left = |task| Slotted { left: Some(0), ..slotted(true, Desired::Gone, task, None) };
    let update = Update { canary: 1, ..fixture::update() };
    let canaries = |slots: &[Slotted]| canaries(slots, &update);
    assert!(canaries(&[old(), old(), left(running())]).is_empty(), "three allocations would run in one slot");
    assert_eq!(canaries(&[old(), old(), left(dead())]), [0]);
}

/// The slots in which canaries are created next.
fn canaries(slots: &[Slotted], update: &Update) -> Vec<u32> {
    let (_, steps) = steps_in(Some("i"), slots, update, false);
    let canary = |step: &Step| if let Step::Canary { index, .. } = step { Some(*index) } else { None };
    steps.iter().filter_map(canary).collect()
}

#[test]
fn canaries_take_slots_in_order() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let new = || slotted(false, Desired::Run, running(), Some(true));
    for (canary, places) in [(1, vec![1]), (2, vec![1, 0]), (4, vec![1, 0, 2, 3])] {
        assert_eq!(canaries(&[new(), old()], &Update { canary, ..fixture::update() }), places);
    }
}

/// A failed canary used to be removed with its logs as soon as a newer version came.
#[test]
fn failed_canary_of_an_older_version_is_kept() {
    let canary = |desired, task| Slotted {
        left: Some(0),
        canary_of: Some(CanaryOf::Older),
        ..slotted(false, desired, task, None)
    };
    let update = Update { canary: 1, ..fixture::update() };
    let wanted = |canary| {
        let slots = [slotted(true, Desired::Run, running(), Some(true)), canary];
        let (ids, steps) = steps_in(Some("i"), &slots, &update, false);
        let of_canary = |step: &Step| matches!(step, Step::Want { alloc, .. } if *alloc == ids[1]);
        let step = steps.into_iter().find(of_canary)?;
        if let Step::Want { desired, .. } = step { Some(desired) } else { None }
    };
    assert_eq!(wanted(canary(Desired::Run, failed())), Some(Desired::Stop));
    assert_eq!(wanted(canary(Desired::Stop, failed())), None);
    assert_eq!(wanted(canary(Desired::Run, running())), Some(Desired::Gone));
}

#[test]
fn a_slot_has_room_for_a_canary_once_its_last_one_has_gone() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let beside = |canary_of, desired, task| Slotted {
        left: Some(0),
        canary_of: Some(canary_of),
        ..slotted(false, desired, task, None)
    };
    let update = Update { canary: 2, ..fixture::update() };
    for (canary, places) in [
        (beside(CanaryOf::This, Desired::Run, running()), vec![1]),
        (beside(CanaryOf::Older, Desired::Run, running()), vec![1, 2]),
        (beside(CanaryOf::Older, Desired::Gone, dead()), vec![0, 1]),
    ] {
        assert_eq!(canaries(&[old(), old(), canary], &update), places);
    }
}

#[test]
fn one_slot_at_a_time_is_between_versions() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let new = |healthy| slotted(false, Desired::Run, running(), healthy);
    assert_eq!(next(&[old(), old()]), (vec![0], vec![]));
    let stopping = slotted(true, Desired::Stop, running(), Some(true));
    assert_eq!(next(&[stopping, old()]), (vec![], vec![]));
    // An ended one is replaced; until the new one is healthy the next stays.
    let ended = slotted(true, Desired::Stop, dead(), Some(true));
    assert_eq!(next(&[ended, old()]), (vec![], vec![0]));
    assert_eq!(next(&[new(None), old()]), (vec![], vec![]));
    assert_eq!(next(&[new(Some(true)), old()]), (vec![1], vec![]));
    assert_eq!(next(&[new(Some(false)), old()]), (vec![], vec![]), "a bad version halts");
}

#[test]
fn taken_over_allocation_is_judged_again() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let healthy = slotted(false, Desired::Run, running(), Some(true));
    let (ids, steps) = steps_of_deployment(&[healthy, old(), old()], 2);
    assert!(steps.contains(&Step::TakeOver(ids[0])));
    assert_eq!(moves((ids, steps)), (vec![1], vec![]));
}

#[test]
fn broken_allocation_is_replaced_first() {
    let works = slotted(true, Desired::Run, running(), Some(true));
    let broken = slotted(true, Desired::Run, failed(), Some(false));
    assert_eq!(next(&[works, broken]), (vec![1], vec![]));
}

#[test]
fn stopping_allocation_counts_towards_max_parallel() {
    let old = |desired| slotted(true, desired, running(), Some(true));
    let slots = [old(Desired::Stop), old(Desired::Run), old(Desired::Run)];
    assert_eq!(next_of(2, &slots), (vec![1], vec![]));
    assert_eq!(next_of(3, &slots), (vec![1, 2], vec![]));
}

#[test]
fn deleted_job_stops_each_allocation_once() {
    let known = |desired| slotted(false, desired, running(), None);
    let wanted = |desired| match &*steps(&[known(desired)], 1, true).1 {
        [Step::Want { desired, why, .. }] => Some((*desired, why.clone())),
        _ => None,
    };
    for desired in [Desired::Run, Desired::Stop] {
        assert_eq!(wanted(desired), Some((Desired::Gone, "job deleted".to_owned())));
    }
    assert_eq!(steps(&[known(Desired::Gone)], 1, true).1, []);
    assert_eq!(steps(&[], 1, true).1, [Step::Forget]);
}

#[test]
fn bad_is_what_failed_or_did_not_become_healthy() {
    for (task, healthy, bad) in [
        (running(), None, false),
        (running(), Some(true), false),
        (running(), Some(false), true),
        (failed(), None, true),
        (failed(), Some(true), true),
    ] {
        assert_eq!(is_bad(&slotted(false, Desired::Run, task, healthy).known), bad, "{healthy:?}");
    }
}

fn deploys(status: DeploymentStatus, joined: bool) -> Deploys {
    let (reschedule, progress_deadline) = (fixture::reschedule(), Duration::from_secs(60));
    Deploys { status, joined, reschedule, progress_deadline }
}

#[test]
fn failed_allocation_is_replaced_while_deployment_runs() {
    use DeploymentStatus::{Cancelled, Failed, Running, Successful};
    let broken = || slotted(false, Desired::Run, failed(), None).known;
    let follows = |known: Durable, deploys: &Deploys| {
        let followed =
            |step: &Step| if let Step::Follow { followed, .. } = step { Some(*followed) } else { None };
        let followed = steps_beside(known, deploys).iter().find_map(followed);
        followed.map(|followed| matches!(followed, Followed::At(_)))
    };
    for (status, joined, followed) in [
        (Failed, true, None),
        (Failed, false, Some(true)),
        (Running, true, Some(true)),
        (Successful, true, Some(true)),
        (Cancelled, true, Some(true)),
    ] {
        assert_eq!(follows(broken(), &deploys(status, joined)), followed, "{status:?} {joined}");
    }
    let endless = Deploys { progress_deadline: Duration::ZERO, ..deploys(Running, true) };
    assert_eq!(follows(broken(), &endless), None, "its deployment is about to fail");
    let never = Deploys { reschedule: ReschedulePolicy::default(), ..deploys(Successful, true) };
    assert_eq!(follows(broken(), &never), None);
    // A promised replacement is not created once the deployment has failed.
    let due = crate::time::Deadline::after(at(0), Duration::from_secs(5));
    let promised = Durable { followed: Some(Followed::At(due)), ..broken() };
    assert_eq!(follows(promised, &deploys(Failed, true)), Some(false));
    let ending = Durable { tasks: vec![failed(), running()], ..broken() };
    assert_eq!(follows(ending, &deploys(Successful, true)), None, "another of its tasks still runs");
    let done = Durable { status: ClientStatus::Complete, tasks: vec![dead()], ..broken() };
    assert_eq!(follows(done, &deploys(Successful, true)), None, "its job is complete");
}

#[test]
fn deployment_acts_only_while_it_runs() {
    use DeploymentStatus::{Failed, Running, Successful};
    for (status, joined, takes_over, replaces) in [
        (Running, false, true, true),
        (Running, true, false, true),
        (Successful, false, false, true),
        (Failed, false, false, false),
    ] {
        let healthy = slotted(false, Desired::Run, running(), Some(true)).known;
        let steps = steps_beside(healthy, &deploys(status, joined));
        let any = |is: fn(&Step) -> bool| steps.iter().any(is);
        let seen =
            (any(|step| matches!(step, Step::TakeOver(_))), any(|step| matches!(step, Step::Replace(_))));
        assert_eq!(seen, (takes_over, replaces), "{status:?} {joined}");
    }
}

#[test]
fn nothing_old_is_stopped_before_its_canaries_are_promoted() {
    let old = || slotted(true, Desired::Run, running(), Some(true));
    let update = Update { canary: 1, max_parallel: 2, ..fixture::update() };
    assert_eq!(moves(steps_in(Some("i"), &[old(), old()], &update, false)), (vec![], vec![]));
}
