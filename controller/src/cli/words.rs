//! Inspects the command line before it is parsed: finds the command and the choice of colours, even if the rest is
//! invalid.

use std::ffi::OsString;

use clap::ValueEnum as _;
use herdlet_cli::style::When;

/// Flags before the command that take a value.
const WITH_VALUE: [&str; 6] =
    ["--addr", "--token-file", "--ca-cert", "--client-cert", "--client-key", "--color"];

/// The command: the first word that is neither a flag nor the value of a flag.
pub(super) fn verb(args: &[OsString]) -> Option<&str> {
    place_of_verb(args).and_then(|at| args[at].to_str())
}

/// The index of the command.
pub(super) fn place_of_verb(args: &[OsString]) -> Option<usize> {
    let mut words = args.iter().enumerate().skip(1).filter_map(|(at, arg)| Some((at, arg.to_str()?)));
    while let Some((at, word)) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(at);
        }
    }
    None
}

/// The words for herdlet: up to `--`, and for `exec` up to the command to run, which needs no `--` before it.
fn ours(args: &[OsString]) -> impl Iterator<Item = &str> {
    let end = place_of_command(args).unwrap_or(args.len());
    args[..end].iter().map_while(|arg| arg.to_str().filter(|word| *word != "--"))
}

/// The index of the command of `exec`: its second word that is neither a flag nor the value of a flag.
fn place_of_command(args: &[OsString]) -> Option<usize> {
    let verb = place_of_verb(args).filter(|at| args[*at] == "exec")?;
    let mut words = args.iter().enumerate().skip(verb + 1);
    let mut has_target = false;
    while let Some((at, word)) = words.next() {
        let word = word.to_string_lossy();
        if word == "--task" || WITH_VALUE.contains(&&*word) {
            words.next();
        } else if !word.starts_with('-') {
            if has_target {
                return Some(at);
            }
            has_target = true;
        }
    }
    None
}

/// The value of `--color`, before or after the command, but not in the command of `exec`.
pub(super) fn color(args: &[OsString]) -> When {
    let mut words = ours(args);
    let mut value = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--color") {
            Some("") => value = words.next(),
            Some(rest) => value = rest.strip_prefix('=').or(value),
            None => {}
        }
    }
    value.and_then(|value| When::from_str(value, false).ok()).unwrap_or_default()
}

/// A tip for an argument that other tools have and that is `unknown` here.
pub(super) fn tip(args: &[OsString], unknown: &str) -> Option<String> {
    let known = match (verb(args)?, unknown) {
        (_, "--since") => Some("only logs has --since: herdlet logs JOB --since 10m"),
        ("up" | "apply", "--scale") => {
            Some("the count is in the manifest; to override it: herdlet scale JOB COUNT")
        }
        ("up" | "apply" | "plan" | "diff", word) if !word.starts_with('-') => {
            Some("name manifests with -f FILE; all their jobs are included")
        }
        (_, _) => None,
    };
    if let Some(known) = known {
        return Some(known.to_owned());
    }
    let mut words = ours(args);
    let long = words.find_map(|word| {
        let name = word.strip_prefix('-').filter(|name| name.len() > 1 && !name.starts_with('-'))?;
        word.starts_with(unknown).then_some(name)
    })?;
    if long.starts_with(|char: char| char.is_ascii_digit()) {
        return Some(format!("a value that begins with - follows a =, as in --FLAG=-{long}"));
    }
    Some(format!("long flags begin with two dashes, Nomad's too: --{long}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_value_that_begins_with_a_dash_is_no_flag() {
        assert!(tip(&args("herdlet drain --deadline -5s"), "-5").unwrap().contains("as in --FLAG=-5s"));
        assert!(tip(&args("herdlet stop web -purge"), "-p").unwrap().ends_with("--purge"));
    }

    #[test]
    fn the_command_and_the_colours_are_found() {
        assert_eq!(verb(&args("herdlet --addr unix:///run exec x")), Some("exec"));
        assert_eq!(verb(&args("herdlet --color=never run x")), Some("run"));
        assert_eq!(verb(&args("herdlet --help")), None);
        assert_eq!(color(&args("herdlet status --color never")), When::Never);
        assert_eq!(color(&args("herdlet --color=always status")), When::Always);
        assert_eq!(color(&args("herdlet exec web -- ls --color=always")), When::Auto);
        assert_eq!(color(&args("herdlet exec web ls --color=always")), When::Auto);
        assert_eq!(color(&args("herdlet exec -it --task httpd web ls --color=always")), When::Auto);
        assert_eq!(color(&args("herdlet exec web --color=never ls --color=always")), When::Never);
        assert_eq!(color(&args("herdlet --color=blue")), When::Auto);
    }

    #[test]
    fn foreign_flags_get_a_hint() {
        let hint = |line: &str, unknown: &str| tip(&args(line), unknown).unwrap_or_default();
        assert!(hint("herdlet dispatch x -meta a=b", "-m").ends_with(": --meta"));
        assert!(hint("herdlet get events --since 5m", "--since").contains("herdlet logs JOB"));
        assert_eq!(hint("herdlet logs web --sinc", "--sinc"), "");
        assert!(hint("herdlet up web", "web").contains("-f FILE"));
        assert!(hint("herdlet up --scale web=2", "--scale").contains("herdlet scale"));
        assert_eq!(hint("herdlet version web", "web"), "");
        assert_eq!(hint("herdlet exec web -- ls -meta", "-m"), "");
        assert_eq!(hint("herdlet exec web ls -meta", "-m"), "");
    }
}
