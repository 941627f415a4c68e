//! Colours, and whether there are any: NO_COLOR, CLICOLOR_FORCE and TERM=dumb are anstream's business; Nomad's own variables
//! are read here.

use anstyle::{AnsiColor, Style};
use herdlet_api_types::view::ConvergenceState;

/// What went wrong.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// What deserves a look.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// What is as it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What matters less.
pub const DIM: Style = Style::new().dimmed();
/// Headings.
pub(super) const HEADING: Style = Style::new().bold();

/// Prefixes of tasks in merged logs, one after the other.
pub(super) const TASKS: [Style; 6] = [
    AnsiColor::Cyan.on_default(),
    AnsiColor::Yellow.on_default(),
    AnsiColor::Green.on_default(),
    AnsiColor::Magenta.on_default(),
    AnsiColor::Blue.on_default(),
    AnsiColor::BrightCyan.on_default(),
];

/// When there are colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    #[default]
    Auto,
    Always,
    Never,
}

/// Decides for the whole process.
pub fn choose(when: When) {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match when {
        When::Always => anstream::ColorChoice::Always.write_global(),
        When::Never => anstream::ColorChoice::Never.write_global(),
        When::Auto if set("NOMAD_CLI_NO_COLOR") => anstream::ColorChoice::Never.write_global(),
        When::Auto if set("NOMAD_CLI_FORCE_COLOR") && !set("NO_COLOR") => {
            anstream::ColorChoice::Always.write_global();
        }
        // NO_COLOR, CLICOLOR_FORCE, TERM=dumb and whether it is a terminal.
        When::Auto => {}
    }
}

/// How a verdict looks.
pub(super) fn of(state: ConvergenceState) -> Style {
    match state {
        ConvergenceState::Converged => GOOD,
        ConvergenceState::Progressing => Style::new(),
        ConvergenceState::Waiting => WARNING,
        ConvergenceState::Failed => ERROR,
    }
}
