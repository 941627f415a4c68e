//! The text of a change, for people.

use serde_json::Value;

use super::{
    Change, ChangeKind,
    fields::FieldChange,
    groups::{GroupChange, GroupKind},
};
use crate::{show::styled, style, table::plain};

/// A change as text: a line for the object, and one for each field.
pub(super) fn lines(change: &Change) -> String {
    let object = &change.object;
    let mut lines = match change.change {
        ChangeKind::Create => styled(style::GOOD, format!("+ {object}")),
        ChangeKind::Update => styled(style::WARNING, format!("~ {object}")),
        ChangeKind::Delete => styled(style::ERROR, format!("- {object}")),
    };
    lines.push('\n');
    for FieldChange { path, before, after } in &change.fields {
        let line = match (before, after) {
            (Some(old), Some(new)) => {
                styled(style::WARNING, format!("  ~ {path}: {} → {}", written(old), written(new)))
            }
            (Some(old), None) => styled(style::ERROR, format!("  - {path}: {}", written(old))),
            (None, Some(new)) => styled(style::GOOD, format!("  + {path}: {}", written(new))),
            (None, None) => continue,
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    for GroupChange { group, change, more, canaries, at_a_time, because } in &change.groups {
        let canaries = match canaries {
            0 => String::new(),
            1 => ", 1 canary first".to_owned(),
            more => format!(", {more} canaries first"),
        };
        let pace = match (change, at_a_time) {
            (GroupKind::Replace, Some(count)) => format!(", {count} at a time"),
            (GroupKind::Replace, None) => ", all at once (it has no `update`)".to_owned(),
            (GroupKind::Nothing | GroupKind::InPlace | GroupKind::Create | GroupKind::Stop, _) => {
                String::new()
            }
        };
        let because =
            if because.is_empty() { String::new() } else { format!(", because of {}", because.join(", ")) };
        let what = format!("{}{canaries}{pace}{because}", change.as_str());
        let description = match (*more, change) {
            (0, _) => what,
            (count, GroupKind::Create) => format!("{what} {count}"),
            (more, GroupKind::Nothing) => added(more),
            (more, _) => format!("{what}, {}", added(more)),
        };
        lines.push_str(&format!("  group {group}: {description}\n"));
    }
    for (group, why) in &change.unplaced {
        let line = format!("  group {group} would wait: {}", plain(&why.message));
        lines.push_str(&styled(style::WARNING, line));
        lines.push('\n');
    }
    if let Some(at) = &change.next_launch {
        lines.push_str(&format!("  next launch: {at}\n"));
    }
    lines
}

fn added(more: i64) -> String {
    if more < 0 { format!("{} fewer", more.unsigned_abs()) } else { format!("{more} more") }
}

/// A value as in YAML: without quotes if none are needed.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(['\n', '"', ' ']) => plain(text),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => value.to_string(),
    }
}
