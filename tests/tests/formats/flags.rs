//! Commands with their flags and the corresponding variables.

use clap::{Command, CommandFactory as _};
use herdlet::cli::Cli;

use super::assert_golden;

#[test]
fn commands_keep_their_flags() {
    let mut lines = Vec::new();
    list(&Cli::command(), "", &mut lines);
    assert_golden("flags.txt", &lines);
}

/// Lists a command and its arguments, one per line.
fn list(command: &Command, above: &str, lines: &mut Vec<String>) {
    let path = format!("{above}{} ", command.get_name());
    let aliases: Vec<&str> = command.get_all_aliases().collect();
    lines.push(format!("{path}[{}]", aliases.join(",")));
    for argument in command.get_arguments() {
        let mut names: Vec<String> = Vec::new();
        names.extend(argument.get_short().map(|short| format!("-{short}")));
        names.extend(argument.get_long().map(|long| format!("--{long}")));
        names.extend(argument.get_all_aliases().into_iter().flatten().map(|alias| format!("--{alias}")));
        names.extend(argument.get_env().map(|name| format!("${}", name.to_string_lossy())));
        if names.is_empty() {
            names.push(format!("<{}>", argument.get_id()));
        }
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        lines.push(format!("{path}{} {{{}}}", names.join(" "), values.join("|")));
    }
    for below in command.get_subcommands() {
        list(below, &path, lines);
    }
}
