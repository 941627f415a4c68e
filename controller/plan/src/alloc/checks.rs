//! Checks of services in the built-in catalogue, and checks that run commands. A Consul agent runs its other checks
//! itself.

use herdlet_api_types::job::Service;

use crate::{
    goal::wants_services,
    op::Part,
    parts::{Need, Progress},
    pass::Pass,
    policy::counts,
    state::{AllocState, PartState},
};

/// Runs them while the group's services are registered.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    if wants_services(pass.state) { run(pass, Part::Checks) } else { end(pass, Part::Checks) }
}

/// Stops them.
pub fn down(pass: &mut Pass<'_>) -> Progress {
    end(pass, Part::Checks)
}

/// Runs checks. Those for a process that has ended are ended first.
pub(crate) fn run(pass: &mut Pass<'_>, part: Part) -> Progress {
    let begin_anew =
        part == Part::Checks && pass.state.checks.recheck && *pass.state.parts.get(part) != PartState::Absent;
    if begin_anew || is_outdated(pass, part) {
        pass.want_down(part);
        return Progress::Pending;
    }
    if pass.spec.need(part) == Need::Unneeded {
        return Progress::Arrived;
    }
    pass.want_up(part)
}

/// Ends checks.
pub(crate) fn end(pass: &mut Pass<'_>, part: Part) -> Progress {
    if pass.spec.need(part) == Need::Unneeded && !is_outdated(pass, part) {
        return Progress::Arrived;
    }
    pass.want_down(part)
}

/// Whether these checks run for an older version of the job that had checks, while the current one has none, or for a
/// process that has ended.
pub(crate) fn is_outdated(pass: &Pass<'_>, part: Part) -> bool {
    pass.state.checks.outdated.contains(&part) && *pass.state.parts.get(part) != PartState::Absent
}

/// Whether every check of these services that counts has the result that the allocation's health requires. `is_theirs`
/// decides by the owner of a result: its task, or `None` for the group.
pub(crate) fn are_as_required(
    services: &[Service],
    state: &AllocState,
    is_theirs: impl Fn(Option<&str>) -> bool,
) -> bool {
    let mut wanted =
        services.iter().flat_map(|service| &service.checks).filter(|check| counts(check)).count();
    for result in
        state.checks.results.values().filter(|result| result.counts() && is_theirs(result.task.as_deref()))
    {
        if !result.is_as_required() {
            return false;
        }
        wanted = wanted.saturating_sub(1);
    }
    wanted == 0
}
