//! `herdlet eval`: the evaluations of changes, as Nomad has them.

use clap::Args;
use herdlet_api_types::UnixNanos;
use serde::Serialize;
use serde_json::Value;

use super::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// A prefix of the id of an evaluation [default: list all]
    id: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    evaluations: Vec<Value>,
}

pub async fn run(args: EvalArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let mut evaluations = client.evaluations().await?;
    if let Some(id) = &args.id {
        evaluations.retain(|one| one["ID"].as_str().is_some_and(|known| known.starts_with(id.as_str())));
        if evaluations.is_empty() {
            return Err(
                Failure::new(format!("there is no evaluation {id:?}")).hint("list them: herdlet eval")
            );
        }
    }
    if args.output.reader() == Reader::Person {
        match (&args.id, evaluations.as_slice()) {
            (Some(_), [one]) => show::out(&details(one)),
            (_, all) => show::out(&table(all)),
        }
    }
    args.output.document(&Report { evaluations })?;
    Ok(0)
}

fn text(one: &Value, field: &str) -> String {
    one[field].as_str().unwrap_or_default().to_owned()
}

fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

fn table(all: &[Value]) -> String {
    let mut table = Table::new(&["ID", "JOB", "TRIGGERED BY", "STATUS", "PLACED ALL", "AGE"]);
    // Newest first.
    for one in all.iter().rev() {
        let placed =
            if one["FailedTGAllocs"].is_null() && text(one, "Status") != "blocked" { "yes" } else { "no" };
        table.row([
            short(&text(one, "ID")),
            text(one, "JobID"),
            text(one, "TriggeredBy"),
            text(one, "Status"),
            placed.to_owned(),
            show::age(UnixNanos(one["CreateTime"].as_i64().unwrap_or_default())),
        ]);
    }
    if table.is_empty() { "there are no evaluations\n".to_owned() } else { table.render(Heading::Shown) }
}

fn details(one: &Value) -> String {
    let mut shown = String::new();
    for (name, field) in [
        ("evaluation", "ID"),
        ("job", "JobID"),
        ("namespace", "Namespace"),
        ("triggered by", "TriggeredBy"),
        ("status", "Status"),
        ("why", "StatusDescription"),
        ("waits until", "WaitUntil"),
        ("deployment", "DeploymentID"),
        ("blocked evaluation", "BlockedEval"),
    ] {
        let value = text(one, field);
        if !value.is_empty() {
            shown.push_str(&format!("{:<20}{value}\n", format!("{name}:")));
        }
    }
    for (group, why) in one["FailedTGAllocs"].as_object().into_iter().flatten() {
        let names_in =
            |field: &str| why[field].as_object().into_iter().flatten().map(|(name, _)| name.clone());
        let reasons: Vec<String> =
            names_in("ConstraintFiltered").chain(names_in("DimensionExhausted")).collect();
        let reasons =
            if reasons.is_empty() { "the node takes nothing".to_owned() } else { reasons.join("; ") };
        shown.push_str(&format!("not placed: group {group}: {reasons}\n"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn evaluation_lists_unplaced_groups_with_reasons() {
        let eval = json!({
            "ID": "0123456789", "JobID": "web", "TriggeredBy": "job-register", "Status": "complete",
            "FailedTGAllocs": { "front": { "DimensionExhausted": { "memory": 1 } } },
        });
        assert!(details(&eval).contains("not placed: group front: memory\n"), "{}", details(&eval));
        let row = table(&[eval]);
        assert!(row.lines().nth(1).is_some_and(|row| row.starts_with("01234567  web")), "{row}");
    }
}
