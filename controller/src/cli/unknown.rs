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
const ELSEWHERE: [(&[&str], &str); 22] = [
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
    (&["revert", "undo"], "rollback"),
    (&["stats"], "top"),
    (&["inspect"], "describe"),
    (&["system"], "gc"),
    (&["init"], "schema"),
    (&["serve", "daemon"], "agent"),
    (&["server", "members"], "get node"),
    (&["check"], "validate"),
    (&["attach"], "logs -f"),
    (&["cp"], "fs cat"),
    (&["pause"], "stop"),
    (&["unpause", "resume"], "start"),
];

/// Words of other tools that are followed by a further one, and our equivalents.
const IN_TWO_WORDS: [(&str, &str, &str); 5] = [
    ("rollout", "status", "wait"),
    ("rollout", "history", "get versions"),
    ("rollout", "undo", "rollback"),
    ("rollout", "restart", "restart"),
    ("system", "prune", "gc"),
];

/// Words of other tools for which several commands are needed.
const IN_STEPS: [(&str, &str); 1] = [(
    "edit",
    "print the manifest, edit it and apply it: herdlet get jobs JOB -o yaml > job.yaml; herdlet apply -f job.yaml",
)];

/// Words of other tools that have no equivalent, and would only resemble another command.
const NOWHERE: [&str; 11] = [
    "pull",
    "push",
    "build",
    "login",
    "logout",
    "cordon",
    "uncordon",
    "label",
    "annotate",
    "expose",
    "autoscale",
];

/// The error for the unknown word `unknown`.
pub(super) fn failure(args: &[OsString], unknown: &str) -> Failure {
    let mut root = Cli::command();
    root.build();
    let (path, command) = within(&root, args, unknown);
    let known = command.get_subcommands().filter(|known| !known.is_hide_set());
    let names: Vec<&str> = known.flat_map(Command::get_name_and_visible_aliases).collect();
    let next = args.iter().skip_while(|arg| *arg != unknown).nth(1).and_then(|arg| arg.to_str());
    let in_two = IN_TWO_WORDS.iter().find(|(first, second, _)| *first == unknown && Some(*second) == next);
    let elsewhere = ELSEWHERE.iter().find(|(names, _)| names.contains(&unknown)).map(|(_, ours)| *ours);
    let ours = in_two.map(|(_, _, ours)| *ours).or(elsewhere).filter(|_| path.is_empty());
    let steps = IN_STEPS.iter().find(|(word, _)| *word == unknown && path.is_empty());
    let near = nearest(unknown, names.iter().copied()).filter(|_| !NOWHERE.contains(&unknown));
    let meant = match (ours, steps, near) {
        (Some(ours), _, _) => format!("; use: herdlet {ours}"),
        (None, Some((_, steps)), _) => format!("; {steps}"),
        (None, None, Some(near)) => format!(": did you mean herdlet {path}{near}?"),
        (None, None, None) => String::new(),
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
            suggestion("herdlet --addr unix:///s fs lss web", "lss"),
            "there is no command \"fs lss\": did you mean herdlet fs ls?"
        );
        assert_eq!(
            suggestion("herdlet config veiw", "veiw"),
            "there is no command \"config veiw\": did you mean herdlet config view?"
        );
        assert_eq!(
            suggestion("herdlet rollout status web", "rollout"),
            "there is no command \"rollout\"; use: herdlet wait"
        );
        assert_eq!(
            suggestion("herdlet rollout undo web", "rollout"),
            "there is no command \"rollout\"; use: herdlet rollback"
        );
        // It resembled `wait`.
        assert!(suggestion("herdlet edit web", "edit").contains("herdlet get jobs JOB -o yaml"));
        assert_eq!(suggestion("herdlet pull", "pull"), "there is no command \"pull\"");
        assert_eq!(suggestion("herdlet frobnicate", "frobnicate"), "there is no command \"frobnicate\"");
    }

    #[test]
    fn suggested_commands_exist() {
        let root = Cli::command();
        for (names, ours) in ELSEWHERE {
            let first = ours.split(' ').next().unwrap_or_default();
            assert!(root.find_subcommand(first).is_some(), "{ours}");
            for name in names {
                assert!(root.find_subcommand(name).is_none(), "{name} is ours");
            }
        }
        for (_, _, ours) in IN_TWO_WORDS {
            let first = ours.split(' ').next().unwrap_or_default();
            assert!(root.find_subcommand(first).is_some(), "{ours}");
        }
        for name in NOWHERE.into_iter().chain(IN_STEPS.map(|(word, _)| word)) {
            assert!(root.find_subcommand(name).is_none(), "{name} is ours");
        }
    }
}
