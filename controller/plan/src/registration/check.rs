//! Checks of a service, resolved.
//!
//! In: a check and the service it belongs to. Out: a [`RegisteredCheck`] whose id changes with all that defines it. Must not know
//! how checks are made.

use std_alloc::{
    format,
    string::{String, ToString},
};

use herdlet_api_types::{
    job::{AddressMode, Check, CheckKind, Provider},
    service::RegisteredCheck,
};

use super::{
    Invalid, Workload,
    address::{self, Address, AddressError},
};
use crate::{env::TaskEnv, hash::Fields};

/// The service that checks belong to.
pub(super) struct Of<'a> {
    pub(super) workload: &'a Workload<'a>,
    /// Its id.
    pub(super) id: &'a str,
    /// Its port label; empty for none.
    pub(super) label: &'a str,
    /// Its literal address; empty for none.
    pub(super) literal: &'a str,
    pub(super) provider: Provider,
}

impl Of<'_> {
    pub(super) fn register(&self, check: &Check) -> Result<RegisteredCheck, Invalid> {
        let env = self.workload.env;
        let name = env.interpolate(&check.name);
        let Address { ip, port } =
            self.address(check).map_err(|why| Invalid::Check { check: name.clone(), why })?;
        let mut registered = RegisteredCheck {
            id: String::new(),
            name,
            kind: kind(&check.kind, env),
            address: ip,
            port,
            interval: check.interval,
            timeout: check.timeout,
        };
        registered.id = self.check_id(&registered);
        Ok(registered)
    }

    /// A check goes to the host's address, or to the service's literal one.
    fn address(&self, check: &Check) -> Result<Address, AddressError> {
        let label = match &check.port {
            Some(label) => self.workload.env.interpolate(label),
            None => self.label.to_string(),
        };
        let mode = if self.literal.is_empty() { AddressMode::Host } else { AddressMode::Auto };
        let address = address::resolve(self.workload, mode, &label, self.literal)?;
        if address.port == 0 { Err(AddressError::NoPort) } else { Ok(address) }
    }

    /// In Consul `_herdlet-check-<hash>`, in the built-in catalogue the hash alone. A catalogue is never asked what a check
    /// looks like: another content is another id.
    fn check_id(&self, check: &RegisteredCheck) -> String {
        let hash = hash(self.id, check);
        match self.provider {
            Provider::Nomad => hash,
            Provider::Consul => format!("_{}-check-{hash}", self.workload.origin.as_str()),
        }
    }
}

fn kind(kind: &CheckKind, env: &TaskEnv) -> CheckKind {
    match kind {
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify } => CheckKind::Http {
            path: env.interpolate(path),
            method: env.interpolate(method),
            protocol: env.interpolate(protocol),
            header: header
                .iter()
                .map(|(name, values)| {
                    (env.interpolate(name), values.iter().map(|value| env.interpolate(value)).collect())
                })
                .collect(),
            // Nomad takes the body literally.
            body: body.clone(),
            tls_skip_verify: *tls_skip_verify,
        },
        CheckKind::Tcp => CheckKind::Tcp,
    }
}

/// SHA-256 over the service's id and every field of the check, in lower-case hexadecimal.
fn hash(service: &str, check: &RegisteredCheck) -> String {
    // Destructured so that a new field can't be forgotten.
    let RegisteredCheck { id: _, name, kind, address, port, interval, timeout } = check;
    let mut fields = Fields::default();
    fields.text(service);
    fields.text(name);
    match kind {
        CheckKind::Tcp => fields.text("tcp"),
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify } => {
            fields.text("http");
            fields.text(path);
            fields.text(method);
            fields.text(protocol);
            fields.number(header.len() as u64);
            for (name, values) in header {
                fields.text(name);
                fields.number(values.len() as u64);
                values.iter().for_each(|value| fields.text(value));
            }
            fields.text(body);
            fields.number(u64::from(*tls_skip_verify));
        }
    }
    fields.text(address);
    fields.number(u64::from(*port));
    fields.number(interval.as_nanos().cast_unsigned());
    fields.number(timeout.as_nanos().cast_unsigned());
    fields.hex::<32>()
}
