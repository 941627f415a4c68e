//! `herdlet man`: man pages, generated from the help texts.
//!
//! In: a directory. Out: `herdlet.1` and one page for each command, named like those of git: `herdlet-apply.1`.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use herdlet_cli::failure::Failure;

use super::Cli;

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
    Ok(0)
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
}
