//! `herdlet doctor`: whether an agent can work well on this machine, and how to fix problems.
//!
//! In: the flags of an agent. Out: a line for each check, including whether an agent runs and answers. If one runs, its
//! state directory is checked, unless the flags or the config name another one. Nothing is changed.

use std::path::Path;

use clap::Args;
use herdlet_api_types::api::AgentStatus;
use herdlet_base::error::in_full;
use herdlet_cli::{
    Address, Client,
    failure::{FAILED, Failure, USAGE},
    output::{Output, Reader},
    show::{self, styled},
    style,
};
use herdlet_config::{Config, Flags, Surroundings, default_state_dir, host_name};
use serde::Serialize;

use crate::doctor::{self, Finding, Verdict};

/// Arguments of `herdlet doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    flags: Flags,
    /// Treat warnings as failures
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Report {
    /// Whether the exit code is 0.
    good: bool,
    checks: Vec<Finding>,
}

/// Exit code 0 if an agent can work here, 1 if it can't.
pub(super) async fn run(args: DoctorArgs) -> Result<u8, Failure> {
    let host = host_name();
    let surroundings = Surroundings::of_process(&host);
    let is_chosen = args.flags.state_dir.is_some();
    let config = Config::load(args.flags, &surroundings)
        .map_err(|error| Failure::new(format!("failed to {}", in_full(&error))).code(USAGE))?;
    let is_chosen = is_chosen || default_state_dir(&surroundings).as_ref() != Some(&config.state_dir);
    let (agent, status) = agent(&config).await;
    // Older agents don't report their state directory.
    let running = status.as_ref().map(|status| Path::new(&status.state_dir)).filter(|dir| dir.is_absolute());
    let in_use = running.filter(|running| !is_chosen || is_same(running, &config.state_dir));
    let mut checks = doctor::examine(&config, in_use).await;
    checks.push(agent);
    checks.extend(running.filter(|_| in_use.is_none()).map(|running| of_another(running, &config)));
    let worst = checks.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    let good = worst < if args.strict { Verdict::Warning } else { Verdict::Failure };
    match args.output.reader() {
        Reader::Person => checks.iter().for_each(print_finding),
        Reader::Program => args.output.document(&Report { good, checks })?,
    }
    Ok(if good { 0 } else { FAILED })
}

/// The agent at the socket uses another state directory than the one that was checked.
fn of_another(running: &Path, config: &Config) -> Finding {
    let (running, checked) = (running.display(), config.state_dir.display());
    Finding::warning(
        "agent",
        format!("it uses the state directory {running}; the checks above are for {checked}"),
        "to check the running agent, use its --state-dir; to check another one, use that agent's --socket as well",
    )
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// Checks a running agent, and returns its status. No running agent is fine, because this command is also for the time before.
async fn agent(config: &Config) -> (Finding, Option<AgentStatus>) {
    let socket = config.socket.display();
    if !config.socket.exists() {
        return (Finding::ok("agent", format!("no agent runs at {socket}")), None);
    }
    let asked = match Client::new(Address::Unix(config.socket.clone()), None) {
        Ok(client) => client.status().await,
        Err(error) => Err(error),
    };
    let finding = match &asked {
        Ok(status) if status.version == herdlet_api_types::api::VERSION => {
            Finding::ok("agent", format!("{} answers at {socket}", status.version))
        }
        Ok(status) => Finding::warning(
            "agent",
            format!(
                "{} answers at {socket}, this command is {}",
                status.version,
                herdlet_api_types::api::VERSION
            ),
            "restart the agent; its tasks continue",
        ),
        Err(error) => Finding::warning(
            "agent",
            format!("failed to query it: {error}"),
            "check its log; a socket that no agent serves is removed at the next start",
        ),
    };
    (finding, asked.ok())
}

fn print_finding(finding: &Finding) {
    let (style, word) = match finding.verdict {
        Verdict::Ok => (style::GOOD, "ok"),
        Verdict::Warning => (style::WARNING, "warning"),
        Verdict::Failure => (style::ERROR, "failure"),
    };
    // Padded before the colours are added.
    let verdict = styled(style, format!("{word:<7}"));
    show::out(&format!("{verdict}  {:<11}  {}\n", finding.check, finding.message));
    if let Some(hint) = &finding.hint {
        show::out(&format!("{:22}{}\n", "", styled(style::DIM, hint)));
    }
}
