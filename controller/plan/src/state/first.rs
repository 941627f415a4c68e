//! First attempts, which are not stored before they begin.
//!
//! Every other attempt is committed before it is started, so that the next agent knows what to look for. A first
//! attempt is implied by the allocation: its number is 1, and it may have begun if the lifecycle has reached its task.
//! So a task's first start waits for one disk write instead of two. This holds only in the boot in which the allocation
//! was adopted: later nothing shows whether there was a first attempt. Its number then counts as used, without other
//! consequences: a task that may never have begun has lost nothing.

use std_alloc::{collections::BTreeSet, string::String};

use herdlet_api_types::{alloc::Allocation, service::CheckResult};

use crate::{
    facts::AllFacts,
    launch::Launch,
    op::{Part, TaskPart},
    state::{AllocState, ChecksMemory, Durable, PartState, Parts, Run, Tracked, healthy_by},
    time::Now,
};

impl AllocState {
    /// The state of an agent that reads this from the database: it knows nothing of any part.
    pub fn restored(spec: &Allocation, mut durable: Durable, now: Now) -> Self {
        let parts = if durable.adopted { Parts::unknown() } else { Parts::absent() };
        if durable.has_passed_rollout() {
            durable.healthy_by = healthy_by(now, spec);
        }
        let mut maybe_begun = BTreeSet::new();
        let (stage, boot) = (durable.stage, durable.boot);
        let tasks = spec.group().map_or(&[][..], |group| &group.tasks);
        for ((index, known), task) in (0..).zip(&mut durable.tasks).zip(tasks) {
            let unbegun = known.newest() == 0 && matches!(known.run, Run::Waiting | Run::BackingOff { .. });
            if !unbegun || !stage.admits(task.lifecycle) {
                continue;
            }
            match boot {
                Some(boot) if boot == now.boot => {
                    maybe_begun.insert(index);
                }
                Some(_) => known.used = 1,
                None => {}
            }
        }
        for known in durable.tasks.iter_mut().filter(|known| known.token_news) {
            known.token_news = false;
            known.changing.insert(TaskPart::Identity);
        }
        let heard = |(id, result): (&String, &CheckResult)| {
            (id.clone(), CheckResult { stale: true, ..result.clone() })
        };
        let results = durable.checks.iter().map(heard).collect();
        let checks = ChecksMemory { results, ..ChecksMemory::default() };
        let facts = AllFacts::stored(&durable.facts, now);
        let durable = Tracked::stored(durable);
        let mut state = Self { durable, parts, facts, checks, maybe_begun, ..Self::default() };
        state.record_first_launches();
        state
    }

    /// Records what first attempts have read that a previous agent may have begun: what is stored. An inspection may find
    /// newer values before such an attempt is found.
    fn record_first_launches(&mut self) {
        for index in self.maybe_begun.clone() {
            let launch = Launch::with(1, &self.inputs(Part::Task(index, TaskPart::Process))).into_record();
            let tasks = &mut self.durable.get_mut_untracked().tasks;
            if let Some(known) =
                tasks.get_mut(usize::from(index)).filter(|known| known.launch_of(1).is_none())
            {
                known.launch = launch;
            }
        }
    }

    /// Whether a first attempt that begins now is not stored.
    pub fn leaves_first_unstored(&self, now: Now) -> bool {
        self.durable.boot == Some(now.boot)
    }

    /// Whether the fate of a first attempt that may have begun is still unknown.
    pub fn first_is_open(&self) -> bool {
        let process = |index: &u16| self.parts.get(Part::Task(*index, TaskPart::Process));
        self.maybe_begun.iter().map(process).any(|state| *state != PartState::Absent)
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::{sync::Arc, vec};

    use herdlet_api_types::job::Lifecycle;

    use super::*;
    use crate::{
        fixture::{alloc, at, dead, pending, running, task},
        state::{Stage, TaskState},
        time::BootId,
    };

    fn restored(boot: Option<BootId>) -> AllocState {
        let spec = alloc(vec![
            task("main", Lifecycle::Main),
            task("other", Lifecycle::Main),
            task("ran", Lifecycle::Main),
            task("ended", Lifecycle::Prestart),
            task("last", Lifecycle::Poststop),
            task("again", Lifecycle::Main),
        ]);
        let again = TaskState { attempt: 1, ..pending() };
        let tasks = vec![pending(), pending(), running(), dead(), pending(), again];
        let durable = Durable { adopted: true, boot, stage: Stage::Main, tasks, ..Durable::default() };
        AllocState::restored(&spec, durable, at(1))
    }

    #[test]
    fn only_what_could_begin_may_have_begun() {
        let state = restored(Some(at(0).boot));
        assert_eq!(state.maybe_begun, [0, 1].into());
        assert!(state.first_is_open());
        assert!(!state.durable.is_touched());
    }

    #[test]
    fn first_attempt_is_open_until_process_is_absent() {
        let mut state = restored(Some(at(0).boot));
        state.parts.set_part(Part::Task(0, TaskPart::Process), PartState::Absent);
        assert!(state.first_is_open());
        state.parts.set_part(Part::Task(1, TaskPart::Process), PartState::Absent);
        assert!(!state.first_is_open());
    }

    #[test]
    fn after_another_boot_its_number_is_used_up() {
        let state = restored(Some(BootId(7)));
        assert_eq!(state.maybe_begun, [].into());
        let attempts: std_alloc::vec::Vec<u32> =
            state.durable.tasks.iter().map(|task| task.newest()).collect();
        assert_eq!(attempts, [1, 1, 1, 1, 0, 1]);
        assert_eq!(state.durable.tasks[0].attempt, 0, "the attempt is not known to have started");
        assert!(!state.leaves_first_unstored(at(1)));
    }

    #[test]
    fn unadopted_allocation_has_no_parts() {
        let state = AllocState::restored(&crate::fixture::alloc(vec![]), Durable::default(), at(1));
        assert_eq!(*state.parts.get(Part::Dir), PartState::Absent);
    }

    #[test]
    fn rebuilt_state_uses_newest_records() {
        let mut spec = alloc(vec![task("ran", Lifecycle::Main), task("other", Lifecycle::Main)]);
        let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
        job.groups[0].update = Some(herdlet_api_types::fixture::update());
        let known = Durable::rebuilt(&spec, |index, _| (index == 0).then_some(3), at(5));
        let boot = at(5).boot;
        assert!(known.adopted && known.stage == Stage::UNTOLD);
        let tasks: std_alloc::vec::Vec<_> =
            known.tasks.iter().map(|task| (&*task.name, task.attempt, &task.run)).collect();
        let begun = Run::Starting { attempt: 3, boot };
        assert_eq!(tasks, [("ran", 3, &begun), ("other", 0, &Run::Waiting)]);
        assert_eq!(known.healthy_by.map(|by| by.boot_ns), Some(at(25).boot_ns));
        let nothing = Durable::rebuilt(&spec, |_, _| None, at(5));
        assert_eq!(nothing.stage, Stage::Init, "its lifecycle starts over");
    }

    #[test]
    fn stored_first_attempts_leave_nothing_open() {
        let state = restored(None);
        assert_eq!((state.maybe_begun.len(), state.durable.tasks[0].attempt), (0, 0));
        assert!(!state.leaves_first_unstored(at(1)));
    }
}
