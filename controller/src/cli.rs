//! The command line: its parser, and the commands that run tasks. [`client`] lists the commands for an agent,
//! [`execute()`] runs them. Most are in the crate `herdlet-cli`, which knows only the API of an agent; this module has those
//! that need more of the program.
//!
//! In: arguments, the environment. Out: a command, or the exit code of a wrong one.

mod client;
mod completions;
mod doctor;
mod execute;
mod man;
mod nomad;
mod simulate;
mod ui;
mod unknown;
mod words;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Args, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use herdlet_cli::{
    Connection, VariableArgs, apply::ApplyVerb, environment, failure, failure::Failure, here, one_off,
    one_off::OneOff, style,
};

pub use client::ClientCommand;
pub use execute::execute;
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
    let (args, verb) = match translation {
        Translation::Ours => (args, ApplyVerb::Apply),
        // Of Nomad's verbs, only `job run` is translated to `apply`.
        Translation::Translated(ours) => (ours, ApplyVerb::JobRun),
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
        Some("run" | "exec" | "action") => failure::AGENT_FAILED,
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
    let mut cli = settled.map_err(|failure| {
        failure.print();
        usage
    })?;
    if let Command::Client(command) = &mut cli.command
        && let ClientCommand::Apply(args) = &mut **command
    {
        args.verb = verb;
    }
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
