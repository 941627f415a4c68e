//! Writes identities of tasks and of services.

use super::yes;
use crate::{
    job::{self, ChangeMode},
    manifest::{Identity, Signal, Span, defaults::DEFAULT_IDENTITY, non_empty, unless},
};

pub(super) fn from_identity(identity: &job::Identity) -> Identity {
    Identity {
        name: unless(&identity.name, DEFAULT_IDENTITY),
        aud: non_empty(identity.aud.clone()),
        ttl: identity.ttl.map(Span),
        env: yes(identity.env),
        file: yes(identity.file),
        filepath: identity.filepath.clone(),
        change_mode: (identity.change_mode != ChangeMode::Noop).then_some(identity.change_mode),
        change_signal: identity.change_signal.clone().map(Signal),
        extra_claims: non_empty(identity.extra_claims.clone()),
    }
}

/// The name of a service's identity is derived from the service.
pub(super) fn from_service_identity(identity: &job::Identity) -> Identity {
    Identity { name: None, ..from_identity(identity) }
}
