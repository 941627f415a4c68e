//! `herdlet status`: how far everything is, and what is not as it should be.

use clap::Args;
use herdlet_api_types::{
    api::AgentStatus,
    view::{AllocView, ConvergenceState, JobView},
};

use super::{
    Connection,
    client::Client,
    failure::Failure,
    show::{self, styled},
    style, target,
};

/// Arguments of `herdlet status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Only this target
    target: Option<String>,
    /// Say it by the exit code: 0 all converged and healthy, 1 converging, 2 degraded
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    connection: Connection,
}

/// All converged and healthy.
const ALL_WELL: u8 = 0;
/// On the way.
const CONVERGING: u8 = 1;
/// Something failed, or the agent can't be asked.
const DEGRADED: u8 = 2;

pub(super) async fn run(args: StatusArgs) -> Result<u8, Failure> {
    let shown = show_status(&args).await;
    match (shown, args.check) {
        (Ok(code), true) => Ok(code),
        (Ok(_), false) => Ok(0),
        (Err(failure), true) => Err(failure.code(DEGRADED)),
        (Err(failure), false) => Err(failure),
    }
}

async fn show_status(args: &StatusArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    match &args.target {
        Some(text) => {
            let target = target::resolve(text, &jobs, &allocs)?;
            let jobs: Vec<JobView> =
                jobs.into_iter().filter(|view| target.job.as_ref() == Some(&view.key)).collect();
            show_objects(&jobs, &target.allocs);
            Ok(verdict(jobs.iter().map(|view| &view.convergence.state), &target.allocs))
        }
        None => show_all(&client, &jobs, &allocs).await,
    }
}

async fn show_all(client: &Client, jobs: &[JobView], allocs: &[AllocView]) -> Result<u8, Failure> {
    let status = client.status().await?;
    show::out(&format!("{}\n", agent_line(&status)));
    for wrong in [&status.not_ready, &status.degraded].into_iter().flatten() {
        show::out(&format!("{}\n", styled(style::ERROR, wrong)));
    }
    show_objects(jobs, allocs);
    if jobs.is_empty() {
        show::out("no jobs\n");
    }
    let degraded = status.not_ready.is_some() || status.degraded.is_some();
    Ok(if degraded { DEGRADED } else { verdict(jobs.iter().map(|view| &view.convergence.state), allocs) })
}

fn agent_line(status: &AgentStatus) -> String {
    let AgentStatus { version, node_name, instance, isolation, started_at, .. } = status;
    let up = show::age(*started_at);
    format!("herdlet {version} on {node_name}, up {up}, isolation {isolation}, instance {instance}")
}

fn show_objects(jobs: &[JobView], allocs: &[AllocView]) {
    let mut lost: Vec<&AllocView> =
        allocs.iter().filter(|view| !jobs.iter().any(|job| job.key == view.spec.job_key)).collect();
    for job in jobs {
        let (state, word) = (job.convergence.state, if job.deleting { "deleting, " } else { "" });
        let verdict = styled(style::of(state), show::convergence(&job.convergence));
        let since = show::age(job.convergence.since);
        show::out(&format!(
            "{} version {}: {word}{verdict} (for {since})\n",
            styled(style::HEADING, &job.key),
            job.version
        ));
        // What was replaced and has ended is history: `get allocs` has it.
        let mut of_job: Vec<_> = allocs
            .iter()
            .filter(|view| view.spec.job_key == job.key && !show::is_replaced(view, allocs.iter()))
            .collect();
        of_job.sort_by_key(|view| (view.spec.group.clone(), view.spec.index, view.spec.create_index));
        of_job.into_iter().for_each(show_alloc);
    }
    lost.sort_by_key(|view| view.spec.name());
    lost.into_iter().for_each(show_alloc);
}

/// An allocation that is as it should be is one line; of another, its tasks are listed too.
fn show_alloc(view: &AllocView) {
    let state = view.convergence.state;
    let verdict = styled(style::of(state), show::convergence(&view.convergence));
    let id = styled(style::DIM, view.spec.id.short());
    show::out(&format!("  {} {id} {}: {verdict}\n", view.spec.name(), view.status.as_str()));
    if state == ConvergenceState::Converged {
        return;
    }
    for task in &view.tasks {
        let last = task.events.last().map(|event| format!(": {}", super::table::plain(&event.message)));
        show::out(&format!("    {} {}{}\n", task.name, show::phase(task), last.unwrap_or_default()));
    }
}

fn verdict<'s>(jobs: impl Iterator<Item = &'s ConvergenceState>, allocs: &'s [AllocView]) -> u8 {
    let of_allocs = allocs.iter().map(|view| match view.healthy {
        Some(false) if !view.status.is_terminal() => &ConvergenceState::Failed,
        Some(_) | None => &view.convergence.state,
    });
    let code_of = |state: &ConvergenceState| match state {
        ConvergenceState::Converged => ALL_WELL,
        ConvergenceState::Progressing | ConvergenceState::Waiting => CONVERGING,
        ConvergenceState::Failed => DEGRADED,
    };
    jobs.chain(of_allocs).map(code_of).max().unwrap_or(ALL_WELL)
}
