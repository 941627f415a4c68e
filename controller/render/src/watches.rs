//! Who has used which data, and who is due after a change.
//!
//! In: the queries of a render, and changes of the sources. Out: the tasks to render again, once their data is quiet: no
//! change for `min`, but `max` after the first one at the latest. A thousand tasks with one query are one entry with a
//! thousand names.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::AllocId;
use tokio::{sync::Notify, time::Instant};

use crate::data::Data;

/// A task of an allocation, by its index, and the part of it that uses data.
pub type TaskKey = (AllocId, u16, Consumer);

/// A part of a task that uses data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consumer {
    /// Its `secret` blocks, until all their values are there.
    Secrets,
    /// Its templates.
    Templates,
}

/// The keys of all tasks of an allocation.
pub(crate) fn keys_of(alloc: AllocId) -> RangeInclusive<TaskKey> {
    (alloc, 0, Consumer::Secrets)..=(alloc, u16::MAX, Consumer::Templates)
}

/// How long data must be quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Without a change for this long.
    pub min: Duration,
    /// However often it changes, not longer than this.
    pub max: Duration,
}

impl Wait {
    /// Render at once, as before the first render.
    pub const NONE: Self = Self { min: Duration::ZERO, max: Duration::ZERO };

    /// The shorter one: a template must not wait for the sake of another.
    fn shorter(self, other: Self) -> Self {
        if (other.min, other.max) < (self.min, self.max) { other } else { self }
    }

    fn longest(self) -> Duration {
        self.max.max(self.min)
    }
}

/// How a task uses a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    pub wait: Wait,
    /// The templates that have asked, by index; none before the first render has ended.
    pub templates: BTreeSet<u16>,
}

impl Use {
    pub const fn waiting(wait: Wait) -> Self {
        Self { wait, templates: BTreeSet::new() }
    }
}

/// All watches of an agent.
#[derive(Default)]
pub struct Watches {
    known: Mutex<Known>,
    /// Something became due earlier than before.
    earlier: Notify,
}

#[derive(Default)]
struct Known {
    by_query: HashMap<Arc<Data>, BTreeMap<TaskKey, Use>>,
    by_task: BTreeMap<TaskKey, Vec<Arc<Data>>>,
    due: BTreeMap<TaskKey, Quiet>,
}

/// The wait for quiet data.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    latest: Instant,
    due: Instant,
    /// The shortest of the data that has changed.
    wait: Wait,
    /// Whether the change was reported, as something that is about to be due.
    is_reported: bool,
}

/// Tasks whose data has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskChanges {
    /// They are due once it is quiet.
    Begun(BTreeSet<TaskKey>),
    /// They are due.
    Due(BTreeSet<TaskKey>),
}

impl Watches {
    /// Watches one more query for a task. Called before the query is answered, so that no change is missed.
    pub fn add(&self, task: TaskKey, query: &Data, wait: Wait) {
        let mut known = self.known();
        let query = match known.by_query.get_key_value(query) {
            Some((shared, _)) => Arc::clone(shared),
            None => Arc::new(query.clone()),
        };
        let tasks = known.by_query.entry(Arc::clone(&query)).or_default();
        match tasks.get_mut(&task) {
            Some(before) => before.wait = before.wait.shorter(wait),
            None => {
                tasks.insert(task, Use::waiting(wait));
                known.by_task.entry(task).or_default().push(query);
            }
        }
    }

    /// Watches exactly these queries for a task from now on.
    pub fn keep(&self, task: TaskKey, queries: &BTreeMap<Data, Use>) {
        let mut known = self.known();
        let dropped: Vec<Arc<Data>> = match known.by_task.get_mut(&task) {
            Some(watched) => watched.extract_if(.., |query| !queries.contains_key(query)).collect(),
            None => Vec::new(),
        };
        for query in dropped {
            known.remove(task, &query);
        }
        if known.by_task.get(&task).is_some_and(Vec::is_empty) {
            known.by_task.remove(&task);
            // What was reported to begin also has to end.
            known.due.retain(|other, quiet| *other != task || quiet.is_reported);
        }
        for (query, used) in queries {
            if let Some(known) = known.by_query.get_mut(query).and_then(|tasks| tasks.get_mut(&task)) {
                known.clone_from(used);
            }
        }
    }

    /// Forgets all tasks of an allocation.
    pub fn forget(&self, alloc: AllocId) {
        let mut known = self.known();
        let tasks: Vec<TaskKey> = known.by_task.range(keys_of(alloc)).map(|(key, _)| *key).collect();
        for task in tasks {
            known.due.remove(&task);
            for query in known.by_task.remove(&task).into_iter().flatten() {
                known.remove(task, &query);
            }
        }
    }

    /// The number of different queries.
    pub fn queries(&self) -> usize {
        self.known().by_query.len()
    }

    /// The tasks that have used data for which `is_it` holds.
    pub fn users(&self, is_it: impl Fn(&Data) -> bool) -> BTreeSet<TaskKey> {
        let known = self.known();
        known
            .by_query
            .iter()
            .filter(|(query, _)| is_it(query))
            .flat_map(|(_, tasks)| tasks.keys().copied())
            .collect()
    }

    /// The same, with the templates of each task that have used it.
    pub fn templates(&self, is_it: impl Fn(&Data) -> bool) -> BTreeMap<TaskKey, BTreeSet<u16>> {
        let known = self.known();
        let mut found: BTreeMap<TaskKey, BTreeSet<u16>> = BTreeMap::new();
        let used = known.by_query.iter().filter(|(query, _)| is_it(query)).flat_map(|(_, tasks)| tasks);
        for (task, used) in used {
            found.entry(*task).or_default().extend(&used.templates);
        }
        found
    }

    /// The queries for which `is_it` holds.
    pub fn matching(&self, is_it: impl Fn(&Data) -> bool) -> Vec<Arc<Data>> {
        self.known().by_query.keys().filter(|query| is_it(query)).cloned().collect()
    }

    /// Data has changed: its users are due once it is quiet.
    pub fn changed(&self, now: Instant, is_it: impl Fn(&Data) -> bool) {
        let mut known = self.known();
        let Known { by_query, due, .. } = &mut *known;
        // The shortest wait of each task: queries have no order.
        let mut waits: BTreeMap<TaskKey, Wait> = BTreeMap::new();
        let used = by_query.iter().filter(|(query, _)| is_it(query)).flat_map(|(_, tasks)| tasks);
        for (task, Use { wait, .. }) in used {
            waits.entry(*task).and_modify(|known| *known = known.shorter(*wait)).or_insert(*wait);
        }
        let any = !waits.is_empty();
        for (task, wait) in waits {
            let quiet = due.entry(task).or_insert(Quiet {
                latest: now + wait.longest(),
                due: now,
                wait,
                is_reported: false,
            });
            // A change of data with a longer wait does not delay what is due.
            quiet.wait = quiet.wait.shorter(wait);
            quiet.latest = quiet.latest.min(now + wait.longest());
            quiet.due = (now + quiet.wait.min).min(quiet.latest);
        }
        drop(known);
        if any {
            self.earlier.notify_one();
        }
    }

    /// The data of one task has changed: it is due now, if it uses data for which `is_it` holds.
    pub fn task_changed(&self, task: TaskKey, is_it: impl Fn(&Data) -> bool) {
        let mut known = self.known();
        if !known.by_task.get(&task).is_some_and(|used| used.iter().any(|data| is_it(data))) {
            return;
        }
        let now = Instant::now();
        let quiet = known.due.entry(task).or_insert(Quiet {
            latest: now,
            due: now,
            wait: Wait::NONE,
            is_reported: false,
        });
        (quiet.due, quiet.latest) = (now, now);
        drop(known);
        self.earlier.notify_one();
    }

    /// Waits for the next tasks whose data has changed, or which are due because of that. Cancel-safe.
    pub async fn next(&self) -> TaskChanges {
        loop {
            let begun = self.report_begun(Instant::now());
            if !begun.is_empty() {
                return TaskChanges::Begun(begun);
            }
            let next = self.known().due.values().map(|quiet| quiet.due).min();
            match next {
                Some(next) => tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    () = self.earlier.notified() => continue,
                },
                None => {
                    self.earlier.notified().await;
                    continue;
                }
            }
            let now = Instant::now();
            let ready: BTreeSet<TaskKey> =
                self.known().due.extract_if(.., |_, quiet| quiet.due <= now).map(|(task, _)| task).collect();
            if !ready.is_empty() {
                return TaskChanges::Due(ready);
            }
        }
    }

    /// The tasks whose wait for quiet data has begun since the last call.
    fn report_begun(&self, now: Instant) -> BTreeSet<TaskKey> {
        let mut known = self.known();
        let new = known.due.iter_mut().filter(|(_, quiet)| !quiet.is_reported && quiet.due > now);
        new.map(|(task, quiet)| {
            quiet.is_reported = true;
            *task
        })
        .collect()
    }

    /// Waits for the next tasks that are due.
    #[cfg(test)]
    pub async fn due(&self) -> BTreeSet<TaskKey> {
        loop {
            if let TaskChanges::Due(tasks) = self.next().await {
                return tasks;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn remove(&mut self, task: TaskKey, query: &Arc<Data>) {
        if let Some(tasks) = self.by_query.get_mut(query) {
            tasks.remove(&task);
            if tasks.is_empty() {
                self.by_query.remove(query);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use herdlet_template::Query;

    use super::*;
    use crate::data::Origin;

    fn alloc(number: u8) -> AllocId {
        AllocId::from_hash([number; 16])
    }

    fn variable(path: &str) -> Data {
        let query =
            Query::NomadVariable { path: path.to_owned(), namespace: String::new(), region: String::new() };
        Data { origin: Origin::Agent, query }
    }

    fn seconds(min: u64, max: u64) -> Wait {
        Wait { min: Duration::from_secs(min), max: Duration::from_secs(max) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_tasks_share_one_query() {
        let watches = Watches::default();
        for number in 0..100 {
            for task in 0..10 {
                watches.add((alloc(number), task, Consumer::Templates), &variable("a"), Wait::NONE);
            }
        }
        assert_eq!(watches.queries(), 1);
        watches.changed(Instant::now(), |query| *query == variable("a"));
        assert_eq!(watches.due().await.len(), 1_000);
        for number in 0..100 {
            watches.forget(alloc(number));
        }
        assert_eq!(watches.queries(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn data_is_quiet_before_its_users_are_due() {
        let watches = Watches::default();
        let task = (alloc(1), 0, Consumer::Templates);
        watches.add(task, &variable("a"), seconds(5, 12));
        let began = Instant::now();
        watches.changed(Instant::now(), |_| true);
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            watches.changed(Instant::now(), |_| true);
            if began.elapsed() >= Duration::from_secs(12) {
                break;
            }
        }
        assert_eq!(watches.due().await, [task].into());
        assert_eq!(began.elapsed(), Duration::from_secs(12), "not longer than the maximum");
        let began = Instant::now();
        watches.changed(Instant::now(), |_| true);
        assert_eq!(watches.due().await, [task].into());
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    /// What is shown as outdated from the first change on must be rendered some time.
    #[tokio::test(start_paused = true)]
    async fn the_begin_of_a_change_is_reported_once_and_has_an_end() {
        let watches = Watches::default();
        let (slow, quick) = ((alloc(1), 0, Consumer::Templates), (alloc(2), 0, Consumer::Templates));
        watches.add(slow, &variable("a"), seconds(5, 20));
        watches.add(quick, &variable("a"), Wait::NONE);
        for _ in 0..2 {
            watches.changed(Instant::now(), |_| true);
        }
        assert_eq!(watches.next().await, TaskChanges::Begun([slow].into()));
        assert_eq!(watches.next().await, TaskChanges::Due([quick].into()), "it is due at once");
        watches.keep(slow, &BTreeMap::new());
        assert_eq!(
            watches.next().await,
            TaskChanges::Due([slow].into()),
            "although it uses no data any more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn only_users_of_changed_data_are_due() {
        let watches = Watches::default();
        watches.add((alloc(1), 0, Consumer::Templates), &variable("a"), Wait::NONE);
        watches.add((alloc(2), 0, Consumer::Templates), &variable("b"), Wait::NONE);
        watches.changed(Instant::now(), |query| *query == variable("b"));
        assert_eq!(watches.due().await, [(alloc(2), 0, Consumer::Templates)].into());
        watches.keep((alloc(2), 0, Consumer::Templates), &BTreeMap::new());
        watches.changed(Instant::now(), |query| *query == variable("b"));
        let nothing = tokio::time::timeout(Duration::from_secs(60), watches.due()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_shortest_wait_counts() {
        let watches = Watches::default();
        let task = (alloc(1), 0, Consumer::Templates);
        watches.add(task, &variable("a"), seconds(5, 240));
        watches.add(task, &variable("a"), seconds(1, 4));
        let began = Instant::now();
        watches.changed(began, |_| true);
        assert_eq!(watches.due().await, [task].into());
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        watches.keep(task, &[(variable("a"), Use::waiting(seconds(7, 28)))].into());
        let began = Instant::now();
        watches.changed(began, |_| true);
        watches.due().await;
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    /// The order of a map decided which wait counted.
    #[tokio::test(start_paused = true)]
    async fn the_shortest_wait_of_all_changed_data_counts() {
        for number in 0..32 {
            let watches = Watches::default();
            let task = (alloc(number), 0, Consumer::Templates);
            for (path, wait) in [("a", seconds(30, 60)), ("b", seconds(0, 0)), ("c", seconds(40, 80))] {
                watches.add(task, &variable(path), wait);
            }
            let began = Instant::now();
            watches.changed(began, |_| true);
            assert_eq!(watches.due().await, [task].into());
            assert_eq!(began.elapsed(), Duration::ZERO);
            watches.changed(Instant::now(), |query| *query == variable("a"));
            tokio::time::sleep(Duration::from_secs(29)).await;
            watches.changed(Instant::now(), |query| *query == variable("c"));
            watches.due().await;
            assert_eq!(began.elapsed(), Duration::from_secs(59), "quiet for the shorter one");
        }
    }

    #[test]
    fn users_are_known_with_their_templates() {
        let watches = Watches::default();
        let (one, other) = ((alloc(1), 0, Consumer::Templates), (alloc(2), 3, Consumer::Templates));
        for task in [one, other] {
            watches.add(task, &variable("a"), Wait::NONE);
            watches.add(task, &variable("b"), Wait::NONE);
        }
        let used =
            |templates: &[u16]| Use { wait: Wait::NONE, templates: templates.iter().copied().collect() };
        watches.keep(one, &[(variable("a"), used(&[0, 2])), (variable("b"), used(&[1]))].into());
        watches.keep(other, &[(variable("b"), used(&[0]))].into());
        assert_eq!(watches.templates(|query| *query == variable("a")), [(one, [0, 2].into())].into());
        let of_b = watches.templates(|query| *query == variable("b"));
        assert_eq!(of_b, [(one, [1].into()), (other, [0].into())].into());
        assert!(watches.templates(|query| *query == variable("c")).is_empty());
    }
}
