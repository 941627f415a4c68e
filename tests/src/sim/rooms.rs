//! Invariants of capacity, checked on the published views.
//!
//! In: the views after each turn. Out: the first violation. No more resources are allocated than exist, and no job gets
//! resources that would suffice for a job ahead of it in the admission queue.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::Desired,
    job::Group,
    task::TaskStatus,
    view::{AllocView, ConvergenceState, JobView, Reason},
};
use herdlet_plan::job::capacity::Room;

use super::jobs::ROOM;

type Allocs = BTreeMap<AllocId, Arc<AllocView>>;
type Jobs = BTreeMap<JobKey, Arc<JobView>>;

/// The state so far.
#[derive(Debug, Default)]
pub struct Rooms {
    live: BTreeMap<AllocId, JobKey>,
    /// Jobs that waited for room.
    waiting: BTreeSet<JobKey>,
    /// Jobs whose ended allocations have freed resources, for their own successors first, in the last turn that published
    /// something and the one before. A successor may be placed only once the ended one is removed from the machine.
    makers: [BTreeSet<JobKey>; 2],
}

impl Rooms {
    /// Checks the views after a turn. An agent may wrongly consider the `forgotten` allocations live.
    pub fn end_turn(
        &mut self,
        jobs: &Jobs,
        allocs: &Allocs,
        forgotten: &BTreeSet<AllocId>,
    ) -> Result<(), String> {
        let live: BTreeMap<AllocId, &Arc<AllocView>> =
            allocs.iter().filter(|(_, view)| is_live(view)).map(|(id, view)| (*id, view)).collect();
        let counted = live.iter().filter(|(id, _)| !forgotten.contains(id));
        let total = counted.map(|(_, view)| held(view)).fold(Room::default(), Room::plus);
        if total.check(ROOM, ROOM).is_err() {
            return Err(format!("more resources are allocated than exist: {total:?}"));
        }
        let ended = self.live.iter().filter(|(id, _)| !live.contains_key(id)).map(|(_, key)| key.clone());
        let [newest, _] = std::mem::take(&mut self.makers);
        let is_removed = |view: &AllocView| {
            matches!(view.convergence.state, ConvergenceState::Converged | ConvergenceState::Failed)
        };
        let leaving = allocs.values().filter(|view| !is_live(view) && !is_removed(view));
        self.makers = [ended.chain(leaving.map(|view| view.spec.job_key.clone())).collect(), newest];
        let placed: Vec<&AllocView> =
            live.iter().filter(|(id, _)| !self.live.contains_key(id)).map(|(_, view)| &***view).collect();
        let waiting: BTreeSet<JobKey> =
            jobs.values().filter(|job| waits(job)).map(|job| job.key.clone()).collect();
        for first in self.waiting.intersection(&waiting).filter_map(|key| jobs.get(key)) {
            self.was_passed_over(first, &placed, jobs, allocs)?;
        }
        self.live.retain(|id, _| live.contains_key(id));
        for view in placed {
            self.live.insert(view.spec.id, view.spec.job_key.clone());
        }
        self.waiting = waiting;
        Ok(())
    }

    /// Whether later jobs got resources for which `first` waits.
    fn was_passed_over(
        &self,
        first: &JobView,
        placed: &[&AllocView],
        jobs: &Jobs,
        allocs: &Allocs,
    ) -> Result<(), String> {
        let rank = |job: &JobView| (Reverse(job.job.priority), job.create_index);
        let comes_later = |view: &&&AllocView| {
            let key = &view.spec.job_key;
            let later = jobs.get(key).is_some_and(|job| rank(job) > rank(first));
            later && !self.makers.iter().any(|makers| makers.contains(key))
        };
        let taken =
            placed.iter().filter(comes_later).map(|view| held(view)).fold(Room::default(), Room::plus);
        if taken.is_empty() || Occupancy::new(jobs, allocs).lacks_room(first, taken) {
            return Ok(());
        }
        let given: Vec<String> = placed.iter().filter(comes_later).map(|view| view.spec.name()).collect();
        let (first, why) = (&first.key, &first.convergence.message);
        Err(format!("{first} waits for resources ({why}), but {} got {taken:?}", given.join(", ")))
    }
}

/// Whether the job waits for room.
pub fn waits(job: &JobView) -> bool {
    job.convergence.reason == Some(Reason::Capacity)
}

/// The resources of the machine and who has them.
#[derive(Debug)]
pub struct Occupancy<'a> {
    /// What no allocation holds, and none holds for its successor.
    free: Room,
    /// The live allocations that shall run.
    running: BTreeMap<&'a JobKey, Vec<&'a AllocView>>,
}

impl<'a> Occupancy<'a> {
    pub fn new(jobs: &Jobs, allocs: &'a Allocs) -> Self {
        let taken = allocs.values().map(|view| held(view).most(promised(view, jobs)));
        let free = ROOM.minus(taken.fold(Room::default(), Room::plus));
        let mut running: BTreeMap<_, Vec<&AllocView>> = BTreeMap::new();
        for view in allocs.values().filter(|view| is_live(view) && view.spec.desired == Desired::Run) {
            running.entry(&view.spec.job_key).or_default().push(view);
        }
        Self { free, running }
    }

    /// Whether any group of the job lacks resources, even with `more`.
    pub fn lacks_room(&self, job: &JobView, more: Room) -> bool {
        let free = self.free.plus(more);
        job.job.groups.iter().any(|group| {
            let has = self.to_be_replaced(job, group).map_or(free, |has| free.plus(has));
            Room::of(group).check(has, ROOM).is_err()
        })
    }

    /// The smallest amount of resources that a replaced allocation frees. None unless all slots of the group are filled and
    /// one of them has an older version than the job, or if the group uses canaries, which run beside the old allocations.
    fn to_be_replaced(&self, job: &JobView, group: &Group) -> Option<Room> {
        let canaries = group.update.as_ref().is_some_and(|update| update.canary > 0);
        let own = self.running.get(&job.key).into_iter().flatten();
        let own = own.filter(|view| view.spec.group == group.name);
        let is_full = own.clone().count() >= usize::try_from(group.count).unwrap_or(usize::MAX);
        let old = own.filter(|view| view.spec.job_version != job.version).map(|view| held(view));
        old.min_by_key(|room| room.memory_mib).filter(|_| is_full && !canaries)
    }
}

/// The resources that the allocation holds.
fn held(view: &AllocView) -> Room {
    view.spec.group().filter(|_| is_live(view)).map(Room::of).unwrap_or_default()
}

/// The resources that it holds for its successor.
fn promised(view: &AllocView, jobs: &Jobs) -> Room {
    let is_leaving = is_live(view) && view.spec.desired == Desired::Stop;
    let job = jobs.get(&view.spec.job_key).filter(|_| is_leaving);
    job.and_then(|job| job.job.group(&view.spec.group)).map(Room::of).unwrap_or_default()
}

fn is_live(view: &AllocView) -> bool {
    !view.status.is_terminal() || view.tasks.iter().any(|task| task.state != TaskStatus::Dead)
}
