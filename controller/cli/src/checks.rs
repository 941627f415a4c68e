//! `herdlet checks`: the last results of the checks of allocations in the built-in catalogue.

use clap::Args;
use herdlet_api_types::{UnixNanos, view::AllocView};
use serde::Serialize;

use super::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
    target::{self, Target},
};

/// Arguments of `herdlet checks`.
#[derive(Debug, Clone, Args)]
pub struct ChecksArgs {
    /// Jobs, groups, allocations or tasks
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    checks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    allocation: String,
    service: String,
    check: String,
    status: String,
    output: String,
    checked_at: UnixNanos,
}

pub async fn run(args: ChecksArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let targets = target::find_all(&client, &args.targets).await?;
    let of = |target: &Target| -> Vec<Row> {
        target.allocs.iter().flat_map(|view| rows(view, target.task.as_deref())).collect()
    };
    let checks: Vec<Row> = targets.iter().flat_map(of).collect();
    if args.output.reader() == Reader::Person {
        show::out(&table(&checks));
    }
    args.output.document(&Report { checks })?;
    Ok(0)
}

/// The results of an allocation; with `task`, those of that task's services.
fn rows(view: &AllocView, task: Option<&str>) -> Vec<Row> {
    let of_task = view.checks.iter().filter(|one| task.is_none_or(|task| one.task.as_deref() == Some(task)));
    let row = |one: &herdlet_api_types::service::CheckResult| Row {
        allocation: view.spec.title(),
        service: one.service.clone(),
        check: one.check.clone(),
        status: one.status.as_str().to_owned(),
        output: one.output.clone(),
        checked_at: one.at,
    };
    of_task.map(row).collect()
}

fn table(checks: &[Row]) -> String {
    if checks.is_empty() {
        return "there are no results of checks\n".to_owned();
    }
    let mut table = Table::new(&["ALLOC", "SERVICE", "CHECK", "STATUS", "SINCE", "OUTPUT"]);
    for one in checks {
        let first = one.output.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        table.row([
            one.allocation.clone(),
            one.service.clone(),
            one.check.clone(),
            one.status.clone(),
            show::age(one.checked_at),
            first.trim().to_owned(),
        ]);
    }
    table.render(Heading::Shown)
}
