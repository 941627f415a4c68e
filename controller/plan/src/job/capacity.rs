//! The machine's capacity: what a group requests, and whether it is available.
//!
//! A group requests only what its job states: a task without `resources` requests nothing, since it has no limit.
//! `ephemeral_disk` counts only where it differs from Nomad's default, which Nomad's servers write into every job.
//! Ports are assigned elsewhere.

use core::cmp::Reverse;
use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use herdlet_api_types::{
    JobKey,
    job::{Group, Lifecycle, Task},
    manifest::defaults::DISK_MIB,
    view::{Reason, Unplaced},
};

/// An amount in each dimension.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// CPU in MHz, without that of `cores`.
    pub cpu_mhz: u64,
    /// Cores that single tasks use alone.
    pub cores: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Disk in MiB.
    pub disk_mib: u64,
}

impl Room {
    /// More than any group can request.
    pub const ENDLESS: Self =
        Self { cpu_mhz: u64::MAX, cores: u64::MAX, memory_mib: u64::MAX, disk_mib: u64::MAX };

    /// The request of one allocation of the group, at the stage at which its tasks request most. Each task keeps its cores as long as
    /// the allocation lives.
    pub fn of(group: &Group) -> Self {
        let sum = |belongs: fn(Lifecycle) -> bool| {
            let tasks = group.tasks.iter().filter(|task| belongs(task.lifecycle));
            tasks.map(of_task).fold(Self::default(), Self::plus)
        };
        let sidecars = sum(Lifecycle::is_sidecar);
        let before = sum(|stage| stage == Lifecycle::Prestart);
        let main = sum(|stage| matches!(stage, Lifecycle::Main | Lifecycle::Poststart));
        let after = sum(|stage| stage == Lifecycle::Poststop);
        let disk_mib = if group.disk_mib == DISK_MIB { 0 } else { group.disk_mib };
        let cores = group.tasks.iter().filter_map(|task| task.resources.cores).map(u64::from).sum();
        Self { disk_mib, cores, ..sidecars.plus(before.most(main)).most(after) }
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What remains without `other`.
    pub fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// `count` times this amount.
    pub fn times(self, count: u64) -> Self {
        self.each(
            Self { cpu_mhz: count, cores: count, memory_mib: count, disk_mib: count },
            u64::saturating_mul,
        )
    }

    /// The larger value in each dimension.
    pub fn most(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_mhz: of(self.cpu_mhz, other.cpu_mhz),
            cores: of(self.cores, other.cores),
            memory_mib: of(self.memory_mib, other.memory_mib),
            disk_mib: of(self.disk_mib, other.disk_mib),
        }
    }

    /// Whether it is zero in all dimensions.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The clock rate of one core of a machine with this capacity, in MHz; 0 if unknown.
    pub fn core_mhz(self) -> u64 {
        if self.cpu_mhz == u64::MAX { 0 } else { self.cpu_mhz.checked_div(self.cores).unwrap_or(0) }
    }

    /// With the clock rate of `cores` as part of `cpu_mhz`, on a machine with the capacity `all`.
    #[must_use]
    pub fn with_mhz_of_cores(self, all: Self) -> Self {
        let of_cores = all.core_mhz().saturating_mul(self.cores);
        Self { cpu_mhz: self.cpu_mhz.saturating_add(of_cores), ..self }
    }

    /// Checks whether this fits into `free`; `all` is the total.
    ///
    /// # Errors
    /// The exhausted dimensions, with what is requested and what is free.
    pub fn check(self, free: Self, all: Self) -> Result<(), Unplaced> {
        let of_taken_cores = all.core_mhz().saturating_mul(all.cores.saturating_sub(free.cores));
        let free_mhz = free.cpu_mhz.saturating_sub(of_taken_cores);
        let dimensions = [
            ("cpu", "MHz", self.with_mhz_of_cores(all).cpu_mhz, free_mhz, all.cpu_mhz),
            ("memory", "MiB", self.memory_mib, free.memory_mib, all.memory_mib),
            ("disk", "MiB", self.disk_mib, free.disk_mib, all.disk_mib),
            ("cores", "cores", self.cores, free.cores, all.cores),
        ];
        let lacking = || dimensions.iter().filter(|(_, _, wants, free, _)| wants > free);
        if lacking().next().is_none() {
            return Ok(());
        }
        let shortages: Vec<String> = lacking()
            .map(|(name, unit, wants, free, all)| match name == unit {
                true if *wants == 1 => format!("1 core of its own ({free} of {all} are free)"),
                true => format!("{wants} {unit} of its own ({free} of {all} are free)"),
                false => format!("{wants} {unit} of {name} ({free} of {all} {unit} are free)"),
            })
            .collect();
        Err(Unplaced {
            reason: Reason::Capacity,
            message: format!("needs {}", shortages.join(" and ")),
            filtered_by: Vec::new(),
            exhausted: lacking().map(|(name, ..)| String::from(*name)).collect(),
        })
    }
}

fn of_task(task: &Task) -> Room {
    let allocated = task.resources.allocated();
    Room {
        cpu_mhz: allocated.cpu_mhz.unwrap_or(0),
        memory_mib: allocated.memory_mib.unwrap_or(0),
        ..Room::default()
    }
}

/// A job's rank in the queue: jobs that have just freed room by ending their own allocation come first, then higher
/// priorities, then older jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    waits_for_another: bool,
    priority: Reverse<u8>,
    create_index: u64,
    key: JobKey,
}

/// The queue of jobs that compete for free capacity.
#[derive(Debug, Default)]
pub struct Line {
    ranks: BTreeSet<Rank>,
    of: BTreeMap<JobKey, Rank>,
    /// Jobs that were planned before their turn.
    early: BTreeSet<JobKey>,
    /// Jobs to be planned once all freed capacity is known. Until then only jobs that have freed some themselves may
    /// take it.
    waiting: BTreeSet<JobKey>,
}

impl Line {
    /// Queues a job that will be planned in this turn and may take capacity. `has_made_room`: an allocation of its own
    /// has ended.
    pub fn join(&mut self, key: &JobKey, priority: u8, create_index: u64, has_made_room: bool) {
        let waits_for_another = !has_made_room;
        let rank = Rank { waits_for_another, priority: Reverse(priority), create_index, key: key.clone() };
        match self.of.get(key) {
            Some(known) if known.priority == rank.priority && *known <= rank => {}
            Some(_) | None => {
                self.remove(key);
                self.ranks.insert(rank.clone());
                self.of.insert(key.clone(), rank);
            }
        }
    }

    /// Whether another job comes first. If so, the job is returned to the caller once it is its turn. Jobs that are not
    /// queued come after all that are.
    pub fn is_anothers_turn(&mut self, key: &JobKey) -> bool {
        let is_first = self.ranks.first().is_none_or(|first| first.key == *key);
        let may_take = is_first && !self.must_wait(key);
        if !may_take {
            self.early.insert(key.clone());
        }
        !may_take
    }

    /// Whether the queue is closed to the job.
    fn must_wait(&self, key: &JobKey) -> bool {
        !self.waiting.is_empty() && self.of.get(key).is_none_or(|rank| rank.waits_for_another)
    }

    /// Capacity was freed and more may be: closes the queue until `key`, or another waiting job, is planned.
    pub fn close(&mut self, key: JobKey) {
        self.waiting.insert(key);
    }

    /// Jobs that keep the queue closed, and open it by being planned.
    pub fn waiting(&self) -> impl Iterator<Item = &JobKey> {
        self.waiting.iter()
    }

    /// All freed capacity is known, and `key` is planned now. Returns the jobs that came early and whose turn it is.
    pub fn open(&mut self, key: &JobKey) -> Vec<JobKey> {
        self.waiting.clear();
        self.early.remove(key);
        self.next()
    }

    /// The job was planned. Unless it came early it leaves the queue; then returns the jobs that came early and whose
    /// turn it is now.
    pub fn planned(&mut self, key: &JobKey) -> Vec<JobKey> {
        if self.of.contains_key(key) && self.must_wait(key) {
            self.early.insert(key.clone());
        }
        if self.early.contains(key) { Vec::new() } else { self.leave(key) }
    }

    /// The job takes no more capacity. Returns the jobs that came early and whose turn it is now.
    pub fn leave(&mut self, key: &JobKey) -> Vec<JobKey> {
        self.remove(key);
        self.early.remove(key);
        self.waiting.remove(key);
        if self.waiting.is_empty() { self.next() } else { Vec::new() }
    }

    /// The jobs that came early and whose turn it is now.
    fn next(&mut self) -> Vec<JobKey> {
        match self.ranks.first() {
            Some(first) => self.early.take(&first.key).into_iter().collect(),
            None => core::mem::take(&mut self.early).into_iter().collect(),
        }
    }

    fn remove(&mut self, key: &JobKey) {
        if let Some(rank) = self.of.remove(key) {
            self.ranks.remove(&rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::{vec, vec::Vec};

    use herdlet_api_types::{fixture, job::Resources};

    use super::*;

    fn task(lifecycle: Lifecycle, cpu_mhz: u64, memory_mib: u64) -> Task {
        let mut task = fixture::task("t");
        task.lifecycle = lifecycle;
        (task.resources.cpu_mhz, task.resources.memory_mib) = (Some(cpu_mhz), Some(memory_mib));
        task
    }

    #[test]
    fn group_requests_its_largest_phase() {
        let group = fixture::group(
            "g",
            1,
            vec![
                task(Lifecycle::Prestart, 500, 10),
                task(Lifecycle::PrestartSidecar, 50, 20),
                task(Lifecycle::Main, 100, 200),
                task(Lifecycle::Poststart, 10, 20),
                task(Lifecycle::Poststop, 600, 10),
            ],
        );
        assert_eq!(Room::of(&group), Room { cpu_mhz: 600, memory_mib: 240, disk_mib: 0, ..Room::default() });
        let mut silent = fixture::group("g", 1, vec![fixture::task("t")]);
        assert!(Room::of(&silent).is_empty(), "omitted resources are not requested");
        silent.disk_mib = 1_000;
        assert_eq!(Room::of(&silent).disk_mib, 1_000);
        let mut large = task(Lifecycle::Main, 100, 200);
        large.resources.secrets_mib = Some(5);
        let group = fixture::group("g", 1, vec![large]);
        assert_eq!(Room::of(&group).memory_mib, 205, "`secrets` is in memory");
    }

    #[test]
    fn lack_of_room_names_wanted_and_free_amounts() {
        let all = Room { cpu_mhz: 2_000, memory_mib: 1_000, disk_mib: 1_000, ..Room::default() };
        let used = Room { cpu_mhz: 2_500, memory_mib: 600, disk_mib: 0, ..Room::default() };
        let wants = Room { cpu_mhz: 0, memory_mib: 500, disk_mib: 0, ..Room::default() };
        let why = wants.check(all.minus(used), all).expect_err("no memory is left");
        assert_eq!(why.message, "needs 500 MiB of memory (400 of 1000 MiB are free)");
        assert_eq!(why.exhausted, ["memory"]);
        assert_eq!(Room { memory_mib: 400, ..wants }.check(all.minus(used), all), Ok(()));
        let both = Room { cpu_mhz: 1, ..wants };
        let why = both.check(all.minus(used), all).expect_err("nor a processor");
        assert_eq!(why.exhausted, ["cpu", "memory"]);
        let expected =
            "needs 1 MHz of cpu (0 of 2000 MHz are free) and 500 MiB of memory (400 of 1000 MiB are free)";
        assert_eq!(why.message, expected);
    }

    #[test]
    fn cores_take_their_share_of_the_clock_rate() {
        let all = Room { cpu_mhz: 4_000, cores: 2, ..Room::default() };
        let one = Room { cores: 1, ..Room::default() };
        let mhz = |cpu_mhz| Room { cpu_mhz, ..Room::default() };
        assert_eq!((one.times(2).check(all, all), mhz(2_000).check(all.minus(one), all)), (Ok(()), Ok(())));
        let why = one.check(all.minus(one.times(2)), all).expect_err("both cores are taken");
        assert_eq!(
            why.message,
            "needs 2000 MHz of cpu (0 of 4000 MHz are free) and 1 core of its own (0 of 2 are free)"
        );
        assert_eq!(why.exhausted, ["cpu", "cores"]);
        let why = mhz(2_001).check(all.minus(one), all).expect_err("the core has the rest");
        assert_eq!(why.message, "needs 2001 MHz of cpu (2000 of 4000 MHz are free)");
        let why = one.check(all.minus(mhz(2_001)), all).expect_err("others have more than one core");
        assert_eq!(why.exhausted, ["cpu"]);
        assert_eq!(Room::ENDLESS.core_mhz(), 0, "unknown");
        let mut many = task(Lifecycle::Prestart, 0, 0);
        many.resources = Resources { cores: Some(2), ..Resources::default() };
        let group =
            fixture::group("g", 1, vec![many.clone(), Task { lifecycle: Lifecycle::Poststop, ..many }]);
        assert_eq!(Room::of(&group), Room { cores: 4, ..Room::default() }, "each task has cores of its own");
    }

    #[test]
    fn queue_orders_by_room_made_priority_and_age() {
        let key = |id: &str| JobKey { namespace: "default".into(), id: id.into() };
        let mut line = Line::default();
        line.join(&key("old"), 50, 1, false);
        line.join(&key("new"), 50, 2, false);
        line.join(&key("dear"), 90, 3, false);
        line.join(&key("rolling"), 10, 4, true);
        let mut order: Vec<String> = Vec::new();
        // All come in the order of their names; each comes again when it is its turn.
        let mut come: Vec<JobKey> = ["dear", "new", "old", "rolling", "stranger"].map(key).into();
        while !come.is_empty() {
            for job in core::mem::take(&mut come) {
                if !line.is_anothers_turn(&job) {
                    order.push(String::from(&*job.id));
                }
                come.extend(line.planned(&job));
            }
        }
        assert_eq!(order, ["rolling", "dear", "old", "new", "stranger"]);
        assert!(!line.is_anothers_turn(&key("stranger")), "the queue is empty");
    }

    #[test]
    fn requeued_job_keeps_its_place_unless_priority_changed() {
        let key = |id: &str| JobKey { namespace: "default".into(), id: id.into() };
        let mut line = Line::default();
        let first =
            |line: &Line| line.ranks.first().map(|rank| String::from(&*rank.key.id)).unwrap_or_default();
        line.join(&key("a"), 50, 1, false);
        line.join(&key("b"), 50, 2, false);
        assert_eq!(first(&line), "a");
        line.join(&key("b"), 50, 2, true);
        assert_eq!(first(&line), "b", "it freed the resources");
        line.join(&key("b"), 50, 2, false);
        assert_eq!(first(&line), "b", "b keeps this place");
        line.join(&key("a"), 90, 1, true);
        assert_eq!(first(&line), "a");
        line.join(&key("a"), 10, 1, true);
        assert_eq!(first(&line), "b", "a has a lower priority now");
        assert_eq!(line.ranks.len(), 2);
    }

    #[test]
    fn a_closed_line_is_open_to_those_that_have_made_room() {
        let key = |id: &str| JobKey { namespace: "default".into(), id: id.into() };
        let mut line = Line::default();
        line.join(&key("short"), 50, 1, false);
        line.close(key("short"));
        assert!(line.is_anothers_turn(&key("short")), "more resources may become free");
        assert!(line.is_anothers_turn(&key("stranger")));
        line.join(&key("rolling"), 10, 2, true);
        assert!(!line.is_anothers_turn(&key("rolling")));
        assert_eq!(line.planned(&key("rolling")), [], "the queue is closed");
        line.open(&key("short"));
        assert!(!line.is_anothers_turn(&key("short")));
    }

    #[test]
    fn many_take_as_much_as_each() {
        let one = Room { cpu_mhz: 1, memory_mib: 20, disk_mib: 300, ..Room::default() };
        assert_eq!(one.times(3), Room { cpu_mhz: 3, memory_mib: 60, disk_mib: 900, ..Room::default() });
    }
}
