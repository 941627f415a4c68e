//! The refusal of a command.

use std_alloc::string::String;

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such thing.
    NotFound(String),
    /// It can't be done in its present state.
    Conflict(String),
    /// It asks for something that makes no sense here.
    Invalid(String),
}
