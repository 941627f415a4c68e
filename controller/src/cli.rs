//! The command line. Every command but `agent`, `run` and the offline ones speaks HTTP to an agent, and nothing else.
//!
//! In: arguments, the environment. Out: data on stdout, progress and messages on stderr, an exit code. It must not know the
//! agent's insides: what it shows is what the API says.

mod address;
mod apply;
pub mod client;
mod delete;
mod diff;
mod exec;
mod explain;
mod failure;
mod get;
mod logs;
mod offline;
mod output;
mod restart;
mod show;
mod status;
mod style;
mod table;
mod target;
mod wait;
mod watch;

#[cfg(test)]
mod tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};

pub use address::{Address, AddressError, Connection};
pub use client::{Client, ClientError};

use failure::Failure;

/// Keeps jobs true on this machine: tasks run, services registered, volumes mounted, tokens derived.
#[derive(Debug, Parser)]
#[command(name = "herdlet", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  herdlet run hello.yaml                 run a batch job here and now, without an agent
  herdlet agent --manifests jobs.d       keep the jobs of a folder true
  herdlet apply -f web.yaml --wait       make it so, and wait until it is
  herdlet status                         what is not as it should be, and why
  herdlet logs -f web                    follow the output of all tasks of a job
  herdlet exec -it web -- sh             a shell in a running task

TARGET is JOB, JOB.GROUP[N] or JOB.GROUP.N, each with /TASK if wanted, or the beginning of an allocation id.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: keep what was applied, and the manifests of folders, true
    Agent(AgentArgs),
    /// Run manifests in a private agent until their batch work is done
    Run(RunArgs),
    /// Tidy up after a private agent
    #[command(hide = true)]
    Guard(GuardArgs),
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment would become help text")]
    Client(ClientCommand),
}

/// Flags of `herdlet agent`.
pub type AgentArgs = crate::config::Flags;

/// Arguments of `herdlet run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where its state is kept [default: a temporary directory that is removed at the end]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Topmost cgroup of its tasks
    #[arg(long, value_name = "NAME", default_value = "herdlet")]
    pub cgroup_parent: String,
}

/// Arguments of the guard.
#[derive(Debug, Clone, Args)]
pub struct GuardArgs {
    /// What it looks after, as JSON.
    pub charge: String,
}

/// Commands for an agent, and offline ones.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Make manifests the desired state
    #[command(visible_alias = "up")]
    Apply(apply::ApplyArgs),
    /// Stop jobs and forget them; remove volumes
    #[command(visible_alias = "down")]
    Delete(delete::DeleteArgs),
    /// List jobs, allocs, tasks, services or volumes
    Get(get::GetArgs),
    /// List allocations: get allocs
    Ps(get::PsArgs),
    /// Say how far everything is, and what is not as it should be
    Status(status::StatusArgs),
    /// Say what an allocation is waiting for, and what comes next
    Explain(explain::ExplainArgs),
    /// Show everything about a target, ending with what it is waiting for
    Describe(explain::ExplainArgs),
    /// Print the output of tasks
    Logs(logs::LogsArgs),
    /// Execute a command in a running task
    Exec(exec::ExecArgs),
    /// Restart tasks
    Restart(restart::RestartArgs),
    /// Send a signal to tasks
    Signal(restart::SignalArgs),
    /// Wait until jobs are converged, healthy, complete or deleted
    Wait(wait::WaitArgs),
    /// Show what an apply would change
    #[command(visible_alias = "plan")]
    Diff(diff::DiffArgs),
    /// Check manifests, without an agent
    Validate(offline::ValidateArgs),
    /// Print the JSON Schema of manifests, or of one field
    Schema(offline::SchemaArgs),
    /// Print completions for a shell
    Completions(offline::CompletionsArgs),
    /// Print the version
    Version(offline::VersionArgs),
}

/// Reads the command line. Help, and what is wrong with it, is printed; then the answer is the exit code.
///
/// # Errors
/// The exit code: 0 after help, 125 where `run` or `exec` were misused (their other codes are the task's), else 2.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, u8> {
    style::choose();
    let args: Vec<OsString> = args.into_iter().collect();
    Cli::try_parse_from(&args).map_err(|error| {
        let _ = error.print();
        let passes_on_codes = args.get(1).is_some_and(|verb| verb == "run" || verb == "exec");
        match (error.use_stderr(), passes_on_codes) {
            (false, _) => 0,
            (true, true) => failure::AGENT_FAILED,
            (true, false) => failure::USAGE,
        }
    })
}

/// Carries out a command. The answer is the exit code.
pub async fn execute(command: ClientCommand) -> u8 {
    match dispatch(command).await {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code
        }
    }
}

async fn dispatch(command: ClientCommand) -> Result<u8, Failure> {
    match command {
        ClientCommand::Apply(args) => apply::run(args).await,
        ClientCommand::Delete(args) => delete::run(args).await,
        ClientCommand::Get(args) => get::run(args).await,
        ClientCommand::Ps(args) => get::run(args.into()).await,
        ClientCommand::Status(args) => status::run(args).await,
        ClientCommand::Explain(args) => explain::explain(args).await,
        ClientCommand::Describe(args) => explain::describe(args).await,
        ClientCommand::Logs(args) => logs::run(args).await,
        ClientCommand::Exec(args) => exec::run(args).await.map_err(Failure::not_the_tasks),
        ClientCommand::Restart(args) => restart::restart(args).await,
        ClientCommand::Signal(args) => restart::signal(args).await,
        ClientCommand::Wait(args) => wait::run(args).await,
        ClientCommand::Diff(args) => diff::run(args).await.map_err(|failure| failure.code(failure::USAGE)),
        ClientCommand::Validate(args) => offline::validate(&args),
        ClientCommand::Schema(args) => offline::schema(&args),
        ClientCommand::Completions(args) => {
            // In memory first: written straight to a pipe that is closed early, they panic.
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "herdlet", &mut script);
            show::out(&String::from_utf8_lossy(&script));
            Ok(0)
        }
        ClientCommand::Version(args) => offline::version(&args),
    }
}
