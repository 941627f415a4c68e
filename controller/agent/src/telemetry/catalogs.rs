//! What the catalogues hold in numbers.
//!
//! In: the catalogues. Out: samples. Nothing is asked of a catalogue for it.

use std::fmt;

use herdlet_services::catalog::Catalogs;

use super::{names, number, page::Page};
use crate::publish::ReadModel;

const BUILT_IN: &str = "built_in";
const CONSUL: &str = "consul";

/// Services by catalogue, and what a catalogue did not do.
pub(super) fn write(page: &mut Page<'_>, catalogs: &Catalogs, model: &ReadModel) -> fmt::Result {
    let lives = |id: &_| model.alloc(id).is_some_and(|view| !view.status.is_terminal());
    let consul = catalogs.consul.counts(lives);
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
