//! `herdlet completions`: completion scripts for shells, which know the commands and request job names from the agent.
//!
//! In: a shell. Out: the script that clap generates, extended for bash, zsh and fish to list jobs as targets, and paths of
//! variables. An agent that does not answer delays the prompt by at most two seconds.

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, nomad};

pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut offered(), "herdlet", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => format!(
            "{script}{}",
            BASH.replace("NAMES", NAMES)
                .replace("PATHS", PATHS)
                .replace("TAKING", &TAKING.map(|name| format!("{name}:*")).join("|"))
        ),
        Shell::Fish => {
            let own =
                FISH.replace("NAMES", NAMES).replace("PATHS", PATHS).replace("TAKING", &TAKING.join(" "));
            format!("{script}{own}")
        }
        Shell::Zsh => with_names_in_zsh(&script),
        Shell::Elvish | Shell::PowerShell | _ => script,
    }
}

/// The commands that are offered: ours without internal ones, and Nomad's verbs, which are ours under other names.
fn offered() -> Command {
    let known = Cli::command();
    let mut offered = visible(&known);
    for (noun, verb, ours) in nomad::verbs() {
        if offered.find_subcommand(noun).is_none() {
            offered = offered.subcommand(Command::new(noun).about("Commands under Nomad's names"));
        }
        let own = ours.iter().try_fold(&known, |command, word| command.find_subcommand(word));
        let made = match own {
            Some(own) => without_aliases(own).name(verb),
            None => Command::new(verb),
        };
        offered = offered.mut_subcommand(noun, |command| match command.find_subcommand(verb) {
            Some(_) => command,
            None => command.subcommand(made),
        });
    }
    offered
}

/// The command without hidden commands.
fn visible(command: &Command) -> Command {
    without_aliases(command).visible_aliases(command.get_visible_aliases().map(leaked).collect::<Vec<_>>())
}

/// The command without hidden commands and without other names, which may be those of Nomad's verbs.
fn without_aliases(command: &Command) -> Command {
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible);
    let mut shown =
        Command::new(leaked(command.get_name())).args(command.get_arguments().cloned()).subcommands(inner);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown
}

/// A name that lives as long as the program, which prints one script.
fn leaked(name: &str) -> &'static str {
    name.to_owned().leak()
}

/// Commands whose arguments are targets or jobs.
const TAKING: [&str; 16] = [
    "action", "delete", "describe", "dispatch", "exec", "explain", "logs", "promote", "restart", "rollback",
    "scale", "signal", "start", "status", "stop", "wait",
];

/// Lists jobs; prints nothing on failure.
const NAMES: &str = "timeout 2 herdlet get jobs -o name 2>/dev/null";

/// Lists paths of variables; prints nothing on failure.
const PATHS: &str = "timeout 2 herdlet var list -q 2>/dev/null";

/// The generated function completes the values of flags, and everything else if no job matches.
const BASH: &str = r#"
_herdlet_with_jobs() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
    if [[ "$COMP_CWORD" -ge 2 && "$word" != -* ]]; then
        case "${COMP_WORDS[1]}:$before" in
            *:--task|*:--tail|*:--timeout|*:--addr|*:--token-file|*:--output|*:-o|*:--for|*:--signal|*:-s|*:--color|delete:-f|*:--file) ;;
            var:get|var:put|var:purge|var:lock)
                COMPREPLY=( $(compgen -W "$(PATHS)" -- "$word") )
                [[ "${#COMPREPLY[@]}" -gt 0 ]] && return 0 ;;
            TAKING|job:*|alloc:*|deployment:*)
                case "${COMP_WORDS[1]}" in job|alloc|deployment) [[ "$COMP_CWORD" -ge 3 ]] || { _herdlet "$@"; return; } ;; esac
                COMPREPLY=( $(compgen -W "$(NAMES | grep -x '[A-Za-z0-9._/-]*')" -- "$word") )
                [[ "${#COMPREPLY[@]}" -gt 0 ]] && return 0 ;;
        esac
    fi
    _herdlet "$@"
}
complete -F _herdlet_with_jobs -o bashdefault -o default herdlet
"#;

const FISH: &str = r#"
complete -c herdlet -n "__fish_seen_subcommand_from TAKING" -f -a "(NAMES)"
complete -c herdlet -n "__fish_seen_subcommand_from var; and __fish_seen_subcommand_from get put purge lock" -f -a "(PATHS)"
"#;

fn with_names_in_zsh(script: &str) -> String {
    let lists = |name: &str, list: &str| format!("{name}() {{\n    compadd -- ${{(f)\"$({list})\"}}\n}}\n\n");
    let function = lists("_herdlet_jobs", NAMES) + &lists("_herdlet_variables", PATHS);
    let mut with_names = String::new();
    for line in script.lines() {
        let is_name = ["':target -- ", "'::target -- ", "'*::targets -- ", "'*::names -- ", "'*::jobs -- "];
        if is_name.iter().any(|start| line.starts_with(start)) {
            with_names.push_str(&line.replace(":_default'", ":_herdlet_jobs'"));
        } else if line.starts_with("':path -- The path of a variable") {
            with_names.push_str(&line.replace(":_default'", ":_herdlet_variables'"));
        } else {
            if line.starts_with("_herdlet()") {
                with_names.push_str(&function);
            }
            with_names.push_str(line);
        }
        with_names.push('\n');
    }
    with_names
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process};

    use super::*;

    #[test]
    fn commands_that_take_jobs_are_the_ones_there_are() {
        for name in TAKING {
            let known = Cli::command();
            let command = known.find_subcommand(name);
            assert!(command.is_some_and(|command| command.get_positionals().next().is_some()), "{name}");
        }
    }

    #[test]
    fn bash_completes_jobs_and_flags() {
        let dir = tempfile::tempdir().unwrap();
        let stub = dir.path().join("herdlet");
        let answers = "#!/bin/sh\n[ \"$*\" = 'get jobs -o name' ] && printf 'web\\nworker\\n'\n\
                       [ \"$*\" = 'var list -q' ] && printf 'nomad/jobs\\nnomad/jobs/web\\n'\n";
        std::fs::write(&stub, answers).unwrap();
        std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("script"), script(Shell::Bash)).unwrap();
        let offered = |words: &str| {
            let asked = format!(
                "PATH={0}:$PATH; . {0}/script; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _herdlet_with_jobs herdlet \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo ${{COMPREPLY[@]}}",
                dir.path().display()
            );
            let answer = process::Command::new("bash").args(["-c", &asked]).output().ok()?;
            assert_eq!(String::from_utf8_lossy(&answer.stderr), "");
            Some(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
        };
        // Skips the test if there is no bash.
        let Some(jobs) = offered("herdlet logs -f w") else { return };
        assert_eq!(jobs, "web worker");
        assert_eq!(offered("herdlet status wo").unwrap(), "worker");
        assert_eq!(offered("herdlet logs --fol").unwrap(), "--follow");
        assert_eq!(offered("herdlet stat").unwrap(), "status");
        // Internal commands used to be offered, and below `alloc` the commands of the top.
        assert_eq!(offered("herdlet gua").unwrap(), "");
        assert_eq!(offered("herdlet unp").unwrap(), "");
        let verbs = offered("herdlet alloc l").unwrap();
        assert_eq!(verbs, "logs");
        let verbs = offered("herdlet job p").unwrap();
        assert!(verbs.contains("periodic") && verbs.contains("plan") && verbs.contains("promote"), "{verbs}");
        assert_eq!(offered("herdlet job inspect w").unwrap(), "web worker");
        assert_eq!(offered("herdlet status web -o js").unwrap(), "json");
        assert_eq!(offered("herdlet var get nomad/").unwrap(), "nomad/jobs nomad/jobs/web");
        assert_eq!(offered("herdlet var get --it").unwrap(), "--item");
        assert_eq!(offered("herdlet var pu").unwrap(), "put purge");
    }

    #[test]
    fn zsh_and_fish_complete_jobs() {
        let zsh = script(Shell::Zsh);
        assert!(
            zsh.contains("_herdlet_jobs() {")
                && zsh.contains("'*::targets -- Jobs, allocations, or tasks:_herdlet_jobs'")
        );
        assert!(zsh.contains("':path -- The path of a variable:_herdlet_variables'"));
        assert!(script(Shell::Fish).contains("-a \"(timeout 2 herdlet get jobs -o name 2>/dev/null)\""));
    }
}
