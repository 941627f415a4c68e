//! Nomad's verbs, `job run`, `alloc logs` and the like, said in our own words.
//!
//! In: a command line that begins with one of Nomad's nouns. Out: the same as one of ours, which is then read as if it had been
//! typed; or the list of what is known. Long flags may have one dash, as Nomad has them. It must not know what commands do.

use std::ffi::OsString;

use clap::{ArgAction, Command, CommandFactory as _};

use super::{Cli, words};

/// A verb of Nomad's and what it is here.
struct Verb {
    noun: &'static str,
    verb: &'static str,
    /// How it is used, without the noun and verb.
    usage: &'static str,
    ours: &'static [&'static str],
    places: Places,
}

/// What becomes of its arguments that are no flags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    Same,
    /// Files are named by `-f`.
    Files,
    /// The second one is a version.
    Version,
    /// Of three the second one is a group.
    Group,
    /// The second one is a task.
    Task,
    /// After the first one comes a command.
    Command,
}

/// Flags that mean something else there, or what is so here anyway; purging is no more there than forgetting is here.
const LEFT_OUT: [&str; 4] = ["--detach", "--purge", "--yes", "--verbose"];

const fn verb(
    noun: &'static str,
    verb: &'static str,
    usage: &'static str,
    ours: &'static [&'static str],
    places: Places,
) -> Verb {
    Verb { noun, verb, usage, ours, places }
}

const VERBS: [Verb; 26] = [
    verb("job", "run", "FILE", &["apply"], Places::Files),
    verb("job", "plan", "FILE", &["diff"], Places::Files),
    verb("job", "validate", "FILE", &["validate"], Places::Same),
    verb("job", "status", "[JOB]", &["status"], Places::Same),
    verb("job", "inspect", "JOB", &["get", "jobs", "-o", "yaml"], Places::Same),
    verb("job", "allocs", "JOB", &["ps"], Places::Same),
    verb("job", "deployments", "JOB", &["get", "deployments"], Places::Same),
    verb("job", "history", "JOB", &["get", "versions"], Places::Same),
    verb("job", "revert", "JOB VERSION", &["rollback"], Places::Version),
    verb("job", "scale", "JOB [GROUP] COUNT", &["scale"], Places::Group),
    verb("job", "promote", "JOB", &["promote"], Places::Same),
    verb("job", "dispatch", "JOB [FILE]", &["dispatch"], Places::Same),
    verb("job", "restart", "JOB", &["restart"], Places::Same),
    verb("job", "stop", "JOB", &["delete"], Places::Same),
    verb("alloc", "status", "ALLOC", &["describe"], Places::Same),
    verb("alloc", "logs", "ALLOC [TASK]", &["logs"], Places::Task),
    verb("alloc", "exec", "ALLOC COMMAND", &["exec"], Places::Command),
    verb("alloc", "fs", "ALLOC [PATH]", &["fs", "ls"], Places::Same),
    verb("alloc", "restart", "ALLOC [TASK]", &["restart"], Places::Task),
    verb("alloc", "signal", "ALLOC [TASK]", &["signal"], Places::Task),
    verb("alloc", "stop", "ALLOC", &["stop"], Places::Same),
    verb("node", "status", "", &["get", "node"], Places::Same),
    verb("service", "list", "", &["get", "services"], Places::Same),
    verb("service", "info", "NAME", &["get", "services"], Places::Same),
    verb("volume", "status", "[NAME]", &["get", "volumes"], Places::Same),
    verb("deployment", "list", "", &["get", "deployments"], Places::Same),
];

/// What a command line comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is ours already.
    Ours,
    /// The same in our words.
    Translated(Vec<OsString>),
    /// Nothing here is called so: what is known of its noun.
    Unknown(String),
}

pub(super) fn translate(args: &[OsString]) -> Said {
    let Some(at) = words::place_of_verb(args) else { return Said::Ours };
    let text = |at: usize| args.get(at).and_then(|arg| arg.to_str()).unwrap_or_default();
    let (noun, second) = (text(at), text(at + 1));
    let mut known = VERBS.iter().filter(|verb| verb.noun == noun).peekable();
    if known.peek().is_none() {
        return Said::Ours;
    }
    if let Some(verb) = known.clone().find(|verb| verb.verb == second) {
        return Said::Translated([&args[..at], &in_our_words(verb, &args[at + 2..])].concat());
    }
    let command = Cli::command();
    let ours = command.find_subcommand(noun);
    if ours.is_some_and(|ours| second.starts_with('-') || ours.find_subcommand(second).is_some()) {
        return Said::Ours;
    }
    let own = ours
        .into_iter()
        .flat_map(Command::get_subcommands)
        .map(|own| format!("  herdlet {noun} {}\n", own.get_name()));
    Said::Unknown(known.map(line).chain(own).collect())
}

fn line(verb: &Verb) -> String {
    let theirs = format!("{} {} {}", verb.noun, verb.verb, verb.usage);
    format!("  herdlet {theirs:<32}is herdlet {}\n", verb.ours.join(" "))
}

fn in_our_words(verb: &Verb, args: &[OsString]) -> Vec<OsString> {
    let command = Cli::command();
    let ours = command.find_subcommand(verb.ours[0]);
    let (mut flags, mut names, mut rest) = (Vec::new(), Vec::<OsString>::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let flag = arg.to_str().filter(|text| text.starts_with('-') && text.len() > 1).map(in_two_dashes);
        match flag {
            Some(flag) if flag == "--" => rest.extend(args.by_ref().cloned()),
            Some(flag) if LEFT_OUT.contains(&flag.as_str()) => {}
            Some(flag) => {
                let value = ours.filter(|ours| takes_value(ours, &flag)).and_then(|_| args.next());
                flags.push(OsString::from(flag));
                flags.extend(value.cloned());
            }
            None => names.push(arg.clone()),
        }
        if verb.places == Places::Command && !names.is_empty() {
            rest.extend(args.by_ref().cloned());
        }
    }
    if rest.first().is_some_and(|first| first == "--") {
        rest.remove(0);
    }
    let mut words: Vec<OsString> = verb.ours.iter().map(OsString::from).collect();
    words.extend(flags);
    words.extend(placed(verb.places, names));
    if !rest.is_empty() {
        words.push("--".into());
        words.extend(rest);
    }
    words
}

/// `-var` as `--var`; single letters, alone or together as in `-it`, stay.
fn in_two_dashes(flag: &str) -> String {
    const TOGETHER: [&str; 4] = ["-it", "-ti", "-fn", "-nf"];
    let name = flag.strip_prefix('-').unwrap_or(flag);
    let is_long = name.len() > 1 && !name.starts_with('-') && !TOGETHER.contains(&flag);
    if is_long { format!("-{flag}") } else { flag.to_owned() }
}

/// Whether the next argument belongs to this flag.
fn takes_value(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches('-');
    let is_it = |arg: &&clap::Arg| {
        arg.get_long() == Some(name) || arg.get_short().is_some_and(|short| name == short.to_string())
    };
    let takes = |arg: &clap::Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    command.get_arguments().find(is_it).is_some_and(takes)
}

fn placed(places: Places, names: Vec<OsString>) -> Vec<OsString> {
    let joined = |a: &OsString, by: &str, b: &OsString| {
        let mut joined = a.clone();
        joined.push(by);
        joined.push(b);
        joined
    };
    match (places, names.as_slice()) {
        (Places::Files, files) => files.iter().flat_map(|file| ["-f".into(), file.clone()]).collect(),
        (Places::Version, [job, version]) => vec![job.clone(), "--to".into(), version.clone()],
        (Places::Group, [job, group, count]) => vec![joined(job, ".", group), count.clone()],
        (Places::Task, [alloc, task]) => vec![joined(alloc, "/", task)],
        (Places::Same | Places::Version | Places::Group | Places::Task | Places::Command, _) => names,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn said(line: &str) -> String {
        match translate(&args(line)) {
            Said::Ours => "ours".to_owned(),
            Said::Translated(args) => args.join(std::ffi::OsStr::new(" ")).into_string().unwrap(),
            Said::Unknown(known) => known,
        }
    }

    #[test]
    fn nomads_verbs_are_said_in_our_words() {
        for (theirs, ours) in [
            ("herdlet job run -detach -var image=v2 web.hcl", "herdlet apply --var image=v2 -f web.hcl"),
            (
                "herdlet --addr unix:///s job run web.hcl --wait",
                "herdlet --addr unix:///s apply --wait -f web.hcl",
            ),
            ("herdlet job plan -var=a=b web.hcl", "herdlet diff --var=a=b -f web.hcl"),
            ("herdlet job status", "herdlet status"),
            ("herdlet job history web", "herdlet get versions web"),
            ("herdlet job revert web 3", "herdlet rollback web --to 3"),
            ("herdlet job scale web api 4", "herdlet scale web.api 4"),
            ("herdlet job scale web 4", "herdlet scale web 4"),
            ("herdlet job dispatch -meta a=b import -", "herdlet dispatch --meta a=b import -"),
            ("herdlet job stop -purge web", "herdlet delete web"),
            ("herdlet alloc status 1234", "herdlet describe 1234"),
            ("herdlet alloc logs -f -stderr -n 5 1234 httpd", "herdlet logs -f --stderr -n 5 1234/httpd"),
            (
                "herdlet alloc exec -it -task httpd 1234 ls -la",
                "herdlet exec -it --task httpd 1234 -- ls -la",
            ),
            ("herdlet alloc exec 1234 -- ls -la", "herdlet exec 1234 -- ls -la"),
            ("herdlet alloc fs 1234 alloc/logs", "herdlet fs ls 1234 alloc/logs"),
            ("herdlet alloc signal -s SIGUSR1 1234 httpd", "herdlet signal -s SIGUSR1 1234/httpd"),
            ("herdlet node status", "herdlet get node"),
            ("herdlet deployment fail web", "ours"),
            ("herdlet job periodic force backup", "ours"),
            ("herdlet status", "ours"),
            ("herdlet exec web -- job run", "ours"),
        ] {
            assert_eq!(said(theirs), ours, "{theirs}");
        }
    }

    #[test]
    fn what_is_said_is_understood_whatever_the_verb() {
        for verb in &VERBS {
            let usage = verb.usage.replace(['[', ']'], "").replace("COUNT", "3").replace("VERSION", "3");
            let theirs = format!("herdlet {} {} {usage}", verb.noun, verb.verb);
            let Said::Translated(ours) = translate(&args(&theirs)) else { panic!("{theirs}") };
            assert!(super::super::parse(ours.clone()).is_ok(), "{theirs}: {ours:?}");
        }
    }

    #[test]
    fn a_verb_that_nothing_is_called_here_is_answered_with_those_that_are() {
        let known = said("herdlet job eval web");
        assert!(known.contains("  herdlet job run FILE"), "{known}");
        assert!(known.contains("  herdlet job periodic\n") && !known.contains("herdlet alloc"), "{known}");
        assert!(
            said("herdlet alloc").contains("herdlet alloc logs ALLOC [TASK]"),
            "{}",
            said("herdlet alloc")
        );
    }
}
