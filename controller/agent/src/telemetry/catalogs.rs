//! Metrics of the service catalogues.
//!
//! In: the catalogues. Out: samples. It sends no request to a catalogue.

use std::fmt;

use herdlet_services::catalog::Catalogs;

use super::{names, number, page::Page};
use crate::{publish::ReadModel, published::PublishedCounts};

const BUILT_IN: &str = "built_in";
const CONSUL: &str = "consul";

/// Writes services and failed requests by catalogue.
pub(super) fn write(page: &mut Page<'_>, catalogs: &Catalogs, model: &ReadModel) -> fmt::Result {
    let consul = catalogs.consul.counts(|id| model.is_live(id));
    let built_in = u64::try_from(catalogs.built_in.all().len()).unwrap_or(u64::MAX);
    let services = [
        ([BUILT_IN, "registered"], built_in),
        ([CONSUL, "registered"], consul.registered),
        ([CONSUL, "pending"], consul.pending),
        ([CONSUL, "leaving"], consul.leaving),
    ];
    page.gauges(&names::SERVICES, services.map(|(labels, count)| (labels, number(count))))?;
    page.counters(
        &names::CATALOG_FAILURES,
        catalogs.consul.failures().map(|(request, count)| ([CONSUL, request], count)),
    )
}

/// Writes published ports and their targets.
pub(super) fn write_published(page: &mut Page<'_>, counts: PublishedCounts) -> fmt::Result {
    let PublishedCounts { open, waiting, targets } = counts;
    let ports = [(["open"], number(open)), (["waiting"], number(waiting))];
    page.gauges(&names::PUBLISHED_PORTS, ports)?;
    page.gauges(&names::PUBLISHED_TARGETS, [([], number(targets))])
}
