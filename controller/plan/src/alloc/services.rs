//! Registrations of the group's services. Issued before tasks start, taken back first on stop. A catalogue that is down
//! holds nothing back: what it should hold is remembered here and made true when it is back.

use herdlet_api_types::job::Service;

use crate::{
    action::Verb,
    alloc::{checks::is_outdated, wants_services},
    limits::CATALOG_TIMEOUT,
    op::{Part, TaskPart},
    pass::{Pass, Trust},
    state::PartState,
};

/// Registers them. The next part goes on as soon as the request is issued.
pub fn up(pass: &mut Pass<'_>, _ready: bool) -> bool {
    let services = &pass.group.services;
    if services.is_empty() || !wants_services(pass) {
        withdraw(pass, Part::Services, services);
        return true;
    }
    register(pass, Part::Services, services, Part::Checks);
    match pass.state.parts.get(Part::Services) {
        PartState::Unknown | PartState::Absent => false,
        PartState::Up | PartState::Suspect(_) | PartState::Busy { .. } | PartState::Failed { .. } => true,
    }
}

/// Takes them back; retried until the catalogue confirms. Neither stopping the tasks nor removing what they left waits for
/// it, as a catalogue may refuse for ever; only being forgotten does: see [`withdrawn`].
pub fn down(pass: &mut Pass<'_>, _above_gone: bool) -> bool {
    let services = &pass.group.services;
    withdraw(pass, Part::Services, services);
    true
}

/// Makes the catalogues hold these services. Of a version whose services are others, the checks are ended before: what they say
/// would be taken for what those of this one say.
pub(crate) fn register(pass: &mut Pass<'_>, part: Part, services: &[Service], checks: Part) {
    if services.is_empty() {
        withdraw(pass, part, services);
    } else if !is_outdated(pass, checks) {
        pass.want_up(part, Trust::Assert, CATALOG_TIMEOUT);
    }
}

/// Makes the catalogues hold nothing of these services.
pub(crate) fn withdraw(pass: &mut Pass<'_>, part: Part, services: &[Service]) {
    if has_any(pass, part, services) {
        pass.want_down(part, Verb::Down, CATALOG_TIMEOUT);
    }
}

/// Whether the catalogues have confirmed that they hold nothing of the allocation.
pub(crate) fn withdrawn(pass: &Pass<'_>) -> bool {
    let gone = |part, services: &[Service]| {
        !has_any(pass, part, services) || matches!(pass.state.parts.get(part), PartState::Absent)
    };
    let mut tasks = (0..).zip(&pass.group.tasks);
    gone(Part::Services, &pass.group.services)
        && tasks.all(|(index, task)| gone(Part::Task(index, TaskPart::Services), &task.services))
}

/// Whether the catalogues should hold any, or may hold some of an older version of the job: this one has none.
fn has_any(pass: &Pass<'_>, part: Part, services: &[Service]) -> bool {
    !services.is_empty() || pass.state.durable.retired.contains(&part)
}
