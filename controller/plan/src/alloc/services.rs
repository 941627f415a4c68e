//! Registrations of the group's services. Issued before tasks start, taken back first on stop. A catalogue that is down
//! holds nothing back: what it should hold is remembered here and made true when it is back.

use crate::{
    action::Verb,
    alloc::wants_services,
    limits::CATALOG_TIMEOUT,
    op::{Part, TaskPart},
    pass::{Pass, Trust},
    state::PartState,
};

/// Registers them. The next part goes on as soon as the request is issued.
pub fn up(pass: &mut Pass<'_>, _ready: bool) -> bool {
    if pass.group.services.is_empty() {
        return true;
    }
    if !wants_services(pass) {
        pass.want_down(Part::Services, Verb::Down, CATALOG_TIMEOUT);
        return true;
    }
    pass.want_up(Part::Services, Trust::Assert, CATALOG_TIMEOUT);
    match pass.state.parts.get(Part::Services) {
        PartState::Unknown | PartState::Absent => false,
        PartState::Up | PartState::Suspect(_) | PartState::Busy { .. } | PartState::Failed { .. } => true,
    }
}

/// Takes them back; retried until the catalogue confirms. Neither stopping the tasks nor removing what they left waits for
/// it, as a catalogue may refuse for ever; only being forgotten does: see [`withdrawn`].
pub fn down(pass: &mut Pass<'_>, _above_gone: bool) -> bool {
    if !pass.group.services.is_empty() {
        pass.want_down(Part::Services, Verb::Down, CATALOG_TIMEOUT);
    }
    true
}

/// Whether the catalogues have confirmed that they hold nothing of the allocation.
pub(crate) fn withdrawn(pass: &Pass<'_>) -> bool {
    let gone = |part| matches!(pass.state.parts.get(part), PartState::Absent);
    let mut tasks = (0..).zip(&pass.group.tasks);
    (pass.group.services.is_empty() || gone(Part::Services))
        && tasks.all(|(index, task)| task.services.is_empty() || gone(Part::Task(index, TaskPart::Services)))
}
