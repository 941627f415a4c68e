//! Raw mode of our terminal during a session or a screen with keys.

use std::io::IsTerminal as _;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::failure::Failure;

/// The terminal is in another mode while this exists.
pub(super) struct Raw(Termios);

impl Raw {
    /// Sets the terminal of standard input to raw mode; none if it is not a terminal.
    pub(super) fn enter() -> Result<Option<Self>, Failure> {
        Self::with(|mode| mode.make_raw())
    }

    /// Each key is read when it is pressed, and not shown. Output and Ctrl-C are as before.
    pub(super) fn enter_for_keys() -> Result<Option<Self>, Failure> {
        Self::with(|mode| mode.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO))
    }

    fn with(change: impl FnOnce(&mut Termios)) -> Result<Option<Self>, Failure> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let failed = |errno| Failure::new(format!("failed to change the mode of the terminal: {errno}"));
        let before = tcgetattr(&stdin).map_err(failed)?;
        let mut mode = before.clone();
        change(&mut mode);
        tcsetattr(&stdin, OptionalActions::Now, &mode).map_err(failed)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Rows and columns of our terminal.
pub(super) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(std::io::stdin()).or_else(|_| tcgetwinsize(std::io::stdout())).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}
