//! `depends_on` of groups: what must be so before a group's first allocations are created.
//!
//! In: a group, and the state of other groups and jobs. Out: the first dependency that is not met, and which jobs to plan again.
//! A dependency that fails later stops nothing, and a successor of an allocation does not wait again.

use std_alloc::{format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    JobKey,
    alloc::ClientStatus,
    job::{DependencyCondition, Group, GroupDependency},
    view::{Reason, Unplaced},
};

use crate::{
    alloc::health,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::AllocEntry, verdict::is_current},
};

/// The most groups of a cycle that is described.
const CYCLE_LEN_MAX: usize = 16;

/// A dependency that is not met.
struct Unmet<'w> {
    message: String,
    /// The group that is waited for, if there is one.
    of: Option<(&'w JobKey, &'w str)>,
}

impl World {
    /// The first dependency of a group that is not met.
    pub(super) fn unmet_dependency(&self, key: &JobKey, group: &str) -> Option<Unplaced> {
        let Unmet { mut message, of } = self.first_unmet((key, group))?;
        message.push_str(&of.and_then(|first| self.cycle((key, group), first)).unwrap_or_default());
        Some(Unplaced { reason: Reason::Dependency, message, filtered_by: Vec::new(), exhausted: Vec::new() })
    }

    fn first_unmet(&self, (key, group): (&JobKey, &str)) -> Option<Unmet<'_>> {
        let group = self.jobs.get(key)?.current.group(group)?;
        group.depends_on.iter().find_map(|on| self.unmet(key, on))
    }

    fn unmet(&self, key: &JobKey, on: &GroupDependency) -> Option<Unmet<'_>> {
        let other = match &on.job {
            Some(id) => &JobKey { namespace: Arc::clone(&key.namespace), id: id.as_str().into() },
            None => key,
        };
        let absent = |message: String| Some(Unmet { message, of: None });
        let Some((other, entry)) = self.jobs.get_key_value(other).filter(|(_, entry)| !entry.state.deleting)
        else {
            return absent(format!("waits for job {other}, which is not applied"));
        };
        let meant = |group: &&Group| on.group.as_ref().is_none_or(|name| *name == group.name);
        let groups: Vec<&Group> = entry.current.groups.iter().filter(meant).collect();
        if let (Some(name), true) = (&on.group, groups.is_empty()) {
            return absent(format!("waits for group {name} of job {other}, which has no such group"));
        }
        if entry.current.stop {
            return absent(format!("waits for job {other}, which is stopped"));
        }
        let open = groups.into_iter().find(|group| !self.is_met(entry, group, on.condition))?;
        let what = match on.condition {
            DependencyCondition::Started => "to start",
            DependencyCondition::Healthy => "to be healthy",
            DependencyCondition::Completed => "to complete",
        };
        let message = format!("waits for {}.{} {what}", other.id, open.name);
        Some(Unmet { message, of: Some((other, &open.name)) })
    }

    /// Describes the rest of a cycle: the groups that `first` waits for, up to the group that waits for `first`. Within a job,
    /// manifests with a cycle are refused; jobs may be applied one by one.
    fn cycle(&self, start: (&JobKey, &str), first: (&JobKey, &str)) -> Option<String> {
        let (mut at, mut way) = (first, String::new());
        for _ in 0..CYCLE_LEN_MAX {
            if at == start {
                return Some(format!("{way}: they never start; remove one depends_on"));
            }
            // A group that has had allocations does not wait.
            let slots = self.jobs.get(at.0)?.state.slots.get(at.1).map(Vec::as_slice).unwrap_or_default();
            if slots.iter().any(|slot| slot.had > 0) {
                return None;
            }
            at = self.first_unmet(at)?.of?;
            way.push_str(&format!(", which waits for {}.{}", at.0.id, at.1));
        }
        None
    }

    /// Whether every wanted allocation of a group meets the condition. Those of an older version do not count: the example is a
    /// migration that must complete before the servers of the same release start.
    fn is_met(&self, entry: &JobEntry, group: &Group, condition: DependencyCondition) -> bool {
        let slots = entry.state.slots.get(&group.name).map(Vec::as_slice).unwrap_or_default();
        (0..entry.current.desired_count(group)).all(|index| {
            let slot = usize::try_from(index).ok().and_then(|at| slots.get(at));
            match slot.map(|slot| (slot.had, slot.alloc.and_then(|id| self.allocs.get(id)))) {
                Some((_, Some(alloc))) => is_current(entry, group, alloc) && alloc_meets(alloc, condition),
                // It has ended, and was collected.
                Some((had, None)) => had > 0 && condition == DependencyCondition::Completed,
                None => false,
            }
        })
    }

    /// The job is planned again when the state of an allocation changes.
    pub(super) fn wait_for_others(&mut self, key: &JobKey, group: &str, why: Unplaced) {
        self.dependent.insert(key.clone());
        if let Some(entry) = self.jobs.get_mut(key) {
            entry.hold(group, why);
        }
    }

    /// The state of an allocation or a job has changed: what waits for others is planned again.
    pub(super) fn wake_dependents(&mut self, open: &mut OpenTurn<'_>) {
        for key in core::mem::take(&mut self.dependent) {
            self.mark_stale(open, key);
        }
    }
}

fn alloc_meets(alloc: &AllocEntry, condition: DependencyCondition) -> bool {
    let status = alloc.state.durable.status;
    match condition {
        DependencyCondition::Started => matches!(status, ClientStatus::Running | ClientStatus::Complete),
        DependencyCondition::Healthy => health::now(&alloc.spec, &alloc.state) == Some(true),
        DependencyCondition::Completed => status == ClientStatus::Complete,
    }
}
