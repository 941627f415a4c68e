//! The command line: the commands, and their dispatch. Most commands are in the crate `herdlet-cli`, which knows
//! only the API of an agent; this module has those that need more of the program.
//!
//! In: arguments, the environment. Out: an exit code.

mod completions;
mod doctor;
mod man;
mod nomad;
mod simulate;
mod ui;
mod unknown;
mod words;

#[cfg(test)]
mod tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Args, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use herdlet_cli::{
    Connection, VariableArgs, apply, checks, config, convert, delete, deployments, diff, dispatch, drain,
    environment, eval, exec, explain, failure, failure::Failure, fs, gc, get, here, job, logs, monitor,
    offline, one_off, one_off::OneOff, restart, rollback, scale, schema, show, status, stdout, stop, style,
    top, var, wait,
};

use nomad::Translation;

/// Runs jobs on this machine and keeps them in their desired state: tasks, services, volumes, tokens.
#[derive(Debug, Parser)]
#[command(name = "herdlet", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    connection: Connection,
    /// Colours: auto follows NO_COLOR, CLICOLOR_FORCE and whether the output is a terminal
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    color: style::When,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  herdlet run hello.yaml                 run a batch job, without an agent
  herdlet agent --manifests jobs.d       run the agent with the jobs of a folder
  herdlet apply -f web.yaml --wait       apply a manifest, and wait until its jobs have converged
  herdlet status                         list jobs and problems
  herdlet logs -f web                    follow the output of all tasks of a job
  herdlet exec -it web -- sh             a shell in a running task

TARGET is JOB, JOB.GROUP[N] or JOB.GROUP.N, each with an optional /TASK, or a prefix of an allocation id.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent, which keeps applied jobs and the manifests of folders in their desired state
    #[command(
        after_help = "Examples:\n  herdlet agent --manifests /etc/herdlet/jobs.d --metrics-listen 127.0.0.1:9464\n  herdlet agent --servers nomad.example.org --raw-exec\n\nEvery flag has a variable (--state-dir is HERDLET_STATE_DIR) and a key in the config file."
    )]
    Agent(Box<AgentArgs>),
    /// Run manifests in a private agent until their batch work is done
    #[command(
        after_help = "Examples:\n  herdlet run hello.yaml\n  herdlet run web -- bin/migrate --all    once, with the environment, user and volumes of job web\n  herdlet run shop.api/server -- env\n\nExit code: the first exit code of a task other than 0, in the order of the files; 125 if herdlet failed."
    )]
    Run(Box<RunArgs>),
    /// Clean up after a private agent
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Unpack an artifact
    #[command(hide = true)]
    Unpack(UnpackArgs),
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment would become help text")]
    Client(Box<ClientCommand>),
}

/// Flags of `herdlet agent`.
pub type AgentArgs = herdlet_config::Flags;

/// Arguments of `herdlet run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Manifests: files, folders, or - for standard input; with a command, one job or task
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Run this command once in the environment of a job that an agent runs
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Values for variables of HCL job files
    #[command(flatten)]
    pub variables: VariableArgs,
    /// State directory [default: a temporary directory that is removed at the end]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Top cgroup of the tasks
    #[arg(long, value_name = "NAME", default_value = "herdlet")]
    pub cgroup_parent: String,
    /// Users, besides those of the tasks, who may enter the directories of every allocation
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub task_dir_users: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of the guard.
#[derive(Debug, Clone, Args)]
pub struct GuardArgs {
    /// What to clean up, as JSON.
    pub charge: String,
}

/// Arguments of the process that unpacks.
#[derive(Debug, Clone, Args)]
pub struct UnpackArgs {
    /// What to unpack, as JSON.
    pub order: String,
}

/// Commands for an agent, and offline ones.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Make manifests the desired state
    #[command(
        visible_alias = "up",
        after_help = "Examples:\n  herdlet apply -f web.yaml --wait\n  herdlet apply -f jobs.d -f extra.yaml\n  herdlet up                             apply herdlet.yaml, else all manifests of this folder\n  herdlet apply -f shop.d --prune shop   and delete jobs of earlier applies that are not in it\n  generate | herdlet apply -f -"
    )]
    Apply(apply::ApplyArgs),
    /// Stop and remove jobs; remove volumes
    #[command(
        visible_alias = "down",
        after_help = "Examples:\n  herdlet delete web --wait              keep volumes and their data\n  herdlet delete web --purge             also delete the volumes that only it used, and their data\n  herdlet down                           delete what the manifests of this folder define\n  herdlet delete volume site             remove a volume, keep its data\n  herdlet delete volume site --purge     delete its data too, even if the volume was removed before"
    )]
    Delete(delete::DeleteArgs),
    /// List jobs, allocs, tasks, services, volumes, deployments, events or the versions of a job
    #[command(
        after_help = "Examples:\n  herdlet get jobs\n  herdlet get allocs web -o wide\n  herdlet get allocs --watch             show changes as they happen\n  herdlet get events web                 recent events and their causes\n  herdlet get tasks -o name | xargs herdlet describe\n  herdlet get jobs web -o yaml           print a manifest that can be applied\n  herdlet get jobs -l app=shop -o custom-columns=JOB:.key.id,VERSION:.version\n  herdlet get jobs -o jsonpath={.items[*].key.id}"
    )]
    Get(get::GetArgs),
    /// List allocations that have not ended; get allocs lists all
    #[command(
        after_help = "Examples:\n  herdlet ps web\n  herdlet ps -a                          also ended allocations, as get allocs does"
    )]
    Ps(get::PsArgs),
    /// List differences from what the agent created, and their repairs: get drift
    #[command(after_help = "Examples:\n  herdlet drift\n  herdlet drift web -o json")]
    Drift(get::OfKindArgs),
    /// Show the state of jobs, and problems
    #[command(
        after_help = "Examples:\n  herdlet status\n  herdlet status --watch                 update whenever something changes\n  herdlet status web db --check          for scripts: report by the exit code"
    )]
    Status(status::StatusArgs),
    /// Watch the state of jobs, with their use of processor and memory
    #[command(
        after_help = "Example:\n  herdlet top                            until q or Ctrl-C\n\nKeys: up and down choose a job, enter shows its tasks, a those of all jobs, s sorts by CPU, memory or name.\n\nCPU is in percent of one core; MEMORY includes everything that counts against the limit."
    )]
    Top(top::TopArgs),
    /// Explain why something has not converged, and what happens next: the end of what describe shows
    #[command(
        after_help = "Examples:\n  herdlet explain web\n  herdlet explain web.web[0]\n\nFor all details, such as events and ports: herdlet describe"
    )]
    Explain(explain::ExplainArgs),
    /// Show all details: ports, checks, tasks with their last events, and the output of explain
    #[command(
        after_help = "Examples:\n  herdlet describe web\n  herdlet describe web.web[0]/httpd\n\nOnly what it is waiting for: herdlet explain"
    )]
    Describe(explain::ExplainArgs),
    /// Print the output of tasks
    #[command(
        after_help = "Examples:\n  herdlet logs -f web\n  herdlet logs -f                        of all jobs, also of those that start later\n  herdlet logs web db --timestamps --tail 50\n  herdlet logs -f -l app=shop\n  herdlet logs web.web[0]/httpd --stderr --tail 50\n  herdlet logs web -o json"
    )]
    Logs(logs::LogsArgs),
    /// Execute a command in a running task
    #[command(
        after_help = "Examples:\n  herdlet exec -it web -- sh\n  herdlet exec web cat /etc/hostname     in the first healthy allocation of the job\n  herdlet exec web/httpd -- cat local/config\n  tar c . | herdlet exec -i web -- tar x -C local"
    )]
    Exec(exec::ExecArgs),
    /// List and print files of an allocation
    #[command(
        after_help = "Examples:\n  herdlet fs ls web\n  herdlet fs cat web.web[0]/httpd local/config\n  herdlet fs stat web alloc/data\n\nLinks are not followed, and secrets can't be read."
    )]
    Fs(fs::FsArgs),
    /// Restart tasks
    #[command(
        after_help = "Examples:\n  herdlet restart web\n  herdlet restart web --wait             wait until the job has converged again\n  herdlet restart web --task httpd\n  herdlet restart web.web[0] --all"
    )]
    Restart(restart::RestartArgs),
    /// Stop a job but keep it, or stop allocations, which their job then replaces
    #[command(
        after_help = "Examples:\n  herdlet stop web --wait                keep its versions and logs; to start it again: herdlet start web\n  herdlet stop web.web[0]\n  herdlet stop web.web                   stop all allocations of a group at once\n\nTo stop and remove a job: herdlet delete JOB"
    )]
    Stop(stop::StopArgs),
    /// Start jobs that were stopped, or what of them has failed
    #[command(
        after_help = "Examples:\n  herdlet start web --wait\n  herdlet start web.web[0]               try a failed allocation again, in a new one\n\nApplying its manifest starts it too, and so does a rollback to a version that is not stopped: herdlet rollback JOB"
    )]
    Start(stop::StartArgs),
    /// Send a signal to tasks
    #[command(after_help = "Examples:\n  herdlet signal web HUP\n  herdlet signal -s SIGUSR1 web/httpd api")]
    Signal(restart::SignalArgs),
    /// Run a child of a parameterized job, with a payload and meta
    #[command(
        after_help = "Examples:\n  herdlet dispatch import rows.csv --meta table=users --wait\n  generate | herdlet dispatch import -\n\nThe payload has at most 16 KiB. The child is a separate job: use its id with herdlet status, logs and delete."
    )]
    Dispatch(dispatch::DispatchArgs),
    /// Commands under Nomad's names
    #[command(
        after_help = "Example:\n  herdlet job periodic force backup\n\nTo list all commands of Nomad that herdlet accepts: herdlet job"
    )]
    Job(job::JobArgs),
    /// Go back to an older version of a job
    #[command(
        after_help = "Examples:\n  herdlet get versions web\n  herdlet rollback web --wait            to the newest earlier version that is good\n  herdlet rollback web --to 3\n\nThe content of that version becomes a new version; the last six are stored."
    )]
    Rollback(rollback::RollbackArgs),
    /// Change the count of a group, until its manifest is applied again
    #[command(
        after_help = "Examples:\n  herdlet scale web 3 --wait\n  herdlet scale shop.worker 0\n\nThis creates a new version of the job; the next apply of its manifest restores the manifest's count."
    )]
    Scale(scale::ScaleArgs),
    /// Open the status page in a browser, served on a local port until Ctrl-C
    #[command(
        after_help = "Examples:\n  herdlet ui\n  herdlet ui --no-open                    only print the address, which works once"
    )]
    Ui(ui::UiArgs),
    /// Promote the canaries of a job's deployment, which then replace the old allocations
    #[command(
        after_help = "Examples:\n  herdlet get deployments web\n  herdlet promote web\n  herdlet promote web --group api\n\nAll canaries must be healthy. To abandon the new version instead: herdlet deployment fail web"
    )]
    Promote(deployments::PromoteArgs),
    /// Promote, fail, pause or resume a deployment
    #[command(
        after_help = "Examples:\n  herdlet deployment promote web\n  herdlet deployment fail web        with auto_revert, the job returns to its last stable version"
    )]
    Deployment(deployments::DeploymentArgs),
    /// Stop the allocations of this node, and start no new ones
    #[command(
        after_help = "Examples:\n  herdlet drain                          one allocation of a group at a time; batch jobs have an hour\n  herdlet drain --deadline 5m --ignore-system\n  herdlet drain --force                  stop everything at once\n  herdlet drain --disable                take new allocations again\n\nJobs are kept, and wait until the node is eligible again."
    )]
    Drain(drain::DrainArgs),
    /// Show or set whether this node takes new allocations
    #[command(
        after_help = "Examples:\n  herdlet eligibility\n  herdlet eligibility --disable          what runs continues\n  herdlet eligibility --enable"
    )]
    Eligibility(drain::EligibilityArgs),
    /// List the evaluations of changes, as Nomad has them, or show one
    #[command(
        after_help = "Examples:\n  herdlet eval\n  herdlet eval 1f2e3d4c                  its deployment, and what was not placed"
    )]
    Eval(eval::EvalArgs),
    /// Variables: encrypted settings and secrets of jobs
    #[command(
        after_help = "Examples:\n  herdlet var put nomad/jobs/web user=me password=@password.txt\n  herdlet var get nomad/jobs/web\n  herdlet var list\n\nA task may read nomad/jobs and what is named after its job, group and task below it."
    )]
    Var(Box<var::VarArgs>),
    /// Show the last results of checks
    #[command(after_help = "Examples:\n  herdlet checks web\n  herdlet checks web.web[0] -o json")]
    Checks(checks::ChecksArgs),
    /// Follow the agent's log, until Ctrl-C
    #[command(after_help = "Examples:\n  herdlet monitor\n  herdlet monitor --log-level debug --json")]
    Monitor(monitor::MonitorArgs),
    /// Wait until jobs are converged, healthy, complete or deleted
    #[command(
        after_help = "Examples:\n  herdlet wait web --timeout 1m\n  herdlet wait --for=complete backup\n  herdlet wait --for=deleted web"
    )]
    Wait(wait::WaitArgs),
    /// Collect garbage: ended jobs, and directories of ended allocations
    #[command(
        after_help = "Examples:\n  herdlet gc --dry-run    list what can be collected, and when and why the agent does so by itself\n  herdlet gc\n\nRunning jobs, and jobs of a folder of manifests, are kept."
    )]
    Gc(gc::GcArgs),
    /// Show what an apply would change
    #[command(
        visible_alias = "plan",
        after_help = "Examples:\n  herdlet diff -f web.yaml\n  herdlet plan                           show what herdlet up would change\n\nExit code: 0 nothing would change, 1 something would, 2 error."
    )]
    Diff(diff::DiffArgs),
    /// Check manifests, without an agent
    #[command(
        after_help = "Example:\n  herdlet validate --strict jobs.d\n\nExit code: 0 good, 1 problems, 2 error."
    )]
    Validate(offline::ValidateArgs),
    /// Convert Nomad job files, in HCL or JSON, to manifests with explicit defaults
    #[command(
        after_help = "Examples:\n  herdlet convert web.nomad.hcl --var image=v2 > web.yaml\n  nomad job inspect web | herdlet convert -"
    )]
    Convert(convert::ConvertArgs),
    /// Explain a field of manifests, or print the whole JSON Schema
    #[command(
        after_help = "Examples:\n  herdlet schema > manifest.schema.json\n  herdlet schema spec.groups.tasks.restart\n  herdlet schema job.group.task.restart   the same in Nomad's syntax"
    )]
    Schema(schema::SchemaArgs),
    /// Simulate many nodes of a Nomad cluster, for capacity tests of its servers, until Ctrl-C
    #[command(
        after_help = "Examples:\n  herdlet simulate --servers 10.0.0.1 --nodes 500\n  herdlet simulate --servers 10.0.0.1 --nodes 50 --run-for 10s..5m --fail 5 --for 1h -o json\n\nEach node is a complete controller with its own id; only its tasks are simulated. No task runs on this machine."
    )]
    Simulate(Box<simulate::SimulateArgs>),
    /// Check what an agent needs on this machine: kernel, cgroups, limits, disk, clock, Consul
    #[command(
        after_help = "Examples:\n  herdlet doctor\n  herdlet doctor --config /etc/herdlet/herdlet.yaml --strict\n\nIt accepts the agent's flags, and changes nothing. Exit code: 0 an agent can work here, 1 it can't."
    )]
    Doctor(Box<doctor::DoctorArgs>),
    /// Show the config that an agent with these flags would have
    #[command(
        after_help = "Examples:\n  herdlet config view --config /etc/herdlet/herdlet.yaml\n  herdlet config view --resolved         with defaults and the source of each value"
    )]
    Config(config::ConfigArgs),
    /// Print the completion script for a shell
    #[command(
        after_help = "Examples:\n  herdlet completions bash > /etc/bash_completion.d/herdlet\n  herdlet completions zsh > \"${fpath[1]}/_herdlet\"\n  herdlet completions fish > ~/.config/fish/completions/herdlet.fish"
    )]
    Completions(offline::CompletionsArgs),
    /// Write man pages
    #[command(after_help = "Example:\n  herdlet man /usr/local/share/man/man1")]
    Man(man::ManArgs),
    /// Print the version
    #[command(after_help = "Example:\n  herdlet version -o json")]
    Version(offline::VersionArgs),
}

/// Parses the command line. Prints help and errors.
///
/// # Errors
/// The exit code: 0 after help, 125 for wrong arguments of `run` or `exec` (their other codes are the task's),
/// else 2.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, u8> {
    let args: Vec<OsString> = args.into_iter().collect();
    let translation = nomad::translate(&args);
    // Before anything is printed, because errors are coloured too. Includes Nomad's flags.
    style::choose(words::color(if let Translation::Translated(ours) = &translation { ours } else { &args }));
    let args = match translation {
        Translation::Ours => args,
        Translation::Translated(ours) => ours,
        Translation::Refused(why) => {
            Failure::new(why).print();
            return Err(failure::USAGE);
        }
        Translation::Unknown(sentence, known) => {
            if let Some(sentence) = sentence {
                Failure::new(sentence).print();
            }
            herdlet_base::stderr_line!("Commands of Nomad that herdlet accepts:\n{known}");
            return Err(failure::USAGE);
        }
    };
    let usage = match words::verb(&args) {
        Some("run" | "exec") => failure::AGENT_FAILED,
        Some(_) | None => failure::USAGE,
    };
    let cli = Cli::try_parse_from(&args).map_err(|mut error| {
        if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(unknown))) =
            (error.kind(), error.get(ContextKind::InvalidSubcommand))
        {
            unknown::failure(&args, unknown).print();
            return usage;
        }
        let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => Some(unknown.clone()),
            (_, _) => None,
        };
        if unknown.is_some() {
            // The parser's own tip is to put `--` before the argument, which is never meant.
            error.remove(ContextKind::Suggested);
        }
        let _ = error.print();
        if let Some(tip) = unknown.and_then(|unknown| words::tip(&args, &unknown)) {
            herdlet_base::stderr_line!("\n{tip}");
        }
        if error.use_stderr() { usage } else { 0 }
    })?;
    let settled = environment::check().and_then(|()| cli.settle(words::verb(&args).unwrap_or_default()));
    let cli = settled.map_err(|failure| {
        failure.print();
        usage
    })?;
    Ok(cli)
}

impl Cli {
    /// Passes flags before the command to the command. Without arguments, only `up` and `down` use the current
    /// folder.
    fn settle(mut self, verb: &str) -> Result<Self, Failure> {
        if let Command::Client(command) = &self.command {
            let names_nothing = if let ClientCommand::Apply(args) = &**command {
                args.files.is_empty()
            } else if let ClientCommand::Delete(args) = &**command {
                args.names_nothing()
            } else {
                false
            };
            if names_nothing {
                here::is_meant(verb)?;
            }
        }
        if let Command::Run(args) = &self.command
            && args.command.is_empty()
            && let Some(flag) = args.connection.first_flag()
        {
            let message =
                format!("{flag} is only for `run JOB -- COMMAND`: `run FILE` has an agent of its own");
            return Err(Failure::new(message));
        }
        let outer = std::mem::take(&mut self.connection);
        let inner = match &mut self.command {
            Command::Client(command) => command.connection(),
            Command::Run(args) if !args.command.is_empty() => Some(&mut args.connection),
            Command::Agent(_) | Command::Run(_) | Command::Guard(_) | Command::Unpack(_) => None,
        };
        match (inner, outer.first_flag()) {
            (Some(inner), _) => inner.inherit(outer),
            (None, None) => {}
            (None, Some(flag)) => {
                let message = format!(
                    "{flag} before the command is only for commands that connect to an agent; this one doesn't"
                );
                return Err(Failure::new(message));
            }
        }
        Ok(self)
    }
}

impl ClientCommand {
    /// The exit code of a failure.
    fn failed(&self) -> u8 {
        if matches!(self, Self::Exec(_)) {
            failure::AGENT_FAILED
        } else if matches!(self, Self::Diff(_) | Self::Validate(_)) {
            failure::USAGE
        } else {
            failure::FAILED
        }
    }

    /// Resolves with the exit code when the output has no reader and the command has nothing else to do.
    fn unread(&self) -> impl Future<Output = u8> + use<> {
        let is_exec = matches!(self, Self::Exec(_));
        let only_prints = matches!(
            self,
            Self::Logs(_)
                | Self::Monitor(_)
                | Self::Fs(_)
                | Self::Top(_)
                | Self::Get(_)
                | Self::Ps(_)
                | Self::Drift(_)
        ) || matches!(self, Self::Status(args) if args.watch);
        async move {
            if !is_exec && !only_prints {
                std::future::pending::<()>().await;
            }
            stdout::unread().await;
            // The command's own exit code remains unknown: its session ends with this process.
            if is_exec { failure::NOBODY_READS } else { 0 }
        }
    }

    /// The connection flags of the command; none if it needs no agent.
    fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Apply(args) => Some(&mut args.connection),
            Self::Delete(args) => Some(&mut args.connection),
            Self::Get(args) => Some(&mut args.connection),
            Self::Ps(args) => Some(&mut args.listed.connection),
            Self::Drift(args) => Some(&mut args.connection),
            Self::Status(args) => Some(&mut args.connection),
            Self::Explain(args) | Self::Describe(args) => Some(&mut args.connection),
            Self::Logs(args) => Some(&mut args.connection),
            Self::Exec(args) => Some(&mut args.connection),
            Self::Fs(args) => Some(&mut args.connection),
            Self::Restart(args) => Some(&mut args.connection),
            Self::Stop(args) => Some(&mut args.connection),
            Self::Start(args) => Some(&mut args.connection),
            Self::Signal(args) => Some(&mut args.connection),
            Self::Dispatch(args) => Some(&mut args.connection),
            Self::Job(args) => Some(args.verb.connection()),
            Self::Rollback(args) => Some(&mut args.connection),
            Self::Scale(args) => Some(&mut args.connection),
            Self::Top(args) => Some(&mut args.connection),
            Self::Ui(args) => Some(&mut args.connection),
            Self::Wait(args) => Some(&mut args.connection),
            Self::Promote(args) => Some(&mut args.connection),
            Self::Deployment(args) => Some(args.verb.connection()),
            Self::Gc(args) => Some(&mut args.connection),
            Self::Drain(args) => Some(&mut args.connection),
            Self::Eligibility(args) => Some(&mut args.connection),
            Self::Eval(args) => Some(&mut args.connection),
            Self::Var(args) => args.verb.connection(),
            Self::Checks(args) => Some(&mut args.connection),
            Self::Monitor(args) => Some(&mut args.connection),
            Self::Diff(args) => Some(&mut args.connection),
            Self::Validate(_)
            | Self::Convert(_)
            | Self::Schema(_)
            | Self::Simulate(_)
            | Self::Doctor(_)
            | Self::Config(_)
            | Self::Man(_)
            | Self::Completions(_)
            | Self::Version(_) => None,
        }
    }
}

/// Runs a command once in the environment of a job, and returns its exit code.
pub async fn run_command(args: RunArgs) -> u8 {
    let RunArgs { files, command, connection, .. } = args;
    let [target] = files.as_slice() else {
        let failure = Failure::new("before -- must be one job or task, and after it the command");
        failure.code(failure::AGENT_FAILED).hint("example: herdlet run web -- bin/migrate").print();
        return failure::AGENT_FAILED;
    };
    one_off::run(OneOff { target: target.display().to_string(), command, connection }).await
}

/// Runs a command, and returns its exit code.
pub async fn execute(command: ClientCommand) -> u8 {
    let (in_words, unread) = (command.failed(), command.unread());
    let ended = tokio::select! {
        biased;
        ended = dispatch(command) => ended,
        code = unread => Ok(code),
    };
    // The command has done its work, but its output is incomplete.
    let ended = ended.and_then(|code| stdout::failure().map_or(Ok(code), |lost| Err(lost.code(in_words))));
    ended.unwrap_or_else(|failure| {
        failure.print();
        failure.code
    })
}

async fn dispatch(command: ClientCommand) -> Result<u8, Failure> {
    match command {
        ClientCommand::Apply(args) => apply::run(args).await,
        ClientCommand::Delete(args) => delete::run(args).await,
        ClientCommand::Get(args) => get::run(args).await,
        ClientCommand::Ps(args) => get::run(args.allocs()).await,
        ClientCommand::Drift(args) => get::run(args.drift()).await,
        ClientCommand::Status(args) => status::run(args).await,
        ClientCommand::Explain(args) => explain::explain(args).await,
        ClientCommand::Describe(args) => explain::describe(args).await,
        ClientCommand::Logs(args) => logs::run(args).await,
        ClientCommand::Exec(args) => exec::run(args).await.map_err(Failure::not_the_tasks),
        ClientCommand::Fs(args) => fs::run(args).await,
        ClientCommand::Restart(args) => restart::restart(args).await,
        ClientCommand::Stop(args) => stop::stop(args).await,
        ClientCommand::Start(args) => stop::start(args).await,
        ClientCommand::Signal(args) => restart::signal(args).await,
        ClientCommand::Dispatch(args) => dispatch::run(args).await,
        ClientCommand::Job(args) => job::run(args).await,
        ClientCommand::Rollback(args) => rollback::run(args).await,
        ClientCommand::Scale(args) => scale::run(args).await,
        ClientCommand::Top(args) => top::run(args).await,
        ClientCommand::Ui(args) => ui::run(args).await,
        ClientCommand::Wait(args) => wait::run(args).await,
        ClientCommand::Promote(args) => deployments::promote(args).await,
        ClientCommand::Deployment(args) => deployments::run(args).await,
        ClientCommand::Gc(args) => gc::run(args).await,
        ClientCommand::Drain(args) => drain::drain(args).await,
        ClientCommand::Eligibility(args) => drain::eligibility(args).await,
        ClientCommand::Eval(args) => eval::run(args).await,
        ClientCommand::Var(args) => var::run(*args).await,
        ClientCommand::Checks(args) => checks::run(args).await,
        ClientCommand::Monitor(args) => monitor::run(args).await,
        ClientCommand::Diff(args) => diff::run(args).await.map_err(|failure| failure.code(failure::USAGE)),
        ClientCommand::Validate(args) => offline::validate(&args),
        ClientCommand::Convert(args) => convert::convert(&args),
        ClientCommand::Schema(args) => schema::schema(&args),
        ClientCommand::Simulate(args) => simulate::run(*args).await,
        ClientCommand::Doctor(args) => doctor::run(*args).await,
        ClientCommand::Config(args) => config::run(args),
        ClientCommand::Man(args) => man::man(&args),
        ClientCommand::Completions(args) => {
            show::out(&completions::script(args.shell));
            Ok(0)
        }
        ClientCommand::Version(args) => offline::version(&args),
    }
}
