//! `herdlet restart` and `herdlet signal`.
//!
//! In: names of jobs, allocations or tasks. Out: a request for each of their allocations. A failed allocation has nothing to
//! restart: it is stopped, so that its job creates another one.

use clap::Args;
use herdlet_api_types::view::AllocView;
use herdlet_base::signal;

use super::{
    Connection,
    client::{EndFlags, RestartScope},
    failure::{Failure, USAGE},
    output::Output,
    round::{Report, Round},
    selection::{Absent, SelectorFlag},
    stop::RETRIED,
    target::{self, Target},
    wait::WaitFlags,
};

/// Arguments of `herdlet restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// Jobs, allocations, or tasks
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// Only this task
    #[arg(long, conflicts_with = "all")]
    task: Option<String>,
    /// All tasks, including dead ones, in lifecycle order [default: the running ones]
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet signal`.
#[derive(Debug, Clone, Args)]
pub struct SignalArgs {
    /// Jobs, allocations, or tasks; the last may be the signal: herdlet signal web HUP
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// Signal to send, by name or number [default: SIGHUP]
    #[arg(short, long, value_name = "SIGNAL")]
    signal: Option<String>,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

pub async fn restart(args: RestartArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let names = limit.within("find it", args.selector.targets(&client, args.targets, Absent::Wrong)).await?;
    let found = limit.within("find it", target::find_all(&client, &names)).await?;
    let mut chosen = Vec::new();
    for (name, target) in names.iter().zip(found) {
        let target = target.only(args.task.clone())?;
        if target.task.is_some() && args.all {
            return Err(Failure::new("a task cannot be named together with --all").code(USAGE));
        }
        let reach = if args.all { RestartScope::All } else { RestartScope::Running };
        let allocs = restartable(&target, &reach);
        if allocs.is_empty() {
            return Err(match args.all {
                true => Failure::new(format!("{name} has ended; apply it again to start it")),
                false => target.nothing_runs(name),
            });
        }
        chosen.extend(allocs.into_iter().map(|view| (view.clone(), target.task.clone())));
    }
    let round = Round {
        client: &client,
        limit,
        wait: &args.wait,
        output: args.output,
        what: "restart it",
        outcome: |view| if target::can_be_retried(view) { RETRIED } else { "restarting" },
        replaced: chosen.iter().any(|(view, _)| target::can_be_retried(view)),
    };
    let scope = |task: Option<&str>| match (task, args.all) {
        (Some(task), _) => RestartScope::Task(task.to_owned()),
        (None, true) => RestartScope::All,
        (None, false) => RestartScope::Running,
    };
    round
        .of(&chosen, async |view, task| match target::can_be_retried(view) {
            true => client.stop_alloc(view.spec.id, EndFlags::default()).await,
            false => client.restart(view.spec.id, &scope(task)).await,
        })
        .await
}

/// The allocations of a target that can be restarted or replaced. [`RestartScope::All`] includes dead tasks of live ones.
fn restartable<'t>(target: &'t Target, scope: &RestartScope) -> Vec<&'t AllocView> {
    let restarts = |view: &AllocView| match scope {
        RestartScope::All => !view.status.is_terminal(),
        RestartScope::Running | RestartScope::Task(_) => target::is_running(view),
    };
    target.allocs.iter().filter(|view| restarts(view) || target::can_be_retried(view)).collect()
}

pub async fn signal(args: SignalArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let least = if args.selector.is_given() { 0 } else { 1 };
    let (targets, signal) = targets_and_signal(args.targets, args.signal, least);
    let names = args.selector.targets(&client, targets, Absent::Wrong).await?;
    let mut chosen = Vec::new();
    let found =
        target::find_all(&client, &names).await.map_err(|failure| or_unknown_signal(failure, &names))?;
    for (name, target) in names.iter().zip(found) {
        let target = target.only(args.task.clone())?;
        // Includes pending allocations: one counts as pending during its `shutdown_delay`.
        let live: Vec<&AllocView> = target.allocs.iter().filter(|view| !view.status.is_terminal()).collect();
        let live = if live.is_empty() { target.running(name)? } else { live };
        chosen.extend(live.into_iter().map(|view| (view.clone(), target.task.clone())));
    }
    let mut report = Report::default();
    let touched = async {
        for (view, task) in &chosen {
            client.signal(view.spec.id, task.as_deref(), &signal).await?;
            report.add(view, task.as_deref(), "signalled", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
}

/// A last name in capital letters that names no target was meant as a signal.
fn or_unknown_signal(failure: Failure, names: &[String]) -> Failure {
    match names {
        [_, .., last]
            if failure.to_string().contains(&format!("{last:?}"))
                && !last.contains(|char: char| char.is_lowercase()) =>
        {
            Failure::new(format!("unknown signal {last:?}, and no job or allocation has this name"))
                .hint("name one as in `kill -l`, with or without SIG: herdlet signal web HUP")
        }
        _ => failure,
    }
}

/// The default signal. Nomad's is SIGKILL, which would end the task.
const DEFAULT: &str = "SIGHUP";

/// The targets, and the signal in its full form. Without `--signal`, what follows the first `least` names may be the signal.
fn targets_and_signal(mut names: Vec<String>, given: Option<String>, least: usize) -> (Vec<String>, String) {
    let last = names.last().filter(|last| names.len() > least && signal::parse(last).is_ok()).cloned();
    let chosen = match (given, last) {
        (Some(given), _) => given,
        (None, Some(last)) => {
            names.pop();
            last
        }
        (None, None) => DEFAULT.to_owned(),
    };
    (names, signal::full_name(&chosen))
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::alloc::ClientStatus;
    use herdlet_manifest::fixture::{alloc_view, job};

    use super::*;

    #[test]
    fn the_signal_may_follow_the_targets() {
        let parsed = |names: &[&str], given: Option<&str>, least| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let (names, signal) = targets_and_signal(names, given.map(str::to_owned), least);
            (names.join(" "), signal)
        };
        let expected = |names: &str, signal: &str| (names.to_owned(), signal.to_owned());
        assert_eq!(parsed(&["web"], None, 1), expected("web", "SIGHUP"));
        assert_eq!(parsed(&["web", "HUP"], None, 1), expected("web", "SIGHUP"));
        assert_eq!(parsed(&["web", "db", "usr1"], None, 1), expected("web db", "SIGUSR1"));
        assert_eq!(parsed(&["web", "15"], None, 1), expected("web", "SIGTERM"));
        assert_eq!(parsed(&["web", "SIGRTMIN+3"], None, 1), expected("web", "SIGRTMIN+3"));
        assert_eq!(parsed(&["term"], None, 1), expected("term", "SIGHUP"), "a job with the name of a signal");
        assert_eq!(parsed(&["term"], None, 0), expected("", "SIGTERM"), "jobs are selected by labels");
        assert_eq!(parsed(&["web", "hup"], Some("9"), 1), expected("web hup", "SIGKILL"));
    }

    // "there is no job or allocation "NOSIG"" did not mention signals.
    #[test]
    fn a_last_name_in_capitals_is_an_unknown_signal() {
        let text = |names: &[&str], missing: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let failure = Failure::new(format!("there is no job or allocation {missing:?}"));
            or_unknown_signal(failure, &names).to_string()
        };
        assert!(text(&["web", "NOSIG"], "NOSIG").starts_with("unknown signal \"NOSIG\""));
        assert_eq!(text(&["web", "db"], "db"), "there is no job or allocation \"db\"");
        assert_eq!(text(&["NOSIG"], "NOSIG"), "there is no job or allocation \"NOSIG\"");
        assert_eq!(text(&["web", "NOSIG"], "web"), "there is no job or allocation \"web\"");
    }

    /// A failed allocation could only be replaced by a change of its job.
    #[test]
    fn restart_chooses_failed_and_running_allocations() {
        let web = job("web", "g", "t");
        let with_status = |index, status| {
            let mut view = alloc_view(&web, index, 1);
            view.status = status;
            view
        };
        let allocs = vec![
            with_status(0, ClientStatus::Running),
            with_status(1, ClientStatus::Failed),
            with_status(2, ClientStatus::Complete),
        ];
        let target = Target { job: Some(web.key()), allocs, task: None };
        for scope in [RestartScope::Running, RestartScope::All] {
            let chosen = restartable(&target, &scope);
            assert_eq!(chosen.iter().map(|view| view.spec.index).collect::<Vec<_>>(), [0, 1], "{scope:?}");
        }
    }
}
