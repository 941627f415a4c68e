//! `herdlet diff`: what an apply would change, found by comparing canonical jobs.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::{
    Connection,
    failure::{FAILED, Failure, USAGE},
    show::{self, styled},
    style,
};
use crate::desired::manifests::{self, Drivers};

/// Arguments of `herdlet diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

/// 0 where nothing would change, 1 where something would, 2 for errors.
pub(super) async fn run(args: DiffArgs) -> Result<u8, Failure> {
    let set = manifests::load(&args.files, &Drivers::built_in());
    let set = set.map_err(|problems| Failure::new(problems.to_string()).code(USAGE))?;
    let client = args.connection.client()?;
    let (jobs, volumes) = tokio::try_join!(client.jobs(), client.volumes())?;
    let mut text = String::new();
    for loaded in &set.volumes {
        let wanted = &loaded.object;
        let known = volumes.iter().find(|view| view.spec.name == wanted.name).map(|view| value(&*view.spec));
        text.push_str(&changes(&format!("volume/{}", wanted.name), known.as_ref(), &value(wanted)));
    }
    for loaded in &set.jobs {
        let key = loaded.object.key();
        let known = jobs.iter().find(|view| view.key == key).filter(|view| !view.deleting);
        let known = known.map(|view| value(&*view.job));
        text.push_str(&changes(&format!("job/{key}"), known.as_ref(), &value(&loaded.object)));
    }
    show::out(&text);
    Ok(if text.is_empty() { 0 } else { FAILED })
}

fn value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// What changes of one object, a line per field; nothing where nothing does.
fn changes(name: &str, known: Option<&Value>, wanted: &Value) -> String {
    let Some(known) = known else { return format!("{}\n", styled(style::GOOD, format!("+ {name}"))) };
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    flatten("", known, &mut before);
    flatten("", wanted, &mut after);
    let mut lines = String::new();
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let line = match (before.get(path), after.get(path)) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(old), Some(new)) => styled(style::WARNING, format!("  ~ {path}: {old} → {new}")),
            (Some(old), None) => styled(style::ERROR, format!("  - {path}: {old}")),
            (None, Some(new)) => styled(style::GOOD, format!("  + {path}: {new}")),
            (None, None) => continue,
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    if lines.is_empty() { lines } else { format!("{}\n{lines}", styled(style::WARNING, format!("~ {name}"))) }
}

/// Every leaf under its path. Items of lists are found by their name where they have one, so that order hides no change.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| flatten(&below(name), value, into));
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                let step = name.map_or_else(|| index.to_string(), ToOwned::to_owned);
                flatten(&format!("{path}[{step}]"), item, into);
            }
        }
        Value::Null => {}
        Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            into.insert(path.to_owned(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn changes_are_told_field_by_field_and_order_is_none() {
        let known = json!({ "n": 1, "tasks": [{ "name": "a", "cpu": 1 }, { "name": "b" }], "old": "x", "none": null });
        let wanted = json!({ "n": 1, "tasks": [{ "name": "b" }, { "name": "a", "cpu": 2 }], "new": [1] });
        assert_eq!(
            plain(&changes("job/web", Some(&known), &wanted)),
            "~ job/web\n  + new[0]: 1\n  - old: \"x\"\n  ~ tasks[a].cpu: 1 → 2\n"
        );
        assert_eq!(changes("job/web", Some(&known), &known), "");
        assert_eq!(plain(&changes("job/web", None, &known)), "+ job/web\n");
    }
}
