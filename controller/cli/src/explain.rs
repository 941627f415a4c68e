//! `herdlet explain` and `describe`: what an object is waiting for, and what happens next. [`variable`]: the users of a
//! variable.

mod published;
mod variable;

use std::{collections::BTreeMap, sync::Arc};

use clap::{Args, Subcommand};
use herdlet_api_types::{
    AllocId, JobKey, UnixNanos,
    alloc::{ClientStatus, Desired},
    api::AgentStatus,
    deployment::Deployment,
    job::Job,
    overview::fate,
    rfc3339::rfc3339,
    view::{AllocView, Convergence, ConvergenceState, Explanation, JobView, Unplaced, Wait},
};
use herdlet_driver::limits::Ineffective;
use serde::Serialize;

use super::{
    Connection, children,
    client::Client,
    deployments, failed_allocs,
    failure::Failure,
    output::{Output, Reader},
    selection::{Absent, SelectorFlag},
    show::{self, styled},
    style,
    table::{Heading, Table, plain},
    target::{self, Target},
};

use published::PublishedPort;
pub use variable::ExplainVarArgs;

/// Arguments of `herdlet explain`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ExplainAnyArgs {
    #[command(subcommand)]
    subject: Option<Subject>,
    #[command(flatten)]
    targets: ExplainArgs,
}

/// What else can be explained.
#[derive(Debug, Clone, Subcommand)]
enum Subject {
    /// Show which tasks would restart, get a signal or run a script if a variable changed (a job of this name: explain -- var)
    #[command(
        after_help = "Examples:\n  herdlet explain var nomad/jobs/web\n  herdlet explain var nomad/jobs/web -o json"
    )]
    Var(ExplainVarArgs),
}

impl ExplainAnyArgs {
    pub fn connection(&mut self) -> &mut Connection {
        match &mut self.subject {
            None => &mut self.targets.connection,
            Some(Subject::Var(args)) => &mut args.connection,
        }
    }
}

/// Arguments of `herdlet describe`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Jobs, allocations, or tasks
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report<'r> {
    /// The target's job; none if the target is an allocation id or the job is unknown.
    job: Option<JobReport>,
    allocs: Vec<AllocReport<'r>>,
}

/// The reports of several targets.
#[derive(Serialize)]
struct Reports<'r> {
    targets: Vec<Report<'r>>,
}

#[derive(Serialize)]
struct JobReport {
    key: JobKey,
    version: u64,
    deleting: bool,
    convergence: Convergence,
    /// The file that defines another version than the one in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
    /// Groups with allocations that can't be placed now, and why.
    unplaced: BTreeMap<String, Unplaced>,
    /// The published ports of its services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    published: Vec<PublishedPort>,
    deployment: Option<Arc<Deployment>>,
}

#[derive(Serialize)]
struct AllocReport<'r> {
    id: AllocId,
    name: String,
    status: ClientStatus,
    convergence: &'r Convergence,
    explanation: Explanation,
    /// The whole view; only for `describe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<&'r AllocView>,
}

pub async fn explain(args: ExplainAnyArgs) -> Result<u8, Failure> {
    match args.subject {
        None => print_explanation(args.targets, Depth::Waits).await,
        Some(Subject::Var(args)) => variable::explain(args).await,
    }
}

pub async fn describe(args: ExplainArgs) -> Result<u8, Failure> {
    print_explanation(args, Depth::Everything).await
}

/// The amount of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// What is waited for, and what happens next.
    Waits,
    /// The same, and all other data.
    Everything,
}

async fn print_explanation(args: ExplainArgs, depth: Depth) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let names = args.selector.targets(&client, args.targets, Absent::Wrong).await?;
    let (jobs, allocs, status) = tokio::try_join!(client.jobs(), client.allocs(), client.status())?;
    let mut targets = Vec::with_capacity(names.len());
    for name in &names {
        let target = target::find_among(&client, name, &jobs, &allocs).await?;
        targets.push(target.with_failed(name, &jobs, &allocs));
    }
    let mut reports = Vec::with_capacity(targets.len());
    for (number, target) in targets.iter().enumerate() {
        let job = jobs.iter().find(|view| target.job.as_ref() == Some(&view.key)).cloned();
        let mut allocs = Vec::new();
        for view in &target.allocs {
            allocs.push((view, client.explain(view.spec.id).await?));
        }
        let published = published::ports(&client, job.as_ref()).await?;
        warn(&status, job.as_ref(), target);
        match args.output.reader() {
            Reader::Person => {
                if number > 0 {
                    show::out("\n");
                }
                if let Some(view) = &job {
                    show_job(view, &target.allocs);
                    if depth == Depth::Everything {
                        show_ui(&view.job);
                    }
                    published::show(&published, depth);
                    children::show(view, &jobs);
                }
                show_allocs(&client, target, &allocs, depth).await;
            }
            Reader::Program => reports.push(report(job.map(|view| (view, published)), allocs, depth)),
        }
    }
    match (args.output.reader(), reports.as_slice()) {
        (Reader::Person, _) => {}
        (Reader::Program, [report]) => args.output.document(report)?,
        (Reader::Program, _) => args.output.document(&Reports { targets: reports })?,
    }
    Ok(0)
}

/// Warns of limits of the job that have no effect on this machine.
fn warn(status: &AgentStatus, job: Option<&JobView>, target: &Target) {
    let of_alloc = || target.allocs.first().map(|view| &*view.spec.job);
    let explained = job.map(|view| &*view.job).or_else(of_alloc);
    let limits =
        Ineffective::named(&status.missing_controllers).with_max_kill_timeout(status.max_kill_timeout);
    for warning in limits.warnings(explained) {
        herdlet_base::stderr_line!("{} {warning}", styled(style::WARNING, "warning:"));
    }
}

async fn show_allocs(client: &Client, target: &Target, allocs: &[(&AllocView, Explanation)], depth: Depth) {
    for (view, explanation) in allocs {
        if depth == Depth::Everything {
            show_alloc(view);
            let of_this = target.tasks().filter(|(alloc, _)| alloc.spec.id == view.spec.id);
            of_this.for_each(|(_, task)| show_task(task));
        }
        show_explanation(view, explanation);
        // A roll-out's verdict stays; an allocation that is healthy by now has no failure to explain.
        let is_well =
            view.spec.desired == Desired::Run && view.convergence.state == ConvergenceState::Converged;
        if failed_allocs::has_failed(view) && !is_well {
            show_failure(client, view).await;
        } else {
            let waits = failed_allocs::waits_for_restart;
            let lines = failed_allocs::output_of(client, view, waits, failed_allocs::LINES_LEN).await;
            show_last_output(view, &lines);
        }
    }
}

fn report(
    job: Option<(JobView, Vec<PublishedPort>)>,
    allocs: Vec<(&AllocView, Explanation)>,
    depth: Depth,
) -> Report<'_> {
    let of_alloc = |(view, explanation)| {
        let view: &AllocView = view;
        AllocReport {
            id: view.spec.id,
            name: view.spec.name(),
            status: view.status,
            convergence: &view.convergence,
            explanation,
            view: (depth == Depth::Everything).then_some(view),
        }
    };
    Report {
        job: job.map(|(view, published)| JobReport {
            key: view.key,
            version: view.version,
            deleting: view.deleting,
            convergence: view.convergence,
            held: view.held,
            unplaced: view.unplaced,
            published,
            deployment: view.deployments.into_iter().next(),
        }),
        allocs: allocs.into_iter().map(of_alloc).collect(),
    }
}

/// The job's own verdict, which has facts that its allocations lack, for instance that a port is
/// not available.
fn show_job(view: &JobView, allocs: &[AllocView]) {
    // A reason that an allocation below repeats is printed only there.
    let reasons = allocs.iter().map(|view| format!("{}: {}", view.spec.name(), view.convergence.message));
    let verdict = verdict(&view.convergence, reasons);
    let since = show::age(view.convergence.since.wall);
    let name = styled(style::HEADING, &view.key);
    let fate = fate(false, view.job.stop);
    let whose = if view.placed { " (from servers)" } else { "" };
    show::out(&format!("{name} version {}{whose}: {fate}{verdict} (for {since})\n", view.version));
    show::out(&show::held(view));
    for why in view.unplaced.values().filter(|why| why.message != view.convergence.message) {
        show::out(&format!("  {} [{}]\n", plain(&why.message), why.reason.as_str()));
    }
    deployments::show(view);
}

/// The job's description and links.
fn show_ui(job: &Job) {
    let Some(ui) = &job.ui else { return };
    for line in ui.description.lines() {
        show::out(&format!("  {}\n", plain(line)));
    }
    for link in &ui.links {
        show::out(&format!("  {}: {}\n", plain(&link.label), plain(&link.url)));
    }
}

fn show_explanation(view: &AllocView, explanation: &Explanation) {
    let reasons = explanation.waits.iter().map(|wait| format!("{}: {}", wait.part, wait.message));
    let verdict = verdict(&view.convergence, reasons);
    let goal = &explanation.goal;
    show::out(&format!("{} {}: desired state {goal}, {verdict}\n", view.spec.title(), view.spec.id.short()));
    for wait in &explanation.waits {
        show::out(&format!("  {}\n", wait_line(wait)));
    }
    if let Some(loss) = view.loss() {
        show::out(&format!("  {loss}\n"));
    }
    show::out(&format!("  {}\n", next_step(view, explanation)));
}

/// What happens next. A failed allocation stays failed; an unhealthy one, until it is healthy or a user restarts it.
fn next_step(view: &AllocView, explanation: &Explanation) -> String {
    let is_failed = view.convergence.state == ConvergenceState::Failed;
    match explanation.wake_at {
        // Only the verdict of its roll-out is against it.
        _ if is_failed && view.spec.desired == Desired::Run && target::is_running(view) => {
            format!(
                "stays failed until it is healthy: apply a corrected version, or try it again: herdlet restart {}",
                view.spec.id.short()
            )
        }
        _ if is_failed && view.spec.desired == Desired::Run => {
            format!(
                "stays failed: apply a corrected version, or try it again: herdlet restart {}",
                view.spec.job_key.argument()
            )
        }
        Some(at) => format!("is planned again in {}, or when something changes", show::ahead(at)),
        None if explanation.waits.is_empty() => "nothing to do until something changes".to_owned(),
        None => "is planned again when one of these ends".to_owned(),
    }
}

/// Why the allocation failed, unless its verdict says so, and its last output.
async fn show_failure(client: &Client, view: &AllocView) {
    let new = |cause: &&String| !names_cause(&view.convergence.message, cause);
    for cause in failed_allocs::causes(view).iter().filter(new) {
        show::out(&format!("  failed: {cause}\n"));
    }
    show_last_output(view, &failed_allocs::last_output(client, view).await);
}

fn show_last_output(view: &AllocView, lines: &[String]) {
    if !lines.is_empty() {
        show::out(&format!("  last output; all of it: herdlet logs {}\n", view.spec.id.short()));
        lines.iter().for_each(|line| show::out(&format!("  {line}\n")));
    }
}

/// Whether the verdict "task t failed: why" names the cause "task t: why".
fn names_cause(verdict: &str, cause: &str) -> bool {
    verdict.contains(cause.split_once(": ").map_or(cause, |(_, why)| why))
}

/// The verdict; only its state if `reasons` contain the reason.
fn verdict(convergence: &Convergence, mut reasons: impl Iterator<Item = String>) -> String {
    let text = if reasons.any(|reason| reason == convergence.message) {
        convergence.state.as_str().to_owned()
    } else {
        show::convergence(convergence)
    };
    styled(style::of(convergence.state), text)
}

fn wait_line(wait: &Wait) -> String {
    let mut line = format!("{}: {} [{}]", wait.part, plain(&wait.message), wait.reason.as_str());
    if let Some(since) = wait.since {
        line.push_str(&format!(", for {}", show::age(since)));
    }
    if let Some(until) = wait.until {
        line.push_str(&match herdlet_base::clock::wall_now() < until {
            true => format!(", due in {}", show::ahead(until)),
            false if show::age(until) == "0s" => ", due now".to_owned(),
            false => format!(", was due {} ago", show::age(until)),
        });
    }
    line
}

fn show_alloc(view: &AllocView) {
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            facts.row([format!("  {name}"), value]);
        }
    };
    let ports = view.spec.named_ports().map(|(name, port)| format!("{name}={}:{}", port.host_ip, port.value));
    fact("id", view.spec.id.to_string());
    fact("version", view.spec.job_version.to_string());
    fact("status", format!("{} ({})", view.status.as_str(), view.description));
    fact("healthy", show::healthy(view).to_owned());
    fact("deployment", deployment_verdict(view).unwrap_or_default());
    fact("created", time(view.spec.create_time));
    fact("ports", ports.collect::<Vec<_>>().join(" "));
    let cores = view.spec.task_cores.iter().map(|(task, assigned)| format!("{task}={}", assigned.cores));
    fact("cores", cores.collect::<Vec<_>>().join(" "));
    fact("replaces", view.spec.previous.map(|id| id.to_string()).unwrap_or_default());
    for check in &view.checks {
        fact(
            "check",
            format!(
                "{}/{} {}{}{}{}",
                check.service,
                check.check,
                check.status.as_str(),
                if check.stale { " (stale)" } else { "" },
                if check.output.is_empty() { "" } else { ": " },
                check.output
            ),
        );
    }
    show::out(&format!("{}\n{}", styled(style::HEADING, view.spec.title()), facts.render(Heading::Hidden)));
}

/// The deployment's final verdict on the allocation.
fn deployment_verdict(view: &AllocView) -> Option<String> {
    let word = if view.verdict? { "healthy" } else { "unhealthy" };
    Some(format!("found {word} at {}", time(view.verdict_at)))
}

fn show_task(task: &herdlet_api_types::view::TaskView) {
    let restarts = task.restarts;
    show::out(&format!("  task {}: {}, {restarts} restarts\n", task.name, show::phase(task)));
    let mut events = Table::new(&["", "", ""]);
    for event in task.events.iter() {
        let at = time(event.time);
        events.row([format!("    {at}"), event.kind.as_str().to_owned(), event.message.clone()]);
    }
    show::out(&events.render(Heading::Hidden));
}

/// A time, rounded down to the millisecond.
fn time(at: UnixNanos) -> String {
    const MILLISECOND: i64 = 1_000_000;
    rfc3339(UnixNanos(at.0 - at.0.rem_euclid(MILLISECOND))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job, verdict};

    /// `explain` of a failed job printed "next check when one of these ends".
    #[test]
    fn a_failed_allocation_has_no_next_check() {
        let mut view = alloc_view(&job("web", "g", "t"), 0, 1);
        let explanation = Explanation {
            name: view.spec.name(),
            alloc: view.spec.id.to_string(),
            goal: "run".to_owned(),
            status: view.status,
            waits: Vec::new(),
            wake_at: Some(UnixNanos(0)),
        };
        assert!(next_step(&view, &explanation).starts_with("is planned again in"));
        view.convergence = verdict(ConvergenceState::Failed, "why");
        view.status = herdlet_api_types::alloc::ClientStatus::Failed;
        assert!(next_step(&view, &explanation).ends_with("herdlet restart web"));
        view.status = herdlet_api_types::alloc::ClientStatus::Running;
        let restart = format!("herdlet restart {}", view.spec.id.short());
        assert!(next_step(&view, &explanation).ends_with(&restart), "a restart lifts the verdict");
    }

    /// `explain` printed the failure of a task twice.
    #[test]
    fn a_cause_that_the_verdict_names_is_left_out() {
        let verdict = "task web failed: exec \"nosuch\": not found; Error was unrecoverable";
        assert!(names_cause(verdict, "task web: exec \"nosuch\": not found; Error was unrecoverable"));
        assert!(!names_cause("not healthy within healthy_deadline (6s)", "task web: Exit Code: 3"));
    }

    #[test]
    fn reason_is_printed_once() {
        let convergence = verdict(ConvergenceState::Waiting, "task t: waits");
        let verdict_with = |reasons: &[&str]| {
            let verdict_with =
                super::verdict(&convergence, reasons.iter().map(|reasons| (*reasons).to_owned()));
            anstream::adapter::strip_str(&verdict_with).to_string()
        };
        assert_eq!(verdict_with(&["task t: waits"]), "waiting");
        assert_eq!(verdict_with(&["task u: waits"]), "waiting: task t: waits");
    }
}
