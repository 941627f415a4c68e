//! Executes the commands for an agent, and offline ones.
//!
//! In: a command with its arguments. Out: its exit code, after its failure is printed. A command that only prints ends
//! when its output has no reader.

use herdlet_cli::{
    action, apply, checks, config, convert, delete, deployments, diff, dispatch, drain, eval, exec, explain,
    failure, failure::Failure, fs, gc, get, identity, images, job, logs, monitor, offline, restart, rollback,
    scale, schema, show, status, stdout, stop, template, top, var, vault, wait,
};

use super::{ClientCommand, completions, doctor, man, simulate, ui};

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
        ClientCommand::Action(args) => action::run(args).await.map_err(Failure::not_the_tasks),
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
        ClientCommand::Images(args) => images::run(args).await,
        ClientCommand::Drain(args) => drain::drain(args).await,
        ClientCommand::Eligibility(args) => drain::eligibility(args).await,
        ClientCommand::Eval(args) => eval::run(args).await,
        ClientCommand::Var(args) => var::run(*args).await,
        ClientCommand::Identity(args) => identity::run(*args).await,
        ClientCommand::Vault(args) => vault::run(args).await,
        ClientCommand::Checks(args) => checks::run(args).await,
        ClientCommand::Monitor(args) => monitor::run(args).await,
        ClientCommand::Diff(args) => diff::run(args).await.map_err(|failure| failure.code(failure::USAGE)),
        ClientCommand::Validate(args) => offline::validate(&args, &crate::drivers::of_manifests()),
        ClientCommand::Convert(args) => convert::convert(&args),
        ClientCommand::Schema(args) => schema::schema(&args),
        ClientCommand::Template(args) => template::run(&args).await,
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

impl ClientCommand {
    /// The exit code of a failure.
    fn failed(&self) -> u8 {
        if matches!(self, Self::Exec(_) | Self::Action(_)) {
            failure::AGENT_FAILED
        } else if matches!(self, Self::Diff(_) | Self::Validate(_)) {
            failure::USAGE
        } else {
            failure::FAILED
        }
    }

    /// Resolves with the exit code when the output has no reader and the command has nothing else to do.
    fn unread(&self) -> impl Future<Output = u8> + use<> {
        let is_exec = matches!(self, Self::Exec(_) | Self::Action(_));
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
}
