//! The state of checks: their results, and which of them run for an outdated version or process.
//!
//! In: results, and the checks that are wanted. Out: the results that are valid now. What the next agent needs is in
//! [`Durable::checks`](super::Durable::checks).

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use herdlet_api_types::service::CheckResult;

use crate::{op::Part, state::AllocState};

/// The state of an allocation's checks that is not stored.
#[derive(Debug, Clone, Default)]
pub struct ChecksMemory {
    /// Last results, by check id. Their output may be newer than in [`Durable::checks`](super::Durable::checks).
    pub results: BTreeMap<String, CheckResult>,
    /// Since when checks with `check_restart` have been failing, by check id, in `CLOCK_BOOTTIME`.
    pub failing_since_ns: BTreeMap<String, u64>,
    /// Checks that run for an older version of the job, which had other services, or for a process that has ended.
    pub outdated: BTreeSet<Part>,
    /// The results of the group's checks are about an ended process: the checks begin again.
    pub recheck: bool,
}

impl AllocState {
    /// Records the result of a check. The durable copy is for the next agent: the status, and the output when it last
    /// changed. A stale result is about an earlier time: it is used only if nothing else is known; otherwise the known
    /// result is marked stale.
    pub fn set_check(&mut self, mut result: CheckResult, boot_ns: u64) {
        match self.checks.results.get(&result.id) {
            Some(known) if result.stale => result = CheckResult { stale: true, ..known.clone() },
            Some(_) | None => {}
        }
        if self.durable.checks.get(&result.id).is_none_or(|before| before.status != result.status) {
            self.durable.checks.insert(result.id.clone(), result.clone());
        }
        if result.restarts_now().is_some() {
            self.checks.failing_since_ns.entry(result.id.clone()).or_insert(boot_ns);
        } else {
            self.checks.failing_since_ns.remove(&result.id);
        }
        self.checks.results.insert(result.id.clone(), result);
    }

    /// Sets the checks of an owner, a task or the group. Known results are kept, also of a check that is now run
    /// differently and so has another id: until it has run, its result is stale. Results of other checks of the owner
    /// are dropped.
    pub fn expect_checks(&mut self, task: Option<&str>, wanted: &[CheckResult], boot_ns: u64) {
        let is_theirs = |result: &CheckResult| result.task.as_deref() == task;
        let is_wanted = |id: &str| wanted.iter().any(|wanted| wanted.id == id);
        let before = |wanted: &CheckResult| {
            let is_it = |known: &&CheckResult| {
                is_theirs(known) && (&known.service, &known.check) == (&wanted.service, &wanted.check)
            };
            let by_name = || self.checks.results.values().find(|known| is_it(known) && !is_wanted(&known.id));
            self.checks.results.get(&wanted.id).or_else(by_name)
        };
        let carried = |wanted: &CheckResult| {
            before(wanted).map(|known| CheckResult {
                id: wanted.id.clone(),
                on_update: wanted.on_update,
                restarts: wanted.restarts.clone(),
                stale: known.stale || known.id != wanted.id,
                ..known.clone()
            })
        };
        let kept: Vec<CheckResult> = wanted.iter().filter_map(carried).collect();
        let known = self.checks.results.values().filter(|result| is_theirs(result));
        if kept.len() == known.clone().count() && known.clone().all(|known| kept.contains(known)) {
            return;
        }
        let since_ns = self.checks.failing_since_ns.clone();
        self.remove_checks(is_theirs);
        for result in kept {
            let since_ns = since_ns.get(&result.id).copied().unwrap_or(boot_ns);
            self.set_check(result, since_ns);
        }
    }

    /// Drops the results of these checks, which are no longer valid.
    pub fn remove_checks(&mut self, forgotten: impl Fn(&CheckResult) -> bool) {
        self.checks.results.retain(|_, result| !forgotten(result));
        self.checks.failing_since_ns.retain(|id, _| self.checks.results.contains_key(id));
        if self.durable.checks.values().any(&forgotten) {
            self.durable.checks.retain(|_, result| !forgotten(result));
        }
    }
}
