//! Which allocations of a job a drain of the node stops next.
//!
//! Service jobs: of each group at most one allocation at a time, which is the default of `migrate`; the field itself has no
//! effect, as there is no other node on which a replacement could become healthy first. Batch jobs run to their end. System
//! jobs are last. Once the drain's limit is reached, everything is stopped.
//!
//! Source of the rules: Nomad's `nomad/drainer`.

use std_alloc::{collections::BTreeMap, vec::Vec};

use herdlet_api_types::{AllocId, alloc::Desired, job::Job};

use crate::{
    job::{pass::JobPass, placed::has_ended, rollout::Step},
    node::{Drain, reason},
};

/// Allocations of a group that are stopped at the same time.
const AT_ONCE: usize = 1;

/// Whether a drain stops allocations of the job at all.
pub(crate) fn concerns(drain: &Drain, job: &Job) -> bool {
    !(drain.ignore_system && job.kind.is_on_each_machine())
}

/// The next steps. `is_last` means that only allocations of system jobs are left on the node.
pub(crate) fn plan(pass: &JobPass<'_, '_>, drain: &Drain, is_last: impl FnOnce() -> bool) -> Vec<Step> {
    let job = pass.job;
    if !concerns(drain, job) {
        return Vec::new();
    }
    let live = pass.allocs.iter().filter_map(|id| Some((*id, pass.placed(*id)?)));
    let live: Vec<_> = live.filter(|(_, placed)| !has_ended(placed.known)).collect();
    let staying = || live.iter().filter(|(_, placed)| placed.desired == Desired::Run);
    let stop = |alloc: AllocId| Step::Want { alloc, desired: Desired::Stop, why: reason() };
    if drain.until.is_due(pass.now) {
        return staying().map(|(id, _)| stop(*id)).collect();
    }
    if job.kind.completes() {
        return Vec::new();
    }
    if job.kind.is_on_each_machine() {
        return if is_last() { staying().map(|(id, _)| stop(*id)).collect() } else { Vec::new() };
    }
    let mut leaving: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, placed) in live.iter().filter(|(_, placed)| placed.desired != Desired::Run) {
        *leaving.entry(placed.group).or_default() += 1;
    }
    let mut steps = Vec::new();
    for (id, placed) in staying() {
        let of_group = leaving.entry(placed.group).or_default();
        if *of_group < AT_ONCE {
            *of_group += 1;
            steps.push(stop(*id));
        }
    }
    steps
}
