//! `herdlet exec`: runs a command in a running task, and exits with its exit code.

use clap::Args;
use herdlet_api_types::{
    alloc::ClientStatus,
    job::Lifecycle,
    names::shell_word,
    task::TaskStatus,
    view::{AllocView, JobView, TaskView},
};

use super::{
    Connection,
    failure::Failure,
    session::{StdioFlags, exit_code},
    target::{self, Target},
};

/// Arguments of `herdlet exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    stdio: StdioFlags,
    /// A job, an allocation, or a task; of several allocations, the first healthy one
    target: String,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    pub connection: Connection,
    /// Program and arguments; everything after the program is passed to it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub async fn run(args: ExecArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let target = target::find_among(&client, &args.target, &jobs, &allocs).await?.only(args.task.clone())?;
    let (view, task) = choose(&target, &jobs, &args.target)?;
    let several = target.tasks().count() > 1;
    if several {
        herdlet_base::stderr_line!("in {} ({})", view.spec.task_title(&task.name), view.spec.id.short());
    }
    let stdio = args.stdio.stdio();
    let raw = stdio.prepare()?;
    let socket = client.exec(view.spec.id, &task.name, &args.command, stdio.tty).await?;
    let ended = stdio.attach(socket).await;
    drop(raw);
    exit_code(ended).map_err(|failure| failure.of_command(&args.command))
}

/// The task to run in: the named one, else the first running main task, in the healthiest allocation.
fn choose<'t>(
    target: &'t Target,
    jobs: &[JobView],
    text: &str,
) -> Result<(&'t AllocView, &'t TaskView), Failure> {
    let mut allocs: Vec<&AllocView> =
        target.allocs.iter().filter(|view| view.status == ClientStatus::Running).collect();
    allocs.sort_by_key(|view| !view.is_healthy());
    for view in allocs {
        let meant = |task: &&TaskView| {
            task.state == TaskStatus::Running
                && target.task.as_deref().is_none_or(|wanted| *wanted == *task.name)
        };
        // Prefers main tasks to sidecars. Without the job's specification, the first running task is used.
        let job = jobs.iter().find(|job| job.key == view.spec.job_key);
        let group = job.and_then(|job| job.job.group(&view.spec.group));
        let is_main = |task: &&TaskView| {
            let spec = group.and_then(|group| group.task(&task.name));
            spec.is_none_or(|spec| spec.lifecycle == Lifecycle::Main)
        };
        let running: Vec<&TaskView> = view.tasks.iter().filter(meant).collect();
        if let Some(task) = running.iter().copied().find(|task| is_main(task)).or(running.first().copied()) {
            return Ok((view, task));
        }
    }
    Err(Failure::new(format!("no task of {text} is running"))
        .hint(format!("see why: herdlet explain {}", shell_word(text.to_owned()))))
}
