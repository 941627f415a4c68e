//! `herdlet explain` and `describe`: what something is waiting for, and what comes next.

use clap::Args;
use herdlet_api_types::{
    UnixNanos, nomad,
    view::{AllocView, Explanation, Wait},
};

use super::{
    Connection,
    client::Client,
    failure::Failure,
    show::{self, styled},
    style,
    table::{Heading, Table, plain},
    target::{self, Target},
};

/// Arguments of `herdlet explain` and `herdlet describe`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// A job, an allocation, or a task
    target: String,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn explain(args: ExplainArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?;
    show_job(&client, &target).await?;
    for view in &target.allocs {
        show_explanation(view, &client.explain(view.spec.id).await?);
    }
    Ok(0)
}

pub(super) async fn describe(args: ExplainArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?;
    show_job(&client, &target).await?;
    for view in &target.allocs {
        show_alloc(view);
        for (_, task) in target.tasks().filter(|(alloc, _)| alloc.spec.id == view.spec.id) {
            show_task(task);
        }
        show_explanation(view, &client.explain(view.spec.id).await?);
    }
    Ok(0)
}

/// The job's own verdict: what its allocations don't know, for instance that a port can't be had.
async fn show_job(client: &Client, target: &Target) -> Result<(), Failure> {
    let Some(key) = &target.job else { return Ok(()) };
    if let Some(view) = client.jobs().await?.into_iter().find(|view| view.key == *key) {
        let verdict = styled(style::of(view.convergence.state), show::convergence(&view.convergence));
        let since = show::age(view.convergence.since);
        show::out(&format!(
            "{} version {}: {verdict} (for {since})\n",
            styled(style::HEADING, key),
            view.version
        ));
    }
    Ok(())
}

fn show_explanation(view: &AllocView, explanation: &Explanation) {
    let verdict = styled(style::of(view.convergence.state), show::convergence(&view.convergence));
    let goal = &explanation.goal;
    show::out(&format!("{} {}: goal {goal}, {verdict}\n", explanation.name, view.spec.id.short()));
    for wait in &explanation.waits {
        show::out(&format!("  {}\n", wait_line(wait)));
    }
    match explanation.wake_at {
        Some(at) => show::out(&format!("  next look in {}\n", show::ahead(at))),
        None if explanation.waits.is_empty() => show::out("  nothing to do until something changes\n"),
        None => show::out("  next look when one of these ends\n"),
    }
}

fn wait_line(wait: &Wait) -> String {
    let mut line = format!("{}: {} [{}]", wait.part, plain(&wait.message), wait.reason.as_str());
    if let Some(since) = wait.since {
        line.push_str(&format!(", for {}", show::age(since)));
    }
    if let Some(until) = wait.until {
        line.push_str(&format!(", until in {}", show::ahead(until)));
    }
    line
}

fn show_alloc(view: &AllocView) {
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            facts.row([format!("  {name}"), value]);
        }
    };
    let time = |at: UnixNanos| nomad::rfc3339(at).unwrap_or_default();
    let ports =
        view.spec.ports.iter().map(|(label, port)| format!("{label}={}:{}", port.host_ip, port.value));
    fact("id", view.spec.id.to_string());
    fact("version", view.spec.job_version.to_string());
    fact("status", format!("{} ({})", view.status.as_str(), view.description));
    fact("healthy", view.healthy.map(|healthy| healthy.to_string()).unwrap_or_default());
    fact("created", time(view.spec.create_time));
    fact("ports", ports.collect::<Vec<_>>().join(" "));
    fact("replaces", view.spec.previous.map(|id| id.to_string()).unwrap_or_default());
    for check in &view.checks {
        fact(
            "check",
            format!("{}/{} {}: {}", check.service, check.check, check.status.as_str(), check.output),
        );
    }
    show::out(&format!("{}\n{}", styled(style::HEADING, view.spec.name()), facts.render(Heading::Hidden)));
}

fn show_task(task: &herdlet_api_types::view::TaskView) {
    let restarts = task.restarts;
    show::out(&format!("  task {}: {}, {restarts} restarts\n", task.name, show::phase(task)));
    let mut events = Table::new(&["", "", ""]);
    for event in &task.events {
        let at = nomad::rfc3339(event.time).unwrap_or_default();
        events.row([format!("    {at}"), event.kind.as_str().to_owned(), event.message.clone()]);
    }
    show::out(&events.render(Heading::Hidden));
}
