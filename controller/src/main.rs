//! The binary: parses the command line, sets up what every command needs, and dispatches.

use std::{process::ExitCode, time::Duration};

use herdlet::{
    cli::{self, Command},
    guard, run, serve,
};
use herdlet_agent::{malloc, telemetry::logs};

/// How long tasks of the runtime that can't be cancelled (a commit on a hung disk) may delay the exit.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    malloc::use_one_heap();
    let command = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli.command,
        Err(code) => return code.into(),
    };
    // Before the runtime, because this process has one thread and drops its privileges.
    if let Command::Unpack(args) = &command {
        return herdlet_unpack::execute(&args.order).into();
    }
    if matches!(command, Command::Agent(_) | Command::Run(_)) {
        malloc::close_to_others();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            herdlet_base::stderr_line!("herdlet: failed to start: {error}");
            return 1.into();
        }
    };
    // Spawning blocking work panics if the pool has no thread and can't create one (a limit of processes). With one busy thread,
    // the work waits until another one can be created (`herdlet_runtime::off_thread`).
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
    if matches!(command, Command::Agent(_) | Command::Run(_)) {
        runtime.spawn_blocking(move || ended.recv());
    }
    let code = runtime.block_on(execute(command));
    drop(end);
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    code.into()
}

async fn execute(command: Command) -> u8 {
    match command {
        Command::Agent(flags) => serve::run_agent(*flags).await,
        Command::Run(args) => {
            init_logs();
            if !args.command.is_empty() {
                return cli::run_command(*args).await;
            }
            let args = *args;
            let variables = match args.variables.collect() {
                Ok(variables) => variables,
                Err(code) => return code,
            };
            run::run(run::RunOptions {
                files: args.files,
                variables,
                state_dir: args.state_dir,
                cgroup_parent: args.cgroup_parent,
                task_dir_users: args.task_dir_users,
            })
            .await
        }
        Command::Guard(args) => {
            init_logs();
            guard::execute(&args.charge).await
        }
        Command::Unpack(args) => herdlet_unpack::execute(&args.order),
        Command::Client(command) => {
            init_logs();
            cli::execute(*command).await
        }
    }
}

fn init_logs() {
    if let Err(error) = logs::init_for_command() {
        herdlet_base::stderr_line!("herdlet: failed to {error}");
    }
}
