//! Checks of a service, resolved.
//!
//! In: a check and the service it belongs to. Out: a [`RegisteredCheck`] whose id changes with everything that defines
//! it. It does not know how checks are run.

use std_alloc::{
    format,
    string::{String, ToString},
};

use herdlet_api_types::{
    job::{AddressMode, Check, CheckKind, Provider, Thresholds},
    service::RegisteredCheck,
};

use super::{
    Invalid,
    address::{self, Address, AddressError, Scope},
};
use crate::{env::TaskEnv, hash::Fields};

/// The service that checks belong to.
pub(super) struct Of<'a> {
    /// Its owner, and the task that its checks belong to, if any.
    pub(super) scope: Scope<'a>,
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
        let env = self.scope.workload.env;
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
            initial_status: check.initial_status,
            thresholds: check.thresholds,
            on_update: check.on_update,
            check_restart: check.check_restart,
            notes: check.notes.clone(),
            task: self.task_of(check).map(ToString::to_string),
        };
        registered.id = self.check_id(&registered);
        Ok(registered)
    }

    /// By default a check uses the host's address, or the service's literal one. A command has no address.
    fn address(&self, check: &Check) -> Result<Address, AddressError> {
        if !check.kind.has_address() {
            return Ok(Address::default());
        }
        let label = match &check.port {
            Some(label) => self.scope.workload.env.interpolate(label),
            None => self.label.to_string(),
        };
        let (mode, literal) = match check.address_mode {
            Some(mode) => (mode, if mode == AddressMode::Auto { self.literal } else { "" }),
            None if self.literal.is_empty() => (AddressMode::Host, ""),
            None => (AddressMode::Auto, self.literal),
        };
        let address = address::resolve(&self.scope, mode, &label, literal)?;
        if address.port == 0 { Err(AddressError::NoPort) } else { Ok(address) }
    }

    /// The task that a check belongs to, if any.
    fn task_of<'c>(&'c self, check: &'c Check) -> Option<&'c str> {
        match &check.kind {
            CheckKind::Script { task, .. } => Some(task),
            CheckKind::Http { .. } | CheckKind::Tcp | CheckKind::Grpc { .. } => self.scope.named_task,
        }
    }

    /// In Consul `_herdlet-check-<hash>`, in the built-in catalogue the hash alone. No catalogue is queried for a
    /// check's content: different content has a different id.
    fn check_id(&self, check: &RegisteredCheck) -> String {
        let hash = hash(self.id, check);
        match self.provider {
            Provider::Nomad => hash,
            Provider::Consul => format!("_{}-check-{hash}", self.scope.workload.origin.as_str()),
        }
    }
}

fn kind(kind: &CheckKind, env: &TaskEnv) -> CheckKind {
    match kind {
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
            CheckKind::Http {
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
                tls_server_name: env.interpolate(tls_server_name),
            }
        }
        CheckKind::Tcp => CheckKind::Tcp,
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => CheckKind::Grpc {
            service: env.interpolate(service),
            tls: *tls,
            tls_skip_verify: *tls_skip_verify,
            tls_server_name: env.interpolate(tls_server_name),
        },
        CheckKind::Script { command, args, task } => CheckKind::Script {
            command: env.interpolate(command),
            args: args.iter().map(|arg| env.interpolate(arg)).collect(),
            task: task.clone(),
        },
    }
}

/// SHA-256 over the service's id and every field that defines the check, in lower-case hexadecimal.
fn hash(service: &str, check: &RegisteredCheck) -> String {
    // Destructured so that a new field can't be forgotten.
    let RegisteredCheck {
        id: _,
        name,
        kind,
        address,
        port,
        interval,
        timeout,
        initial_status,
        thresholds,
        // How the results are used does not affect how the check is run.
        on_update: _,
        check_restart: _,
        task: _,
        notes,
    } = check;
    let mut fields = Fields::default();
    fields.text(service);
    fields.text(name);
    hash_kind(kind, &mut fields);
    fields.text(address);
    fields.number(u64::from(*port));
    fields.number(interval.as_nanos().cast_unsigned());
    fields.number(timeout.as_nanos().cast_unsigned());
    // Fields that older agents did not know count only if set, so that existing checks keep their ids.
    if let Some(status) = initial_status {
        fields.text("initial_status");
        fields.number(*status as u64);
    }
    if *thresholds != Thresholds::default() {
        fields.text("thresholds");
        fields.number(u64::from(thresholds.success_before_passing));
        fields.number(u64::from(thresholds.failures_before_critical));
        fields.number(u64::from(thresholds.failures_before_warning));
    }
    if !notes.is_empty() {
        fields.text("notes");
        fields.text(notes);
    }
    fields.hex::<32>()
}

fn hash_kind(kind: &CheckKind, fields: &mut Fields) {
    match kind {
        CheckKind::Tcp => fields.text("tcp"),
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
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
            if !tls_server_name.is_empty() {
                fields.text(tls_server_name);
            }
        }
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
            fields.text("grpc");
            fields.text(service);
            fields.number(u64::from(*tls));
            fields.number(u64::from(*tls_skip_verify));
            fields.text(tls_server_name);
        }
        CheckKind::Script { command, args, task } => {
            fields.text("script");
            fields.text(command);
            fields.number(args.len() as u64);
            args.iter().for_each(|arg| fields.text(arg));
            fields.text(task);
        }
    }
}
