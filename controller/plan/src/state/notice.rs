//! Signals and scripts that notify a task of a change, while they run. Not stored: see [`crate::facts::Owed`].

use std_alloc::string::String;

use crate::{
    facts::{ChangeAction, Revision},
    op::{TaskIndex, TaskPart, TemplateIndex},
    time::Deadline,
};

/// A signal or a script in flight that notifies a task of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeInFlight {
    /// The task.
    pub task: TaskIndex,
    /// Its attempt.
    pub attempt: u32,
    /// The part that has changed.
    pub part: TaskPart,
    /// The revision of the part.
    pub revision: Revision,
    /// The operation.
    pub notice: Notice,
}

/// An operation that notifies a task of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// This signal is sent.
    Signal(String),
    /// The script of this template runs.
    Script(TemplateIndex),
}

/// What is left of a task's notification once those in flight have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterNotice {
    /// The notification.
    pub action: ChangeAction,
    /// When it is due.
    pub due: Deadline,
}
