//! `herdlet drain` and `herdlet eligibility`: whether this node takes new allocations, and the end of those that it has.
//!
//! In: flags with Nomad's names. Out: a line for each change; a drain is followed to its end.

use clap::Args;
use herdlet_api_types::parse_duration;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Connection,
    client::Client,
    failure::{Failure, USAGE},
    output::Output,
};

/// The deadline of a drain, as in Nomad.
const DEADLINE: &str = "1h";

/// Arguments of `herdlet drain`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct DrainArgs {
    /// The id or name of this node, as in Nomad; it is the only one
    #[arg(hide = true)]
    node: Option<String>,
    /// End the drain; the node takes new allocations again
    #[arg(long, conflicts_with_all = ["deadline", "no_deadline", "force", "ignore_system"])]
    disable: bool,
    /// With --disable: the node stays ineligible
    #[arg(long, requires = "disable")]
    keep_ineligible: bool,
    /// Stop all remaining allocations after this time
    #[arg(long, value_name = "TIME", default_value = DEADLINE)]
    deadline: String,
    /// Wait for batch jobs without a limit
    #[arg(long, conflicts_with_all = ["deadline", "force"])]
    no_deadline: bool,
    /// Stop all allocations at once
    #[arg(long, conflicts_with = "deadline")]
    force: bool,
    /// Let allocations of system jobs run on
    #[arg(long)]
    ignore_system: bool,
    /// Return at once instead of waiting for the end of the drain
    #[arg(long)]
    detach: bool,
    /// Only follow the drain in progress
    #[arg(long, conflicts_with_all = ["disable", "force", "no_deadline", "ignore_system", "detach"])]
    monitor: bool,
    /// A note that is stored with the drain
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    /// Further notes
    #[arg(long = "meta", value_name = "KEY=VALUE")]
    meta: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet eligibility`.
#[derive(Debug, Clone, Args)]
pub struct EligibilityArgs {
    /// The id or name of this node, as in Nomad; it is the only one
    #[arg(hide = true)]
    node: Option<String>,
    /// The node takes new allocations
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// The node takes no new allocations; those that run continue
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    node: String,
    eligibility: String,
    /// `draining`, `complete` or `canceled`; none if the node was never drained.
    drain: Option<String>,
}

impl Report {
    fn of(node: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            node: text(&node["ID"]),
            eligibility: text(&node["SchedulingEligibility"]),
            drain: node["LastDrain"]["Status"].as_str().map(str::to_owned),
        }
    }
}

pub async fn drain(args: DrainArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let node = this_node(&client, args.node.as_deref()).await?;
    if !args.monitor {
        let (spec, meta) = (args.spec()?, args.notes()?);
        let mark_eligible = args.disable && !args.keep_ineligible;
        let body = json!({ "DrainSpec": spec, "MarkEligible": mark_eligible, "Meta": meta });
        client.update_node(&node.node, "drain", &body).await?;
        let done = if args.disable { "its drain has ended" } else { "it is being drained" };
        args.output.line(&format!("node {}: {done}", short(&node.node)));
    }
    if !args.disable && !args.detach {
        follow(&client, &args).await?;
    }
    args.output.document(&Report::of(&client.node().await?))?;
    Ok(0)
}

/// Waits for the end of the drain.
async fn follow(client: &Client, args: &DrainArgs) -> Result<(), Failure> {
    let mut index = 0;
    let mut left = None;
    loop {
        index = client.changed(index).await?;
        let node = client.node().await?;
        let allocs = client.allocs().await?;
        let live = allocs.iter().filter(|view| !view.status.is_terminal()).count();
        if node["DrainStrategy"].is_null() {
            args.output.line(&ended_text(node["LastDrain"]["Status"].as_str(), live));
            return Ok(());
        }
        if left.replace(live) != Some(live) {
            args.output.line(&live_text(live));
        }
    }
}

fn ended_text(last: Option<&str>, live: usize) -> String {
    match last {
        Some(status) => format!("the drain has ended: {status}; {}", live_text(live)),
        None => "no drain is in progress; to begin one: herdlet drain".to_owned(),
    }
}

fn live_text(live: usize) -> String {
    if live == 1 {
        "1 allocation has not ended".to_owned()
    } else {
        format!("{live} allocations have not ended")
    }
}

pub async fn eligibility(args: EligibilityArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let node = this_node(&client, args.node.as_deref()).await?;
    let wanted = match (args.enable, args.disable) {
        (true, _) => Some("eligible"),
        (false, true) => Some("ineligible"),
        (false, false) => None,
    };
    if let Some(wanted) = wanted {
        client.update_node(&node.node, "eligibility", &json!({ "Eligibility": wanted })).await?;
    }
    let now = Report::of(&client.node().await?);
    args.output.line(&format!("node {} is {}", short(&now.node), now.eligibility));
    args.output.document(&now)?;
    Ok(0)
}

async fn this_node(client: &Client, named: Option<&str>) -> Result<Report, Failure> {
    let node = client.node().await?;
    let is_named = |text: &str| {
        node["ID"].as_str().is_some_and(|id| id.starts_with(text)) || node["Name"].as_str() == Some(text)
    };
    match named {
        Some(other) if !is_named(other) => {
            let message = format!("there is no node {other:?}: this agent has only node {}", node["ID"]);
            Err(Failure::new(message).code(USAGE))
        }
        Some(_) | None => Ok(Report::of(&node)),
    }
}

impl DrainArgs {
    /// Nomad's specification: a deadline in nanoseconds, negative for at once and 0 for none.
    fn spec(&self) -> Result<Option<Value>, Failure> {
        if self.disable {
            return Ok(None);
        }
        let failure = |why: String| Failure::new(format!("--deadline: {why}")).code(USAGE);
        let deadline = match (self.force, self.no_deadline) {
            (true, _) => -1,
            (false, true) => 0,
            (false, false) => parse_duration(&self.deadline).map_err(|error| failure(error.to_string()))?,
        };
        if deadline <= 0 && !self.force && !self.no_deadline {
            return Err(failure("it must be longer than 0; to stop all at once: --force".to_owned()));
        }
        Ok(Some(json!({ "Deadline": deadline, "IgnoreSystemJobs": self.ignore_system })))
    }

    fn notes(&self) -> Result<Value, Failure> {
        let mut notes = serde_json::Map::new();
        for note in &self.meta {
            let (key, value) = note
                .split_once('=')
                .ok_or_else(|| Failure::new(format!("--meta {note:?}: it must be KEY=VALUE")).code(USAGE))?;
            notes.insert(key.to_owned(), value.into());
        }
        if let Some(message) = &self.message {
            let key = if self.disable { "cancel_message" } else { "message" };
            notes.insert(key.to_owned(), message.as_str().into());
        }
        Ok(Value::Object(notes))
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_never_was_has_not_ended() {
        assert_eq!(ended_text(None, 3), "no drain is in progress; to begin one: herdlet drain");
        assert_eq!(
            ended_text(Some("complete"), 1),
            "the drain has ended: complete; 1 allocation has not ended"
        );
    }
}
