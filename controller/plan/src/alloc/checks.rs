//! Checks of the group's services in the built-in catalogue. A Consul agent makes its own.

use herdlet_api_types::job::{Provider, Service};

use crate::{
    action::Verb,
    alloc::wants_services,
    limits::OPERATION_TIMEOUT,
    op::Part,
    pass::{Pass, Trust},
};

/// Runs them while the group's services are registered.
pub fn up(pass: &mut Pass<'_>, _ready: bool) -> bool {
    if !has_checks(&pass.group.services) {
        return true;
    }
    if wants_services(pass) {
        pass.want_up(Part::Checks, Trust::Assert, OPERATION_TIMEOUT)
    } else {
        pass.want_down(Part::Checks, Verb::Down, OPERATION_TIMEOUT)
    }
}

/// Stops them.
pub fn down(pass: &mut Pass<'_>, _above_gone: bool) -> bool {
    !has_checks(&pass.group.services) || pass.want_down(Part::Checks, Verb::Down, OPERATION_TIMEOUT)
}

/// Whether any of these services has a check that the agent itself makes.
pub(crate) fn has_checks(services: &[Service]) -> bool {
    services.iter().any(|service| service.provider == Provider::Nomad && !service.checks.is_empty())
}
