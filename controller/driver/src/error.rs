//! How a driver call fails: what to do about it is in the class, what happened in the source.

use herdlet_api_types::driver::FailureClass;
use herdlet_base::error::in_full;

use super::AttemptId;

/// Whatever a driver's own modules fail with. Reads after "failed to".
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failed driver call. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// It may work later.
    #[error(transparent)]
    Retry(BoxError),
    /// It won't work as specified.
    #[error(transparent)]
    Fatal(BoxError),
    /// There is no such program to start.
    #[error(transparent)]
    NoProgram(BoxError),
    /// A start failed in a way that the task's restart policy counts as an attempt.
    #[error(transparent)]
    Recoverable(BoxError),
    /// There is no such attempt (Nomad's `task not found for given id`).
    #[error("find attempt {0}: there is none")]
    Gone(AttemptId),
    /// The driver lacks the ability.
    #[error("{ability} is not supported by this driver")]
    Unsupported {
        /// What it lacks.
        ability: &'static str,
    },
}

impl DriverError {
    /// An error of class `Retry`.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self::Retry(source.into())
    }

    /// An error of class `Fatal`.
    pub fn fatal(source: impl Into<BoxError>) -> Self {
        Self::Fatal(source.into())
    }

    /// An error of class `NoProgram`.
    pub fn no_program(source: impl Into<BoxError>) -> Self {
        Self::NoProgram(source.into())
    }

    /// An error of class `Recoverable`.
    pub fn recoverable(source: impl Into<BoxError>) -> Self {
        Self::Recoverable(source.into())
    }

    /// What may be done about it.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Retry(_) => FailureClass::Retry,
            Self::Fatal(_) | Self::Unsupported { .. } | Self::Gone(_) => FailureClass::Fatal,
            Self::NoProgram(_) => FailureClass::NoProgram,
            Self::Recoverable(_) => FailureClass::Recoverable,
        }
    }

    /// Whether there is no such attempt: nothing is left to be done.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }

    /// The whole story, causes included, as one line.
    pub fn why(&self) -> String {
        in_full(self)
    }
}

/// Whether an errno means that the machine lacks descriptors, memory or processes.
pub fn lacks(errno: i32) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN].contains(&errno)
}
