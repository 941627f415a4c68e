//! Resolves identities of tasks and of services.

use std_alloc::{borrow::ToOwned, format, string::String};

use super::names::Names;
use crate::{
    job::{self, ChangeMode, Provider},
    manifest::{self, defaults::DEFAULT_IDENTITY},
};

pub(super) fn to_identity(spec: &manifest::Identity) -> job::Identity {
    let name = spec.name.clone().unwrap_or_else(|| DEFAULT_IDENTITY.to_owned());
    job::Identity {
        // The audience of the default identity is fixed.
        aud: spec.aud.clone().filter(|_| name != DEFAULT_IDENTITY).unwrap_or_default(),
        name,
        ttl: spec.ttl.map(|ttl| ttl.0).filter(|ttl| !ttl.is_zero()),
        env: spec.env.unwrap_or(false),
        file: spec.file.unwrap_or(false),
        filepath: spec.filepath.clone(),
        change_mode: spec.change_mode.unwrap_or(ChangeMode::Noop),
        change_signal: to_signal(spec.change_signal.as_ref()),
        extra_claims: spec.extra_claims.clone().unwrap_or_default(),
    }
}

/// The identity of a service. Its name is always derived from the service, as in Nomad.
pub(super) fn to_service_identity(
    spec: &manifest::Identity,
    service: (&str, Provider, Option<&str>),
    names: &Names<'_>,
) -> job::Identity {
    let (service, provider, port) = service;
    let prefix = match provider {
        Provider::Consul => "consul-service",
        Provider::Nomad => "nomad-service",
    };
    let owner = names.task.map(|task| format!("{task}-")).unwrap_or_default();
    let name = format!("{prefix}_{owner}{service}-{}", port.unwrap_or_default());
    to_identity(&manifest::Identity { name: Some(name), ..spec.clone() })
}

/// Nomad takes names of signals in any case.
pub(super) fn to_signal(signal: Option<&manifest::Signal>) -> Option<String> {
    signal.map(|signal| signal.0.to_ascii_uppercase())
}
