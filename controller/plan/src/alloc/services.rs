//! Registrations of the group's services. They are issued before tasks start, and withdrawn first on a stop. An
//! unreachable catalogue delays nothing: what it should hold is stored here and reconciled once it is back. Nothing is
//! sent to a Consul that has never answered, and so nothing is withdrawn from it.

use herdlet_api_types::job::{Provider, Service};

use crate::{
    action::Verb,
    alloc::checks::is_outdated,
    goal::wants_services,
    op::{Part, TaskPart},
    parts::Progress,
    pass::Pass,
    plan::Waiting,
    state::{Doing, PartState},
};

/// Registers them. The next part goes on as soon as the request is issued.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    let services = &pass.group.services;
    if services.is_empty() || !wants_services(pass.state) {
        withdraw(pass, Part::Services, services);
        return Progress::Arrived;
    }
    register(pass, Part::Services, services, Part::Checks);
    match pass.state.parts.get(Part::Services) {
        PartState::Unknown | PartState::Absent => Progress::Pending,
        PartState::Up
        | PartState::Suspect(_)
        | PartState::Busy { .. }
        | PartState::Pending { .. }
        | PartState::Failed { .. } => Progress::Arrived,
    }
}

/// Deregisters them; retried until the catalogue confirms. Neither stopping the tasks nor removing their leftovers
/// waits for it, because a catalogue may refuse forever. Only forgetting the allocation does: see [`withdrawn`].
pub fn down(pass: &mut Pass<'_>) -> Progress {
    let services = &pass.group.services;
    withdraw(pass, Part::Services, services);
    Progress::Arrived
}

/// Makes the catalogues hold these services. If this version has no checks but an older one had some, those are ended
/// first.
pub(crate) fn register(pass: &mut Pass<'_>, part: Part, services: &[Service], checks: Part) {
    if services.is_empty() {
        withdraw(pass, part, services);
    } else if is_outdated(pass, checks) {
    } else if in_consul(services) && !pass.state.durable.may_be_held(part) {
        ask(pass, part);
    } else {
        pass.want_up(part);
    }
}

/// Asks whether there is a Consul that answers. Nothing is sent before one did: many a job written for Nomad implies
/// Consul by its default, on a machine that never has one.
fn ask(pass: &mut Pass<'_>, part: Part) {
    let due = match pass.state.parts.get(part) {
        PartState::Unknown | PartState::Suspect(_) | PartState::Absent | PartState::Up => true,
        PartState::Busy { .. } => false,
        PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
            let due_ns = *due_ns;
            pass.due(due_ns)
        }
    };
    if due {
        pass.operate(part, Doing::Inspect(None), Verb::Ask);
    }
    pass.wait(Waiting::Part(part));
}

/// Whether any of these services belongs in a Consul.
pub(crate) fn in_consul(services: &[Service]) -> bool {
    services.iter().any(|service| service.provider == Provider::Consul)
}

/// Removes these services from the catalogues.
pub(crate) fn withdraw(pass: &mut Pass<'_>, part: Part, services: &[Service]) {
    if has_any(pass, part, services) {
        pass.want_down(part);
    }
}

/// Whether the catalogues have confirmed that they hold no services of the allocation.
pub(crate) fn withdrawn(pass: &Pass<'_>) -> bool {
    let gone = |part, services: &[Service]| {
        !has_any(pass, part, services) || matches!(pass.state.parts.get(part), PartState::Absent)
    };
    let mut tasks = (0..).zip(&pass.group.tasks);
    gone(Part::Services, &pass.group.services)
        && tasks.all(|(index, task)| gone(Part::Task(index, TaskPart::Services), &task.services))
}

/// Whether the catalogues may hold any of these services, or some of an older version of the job.
fn has_any(pass: &Pass<'_>, part: Part, services: &[Service]) -> bool {
    let durable = &pass.state.durable;
    let built_in = !services.is_empty() && !in_consul(services);
    built_in || durable.is_retired(part) || (!services.is_empty() && durable.may_be_held(part))
}
