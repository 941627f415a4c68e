//! Addresses of services and checks that lead to nothing: a network that no task has, or the machine instead of the allocation.

use herdlet_api_types::{
    driver::{FsIsolation, MOCK},
    job::{AddressMode, Check, Service},
};

use super::{Findings, GroupContext};
use crate::yaml::Trail;

/// Refuses `address_mode: driver` where no driver makes a network for the task.
pub(super) fn of_service(
    context: &GroupContext<'_>,
    service: &Service,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if service.address_mode != AddressMode::Driver {
        return;
    }
    let is_shared = context.group.has_own_network();
    let message = match context.task {
        // Its `driver_ip` stands for a network.
        Some(task) if task.driver == MOCK => return,
        Some(_) | None if is_shared => {
            "needs a network of the task's own, but the tasks of this group share one; \
             write `address_mode: alloc`"
                .to_owned()
        }
        None => "needs the network of a task, which a group does not have; write the service into the task"
            .to_owned(),
        Some(task) => {
            let rules = context.drivers.get(&task.driver);
            if rules.is_none_or(|rules| rules.capabilities.fs_isolation == FsIsolation::Image) {
                return;
            }
            format!(
                "needs a network that the driver makes for the task; tasks of {} are in the machine's network: remove it",
                task.driver
            )
        }
    };
    findings.problem(&trail.field("address_mode"), message);
}

/// Warns of a check that tests the machine instead of the allocation: as in Nomad, its address is the machine's by
/// default, where only a port with a label leads into the allocation's network.
pub(super) fn of_check(
    context: &GroupContext<'_>,
    (check, service): (&Check, &Service),
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let port = check.port.as_deref().or(service.port.as_deref()).unwrap_or_default();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_machine = matches!(check.address_mode, None | Some(AddressMode::Auto | AddressMode::Host));
    if is_number
        && is_of_machine
        && service.address_mode == AddressMode::Alloc
        && context.group.has_own_network()
        && check.kind.has_address()
    {
        let message = format!(
            "the check tests port {port} of the machine, as in Nomad; to test the allocation's, write `address_mode: alloc` in the check"
        );
        findings.warning(trail, message);
    }
}
