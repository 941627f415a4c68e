//! Garbage collection: forgets jobs that are over, and removes directories of ended allocations, by age, number and
//! disk usage.
//!
//! In: the published state, disk usage, the rules. Out: requests to the planner, which gives up only what has really
//! ended. It sleeps until something changes or the next job is due. The disk does not notify when it fills, so its
//! usage is checked every `gc_interval` while there is something to collect.

pub mod choose;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use herdlet_api_types::{
    AllocId, JobKey,
    gc::{Collectable, Due},
};
use herdlet_base::clock;
use herdlet_config::gc::Rules;
use herdlet_plan::event::{Command, Reply};
use herdlet_runtime::off_thread;

use self::choose::{Choice, CollectorInput, Usage, What, choose, next_due};
use crate::{
    publish::ReadModel,
    requests::{RequestError, Requests},
    telemetry::Telemetry,
};

/// Changes come in bursts; one pass serves them all.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// The extent of a requested collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Jobs that are over, and directories of allocations.
    All,
    /// The same without failed allocations that explain the state of a job that stays.
    Unneeded,
    Allocs,
    Alloc(AllocId),
}

/// The garbage collector.
pub struct Collector {
    /// The rules of when something is collected.
    pub rules: Rules,
    pub model: Arc<ReadModel>,
    pub requests: Requests,
    /// The directory that holds the allocations' directories.
    pub alloc_dirs: PathBuf,
    /// Counts the collected objects.
    pub telemetry: Telemetry,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Collector {
    /// Everything that has ended, the due ones first.
    pub async fn ended(&self) -> Vec<Collectable> {
        self.choose(&self.rules).await.into_iter().map(|choice| choice.ended).collect()
    }

    /// Collects everything in `scope` that has ended, due or not, and returns what it collected.
    ///
    /// # Errors
    /// When the collection is not known to be durable.
    pub async fn collect_now(&self, scope: Scope) -> Result<Vec<Collectable>, RequestError> {
        let rules = match scope {
            // With a threshold of zero, a job is due and takes its allocations with it, which are not listed then.
            Scope::All | Scope::Unneeded => {
                Rules { job_gc_threshold: herdlet_api_types::Duration::ZERO, ..self.rules }
            }
            Scope::Allocs | Scope::Alloc(_) => self.rules,
        };
        let mut choices = self.choose(&rules).await;
        choices.retain(|choice| match (&choice.what, scope) {
            (_, Scope::All) | (What::Alloc(_), Scope::Allocs) | (What::Job(_), Scope::Unneeded) => true,
            (What::Alloc(_), Scope::Unneeded) => !choice.explains_job,
            (What::Alloc(id), Scope::Alloc(wanted)) => *id == wanted,
            (What::Job(_), Scope::Allocs | Scope::Alloc(_)) => false,
        });
        for Choice { ended, .. } in &mut choices {
            (ended.due, ended.message) = (Some(Due::Request), "collected by request".to_owned());
        }
        self.collect(choices).await
    }

    /// Collects whatever is due, as long as the agent runs.
    pub async fn run(self: Arc<Self>) {
        loop {
            let version = self.model.version();
            let choices = self.choose(&self.rules).await;
            let due: Vec<Choice> =
                choices.iter().filter(|choice| choice.ended.due.is_some()).cloned().collect();
            let is_due = !due.is_empty();
            if let Err(error) = self.collect(due).await {
                tracing::debug!(%error, "failed to collect ended jobs and allocations");
            }
            let rest = self.rest(&choices, is_due);
            tokio::select! {
                () = self.model.changed(version) => {}
                () = tokio::time::sleep(rest) => {}
            }
            tokio::time::sleep(QUIET_TIME).await;
        }
    }

    /// How long nothing becomes due by itself. Anything that was due but not collected is retried after
    /// `gc_interval`.
    fn rest(&self, choices: &[Choice], is_due: bool) -> Duration {
        let interval = self.rules.gc_interval.to_std();
        let looks_at_disk = choices.iter().any(|choice| matches!(choice.what, What::Alloc(_)));
        let job = next_due(&self.rules, choices, clock::wall_now()).map(|left| left.to_std());
        let disk = (looks_at_disk || is_due).then_some(interval);
        job.into_iter().chain(disk).min().unwrap_or(Duration::MAX)
    }

    async fn choose(&self, rules: &Rules) -> Vec<Choice> {
        // A disk may take a while to respond.
        let path = self.alloc_dirs.clone();
        let usage = off_thread(move || usage(&path)).await.unwrap_or_default();
        let (jobs, allocs) = (self.model.jobs(), self.model.allocs());
        let owners = self.requests.owners();
        let is_owned = |key: &JobKey| owners.owns(key);
        choose(
            rules,
            &CollectorInput {
                jobs: &jobs,
                allocs: &allocs,
                is_owned: &is_owned,
                usage,
                now: clock::wall_now(),
            },
        )
    }

    async fn collect(&self, choices: Vec<Choice>) -> Result<Vec<Collectable>, RequestError> {
        if choices.is_empty() {
            return Ok(Vec::new());
        }
        let (mut jobs, mut allocs) = (Vec::new(), Vec::new());
        for choice in &choices {
            match &choice.what {
                What::Job(key) => jobs.push(key.clone()),
                What::Alloc(id) => allocs.push(*id),
            }
        }
        let reply = self.requests.ask(Command::Collect { jobs, allocs }).await?.reply;
        let Reply::Collected { jobs, allocs, .. } = reply else { return Ok(Vec::new()) };
        let (jobs, allocs): (BTreeSet<JobKey>, BTreeSet<AllocId>) =
            (jobs.into_iter().collect(), allocs.into_iter().collect());
        let collected = choices.into_iter().filter(|choice| match &choice.what {
            What::Job(key) => jobs.contains(key),
            What::Alloc(id) => allocs.contains(id),
        });
        let collected: Vec<Collectable> = collected.map(|choice| choice.ended).collect();
        for Collectable { kind, name, due, message, .. } in &collected {
            tracing::info!(kind = kind.as_str(), name, why = message, "collected");
            self.telemetry.collected(*kind, due.unwrap_or(Due::Request));
        }
        Ok(collected)
    }
}

/// The usage of the file system that holds `path`; zero if it cannot be determined.
fn usage(path: &std::path::Path) -> Usage {
    let Ok(disk) = rustix::fs::statvfs(path) else { return Usage::default() };
    // Relative to the blocks that are available to us: blocks reserved for root count as used.
    let percent = |used: u64, free: u64| {
        let all = used.saturating_add(free);
        let percent = used.saturating_mul(100).div_ceil(all.max(1));
        u8::try_from(percent).unwrap_or(100)
    };
    Usage {
        disk: percent(disk.f_blocks.saturating_sub(disk.f_bfree), disk.f_bavail),
        inodes: percent(disk.f_files.saturating_sub(disk.f_ffree), disk.f_favail),
    }
}
