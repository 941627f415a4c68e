//! Variables as text: as a table, in JSON and in HCL, which `herdlet var put` reads again.

use std::io::{IsTerminal as _, stdout};

use clap::ValueEnum;
use herdlet_api_types::{UnixNanos, rfc3339::rfc3339, variable::Variable};

use crate::{failure::Failure, show, table::plain};

/// The format of a printed variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutForm {
    Table,
    Hcl,
    Json,
    None,
}

pub(super) fn is_terminal() -> bool {
    stdout().is_terminal()
}

pub(super) fn print(variable: &Variable, form: OutForm) -> Result<(), Failure> {
    match form {
        OutForm::Table => show::out(&table(variable)),
        OutForm::Hcl => show::print_data(&hcl(variable)),
        OutForm::Json => show::json(variable)?,
        OutForm::None => {}
    }
    Ok(())
}

fn table(variable: &Variable) -> String {
    let metadata = &variable.metadata;
    let mut lines = vec![
        format!("Namespace   = {}", metadata.namespace),
        format!("Path        = {}", metadata.path),
        format!("Create Time = {}", time(metadata.create_time)),
    ];
    if metadata.create_time != metadata.modify_time {
        lines.push(format!("Modify Time = {}", time(metadata.modify_time)));
    }
    lines.push(format!("Check Index = {}", metadata.modify_index));
    if metadata.lock.is_some() {
        lines.push("Locked      = yes".to_owned());
    }
    lines.extend([String::new(), "Items".to_owned()]);
    let items = variable.items.clone().unwrap_or_default().0;
    let width = items.keys().map(|name| name.chars().count()).max().unwrap_or_default();
    // Control characters could manipulate the terminal.
    lines.extend(items.iter().map(|(name, value)| format!("{:<width$} = {}", plain(name), plain(value))));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn time(nanos: i64) -> String {
    rfc3339(UnixNanos(nanos)).unwrap_or_default()
}

fn hcl(variable: &Variable) -> String {
    let metadata = &variable.metadata;
    let mut text = format!(
        "namespace    = {}\npath         = {}\ncreate_index = {}\nmodify_index = {}\ncreate_time  = {}\nmodify_time  = {}\n\nitems {{\n",
        quoted(&metadata.namespace),
        quoted(&metadata.path),
        metadata.create_index,
        metadata.modify_index,
        metadata.create_time,
        metadata.modify_time,
    );
    for (name, value) in variable.items.clone().unwrap_or_default().0 {
        text.push_str(&format!("  {} = {}\n", quoted(&name), quoted(&value)));
    }
    text.push_str("}\n");
    text
}

/// A text in HCL. Its escapes are those of JSON; `${` would begin an expression.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace("${", r"\u0024{")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::variable::{VariableItems, VariableMetadata};

    use super::*;

    fn variable() -> Variable {
        let items = [("user", "me"), ("my.key", "a \"b\"\n\\ ${c} ${"), ("esc", "\u{1b}[2J")];
        let metadata = VariableMetadata {
            namespace: "prod".to_owned(),
            path: "a/b".to_owned(),
            create_index: 5,
            modify_index: 7,
            create_time: 1_000_000_000,
            modify_time: 2_000_000_000,
            lock: None,
        };
        let items = items.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        Variable { metadata, items: Some(VariableItems(items)) }
    }

    #[test]
    fn a_table_shows_the_index_to_check() {
        let text = table(&variable());
        assert!(
            text.starts_with("Namespace   = prod\nPath        = a/b\nCreate Time = 1970-01-01T00:00:01"),
            "{text}"
        );
        assert!(text.contains("\nCheck Index = 7\n\nItems\n") && text.ends_with("user   = me\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn printed_hcl_is_read_again() {
        let again = super::super::spec::from_hcl("x", hcl(&variable()).as_bytes()).unwrap();
        assert_eq!(again, variable());
    }
}
