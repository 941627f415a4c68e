//! Colours, and whether to use them. anstream handles NO_COLOR, CLICOLOR_FORCE and TERM=dumb; this module handles Nomad's own
//! variables.

use anstyle::{AnsiColor, Style};
use herdlet_api_types::view::ConvergenceState;

/// Errors.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// Good states.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Less important text.
pub const DIM: Style = Style::new().dimmed();
pub(super) const HEADING: Style = Style::new().bold();

/// Task names in merged logs, in turn.
pub(super) const TASKS: [Style; 6] = [
    AnsiColor::Cyan.on_default(),
    AnsiColor::Yellow.on_default(),
    AnsiColor::Green.on_default(),
    AnsiColor::Magenta.on_default(),
    AnsiColor::Blue.on_default(),
    AnsiColor::BrightCyan.on_default(),
];

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    #[default]
    Auto,
    Always,
    Never,
}

/// Sets the choice for the whole process.
pub fn choose(when: When) {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match when {
        When::Always => anstream::ColorChoice::Always.write_global(),
        When::Never => anstream::ColorChoice::Never.write_global(),
        When::Auto if set("NOMAD_CLI_NO_COLOR") => anstream::ColorChoice::Never.write_global(),
        When::Auto if set("NOMAD_CLI_FORCE_COLOR") && !set("NO_COLOR") => {
            anstream::ColorChoice::Always.write_global();
        }
        // anstream checks NO_COLOR, CLICOLOR_FORCE, TERM=dumb and whether the output is a terminal.
        When::Auto => {}
    }
}

/// The style of a verdict.
pub(super) fn of(state: ConvergenceState) -> Style {
    match state {
        ConvergenceState::Converged => GOOD,
        ConvergenceState::Progressing => Style::new(),
        ConvergenceState::Waiting => WARNING,
        ConvergenceState::Failed => ERROR,
    }
}
