//! Errors of driver calls. The class determines the reaction; the source describes the cause.

use herdlet_api_types::driver::FailureClass;
use herdlet_base::error::in_full;

use super::AttemptId;

/// Any error of a driver's own modules. Its text follows "failed to".
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failed driver call. Its text follows "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A later retry may succeed.
    #[error(transparent)]
    Retry(BoxError),
    /// It can't succeed as specified.
    #[error(transparent)]
    Fatal(BoxError),
    /// The program to start does not exist.
    #[error(transparent)]
    NoProgram(BoxError),
    /// A start failed, and the task's restart policy counts it as an attempt.
    #[error(transparent)]
    Recoverable(BoxError),
    /// The attempt does not exist (Nomad's `task not found for given id`).
    #[error("find attempt {0}: it does not exist")]
    Gone(AttemptId),
    /// The driver does not support the operation.
    #[error("{ability} is not supported by this driver")]
    Unsupported {
        /// The unsupported operation.
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

    /// The failure class, which determines the reaction.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Retry(_) => FailureClass::Retry,
            Self::Fatal(_) | Self::Unsupported { .. } | Self::Gone(_) => FailureClass::Fatal,
            Self::NoProgram(_) => FailureClass::NoProgram,
            Self::Recoverable(_) => FailureClass::Recoverable,
        }
    }

    /// Whether the attempt does not exist, so nothing is left to do.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }

    /// The error and all its causes on one line.
    pub fn why(&self) -> String {
        in_full(self)
    }
}

/// Whether an errno means that the machine is out of descriptors, memory or processes.
pub fn lacks(errno: i32) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN].contains(&errno)
}
