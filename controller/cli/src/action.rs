//! `herdlet action`: runs a named command of a job in one of its running tasks, or lists these commands.

use clap::Args;
use herdlet_api_types::{
    alloc::ClientStatus,
    job::{Task, TaskAction},
    names::shell_word,
    task::TaskStatus,
    view::{AllocView, JobView, TaskView},
};
use serde::Serialize;

use super::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    session::{StdioFlags, exit_code},
    show,
    table::{Heading, Table},
    target::{self, Target},
};

/// Arguments of `herdlet action`.
#[derive(Debug, Clone, Args)]
pub struct ActionArgs {
    #[command(flatten)]
    stdio: StdioFlags,
    /// A job, group, allocation or task; of several allocations, the first healthy one
    target: String,
    /// The action; without it, the target's actions are listed
    action: Option<String>,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    actions: Vec<Row>,
}

/// An action, and where it can be run.
#[derive(Serialize)]
struct Row {
    action: String,
    group: String,
    task: String,
    command: Vec<String>,
}

pub async fn run(args: ActionArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let target = target::find_among(&client, &args.target, &jobs, &allocs).await?.only(args.task.clone())?;
    let Some(action) = &args.action else {
        let actions = list(&target, &jobs);
        if args.output.reader() == Reader::Person {
            show::out(&table(&actions));
        }
        args.output.document(&Report { actions })?;
        return Ok(0);
    };
    let Some((view, task)) = choose(&target, &jobs, action) else {
        return Err(no_task(&args, action, &list(&target, &jobs)));
    };
    herdlet_base::stderr_line!("in {} ({})", view.spec.task_title(&task.name), view.spec.id.short());
    let stdio = args.stdio.stdio();
    let raw = stdio.prepare()?;
    let socket = client.run_action(&view.spec, &task.name, action, stdio.tty).await?;
    let ended = stdio.attach(socket).await;
    drop(raw);
    let command = actions_of(&jobs, view, &task.name).find(|known| known.name == *action);
    exit_code(ended)
        .map_err(|failure| failure.of_command(&command.map(TaskAction::to_command).unwrap_or_default()))
}

/// The first running task with this action, in the healthiest allocation.
fn choose<'t>(
    target: &'t Target,
    jobs: &'t [JobView],
    action: &str,
) -> Option<(&'t AllocView, &'t TaskView)> {
    let is_running = |(view, task): &(&AllocView, &TaskView)| {
        view.status == ClientStatus::Running && task.state == TaskStatus::Running
    };
    let has_it = |(view, task): &(&AllocView, &TaskView)| {
        actions_of(jobs, view, &task.name).any(|known| known.name == action)
    };
    target.tasks().filter(is_running).filter(has_it).min_by_key(|(view, _)| !view.is_healthy())
}

/// The actions of a task of an allocation, by the current version of its job.
fn actions_of<'j>(jobs: &'j [JobView], view: &AllocView, task: &str) -> impl Iterator<Item = &'j TaskAction> {
    let job = jobs.iter().find(|job| job.key == view.spec.job_key);
    let group = job.and_then(|job| job.job.group(&view.spec.group));
    group.and_then(|group| group.task(task)).into_iter().flat_map(|task| &task.actions)
}

/// The actions of the target: those of the groups of its allocations, or of the whole job if it has no allocations.
fn list(target: &Target, jobs: &[JobView]) -> Vec<Row> {
    let mut rows = Vec::new();
    for job in jobs {
        for group in &job.job.groups {
            let is_of = |view: &AllocView| view.spec.job_key == job.key && view.spec.group == group.name;
            let is_whole = target.job.as_ref() == Some(&job.key) && target.allocs.is_empty();
            if !is_whole && !target.allocs.iter().any(is_of) {
                continue;
            }
            let is_meant = |task: &&Task| target.task.as_ref().is_none_or(|meant| *meant == task.name);
            let tasks = group.tasks.iter().filter(is_meant);
            rows.extend(tasks.flat_map(|task| of_task(&group.name, task)));
        }
    }
    rows
}

fn of_task(group: &str, task: &Task) -> impl Iterator<Item = Row> {
    task.actions.iter().map(|action| Row {
        action: action.name.clone(),
        group: group.to_owned(),
        task: task.name.clone(),
        command: action.to_command(),
    })
}

fn table(actions: &[Row]) -> String {
    if actions.is_empty() {
        return "there are no actions; a task has them in `actions`\n".to_owned();
    }
    let mut table = Table::new(&["ACTION", "GROUP", "TASK", "COMMAND"]);
    for row in actions {
        let words = row.command.iter().map(|word| shell_word(word.clone()));
        let command = words.collect::<Vec<_>>().join(" ");
        let command = command.lines().next().unwrap_or_default().to_owned();
        table.row([row.action.clone(), row.group.clone(), row.task.clone(), command]);
    }
    table.render(Heading::Shown)
}

fn no_task(args: &ActionArgs, action: &str, known: &[Row]) -> Failure {
    let target = &args.target;
    let word = || shell_word(target.clone());
    if known.iter().any(|row| row.action == action) {
        return Failure::new(format!("no task of {target} with the action \"{action}\" is running"))
            .hint(format!("see why: herdlet explain {}", word()));
    }
    let failure = Failure::new(format!("{target} has no action \"{action}\""));
    match known {
        [] => failure.hint("a task has them in `actions`: [{name: NAME, command: PROGRAM, args: […]}]"),
        known => {
            let names: Vec<&str> = known.iter().map(|row| row.action.as_str()).collect();
            failure.hint(format!("its actions: {}", names.join(", ")))
        }
    }
}
