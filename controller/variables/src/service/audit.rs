//! Audit lines: who accessed which variable, and the result. Never a value, a name of an item, or the id of a lock.
//!
//! The lines are part of the agent's log, at the level `info`, with the target [`TARGET`], so that a filter can select
//! them: `herdlet::audit=info`.

use std::fmt;

use herdlet_api_types::variable::{Variable, VariableKey};

use crate::{error::VariableError, keyring::KeyId};

/// The target of all audit lines.
const TARGET: &str = "herdlet::audit";

/// Who accesses variables, in the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    /// A client of the API, such as `socket` or the address of a client on TCP.
    pub fn client(name: impl fmt::Display) -> Self {
        Self(name.to_string())
    }

    /// The agent itself.
    pub fn agent() -> Self {
        Self("agent".to_owned())
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of an access, in a word.
fn result_of(error: &VariableError) -> &'static str {
    match error {
        VariableError::Invalid(_) => "refused: invalid",
        VariableError::NotFound => "refused: not found",
        VariableError::Conflict { .. } => "refused: conflict",
        VariableError::Key(_) | VariableError::KeyRequest(_) => "refused: key",
        VariableError::Damaged { .. } => "failed: damaged",
        VariableError::Newer { .. } => "refused: newer release",
        VariableError::Read { .. } => "failed: read",
        VariableError::Write { .. } => "failed: write",
        VariableError::Down => "failed: shutdown",
    }
}

pub(super) fn listed(actor: &Actor, namespace: &str, prefix: &str) {
    tracing::info!(target: TARGET, %actor, operation = "list", namespace, prefix, result = "ok", "variables listed");
}

/// An access in progress. Has one audit line, whatever its end is.
pub(super) struct Access {
    actor: Actor,
    operation: &'static str,
    key: VariableKey,
    is_ended: bool,
}

impl Access {
    pub(super) fn begin(actor: &Actor, operation: &'static str, key: &VariableKey) -> Self {
        Self { actor: actor.clone(), operation, key: key.clone(), is_ended: false }
    }

    pub(super) fn key(&self) -> &VariableKey {
        &self.key
    }

    /// It has ended with this index, or failed.
    pub(super) fn end(mut self, done: Result<u64, &VariableError>) {
        self.is_ended = true;
        let (result, index) = match done {
            Ok(index) => ("ok", Some(index)),
            Err(error) => (result_of(error), None),
        };
        self.line(result, index);
        if let Err(
            error @ (VariableError::Key(_) | VariableError::Write { .. } | VariableError::Read { .. }),
        ) = done
        {
            tracing::error!(%error, "a variable can't be accessed");
        }
    }

    /// It has found this variable, or none.
    pub(super) fn end_read(self, found: &Result<Option<Variable>, VariableError>) {
        match found {
            Ok(Some(variable)) => self.end(Ok(variable.metadata.modify_index)),
            Ok(None) => self.end(Err(&VariableError::NotFound)),
            Err(error) => self.end(Err(error)),
        }
    }

    fn line(&self, result: &str, index: Option<u64>) {
        let Self { actor, operation, key: VariableKey { namespace, path }, .. } = self;
        tracing::info!(target: TARGET, %actor, operation, namespace, path, result, index, "variable accessed");
    }
}

/// The caller was gone before its turn, and nothing was done.
impl Drop for Access {
    fn drop(&mut self) {
        if !self.is_ended {
            self.line("refused: caller gone", None);
        }
    }
}

pub(super) fn rotated(actor: &Actor, done: Result<KeyId, &VariableError>) {
    let (result, key) = match done {
        Ok(key) => ("ok", Some(key.to_string())),
        Err(error) => (result_of(error), None),
    };
    tracing::info!(target: TARGET, %actor, operation = "rotate key", result, key, "key of variables changed");
}

pub(super) fn key_removed(actor: &Actor, id: KeyId, done: &Result<(), VariableError>) {
    let result = done.as_ref().map_or_else(result_of, |()| "ok");
    tracing::info!(target: TARGET, %actor, operation = "remove key", result, key = %id, "key of variables changed");
}

/// The longest text of a request in a line.
const TEXT_CHARS_MAX: usize = 64;

/// A request about a key whose id is none.
pub(super) fn key_refused(actor: &Actor, id: &str) {
    let key: String = id.chars().take(TEXT_CHARS_MAX).collect();
    tracing::info!(target: TARGET, %actor, operation = "remove key", result = "refused: invalid", key, "key of variables changed");
}

/// An access that is refused before it reaches the store.
pub(super) fn refused(actor: &Actor, operation: &str, key: &VariableKey, why: &'static str) {
    let VariableKey { namespace, path } = key;
    tracing::info!(target: TARGET, %actor, operation, namespace, path, result = why, "variable accessed");
}
