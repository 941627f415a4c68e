//! Unknown commands: an error with the nearest command or our equivalent, and a hint to the list.
//!
//! In: the command line, and the unknown word. Out: the error.

use std::ffi::OsString;

use crate::cli::Cli;
use clap::{Command, CommandFactory as _};
use herdlet_cli::failure::{Failure, USAGE};
use herdlet_manifest::yaml::nearest;

use super::words;

/// Names of other tools, and our equivalents.
const ELSEWHERE: [(&[&str], &str); 17] = [
    (&["create", "deploy", "submit"], "apply"),
    (&["rm", "remove", "destroy", "undeploy"], "delete"),
    (&["kill"], "signal"),
    (&["ls", "list", "jobs"], "get jobs"),
    (&["allocs", "allocations"], "get allocs"),
    (&["services", "port"], "get services"),
    (&["volumes"], "get volumes"),
    (&["events"], "get events"),
    (&["versions", "history"], "get versions"),
    (&["deployments"], "get deployments"),
    (&["revert", "undo", "rollout"], "rollback"),
    (&["stats"], "top"),
    (&["inspect"], "describe"),
    (&["system"], "gc"),
    (&["init"], "schema"),
    (&["server", "serve", "daemon"], "agent"),
    (&["check"], "validate"),
];

/// The error for the unknown word `unknown`.
pub(super) fn failure(args: &[OsString], unknown: &str) -> Failure {
    let mut root = Cli::command();
    root.build();
    let (path, command) = within(&root, args, unknown);
    let known = command.get_subcommands().filter(|known| !known.is_hide_set());
    let names: Vec<&str> = known.flat_map(Command::get_name_and_visible_aliases).collect();
    let elsewhere = ELSEWHERE.iter().find(|(names, _)| path.is_empty() && names.contains(&unknown));
    let meant = match (elsewhere, nearest(unknown, names.iter().copied())) {
        (Some((_, ours)), _) => format!("; use: herdlet {ours}"),
        (None, Some(near)) => format!(": did you mean herdlet {path}{near}?"),
        (None, None) => String::new(),
    };
    Failure::new(format!("there is no command \"{path}{unknown}\"{meant}"))
        .code(USAGE)
        .hint(format!("all commands: herdlet {path}--help"))
}

/// The command that has no subcommand `unknown`, with its name and a trailing space; the root without a name.
fn within<'c>(root: &'c Command, args: &[OsString], unknown: &str) -> (String, &'c Command) {
    let (mut path, mut command) = (String::new(), root);
    let at = words::place_of_verb(args).unwrap_or(args.len());
    for word in args[at..].iter().map_while(|word| word.to_str().filter(|word| *word != unknown)) {
        if let Some(inner) = command.find_subcommand(word) {
            path.push_str(word);
            path.push(' ');
            command = inner;
        }
    }
    (path, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggestion(line: &str, unknown: &str) -> String {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        failure(&args, unknown).to_string()
    }

    #[test]
    fn one_sentence_names_what_was_meant() {
        assert_eq!(
            suggestion("herdlet stauts", "stauts"),
            "there is no command \"stauts\": did you mean herdlet status?"
        );
        assert_eq!(suggestion("herdlet rm web", "rm"), "there is no command \"rm\"; use: herdlet delete");
        assert_eq!(
            suggestion("herdlet --addr unix:///s fs list web", "list"),
            "there is no command \"fs list\": did you mean herdlet fs ls?"
        );
        assert_eq!(
            suggestion("herdlet config veiw", "veiw"),
            "there is no command \"config veiw\": did you mean herdlet config view?"
        );
        assert_eq!(suggestion("herdlet frobnicate", "frobnicate"), "there is no command \"frobnicate\"");
    }

    #[test]
    fn what_it_is_called_here_is_a_command_and_what_others_call_it_is_none() {
        let root = Cli::command();
        for (names, ours) in ELSEWHERE {
            let first = ours.split(' ').next().unwrap_or_default();
            assert!(root.find_subcommand(first).is_some(), "{ours}");
            for name in names {
                assert!(root.find_subcommand(name).is_none(), "{name} is ours");
            }
        }
    }
}
