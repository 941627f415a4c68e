//! `herdlet man`: man pages, generated from the help texts.
//!
//! In: a directory. Out: `herdlet.1` and one page for each command, named like those of git: `herdlet-apply.1`. Other names
//! of commands, such as `up` and `job run`, have pages of their own.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;
use herdlet_cli::failure::Failure;

use super::{Cli, nomad};

/// Arguments of `herdlet man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, created if needed
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn man(args: &ManArgs) -> Result<u8, Failure> {
    let failed =
        |error| Failure::new(format!("failed to write man pages to {}: {error}", args.dir.display()));
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)?;
    for command in renamed() {
        Man::new(command).generate_to(&args.dir).map_err(failed)?;
    }
    Ok(0)
}

/// The commands under their other names: aliases, and Nomad's verbs.
fn renamed() -> Vec<Command> {
    let mut program = Cli::command();
    program.build();
    let aliases = program
        .get_subcommands()
        .flat_map(|command| command.get_visible_aliases().map(move |alias| (alias.to_owned(), command)));
    let is_called_so = |noun: &str, verb: &str| {
        program.find_subcommand(noun).is_some_and(|own| own.find_subcommand(verb).is_some())
    };
    let verbs =
        nomad::verbs().filter(|(noun, verb, _)| !is_called_so(noun, verb)).map(|(noun, verb, ours)| {
            let inner = |command, word: &&str| Command::find_subcommand(command, word).unwrap_or(command);
            (format!("{noun} {verb}"), ours.iter().fold(&program, inner))
        });
    let named = aliases.chain(verbs).map(|(name, command)| {
        let page = format!("herdlet-{}", name.replace(' ', "-"));
        command.clone().bin_name(format!("herdlet {name}")).display_name(page)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        man(&ManArgs { dir: dir.path().join("man1") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
        assert!(page("herdlet.1").contains(".TH herdlet 1"));
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(
                page(&format!("herdlet-{name}.1"))
                    .contains(&format!("herdlet\\-{}", name.replace('-', "\\-"))),
                "{name}"
            );
        }
    }

    /// `up`, `down`, `plan` and `job run` had none.
    #[test]
    fn other_names_of_commands_have_man_pages() {
        let dir = tempfile::tempdir().unwrap();
        man(&ManArgs { dir: dir.path().to_owned() }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        for (name, flag) in [
            ("up", "prune"),
            ("down", "purge"),
            ("plan", "file"),
            ("job-run", "prune"),
            ("alloc-fs", "output"),
        ] {
            let text = page(&format!("herdlet-{name}.1"));
            assert!(text.contains(&format!("herdlet\\-{} \\- ", name.replace('-', "\\-"))), "{text}");
            assert!(text.contains(&format!("\\-\\-{flag}")), "{name}: {text}");
        }
        // A command of its own keeps its page.
        assert!(page("herdlet-job-periodic.1").contains("herdlet\\-job\\-periodic\\-force"));
    }
}
