//! The refusal of a command.

use std_alloc::string::String;

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The object does not exist.
    NotFound(String),
    /// Its current state does not allow it.
    Conflict(String),
    /// The request makes no sense here.
    Invalid(String),
}
