//! Metrics of the templates of tasks.
//!
//! In: figures of the renderer. Out: samples.

use std::fmt;

use herdlet_render::Figures;

use super::{names, number, page::Page};

pub(super) fn write(page: &mut Page<'_>, figures: Figures) -> fmt::Result {
    let Figures { queries, done, missing, failed, outdated, outdated_for } = figures;
    let count = |count: usize| number(u64::try_from(count).unwrap_or(u64::MAX));
    page.gauges(&names::TEMPLATE_QUERIES, [([], count(queries))])?;
    let renders = [("done", done), ("missing", missing), ("failed", failed)];
    page.counters(&names::TEMPLATE_RENDERS, renders.map(|(result, count)| ([result], count)))?;
    page.gauges(&names::TEMPLATES_OUTDATED, [([], count(outdated))])?;
    page.gauges(&names::TEMPLATES_OUTDATED_AGE, [([], outdated_for.as_secs_f64())])
}
