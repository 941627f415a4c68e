//! The pages of the reference that list everything: commands with their flags, keys of the config, fields of manifests.
//!
//! In: the command line, the types of the config, the schema of manifests. Out: pages of the book, which must be current;
//! `UPDATE_GOLDEN=1` writes them.

use std::{fmt::Write as _, path::PathBuf};

use clap::{Arg, Command, CommandFactory as _};
use herdlet_cli::schema::{Field, fields};
use herdlet_manifest::{manifests, yaml};

use super::Cli;

const GENERATED: &str = "<!-- generated: UPDATE_GOLDEN=1 cargo nextest run -p herdlet reference -->\n";

/// Compares a page of the reference, or writes it.
fn check(name: &str, title: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../docs/reference", name].iter().collect();
    let wanted = format!("{GENERATED}# {title}\n\n{}\n", text.trim_end());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == wanted, "docs/reference/{name} is outdated: UPDATE_GOLDEN=1 writes it");
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    let escaped = text.replace('|', "\\|");
    // Outside of code, a page would take these for HTML.
    let outside = |(at, part): (usize, &str)| match at % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    };
    escaped.split('`').enumerate().map(outside).collect::<Vec<_>>().join("`").replace('\n', " ")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// A section for each command, outer ones first.
fn commands(command: &Command, common: &[&str], page: &mut String) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
    {
        let name = inner.get_bin_name().unwrap_or_default();
        let _ = writeln!(page, "## {name}\n");
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        let aliases: Vec<String> = inner.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
        let also = if aliases.is_empty() { String::new() } else { format!(" Also {}.", aliases.join(", ")) };
        let _ = writeln!(page, "{}.{also}\n", cell(about.trim_end_matches('.')));
        let own: Vec<&Arg> = inner
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && !common.contains(&arg.get_id().as_str()))
            .collect();
        if !own.is_empty() {
            page.push_str("| argument | meaning |\n| --- | --- |\n");
            own.iter().for_each(|arg| page.push_str(&argument(arg)));
            page.push('\n');
        }
        commands(inner, common, page);
    }
}

/// The row of an argument or flag.
fn argument(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().filter(|_| takes_value).unwrap_or_default();
    let value = values.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ");
    let shown = [names.join(", "), value].join(" ");
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let has_default = takes_value && !arg.is_hide_default_value_set() && !default.join("").is_empty();
    let default = if has_default { format!("; default {}", code(&default.join(","))) } else { String::new() };
    let possible: Vec<String> = match takes_value {
        true => arg.get_possible_values().iter().map(|value| code(value.get_name())).collect(),
        false => Vec::new(),
    };
    let possible = if possible.is_empty() { String::new() } else { format!(": {}", possible.join(", ")) };
    format!("| {} | {}{possible}{default} |\n", code(shown.trim()), cell(&help))
}

#[test]
fn the_page_of_commands_is_current() {
    let mut program = Cli::command();
    program.build();
    let mut page = "All commands and their flags. [Command line](cli.md) explains targets, selectors and output, and has the flags\n\
                    that choose the agent. Each `--help` has examples.\n\n| flag of each command | meaning |\n| --- | --- |\n"
        .to_owned();
    let common: Vec<&Arg> = program.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    common.iter().for_each(|arg| page.push_str(&argument(arg)));
    page.push('\n');
    let common: Vec<&str> = common.iter().map(|arg| arg.get_id().as_str()).collect();
    commands(&program, &common, &mut page);
    check("commands.md", "All commands", &page);
}

/// A section for each block with the rows of its fields. Blocks with equal fields share one.
fn blocks(all: &[Field], row: fn(&Field) -> String) -> String {
    let mut sections: Vec<(Vec<String>, String)> = Vec::new();
    for field in all {
        let (outer, _) = field.path.rsplit_once('.').unwrap_or_default();
        let driver = field.driver.as_deref().map(|driver| format!(" (driver {driver})")).unwrap_or_default();
        let title = format!("{outer}{driver}");
        match sections.iter_mut().find(|(titles, _)| titles[0] == title) {
            Some((_, rows)) => rows.push_str(&row(field)),
            None => sections.push((vec![title], row(field))),
        }
    }
    let mut distinct: Vec<(Vec<String>, String)> = Vec::new();
    for (titles, rows) in sections {
        match distinct.iter_mut().find(|(_, known)| *known == rows) {
            Some((known, _)) => known.extend(titles),
            None => distinct.push((titles, rows)),
        }
    }
    let mut page = String::new();
    for (titles, rows) in distinct {
        let (first, others) = titles.split_first().unwrap();
        let _ = writeln!(page, "## {}\n", if first.is_empty() { "Document" } else { first });
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(|title| code(title)).collect();
            let _ = writeln!(page, "The same in {}.\n", others.join(", "));
        }
        let _ = writeln!(page, "{rows}");
    }
    page
}

#[test]
fn the_page_of_fields_is_current() {
    let row = |field: &Field| {
        let default = field.default().filter(|_| !field.is_required).map(|default| code(&default));
        let default = default.unwrap_or_else(|| if field.is_required { "required" } else { "" }.to_owned());
        let meaning = cell(&field.description().unwrap_or_default());
        format!("| `{}` | {} | {default} | {meaning} |\n", field.name(), field.kind())
    };
    let blocks = blocks(&fields(&manifests::schema()), row);
    let table = "| field | type | default | meaning |\n| --- | --- | --- | --- |\n";
    let page = with_tables(&blocks, table);
    let head = "All fields of manifests. [Manifest schema](schema.md) explains their names and defaults; `herdlet schema FIELD`\n\
                prints allowed values and an example too.\n\n";
    check("fields.md", "All fields of manifests", &format!("{head}{page}"));
}

/// Puts the head of a table before the rows of each section.
fn with_tables(page: &str, head: &str) -> String {
    let mut before = "";
    let mut whole = String::new();
    for line in page.lines() {
        if line.starts_with('|') && !before.starts_with('|') {
            whole.push_str(head);
        }
        whole.push_str(line);
        whole.push('\n');
        before = line;
    }
    whole
}

#[test]
fn the_page_of_config_keys_is_current() {
    let row = |field: &Field| {
        let meaning = cell(&field.description().unwrap_or_default());
        format!("| `{}` | {} | {meaning} |\n", field.name(), field.kind())
    };
    let schema = yaml::schema_for::<herdlet_config::File>().to_value();
    let page = with_tables(&blocks(&fields(&schema), row), "| key | type | meaning |\n| --- | --- | --- |\n");
    let head = "All keys of the agent's config. [`deploy/herdlet.yaml`](../../deploy/herdlet.yaml) shows them with defaults and\n\
                examples, [Config](config.md) where values come from.\n\n";
    check("config-keys.md", "All keys of the config", &format!("{head}{page}"));
}
