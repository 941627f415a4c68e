//! Waits until jobs reach a goal, and shows their progress.
//!
//! In: the agent's stream of changes. Out: lines on stderr (redrawn on a terminal, else one per change), and the result. It
//! evaluates the agent's own verdicts ([`verdict`]), and only at commits.

mod flag;
mod limit;
mod outcome;
mod progress;
mod verdict;

use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::{Stream, StreamExt};
use herdlet_api_types::{
    AllocId, JobKey,
    api::Change,
    view::{AllocView, ConvergenceState, JobView},
};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    Connection, children,
    client::{Client, ClientError},
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
    // What was changed just before: a file in a folder, a variable.
    let index = limit.within("read what has changed", client.current()).await?;
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
        false => {
            let wanted = keys.iter().map(WaitTarget::any).collect();
            // A deletion is waited for also if it is requested later.
            let index = if args.goal == Goal::Deleted { 0 } else { index };
            wait_for_accepted(&client, wanted, index, args.goal, limit).await?
        }
    };
    args.output.document(&Report { jobs: keys, waited: waited.report(args.goal) })?;
    Ok(waited.code())
}

/// Waits until the jobs reach `goal`. Commits before `index` don't count.
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
}

#[cfg(test)]
mod tests;
