//! Waits until jobs reach a goal, and shows their progress.
//!
//! In: the agent's stream of changes. Out: lines on stderr (redrawn on a terminal, else one per change), and the result. It
//! evaluates the agent's own verdicts, and only at commits.

mod flag;
mod limit;
mod progress;

use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::{Stream, StreamExt};
use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{ClientStatus, Desired},
    api::Change,
    view::{AllocView, ConvergenceState, JobView},
};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    Connection, children,
    client::{Client, ClientError},
    failed_allocs,
    failure::{FAILED, Failure, INTERRUPTED, REVERTED, SUPERSEDED, TIMED_OUT, USAGE},
    output::Output,
    selection::{Absent, SelectorFlag},
    target,
    watch::{ChangeStep, Shown},
};
use progress::Progress;

pub(super) use flag::{Accepted, WaitFlags};
pub(super) use limit::{Limit, limit};

/// Arguments of `herdlet wait`.
#[derive(Debug, Clone, Args)]
pub struct WaitArgs {
    /// Jobs
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// What to wait for
    #[arg(long = "for", value_enum, default_value = "converged")]
    goal: Goal,
    /// How long to wait; 0 for no limit
    #[arg(long, default_value = "5m", value_parser = limit)]
    timeout: Duration,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Goal {
    /// Everything is in its desired state
    Converged,
    /// Everything runs and all checks pass
    Healthy,
    /// All tasks have ended with exit code 0
    Complete,
    /// Everything is removed
    Deleted,
}

impl Goal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Converged => "converged",
            Self::Healthy => "healthy",
            Self::Complete => "complete",
            Self::Deleted => "deleted",
        }
    }
}

/// The result of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waited {
    Reached,
    Failed(String),
    /// A deployment failed, and its job reverted to a stable version.
    Reverted(String),
    /// Another client applied a newer version.
    Superseded(String),
    TimedOut,
    Interrupted,
}

impl Waited {
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Reached => 0,
            Self::Failed(_) => FAILED,
            Self::Reverted(_) => REVERTED,
            Self::Superseded(_) => SUPERSEDED,
            Self::TimedOut => TIMED_OUT,
            Self::Interrupted => INTERRUPTED,
        }
    }

    /// The result as a document.
    pub(super) fn report(&self, goal: Goal) -> WaitReport {
        let (result, message) = match self {
            Self::Reached => ("reached", None),
            Self::Failed(why) => ("failed", Some(why)),
            Self::Reverted(why) => ("reverted", Some(why)),
            Self::Superseded(why) => ("superseded", Some(why)),
            Self::TimedOut => ("timed-out", None),
            Self::Interrupted => ("interrupted", None),
        };
        WaitReport { goal: goal.as_str(), result, message: message.cloned() }
    }
}

/// The result of a wait, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct WaitReport {
    /// `converged healthy complete deleted`.
    goal: &'static str,
    /// `reached failed reverted superseded timed-out interrupted`.
    result: &'static str,
    /// Why it failed, was reverted or superseded.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize)]
struct Report {
    jobs: Vec<JobKey>,
    waited: WaitReport,
}

#[derive(Debug, Clone)]
pub(super) struct WaitTarget {
    pub(super) job: JobKey,
    /// The version that was applied: a newer one ends the wait. None accepts any version.
    pub(super) version: Option<u64>,
    /// If not empty, only these allocations count, and not the rest of the job.
    pub(super) allocs: Vec<AllocId>,
}

impl WaitTarget {
    /// The job in any version.
    pub(super) fn any(job: &JobKey) -> Self {
        Self { job: job.clone(), version: None, allocs: Vec::new() }
    }

    /// This version of the job, and no newer one.
    pub(super) fn version(job: JobKey, version: u64) -> Self {
        Self { job, version: Some(version), allocs: Vec::new() }
    }

    /// Whether the agent has given up. A wait for single allocations continues even if the job has failed.
    fn has_failed(&self, job: &JobView) -> bool {
        self.allocs.is_empty() && job.convergence.state == ConvergenceState::Failed
    }
}

pub async fn run(args: WaitArgs) -> Result<u8, Failure> {
    let limit = Limit::from_now(args.timeout);
    let client = args.connection.client()?;
    let listed = async { tokio::try_join!(client.jobs(), client.allocs()) };
    let (jobs, allocs) = limit.within("list what to wait for", listed).await?;
    let mut keys = Vec::new();
    let names = args.selector.targets(&client, args.jobs, Absent::Wrong);
    for name in &limit.within("find them", names).await? {
        match target::resolve(name, &jobs, &allocs) {
            Ok(found) => keys.extend(found.job.or_else(|| Some(found.allocs.first()?.spec.job_key.clone()))),
            // A missing job counts as deleted.
            Err(_) if args.goal == Goal::Deleted => herdlet_base::stderr_line!("{name} does not exist"),
            Err(failure) => return Err(target::with_fate(&client, name, &jobs, failure).await),
        }
    }
    if args.goal == Goal::Complete {
        let meant: Vec<&JobView> = jobs.iter().filter(|view| keys.contains(&view.key)).collect();
        let instead = |view: &&JobView| children::instead("wait --for=complete", view, &jobs);
        if let Some(failure) = meant.iter().find_map(instead) {
            return Err(failure.code(USAGE));
        }
        if let Some(endless) = meant.iter().find(|view| !view.job.kind.completes()) {
            let message =
                format!("job {} is of type {} and never completes", endless.key, endless.job.kind.as_str());
            return Err(Failure::new(message)
                .code(USAGE)
                .hint(format!("to wait until it runs: herdlet wait {}", endless.key.argument())));
        }
    }
    let waited = match keys.is_empty() {
        true => Waited::Reached,
        false => wait_for(&client, &keys, args.goal, limit).await?,
    };
    args.output.document(&Report { jobs: keys, waited: waited.report(args.goal) })?;
    Ok(waited.code())
}

/// Waits until the jobs reach `goal`.
pub(super) async fn wait_for(
    client: &Client,
    jobs: &[JobKey],
    goal: Goal,
    limit: Limit,
) -> Result<Waited, Failure> {
    let wanted = jobs.iter().map(WaitTarget::any).collect();
    Waiting { wanted, index: 0, goal }.follow(client, limit).await
}

/// The same after a change: commits before `index` don't count.
pub(super) async fn wait_for_accepted(
    client: &Client,
    wanted: Vec<WaitTarget>,
    index: u64,
    goal: Goal,
    limit: Limit,
) -> Result<Waited, Failure> {
    Waiting { wanted, index, goal }.follow(client, limit).await
}

/// The agent's stream of changes.
type Events = Box<dyn Stream<Item = Result<Change, ClientError>> + Unpin>;

/// Interval and number of reconnects. The agent may be restarting or upgrading, and accepted changes continue meanwhile.
const AGAIN_EVERY: Duration = Duration::from_millis(500);
const AGAIN_TRIES: usize = 60;

/// The source of changes. Cancel-safe.
struct Source<'c> {
    client: &'c Client,
    events: Option<Events>,
    tries: usize,
}

impl Source<'_> {
    async fn next(&mut self) -> Result<Change, Failure> {
        loop {
            if let Some(events) = &mut self.events {
                if let Some(Ok(change)) = events.next().await {
                    self.tries = 0;
                    return Ok(change);
                }
                herdlet_base::stderr_line!("the connection to the agent broke; trying again");
                self.events = None;
            }
            if self.tries >= AGAIN_TRIES {
                let failure = Failure::new("the agent disappeared during the wait");
                return Err(
                    failure.hint("accepted changes stay in force; start the agent and check: herdlet status")
                );
            }
            self.tries += 1;
            tokio::time::sleep(AGAIN_EVERY).await;
            if let Ok(events) = self.client.events().await {
                self.events = Some(Box::new(events));
            }
        }
    }
}

struct Waiting {
    wanted: Vec<WaitTarget>,
    index: u64,
    goal: Goal,
}

impl Waiting {
    async fn follow(self, client: &Client, limit: Limit) -> Result<Waited, Failure> {
        let began = Instant::now();
        let events = limit.within("follow the agent's changes", client.events()).await?;
        let mut progress = Progress::begin();
        let mut shown = Shown::default();
        let mut source = Source { client, events: Some(Box::new(events)), tries: 0 };
        let interrupt = tokio::signal::ctrl_c();
        tokio::pin!(interrupt);
        let waited = loop {
            tokio::select! {
                change = source.next() => {
                    if shown.apply(change?) == ChangeStep::Part || shown.index < self.index {
                        continue;
                    }
                    progress.show(&self.jobs(&shown), &self.allocs(&shown));
                    if let Some(waited) = self.verdict(&shown) {
                        break waited;
                    }
                }
                () = limit.reached() => break Waited::TimedOut,
                _ = &mut interrupt => break Waited::Interrupted,
                () = progress.tick() => progress.show(&self.jobs(&shown), &self.allocs(&shown)),
            }
        };
        progress.end();
        self.print_outcome(&waited, &shown, began.elapsed());
        self.print_failed(client, &waited, &shown).await;
        Ok(waited)
    }

    /// The jobs whose state is waited for, and not only that of single allocations.
    fn jobs<'s>(&self, shown: &'s Shown) -> Vec<&'s JobView> {
        self.of(shown, |wanted, _| wanted.allocs.is_empty())
    }

    /// Selects jobs.
    fn of<'s>(&self, shown: &'s Shown, meant: impl Fn(&WaitTarget, &JobView) -> bool) -> Vec<&'s JobView> {
        let known = |wanted: &WaitTarget| shown.jobs.get(&wanted.job).map(|view| &**view);
        self.wanted.iter().filter_map(|wanted| known(wanted).filter(|view| meant(wanted, view))).collect()
    }

    fn allocs<'s>(&self, shown: &'s Shown) -> Vec<&'s AllocView> {
        let of_job = |wanted: &WaitTarget| {
            let (version, only) = (wanted.version, wanted.allocs.clone());
            let allocs = shown.allocs_of(&wanted.job).into_iter();
            // Older allocations count while they run.
            allocs.filter(move |view| {
                let is_meant = only.is_empty() || only.contains(&view.spec.id);
                let is_newer = version.is_none_or(|version| view.spec.job_version >= version);
                is_meant && (is_newer || !view.status.is_terminal())
            })
        };
        self.wanted.iter().flat_map(of_job).collect()
    }

    /// The result; none while the wait continues.
    fn verdict(&self, shown: &Shown) -> Option<Waited> {
        let verdicts: Vec<_> = self.wanted.iter().map(|wanted| self.verdict_on(wanted, shown)).collect();
        let is_superseded = |one: &&Waited| matches!(one, Waited::Superseded(_) | Waited::Reverted(_));
        if let Some(superseded) = verdicts.iter().flatten().find(is_superseded) {
            return Some(superseded.clone());
        }
        // A failure is reported only when the other jobs have ended too.
        if verdicts.iter().any(Option::is_none) {
            return None;
        }
        let failed = verdicts.into_iter().flatten().filter_map(|one| match one {
            Waited::Failed(why) => Some(why),
            Waited::Reached
            | Waited::Reverted(_)
            | Waited::Superseded(_)
            | Waited::TimedOut
            | Waited::Interrupted => None,
        });
        let failed: Vec<String> = failed.collect();
        Some(if failed.is_empty() { Waited::Reached } else { Waited::Failed(failed.join("; ")) })
    }

    fn verdict_on(&self, wanted: &WaitTarget, shown: &Shown) -> Option<Waited> {
        let Some(job) = shown.jobs.get(&wanted.job) else {
            return Some(match self.goal {
                Goal::Deleted => Waited::Reached,
                Goal::Converged | Goal::Healthy | Goal::Complete => {
                    Waited::Failed(format!("job {} was deleted", wanted.job))
                }
            });
        };
        if self.goal == Goal::Deleted {
            // A wait for a deletion ends if the job is applied again.
            let is_another = self.index > 0 && !job.deleting;
            let message = || format!("job {} was applied again meanwhile", wanted.job);
            return is_another.then(|| Waited::Superseded(message()));
        }
        if job.deleting {
            return Some(Waited::Failed(format!("job {} is being deleted", wanted.job)));
        }
        if let Some(version) = wanted.version.filter(|version| job.version > *version) {
            // An automatic revert creates the next version, which may fail and be reverted too. A version after that is from
            // another client.
            let failed_at = |version| job.deployments.iter().find(|known| known.job_version == version);
            let reverted = |version| failed_at(version).filter(|known| known.reverted_to.is_some());
            let last = (version..job.version).map_while(reverted).last();
            let last = last.filter(|known| known.job_version + 1 == job.version);
            if let Some((failed, to)) = last.and_then(|known| Some((known, known.reverted_to?))) {
                let came_of_it = match job.convergence.state {
                    // Waits until the old version has converged.
                    ConvergenceState::Progressing | ConvergenceState::Waiting => return None,
                    ConvergenceState::Converged => format!("version {to} is back"),
                    ConvergenceState::Failed => {
                        format!("version {to} did not come back: {}", job.convergence.message)
                    }
                };
                return Some(Waited::Reverted(format!(
                    "{}: {}; {came_of_it}",
                    wanted.job, failed.description
                )));
            }
            let message = format!("version {} of job {} was applied meanwhile", job.version, wanted.job);
            return Some(Waited::Superseded(message));
        }
        if !wanted.allocs.is_empty() {
            return verdict_on_allocs(&wanted.allocs, shown);
        }
        if job.job.stop && self.goal != Goal::Converged {
            return Some(Waited::Failed(format!("job {} is stopped", wanted.job)));
        }
        let allocs = shown.allocs_of(&wanted.job);
        let converged = match job.convergence.state {
            ConvergenceState::Failed => {
                return Some(Waited::Failed(format!("{}: {}", wanted.job, job.convergence.message)));
            }
            ConvergenceState::Converged => true,
            ConvergenceState::Progressing | ConvergenceState::Waiting => false,
        };
        // A failed allocation that has a successor does not count.
        let is_current =
            |view: &&&AllocView| view.spec.job_version == job.version && view.spec.desired == Desired::Run;
        let current = || allocs.iter().filter(is_current);
        let reached = match self.goal {
            Goal::Converged => converged,
            Goal::Healthy => converged && current().all(|view| view.healthy != Some(false)),
            Goal::Complete => converged && current().all(|view| view.status == ClientStatus::Complete),
            Goal::Deleted => false,
        };
        reached.then_some(Waited::Reached)
    }

    /// What is waited for: jobs or, of some jobs, only single allocations.
    fn names(&self, shown: &Shown) -> String {
        let mut names = Vec::new();
        for wanted in &self.wanted {
            let allocs = wanted.allocs.iter().filter_map(|id| shown.allocs.get(id));
            let before = names.len();
            names.extend(allocs.map(|view| view.spec.name()));
            if names.len() == before {
                names.push(wanted.job.to_string());
            }
        }
        names.join(", ")
    }

    /// Prints the last line: the result, and what has not converged and why.
    fn print_outcome(&self, waited: &Waited, shown: &Shown, took: Duration) {
        let names = self.names(shown);
        let goal = self.goal.as_str();
        let seconds = took.as_secs_f64();
        match waited {
            Waited::Reached => herdlet_base::stderr_line!("{names} {goal} in {seconds:.1} s"),
            Waited::Failed(why) => {
                herdlet_base::stderr_line!("not {goal}: {why}");
                for failed in self.of(shown, WaitTarget::has_failed) {
                    herdlet_base::stderr_line!("  {}", what_now(failed));
                }
            }
            Waited::Reverted(why) | Waited::Superseded(why) => {
                herdlet_base::stderr_line!("not {goal}: {why}")
            }
            Waited::TimedOut => {
                for failed in self.of(shown, WaitTarget::has_failed) {
                    herdlet_base::stderr_line!("{} has failed: {}", failed.key, failed.convergence.message);
                    herdlet_base::stderr_line!("  {}", what_now(failed));
                }
                herdlet_base::stderr_line!(
                    "not {goal} after {seconds:.0} s, still trying: {}",
                    self.open(shown)
                );
                if let Some(tried) = self.of(shown, |wanted, view| !wanted.has_failed(view)).first() {
                    herdlet_base::stderr_line!("  see why: herdlet explain {}", tried.key.argument());
                }
            }
            Waited::Interrupted => herdlet_base::stderr_line!(
                "interrupted; accepted changes stay in force: {}. Follow them with: herdlet status {}",
                self.open(shown),
                self.wanted.first().map(|wanted| wanted.job.argument()).unwrap_or_default(),
            ),
        }
    }

    /// Prints why the allocations of a failed roll-out failed, and their last output: the agent removes them in time.
    async fn print_failed(&self, client: &Client, waited: &Waited, shown: &Shown) {
        match waited {
            Waited::Failed(_) | Waited::Reverted(_) => {}
            Waited::Reached | Waited::Superseded(_) | Waited::TimedOut | Waited::Interrupted => return,
        }
        for job in self.of(shown, |_, _| true) {
            let allocs = shown.allocs_of(&job.key);
            let mut failed = failed_allocs::of_rollout(job, allocs.iter().copied());
            if failed.is_empty() && job.convergence.state == ConvergenceState::Failed {
                let is_current =
                    |view: &&&AllocView| view.spec.desired == Desired::Run && failed_allocs::has_failed(view);
                failed.extend(allocs.iter().filter(is_current).copied());
            }
            for line in failed_allocs::report(client, &failed).await {
                herdlet_base::stderr_line!("  {line}");
            }
        }
    }

    /// What has not converged but still may, and why.
    fn open(&self, shown: &Shown) -> String {
        let tried = self.of(shown, |wanted, view| !wanted.has_failed(view));
        let is_tried = |job: &JobKey| tried.iter().any(|view| view.key == *job);
        let of_allocs = self.allocs(shown).into_iter().filter(|view| is_tried(&view.spec.job_key));
        let of_allocs = of_allocs.filter(|view| view.convergence.state != ConvergenceState::Converged);
        let mut open: Vec<String> =
            of_allocs.map(|view| format!("{}: {}", view.spec.name(), view.convergence.message)).collect();
        if open.is_empty() {
            let jobs = tried.iter().filter(|view| view.convergence.state != ConvergenceState::Converged);
            open.extend(jobs.map(|view| format!("{}: {}", view.key, view.convergence.message)));
        }
        if open.is_empty() { "nothing is pending".to_owned() } else { open.join("; ") }
    }
}

/// The result for single allocations; none while the wait continues.
fn verdict_on_allocs(allocs: &[AllocId], shown: &Shown) -> Option<Waited> {
    let mut reached = true;
    for alloc in allocs {
        let Some(view) = shown.allocs.get(alloc) else {
            return Some(Waited::Failed(format!("allocation {} is gone", alloc.short())));
        };
        let name = view.spec.name();
        if view.spec.desired != Desired::Run {
            return Some(Waited::Failed(format!(
                "{name} was stopped meanwhile: {}",
                view.spec.desired_description
            )));
        }
        match view.convergence.state {
            ConvergenceState::Failed => {
                return Some(Waited::Failed(format!("{name}: {}", view.convergence.message)));
            }
            ConvergenceState::Converged => {}
            ConvergenceState::Progressing | ConvergenceState::Waiting => reached = false,
        }
    }
    reached.then_some(Waited::Reached)
}

/// A hint for a failed job.
fn what_now(failed: &JobView) -> String {
    let key = failed.key.argument();
    let back = match failed.version {
        0 => String::new(),
        _ => format!("; go back to the previous version: herdlet rollback {key}"),
    };
    format!("see why: herdlet explain {key}; its output: herdlet logs {key}{back}")
}

#[cfg(test)]
mod tests;
