//! `herdlet stop` and `herdlet start`: stops a whole job without deleting it, starts it again, or replaces single
//! allocations.
//!
//! In: names. Out: a new version of each job that differs only in being stopped; or stopping allocations. `start` replaces
//! allocations that have failed for good.

use clap::Args;
use herdlet_api_types::{
    JobKey,
    names::shell_word,
    view::{AllocView, JobView},
};
use serde::Serialize;

use super::{
    Connection,
    client::{Client, EndFlags, JobChange},
    failure::{Failure, USAGE},
    output::Output,
    rollback,
    round::Round,
    selection::{Absent, SelectorFlag, after_job},
    target,
    wait::{Accepted, Goal, Limit, WaitFlags, WaitTarget},
};

/// Arguments of `herdlet stop`.
#[derive(Debug, Clone, Args)]
pub struct StopArgs {
    /// Jobs; or allocations and groups
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    #[command(flatten)]
    ends: EndFlags,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet start`.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// Stopped jobs; or jobs and allocations that have failed
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// What happens to a failed allocation: it has nothing to restart, so it is stopped to have another one created.
pub(super) const RETRIED: &str =
    "had failed; its job creates another one if resources and constraints permit";

/// The report of several jobs.
#[derive(Serialize)]
struct Reports {
    jobs: Vec<Report>,
}

#[derive(Serialize)]
struct Report {
    job: JobKey,
    /// The version that was stopped or started.
    version: u64,
    stopped: bool,
}

/// What to do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobOutcome {
    Stopped(EndFlags),
    Started,
}

impl JobOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stopped(_) => "stopped",
            Self::Started => "started",
        }
    }
}

pub async fn stop(args: StopArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let names = limit.within("find it", args.selector.targets(&client, args.targets, Absent::Wrong)).await?;
    let found = limit.within("find it", target::find_all(&client, &names)).await?;
    let (mut jobs, mut allocs) = (Vec::new(), Vec::new());
    for (name, target) in names.iter().zip(found) {
        if let Some(task) = &target.task {
            let message = format!("{task:?} is a task, but only whole allocations can be stopped");
            let hint = format!("restart the task alone: herdlet restart {}", shell_word(name.clone()));
            return Err(Failure::new(message).code(USAGE).hint(hint));
        }
        if target.job.as_ref().is_some_and(|job| after_job(name, job) == Some("")) {
            jobs.push(name.clone());
            continue;
        }
        let live: Vec<AllocView> =
            target.allocs.into_iter().filter(|view| !view.status.is_terminal()).collect();
        if live.is_empty() {
            return Err(Failure::new(format!("{name} has ended already")));
        }
        allocs.extend(live.into_iter().map(|view| (view, None)));
    }
    match (jobs.is_empty(), allocs.is_empty()) {
        (false, false) => Err(Failure::new(
            "whole jobs, which stay stopped, and allocations, which their jobs replace, cannot be stopped at once",
        )
        .code(USAGE)
        .hint("use one command for each")),
        (false, true) => {
            Decision { client: &client, outcome: JobOutcome::Stopped(args.ends), limit }
                .of(&jobs, &args.wait, args.output)
                .await
        }
        (true, _) => {
            let round = Round {
                client: &client,
                limit,
                wait: &args.wait,
                output: args.output,
                what: "stop it",
                outcome: |_| "stopping; its job creates another one if resources and constraints permit",
                replaced: true,
            };
            round.of(&allocs, async |view, _| client.stop_alloc(view.spec.id, args.ends).await).await
        }
    }
}

pub async fn start(args: StartArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let names = limit.within("find it", args.selector.targets(&client, args.jobs, Absent::Wrong)).await?;
    let listed = async { tokio::try_join!(client.jobs(), client.allocs()) };
    let (known, all) = limit.within("find it", listed).await?;
    let (mut jobs, mut failed) = (Vec::new(), Vec::new());
    for name in &names {
        let target = limit.within("find it", target::find_among(&client, name, &known, &all)).await?;
        let is_it = |view: &&JobView| {
            target.job.as_ref() == Some(&view.key) && after_job(name, &view.key) == Some("")
        };
        let job = known.iter().find(is_it);
        let retried: Vec<AllocView> = match &target.task {
            Some(_) => Vec::new(),
            None => target.allocs.into_iter().filter(target::can_be_retried).collect(),
        };
        match job {
            Some(job) if job.job.stop || retried.is_empty() => jobs.push(name.clone()),
            None if retried.is_empty() => {
                let message = format!("no allocation of {name} has failed, so there is none to start");
                return Err(Failure::new(message)
                    .hint(format!("see its state: herdlet explain {}", shell_word(name.clone()))));
            }
            Some(_) | None => failed.extend(retried.into_iter().map(|view| (view, None))),
        }
    }
    if !jobs.is_empty() && !failed.is_empty() {
        let message =
            "whole jobs, and failed allocations, which their jobs replace, cannot be started at once";
        return Err(Failure::new(message).code(USAGE).hint("use one command for each"));
    }
    if failed.is_empty() {
        let decision = Decision { client: &client, outcome: JobOutcome::Started, limit };
        return decision.of(&jobs, &args.wait, args.output).await;
    }
    let round = Round {
        client: &client,
        limit,
        wait: &args.wait,
        output: args.output,
        what: "start it",
        outcome: |_| RETRIED,
        replaced: true,
    };
    round.of(&failed, async |view, _| client.stop_alloc(view.spec.id, EndFlags::default()).await).await
}

/// Stopping or starting whole jobs.
struct Decision<'d> {
    client: &'d Client,
    outcome: JobOutcome,
    limit: Limit,
}

impl Decision<'_> {
    async fn of(&self, names: &[String], wait: &WaitFlags, output: Output) -> Result<u8, Failure> {
        let known = self.limit.within("find it", self.client.jobs()).await?;
        // All names are checked before anything changes.
        let views: Result<Vec<JobView>, Failure> =
            names.iter().map(|name| rollback::known(known.clone(), name)).collect();
        let (mut reports, mut jobs, mut last) = (Vec::new(), Vec::new(), 0);
        for view in views? {
            let (report, index) = self.carry_out(view, output).await?;
            jobs.push(WaitTarget::version(report.job.clone(), report.version));
            reports.push(report);
            last = index;
        }
        let accepted = Accepted { client: self.client, jobs, index: last, goal: Goal::Converged };
        match reports.as_slice() {
            [report] => wait.finish(self.limit, accepted, report, output).await,
            _ => wait.finish(self.limit, accepted, &Reports { jobs: reports }, output).await,
        }
    }

    async fn carry_out(&self, view: JobView, output: Output) -> Result<(Report, u64), Failure> {
        let (client, limit, job) = (self.client, self.limit, view.key);
        let JobChange { index, version } = match self.outcome {
            JobOutcome::Stopped(ends) => limit.within("stop it", client.stop_job(&job, ends)).await?,
            JobOutcome::Started => limit.within("start it", client.start_job(&job)).await?,
        };
        let outcome = self.outcome.as_str();
        if version == view.version {
            output.line(&format!("job/{job} unchanged: it is {outcome} already"));
        } else {
            output.line(&format!("job/{job} {outcome} (version {version})"));
        }
        Ok((Report { job, version, stopped: self.outcome != JobOutcome::Started }, index))
    }
}
