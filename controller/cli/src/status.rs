//! `herdlet status`: the state of everything, and problems.

use std::collections::BTreeMap;

use clap::Args;
use herdlet_api_types::{
    AllocId, JobKey,
    alloc::ClientStatus,
    api::AgentStatus,
    deployment::Deployment,
    overview::{Overview, fate},
    task::{ExitResult, TaskStatus},
    view::{AllocView, Convergence, ConvergenceState, JobView, TaskView},
};
use serde::Serialize;

use super::{
    Client, Connection, children, deployments, failed_allocs,
    failed_allocs::{output_of, waits_for_restart},
    failure::Failure,
    offline,
    output::{Output, Reader},
    screen::{self, Screen},
    selection::{Absent, SelectorFlag},
    show::{self, styled},
    style,
    table::plain,
    target,
    top::{self, With},
};
use crate::screen::problems;

/// Arguments of `herdlet status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Only these targets
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// Report by the exit code: 0 all converged and healthy, 1 converging, 2 degraded, 3 no agent answers
    #[arg(long)]
    check: bool,
    /// Update the screen whenever something changes, until Ctrl-C
    #[arg(long, conflicts_with_all = ["targets", "selector", "check", "form"])]
    pub watch: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report<'r> {
    /// The result of `--check`: `converged converging degraded`.
    verdict: &'static str,
    /// The agent; only without a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'r AgentStatus>,
    jobs: Vec<JobReport<'r>>,
    allocs: Vec<AllocReport<'r>>,
}

#[derive(Serialize)]
struct JobReport<'r> {
    key: &'r JobKey,
    version: u64,
    deleting: bool,
    /// Whether the job is stopped but kept.
    stopped: bool,
    convergence: &'r Convergence,
    /// The file that defines another version than the one that a rollback put in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'r str>,
    deployment: Option<&'r Deployment>,
}

#[derive(Serialize)]
struct AllocReport<'r> {
    id: AllocId,
    name: String,
    status: ClientStatus,
    healthy: Option<bool>,
    convergence: &'r Convergence,
    tasks: Vec<TaskReport<'r>>,
}

#[derive(Serialize)]
struct TaskReport<'r> {
    name: &'r str,
    state: TaskStatus,
    phase: &'r str,
    failed: bool,
    restarts: u32,
    exit: Option<&'r ExitResult>,
}

/// Of at most this many allocations, the last output is read: each needs requests of its own.
const OUTPUTS_LEN_MAX: usize = 16;

/// Exit code: everything is converged and healthy.
const ALL_WELL: u8 = 0;
/// Exit code: still converging.
const CONVERGING: u8 = 1;
/// Exit code: something failed, or the state cannot be determined.
const DEGRADED: u8 = 2;
/// Exit code: no agent answers, so the state is unknown; tasks may run.
const UNKNOWN: u8 = 3;

pub async fn run(args: StatusArgs) -> Result<u8, Failure> {
    if args.watch {
        return top::follow(&args.connection.client()?, With::Jobs).await;
    }
    let shown = show_status(&args).await;
    match (shown, args.check) {
        (Ok(code), true) => Ok(code),
        (Ok(_), false) => Ok(0),
        (Err(failure), true) => {
            let code = code_of(&failure);
            Err(failure.code(code))
        }
        (Err(failure), false) => Err(failure),
    }
}

/// The exit code of `--check` if there is no state to report.
fn code_of(failure: &Failure) -> u8 {
    if failure.is_no_answer() { UNKNOWN } else { DEGRADED }
}

async fn show_status(args: &StatusArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    if args.check {
        // What was changed just before: a file in a folder, a variable.
        client.current().await?;
    }
    let names = args.selector.targets(&client, args.targets.clone(), Absent::All).await?;
    let (mut all, mut allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let mut meant = all.len();
    let mut whole = None;
    // Their failed allocations are not among those that are shown.
    let reverts = all.iter().filter_map(|job| Some((job.key.clone(), failed_allocs::revert(job, &allocs)?)));
    let reverts: Reverts = reverts.collect();
    if names.is_empty() {
        whole = Some(tokio::try_join!(client.status(), client.overview())?);
    } else {
        let mut targets = Vec::with_capacity(names.len());
        for name in &names {
            targets.push(target::find_among(&client, name, &all, &allocs).await?);
        }
        let is_meant = |view: &JobView| targets.iter().any(|target| target.job.as_ref() == Some(&view.key));
        // Those that are meant come first, in the order of the listing.
        all.sort_by_key(|view| !is_meant(view));
        meant = all.iter().filter(|view| is_meant(view)).count();
        allocs = targets.into_iter().flat_map(|target| target.allocs).collect();
        let mut known = std::collections::BTreeSet::new();
        allocs.retain(|view| known.insert(view.spec.id));
    }
    let jobs = all.get(..meant).unwrap_or_default();
    let agent = whole.as_ref().map(|(agent, _)| agent);
    let of_agent = match agent {
        Some(status) if !problems(status).is_empty() => DEGRADED,
        Some(_) | None => ALL_WELL,
    };
    let of_files = if jobs.iter().any(|view| view.held.is_some()) { DEGRADED } else { ALL_WELL };
    let code = of_agent.max(of_files).max(verdict(jobs.iter().map(|view| &view.convergence.state), &allocs));
    match args.output.reader() {
        Reader::Person => match &whole {
            Some((agent, overview)) => show_screen(agent, overview),
            None => {
                let outputs = outputs(&client, &allocs).await;
                show_objects(jobs, &AllocListing { allocs: &allocs, outputs }, &all, &reverts);
            }
        },
        Reader::Program => args.output.document(&report(code, agent, jobs, &allocs))?,
    }
    Ok(code)
}

fn show_screen(agent: &AgentStatus, overview: &Overview) {
    let warnings = agent.warnings.iter().map(|warning| plain(&format!("warning: {warning}")));
    let problems: Vec<String> = problems(agent).into_iter().chain(warnings).collect();
    let screen = Screen {
        overview,
        problems: &problems,
        loads: None,
        top: None,
        now: herdlet_base::clock::wall_now(),
    };
    show::out(&screen.render(screen::columns()));
    show::out(&format!("{}\n", styled(style::DIM, agent_line(agent))));
}

fn report<'r>(
    code: u8,
    agent: Option<&'r AgentStatus>,
    jobs: &'r [JobView],
    allocs: &'r [AllocView],
) -> Report<'r> {
    let of_job = |view: &'r JobView| JobReport {
        key: &view.key,
        version: view.version,
        deleting: view.deleting,
        stopped: view.job.stop,
        convergence: &view.convergence,
        held: view.held.as_deref(),
        deployment: view.deployments.first().map(|newest| &**newest),
    };
    let of_task = |task: &'r TaskView| TaskReport {
        name: &task.name,
        state: task.state,
        phase: task.phase.as_str(),
        failed: task.failed,
        restarts: task.restarts,
        exit: task.exit.as_ref(),
    };
    let of_alloc = |view: &'r AllocView| AllocReport {
        id: view.spec.id,
        name: view.spec.name(),
        status: view.status,
        healthy: view.healthy,
        convergence: &view.convergence,
        tasks: view.tasks.iter().map(of_task).collect(),
    };
    let verdict = match code {
        ALL_WELL => "converged",
        CONVERGING => "converging",
        _ => "degraded",
    };
    let current = allocs.iter().filter(|view| !show::is_replaced(view, allocs.iter()));
    Report {
        verdict,
        agent,
        jobs: jobs.iter().map(of_job).collect(),
        allocs: current.map(of_alloc).collect(),
    }
}

fn agent_line(status: &AgentStatus) -> String {
    let AgentStatus { version, commit, node_name, instance, isolation, started_at, .. } = status;
    let up = show::age(*started_at);
    let version = offline::full_version(version, commit.as_deref());
    format!("herdlet {version} on {node_name}, up {up}, isolation {isolation}, instance {instance}")
}

/// Lines about versions that failed and were reverted, by job.
type Reverts = BTreeMap<JobKey, String>;

/// Allocations, and the last lines that their tasks wrote that wait for their restart.
struct AllocListing<'v> {
    allocs: &'v [AllocView],
    outputs: BTreeMap<AllocId, Vec<String>>,
}

/// The last line of each stream of the tasks that wait for their restart.
async fn outputs(client: &Client, allocs: &[AllocView]) -> BTreeMap<AllocId, Vec<String>> {
    let mut outputs = BTreeMap::new();
    for view in allocs.iter().filter(|view| view.tasks.iter().any(waits_for_restart)).take(OUTPUTS_LEN_MAX) {
        outputs.insert(view.spec.id, output_of(client, view, waits_for_restart, 1).await);
    }
    outputs
}

/// Prints these jobs and allocations. `all` includes the children.
fn show_objects(jobs: &[JobView], shown: &AllocListing<'_>, all: &[JobView], reverts: &Reverts) {
    let allocs = shown.allocs;
    let mut lost: Vec<&AllocView> =
        allocs.iter().filter(|view| !jobs.iter().any(|job| job.key == view.spec.job_key)).collect();
    for job in jobs {
        let (state, word) = (job.convergence.state, fate(job.deleting, job.job.stop));
        let verdict = styled(style::of(state), show::convergence(&job.convergence));
        let since = show::age(job.convergence.since.wall);
        show::out(&format!(
            "{} version {}: {word}{verdict} (for {since})\n",
            styled(style::HEADING, &job.key),
            job.version
        ));
        show::out(&show::held(job));
        if let Some(line) = reverts.get(&job.key) {
            show::out(&format!("  {}\n", styled(style::WARNING, line)));
        }
        deployments::show(job);
        children::show(job, all);
        // Replaced allocations are omitted; `get allocs` lists them.
        let mut of_job: Vec<_> = allocs
            .iter()
            .filter(|view| view.spec.job_key == job.key && !show::is_replaced(view, allocs.iter()))
            .collect();
        of_job.sort_by_key(|view| (view.spec.group.clone(), view.spec.index, view.spec.create_index));
        of_job.into_iter().for_each(|view| shown.show(view));
    }
    lost.sort_by_key(|view| view.spec.name());
    lost.into_iter().for_each(|view| shown.show(view));
}

impl AllocListing<'_> {
    fn show(&self, view: &AllocView) {
        show_alloc(view);
        for line in self.outputs.get(&view.spec.id).into_iter().flatten() {
            show::out(&format!("    {line}\n"));
        }
    }
}

/// A converged allocation is one line; for others, the tasks are listed too.
fn show_alloc(view: &AllocView) {
    let state = view.convergence.state;
    let verdict = styled(style::of(state), show::convergence(&view.convergence));
    let id = styled(style::DIM, view.spec.id.short());
    show::out(&format!("  {} {id} {}: {verdict}\n", view.spec.title(), view.status.as_str()));
    if state == ConvergenceState::Converged {
        return;
    }
    for task in &view.tasks {
        let last = task.events.last().map(|event| format!(": {}", plain(&event.message)));
        show::out(&format!("    {} {}{}\n", task.name, show::phase(task), last.unwrap_or_default()));
    }
}

fn verdict<'s>(jobs: impl Iterator<Item = &'s ConvergenceState>, allocs: &'s [AllocView]) -> u8 {
    let of_allocs = allocs.iter().map(|view| &view.convergence.state);
    let code_of = |state: &ConvergenceState| match state {
        ConvergenceState::Converged => ALL_WELL,
        ConvergenceState::Progressing | ConvergenceState::Waiting => CONVERGING,
        ConvergenceState::Failed => DEGRADED,
    };
    jobs.chain(of_allocs).map(code_of).max().unwrap_or(ALL_WELL)
}

#[cfg(test)]
pub(crate) mod tests {
    use herdlet_api_types::{UnixNanos, api::ManifestProblem};

    use super::*;
    use crate::client::ClientError;
    use herdlet_manifest::fixture::{alloc_view, job, job_view};

    pub(crate) fn agent() -> AgentStatus {
        AgentStatus {
            version: "1".to_owned(),
            node_id: String::new(),
            node_name: "box".to_owned(),
            commit: Some("1a2b3c".to_owned()),
            instance: String::new(),
            isolation: "cgroups".to_owned(),
            missing_controllers: Vec::new(),
            max_kill_timeout: None,
            in_cluster: false,
            state_dir: String::new(),
            started_at: UnixNanos(0),
            not_ready: None,
            degraded: None,
            disk_full: None,
            warnings: Vec::new(),
            manifest_problems: Vec::new(),
            index: 1,
            jobs: Default::default(),
            allocs: Default::default(),
            unconverged: Vec::new(),
        }
    }

    #[test]
    fn status_lists_problems_of_agent_and_manifests() {
        assert!(problems(&agent()).is_empty());
        let problem = |line, path: &str| ManifestProblem {
            source: "jobs.d/web.yaml".to_owned(),
            line,
            column: 8,
            path: path.to_owned(),
            message: "unknown\nfield".to_owned(),
        };
        let status = AgentStatus {
            degraded: Some("the state database can't be written".to_owned()),
            disk_full: Some("the disk of /state is full".to_owned()),
            manifest_problems: vec![problem(4, "spec.typ"), problem(0, "")],
            ..agent()
        };
        assert_eq!(
            problems(&status),
            [
                "the state database can't be written",
                "the disk of /state is full",
                "not in force: jobs.d/web.yaml:4:8: spec.typ: unknown field",
                "not in force: jobs.d/web.yaml: unknown field",
            ]
        );
    }

    /// A machine whose agent is down had the same code as one with a failed job.
    #[test]
    fn check_without_an_agent_has_its_own_code() {
        let address: crate::address::Address = "unix:///run/absent.sock".parse().unwrap();
        let why = "no such file".to_owned();
        let unreachable = Failure::from(ClientError::Unreachable { address, why });
        assert_eq!(code_of(&unreachable), UNKNOWN);
        let message = "permission denied".to_owned();
        let refused = Failure::from(ClientError::Status { status: 403, message });
        assert_eq!(code_of(&refused), DEGRADED);
        assert_eq!(code_of(&Failure::new("there is no job \"web\"")), DEGRADED);
    }

    #[test]
    fn programs_get_the_verdict_and_what_is_current() {
        let web = job("web", "front", "httpd");
        let (jobs, allocs) = ([job_view(&web, 2)], [alloc_view(&web, 0, 7)]);
        let shown = serde_json::to_value(report(CONVERGING, Some(&agent()), &jobs, &allocs)).unwrap();
        assert_eq!(shown["verdict"], "converging");
        assert_eq!(shown["agent"]["node_name"], "box");
        assert!(
            agent_line(&agent()).starts_with("herdlet 1 (commit 1a2b3c) on box"),
            "{}",
            agent_line(&agent())
        );
        assert_eq!(shown["jobs"][0]["key"]["id"], "web");
        assert_eq!(shown["allocs"][0]["tasks"][0]["name"], "httpd");
    }
}
