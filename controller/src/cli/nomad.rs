//! Translates Nomad's verbs, such as `job run` and `alloc logs`, to our commands.
//!
//! In: a command line that begins with one of Nomad's nouns. Out: our equivalent, which is then parsed as if it had been typed;
//! or the list of known verbs; or why a flag is not accepted. Long flags may have one dash, as in Nomad; [`flags`] has the
//! meaning of Nomad's own flags. It must not know what commands do.

mod flags;

use std::ffi::OsString;

use crate::cli::Cli;
use clap::{ArgAction, Command, CommandFactory as _};
use herdlet_manifest::yaml::nearest;

use super::words;
use flags::Meaning;

/// A verb of Nomad, and our equivalent.
struct Verb {
    noun: &'static str,
    verb: &'static str,
    /// Its arguments, without noun and verb.
    usage: &'static str,
    ours: &'static [&'static str],
    places: Places,
}

/// The conversion of positional arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    Same,
    /// Files become values of `-f`.
    Files,
    /// The second argument is a version.
    Version,
    /// Of three arguments, the second is a group.
    Group,
    /// The second argument is a task.
    Task,
    /// A command follows the first argument.
    Command,
    /// Flags name the target: job and group, or allocation.
    Flags,
}

const fn verb(
    noun: &'static str,
    verb: &'static str,
    usage: &'static str,
    ours: &'static [&'static str],
    places: Places,
) -> Verb {
    Verb { noun, verb, usage, ours, places }
}

const VERBS: [Verb; 48] = [
    verb("job", "run", "FILE", &["apply"], Places::Files),
    verb("job", "plan", "FILE", &["diff"], Places::Files),
    verb("job", "validate", "FILE", &["validate"], Places::Same),
    verb("job", "status", "[JOB]", &["status"], Places::Same),
    verb("job", "inspect", "JOB", &["job", "inspect"], Places::Same),
    verb("job", "allocs", "JOB", &["ps", "--all"], Places::Same),
    verb("job", "deployments", "JOB", &["get", "deployments"], Places::Same),
    verb("job", "history", "JOB", &["get", "versions"], Places::Same),
    verb("job", "revert", "JOB VERSION", &["rollback"], Places::Version),
    verb("job", "scale", "JOB [GROUP] COUNT", &["scale"], Places::Group),
    verb("job", "promote", "JOB", &["promote"], Places::Same),
    verb("job", "dispatch", "JOB [FILE]", &["dispatch"], Places::Same),
    verb("job", "action", "-job JOB ACTION", &["action"], Places::Flags),
    verb("job", "restart", "JOB", &["restart"], Places::Same),
    verb("job", "stop", "JOB", &["stop"], Places::Same),
    verb("job", "stop -purge", "JOB", &["delete"], Places::Same),
    verb("job", "start", "JOB", &["start"], Places::Same),
    verb("job", "periodic", "force JOB", &["job", "periodic"], Places::Same),
    verb("alloc", "status", "ALLOC", &["describe"], Places::Same),
    verb("alloc", "logs", "ALLOC [TASK]", &["logs"], Places::Task),
    verb("alloc", "exec", "ALLOC COMMAND", &["exec"], Places::Command),
    verb("alloc", "fs", "ALLOC [PATH]", &["fs", "show"], Places::Same),
    verb("alloc", "checks", "ALLOC", &["checks"], Places::Same),
    verb("alloc", "restart", "ALLOC [TASK]", &["restart"], Places::Task),
    verb("alloc", "signal", "ALLOC [TASK]", &["signal"], Places::Task),
    verb("alloc", "stop", "ALLOC", &["stop"], Places::Same),
    verb("node", "status", "", &["get", "node"], Places::Same),
    verb("node", "drain", "[NODE]", &["drain"], Places::Same),
    verb("node", "eligibility", "[NODE]", &["eligibility"], Places::Same),
    verb("eval", "status", "EVAL", &["eval"], Places::Same),
    verb("eval", "list", "", &["eval"], Places::Same),
    verb("system", "gc", "", &["gc"], Places::Same),
    verb("service", "list", "", &["get", "services"], Places::Same),
    verb("service", "info", "NAME", &["get", "services"], Places::Same),
    verb("volume", "status", "[NAME]", &["get", "volumes"], Places::Same),
    verb("var", "put", "PATH KEY=VALUE", &["var", "put"], Places::Same),
    verb("var", "get", "PATH", &["var", "get"], Places::Same),
    verb("var", "list", "[PREFIX]", &["var", "list"], Places::Same),
    verb("var", "purge", "PATH", &["var", "purge"], Places::Same),
    verb("var", "init", "[FILE]", &["var", "init"], Places::Same),
    verb("var", "key", "list", &["var", "key"], Places::Same),
    verb("var", "lock", "PATH COMMAND", &["var", "lock"], Places::Command),
    verb("deployment", "list", "", &["get", "deployments"], Places::Same),
    verb("deployment", "status", "[ID]", &["deployment", "status"], Places::Same),
    verb("deployment", "promote", "JOB", &["deployment", "promote"], Places::Same),
    verb("deployment", "fail", "JOB", &["deployment", "fail"], Places::Same),
    verb("deployment", "pause", "JOB", &["deployment", "pause"], Places::Same),
    verb("deployment", "resume", "JOB", &["deployment", "resume"], Places::Same),
];

/// Noun, verb and our equivalent of each verb of one word, for completions.
pub(super) fn verbs() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    VERBS.iter().filter(|verb| !verb.verb.contains(' ')).map(|verb| (verb.noun, verb.verb, verb.ours))
}

/// The result of a translation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Translation {
    /// It is not one of Nomad's.
    Ours,
    /// Our equivalent.
    Translated(Vec<OsString>),
    /// A flag of Nomad is not accepted: the reason, and what to use.
    Refused(String),
    /// The verb is unknown: an error if there was one, and the known verbs of its noun.
    Unknown(Option<String>, String),
}

pub(super) fn translate(args: &[OsString]) -> Translation {
    let Some(at) = words::place_of_verb(args) else { return Translation::Ours };
    let text = |at: usize| args.get(at).and_then(|arg| arg.to_str()).unwrap_or_default();
    let (noun, second) = (text(at), text(at + 1));
    let known = || VERBS.iter().filter(|verb| verb.noun == noun);
    if known().next().is_none() {
        return Translation::Ours;
    }
    let mut command = Cli::command();
    command.build();
    let purges = || args[at + 2..].iter().any(is_purge);
    let wanted = if (noun, second) == ("job", "stop") && purges() { "stop -purge" } else { second };
    if let Some(verb) = known().find(|verb| verb.verb == wanted) {
        return match translate_command(verb, &command, &args[at + 2..]) {
            Ok(words) => Translation::Translated([&args[..at], &words].concat()),
            Err(refused) => Translation::Refused(refused),
        };
    }
    let is_help = ["help", "-h", "-help", "--help"].contains(&second);
    if is_help && command.find_subcommand(noun).is_some() {
        return Translation::Ours;
    }
    // The noun is a command of ours with arguments: `eval ID`.
    if command.find_subcommand(noun).is_some_and(|own| !own.has_subcommands()) {
        return Translation::Ours;
    }
    let sentence =
        (!second.is_empty() && !is_help).then(|| unknown(noun, second, known().map(|verb| verb.verb)));
    Translation::Unknown(sentence, known().map(Verb::line).collect())
}

fn unknown<'v>(noun: &str, second: &str, known: impl Iterator<Item = &'v str> + Clone) -> String {
    let near = nearest(second, known).map(|near| format!(": did you mean {noun} {near}?"));
    format!("there is no command \"{noun} {second}\"{}", near.unwrap_or_default())
}

impl Verb {
    fn line(&self) -> String {
        let theirs = format!("{} {} {}", self.noun, self.verb, self.usage);
        if self.is_called_so_here() {
            return format!("  herdlet {theirs}\n");
        }
        format!("  herdlet {theirs:<32}is herdlet {}\n", self.ours.join(" "))
    }

    fn is_called_so_here(&self) -> bool {
        self.ours == [self.noun, self.verb]
    }
}

/// Our command line, under construction.
#[derive(Default)]
struct Words {
    flags: Vec<OsString>,
    /// Flags that Nomad's flags imply, by their position in the table. Explicit flags take precedence.
    implied: Vec<(usize, &'static [&'static str])>,
    names: Vec<OsString>,
    rest: Vec<OsString>,
}

fn translate_command(verb: &Verb, command: &Command, args: &[OsString]) -> Result<Vec<OsString>, String> {
    let first = args.iter().filter_map(|arg| arg.to_str()).find(|arg| !arg.starts_with('-'));
    let path = verb.ours.iter().copied().chain(first);
    let ours = path.fold(command, |command, word| command.find_subcommand(word).unwrap_or(command));
    let theirs = format!("{} {}", verb.noun, verb.verb);
    let mut words = Words::default();
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        match arg.to_str().filter(|text| text.starts_with('-') && text.len() > 1) {
            Some("--") => words.rest.extend(args.by_ref().cloned()),
            Some(typed) => match understood(&theirs, ours, typed) {
                Some((_, Meaning::Granted)) => {}
                Some((at, Meaning::Is(flag))) => words.implied.push((at, flag)),
                Some((_, Meaning::Named(flag))) => {
                    words.flags.push(flag.into());
                    match typed.split_once('=') {
                        Some((_, value)) => words.flags.push(value.into()),
                        None => words.flags.extend(args.next().cloned()),
                    }
                }
                Some((_, Meaning::Refused(instead))) => {
                    let name = typed.split('=').next().unwrap_or(typed);
                    let off = if typed.ends_with("=false") { " with =false" } else { "" };
                    return Err(format!("{name} is not accepted{off}: {instead}"));
                }
                None => {
                    let flag = in_two_dashes(typed);
                    let value_follows =
                        !flag.contains('=') && find_flag(ours, &flag).is_some_and(takes_value);
                    words.flags.push(flag.into());
                    words.flags.extend(args.next_if(|_| value_follows).cloned());
                }
            },
            None => words.names.push(arg.clone()),
        }
        if verb.places == Places::Command && !words.names.is_empty() {
            words.rest.extend(args.by_ref().cloned());
        }
    }
    Ok(words.joined(verb, ours))
}

/// The meaning of a flag that is not ours. A flag with two dashes that our command has too is ours, unless that would do harm.
fn understood(verb: &str, ours: &Command, typed: &str) -> Option<(usize, Meaning)> {
    let name = typed.trim_start_matches('-');
    let is_ours = find_flag(ours, &in_two_dashes(typed)).is_some();
    match (is_ours, typed.starts_with("--")) {
        (true, true) if !flags::is_nomad_flag(verb, name) => None,
        (true, _) => flags::of_verb(verb, name),
        (false, _) => flags::meaning(verb, name),
    }
}

impl Words {
    fn joined(mut self, verb: &Verb, ours: &Command) -> Vec<OsString> {
        let flags_at = verb.ours.iter().position(|word| word.starts_with('-')).unwrap_or(verb.ours.len());
        let (path, usual) = verb.ours.split_at(flags_at);
        self.implied.sort_by_key(|(at, _)| *at);
        let mut given: Vec<&clap::Id> =
            self.flags.iter().filter_map(|flag| Some(find_flag(ours, flag.to_str()?)?.get_id())).collect();
        for flag in self.implied.iter().map(|(_, flag)| *flag).chain([usual]) {
            let name = flag.first().copied().unwrap_or_default();
            let Some(id) = find_flag(ours, name).map(clap::Arg::get_id) else { continue };
            if !given.contains(&id) {
                given.push(id);
                self.flags.extend(flag.iter().map(OsString::from));
            }
        }
        if (verb.noun, verb.verb) == ("alloc", "logs") && prints_stdout_only(&given) {
            self.flags.push("--stdout".into());
        }
        if self.rest.first().is_some_and(|first| first == "--") {
            self.rest.remove(0);
        }
        if verb.places == Places::Flags {
            self.names.splice(0..0, target_of_flags(&mut self.flags));
        }
        let mut words: Vec<OsString> = path.iter().map(OsString::from).collect();
        let names = arrange(verb.places, self.names);
        // Commands with the same name may have a further verb, which must precede the flags: `job periodic force`.
        let (first, then) = if verb.is_called_so_here() { (names, self.flags) } else { (self.flags, names) };
        words.extend(first);
        words.extend(then);
        if !self.rest.is_empty() {
            words.push("--".into());
            words.extend(self.rest);
        }
        words
    }
}

/// Whether Nomad's `alloc logs` with these flags prints standard output only. Source: `command/alloc_logs.go`.
fn prints_stdout_only(given: &[&clap::Id]) -> bool {
    let has = |name: &str| given.iter().any(|id| id.as_str() == name);
    let follows_both = has("follow") && !has("tail");
    !follows_both && !has("stdout") && !has("stderr")
}

/// Takes the target out of the flags: an allocation, a group of a job, or a job.
fn target_of_flags(flags: &mut Vec<OsString>) -> Option<OsString> {
    let mut take = |name: &str| {
        let at = flags.iter().position(|flag| flag == name).filter(|at| at + 1 < flags.len())?;
        flags.drain(at..at + 2).next_back()
    };
    let (job, group, alloc) = (take("--job"), take("--group"), take("--alloc"));
    let job = match (job, group) {
        (Some(job), Some(group)) => Some(joined(&job, ".", &group)),
        (job, _) => job,
    };
    alloc.or(job)
}

fn joined(a: &OsString, by: &str, b: &OsString) -> OsString {
    let mut joined = a.clone();
    joined.push(by);
    joined.push(b);
    joined
}

/// `-var` as `--var`. Single letters are unchanged: alone, with a value as in `-n=5`, or combined as in `-it`.
fn in_two_dashes(flag: &str) -> String {
    const TOGETHER: [&str; 4] = ["-it", "-ti", "-fn", "-nf"];
    let is_long = !flag.starts_with("--")
        && flag_name(flag).is_some_and(|name| name.len() > 1)
        && !TOGETHER.contains(&flag);
    if is_long { format!("-{flag}") } else { flag.to_owned() }
}

/// The name of a flag, without dashes and value.
fn flag_name(flag: &str) -> Option<&str> {
    flag.strip_prefix('-')?.trim_start_matches('-').split('=').next()
}

/// Whether this is the flag that makes `job stop` delete the job.
fn is_purge(arg: &OsString) -> bool {
    let arg = arg.to_str().unwrap_or_default();
    flag_name(arg) == Some("purge") && !arg.ends_with("=false")
}

/// Finds a flag of this command by its long or short name.
fn find_flag<'c>(command: &'c Command, flag: &str) -> Option<&'c clap::Arg> {
    let name = flag_name(flag)?;
    let is_it = |arg: &&clap::Arg| {
        arg.get_long() == Some(name) || arg.get_short().is_some_and(|short| name == short.to_string())
    };
    command.get_arguments().find(is_it)
}

/// Whether the next argument is the value of this flag.
fn takes_value(flag: &clap::Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Set | ArgAction::Append)
}

fn arrange(places: Places, names: Vec<OsString>) -> Vec<OsString> {
    match (places, names.as_slice()) {
        (Places::Files, files) => files.iter().flat_map(|file| ["-f".into(), file.clone()]).collect(),
        (Places::Version, [job, version]) => vec![job.clone(), "--to".into(), version.clone()],
        (Places::Group, [job, group, count]) => vec![joined(job, ".", group), count.clone()],
        (Places::Task, [alloc, task]) => vec![joined(alloc, "/", task)],
        (
            Places::Same | Places::Version | Places::Group | Places::Task | Places::Command | Places::Flags,
            _,
        ) => names,
    }
}

#[cfg(test)]
mod tests;
