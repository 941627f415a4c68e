//! `herdlet gc`: collects what has ended, or lists it with `--dry-run`.
//!
//! In: the agent's list of ended objects. Out: a line for each, with the reason.

use clap::Args;
use herdlet_api_types::gc::Collectable;
use serde::Serialize;

use super::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet gc`.
#[derive(Debug, Clone, Args)]
pub struct GcArgs {
    /// Only list what can be collected, and when and why the agent does so by itself
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    /// Whether they are being collected now.
    collected: bool,
    items: Vec<Collectable>,
}

pub async fn run(args: GcArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let items = if args.dry_run { client.ended().await? } else { client.collect().await? };
    if args.output.reader() == Reader::Person {
        let collection = if args.dry_run { Collection::Preview } else { Collection::Begun };
        show::out(&summary(&items, collection));
    }
    args.output.document(&Report { collected: !args.dry_run, items })?;
    Ok(0)
}

/// Whether the listed objects are being collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collection {
    /// They would be.
    Preview,
    Begun,
}

fn summary(items: &[Collectable], collection: Collection) -> String {
    if items.is_empty() {
        return "there is nothing to collect\n".to_owned();
    }
    let mut table = Table::new(&["KIND", "NAME", "ID", "ENDED", "WHY"]);
    for item in items {
        let Collectable { kind, name, id, ended_at, due, message, .. } = item;
        let id: String = id.chars().take(if name == id { 0 } else { 8 }).collect();
        let why = match due {
            Some(_) if collection == Collection::Preview => format!("now: {message}"),
            Some(_) | None => message.clone(),
        };
        table.row([kind.as_str().to_owned(), name.clone(), id, show::age(*ended_at), why]);
    }
    let mut text = table.render(Heading::Shown);
    if collection == Collection::Begun {
        let are = if items.len() == 1 { "is" } else { "are" };
        text.push_str(&format!("{} {are} being collected\n", items.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        UnixNanos,
        gc::{CollectableKind, Due},
    };

    use super::*;

    fn item(kind: CollectableKind, name: &str, id: &str, due: Option<Due>) -> Collectable {
        Collectable {
            kind,
            namespace: "default".to_owned(),
            name: name.to_owned(),
            id: id.to_owned(),
            ended_at: UnixNanos(0),
            failed: false,
            due,
            message: "stays".to_owned(),
        }
    }

    #[test]
    fn due_objects_are_marked_in_a_dry_run() {
        let items = [
            item(CollectableKind::Job, "backup", "backup", Some(Due::Age)),
            item(CollectableKind::Alloc, "web.g[0]", "01234567-89ab", None),
        ];
        let lines: Vec<String> = summary(&items, Collection::Preview).lines().map(str::to_owned).collect();
        assert!(lines[1].starts_with("job    backup ") && lines[1].ends_with("now: stays"), "{lines:?}");
        assert!(
            lines[2].starts_with("alloc  web.g[0]  01234567  ") && lines[2].ends_with("  stays"),
            "{lines:?}"
        );
        assert!(summary(&items, Collection::Begun).ends_with("2 are being collected\n"));
        assert_eq!(summary(&[], Collection::Preview), "there is nothing to collect\n");
    }
}
