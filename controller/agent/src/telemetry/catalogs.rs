//! Metrics of the service catalogues.
//!
//! In: the catalogues. Out: samples. It sends no request to a catalogue.

use std::fmt;

use herdlet_api_types::job::ConsulAccess;
use herdlet_services::catalog::Catalogs;

use super::{names, number, page::Page};
use crate::{publish::ReadModel, published::PublishedCounts};

const BUILT_IN: &str = "built_in";
const CONSUL: &str = "consul";

/// Writes services and failed requests by catalogue.
pub(super) fn write(page: &mut Page<'_>, catalogs: &Catalogs, model: &ReadModel) -> fmt::Result {
    let consuls = catalogs.consuls.counts(|id| model.is_live(id)).into_iter();
    let of_consuls = consuls.flat_map(|(name, counts)| {
        let catalog = catalog_of(&name);
        let states =
            [("registered", counts.registered), ("pending", counts.pending), ("leaving", counts.leaving)];
        states.map(|(state, count)| ([catalog.clone(), state.to_owned()], count))
    });
    let built_in = u64::try_from(catalogs.built_in.all().len()).unwrap_or(u64::MAX);
    let built_in = ([BUILT_IN, "registered"].map(str::to_owned), built_in);
    let services: Vec<_> = [built_in].into_iter().chain(of_consuls).collect();
    let services =
        services.iter().map(|(labels, count)| (labels.each_ref().map(String::as_str), number(*count)));
    page.gauges(&names::SERVICES, services)?;
    let failures: Vec<_> = catalogs.consuls.failures();
    let failures: Vec<_> =
        failures.into_iter().map(|(name, request, count)| (catalog_of(&name), request, count)).collect();
    page.counters(
        &names::CATALOG_FAILURES,
        failures.iter().map(|(catalog, request, count)| ([catalog.as_str(), *request], *count)),
    )
}

/// The label of a Consul.
fn catalog_of(name: &str) -> String {
    if name == ConsulAccess::DEFAULT_CLUSTER { CONSUL.to_owned() } else { format!("{CONSUL}.{name}") }
}

/// Writes published ports and their targets.
pub(super) fn write_published(page: &mut Page<'_>, counts: PublishedCounts) -> fmt::Result {
    let PublishedCounts { open, waiting, targets } = counts;
    let ports = [(["open"], number(open)), (["waiting"], number(waiting))];
    page.gauges(&names::PUBLISHED_PORTS, ports)?;
    page.gauges(&names::PUBLISHED_TARGETS, [([], number(targets))])
}
