//! Writes metrics: OpenMetrics by `prometheus-client`, and the older text format on request.
//!
//! In: a metric of [`super::names`] and its samples. Out: lines. It must not know the meaning of the numbers.

use std::{collections::HashMap, fmt};

use herdlet_runtime::metrics::{BOUNDS_NS, HistogramReading};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Unit,
};

use super::names::{Kind, Measure, Metric};

/// The format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
    Text,
}

impl Format {
    /// The format that the `Accept` header of a request selects.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let mut ranges = accept.unwrap_or_default().split(',');
        let wanted = ranges.any(|range| {
            let mut parts = range.split(';').map(str::trim);
            parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"))
                && !parts.any(is_never)
        });
        if wanted { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type` of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// `q=0` means "not acceptable" (RFC 9110, section 12.4.2).
fn is_never(parameter: &str) -> bool {
    let quality = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
    quality.and_then(|quality| quality.trim().parse().ok()).is_some_and(|quality: f32| quality == 0.0)
}

/// A page that is being written.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

/// Values of a metric's labels, in the order of their names.
pub(super) struct Labels<'a>(&'static [&'static str], &'a [&'a str]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel;
        let Self(names, values) = self;
        for (name, value) in names.iter().zip(*values) {
            (*name, *value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

impl Page<'_> {
    pub(super) fn counters<'v, V: AsRef<[&'v str]>>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (V, u64)>,
    ) -> fmt::Result {
        self.family(metric, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter(&value, None::<&Exemplar<Labels<'_>, u64>>)
        })
    }

    pub(super) fn gauges<'v, V: AsRef<[&'v str]>>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (V, f64)>,
    ) -> fmt::Result {
        self.family(metric, MetricType::Gauge, samples, |encoder, value| encoder.encode_gauge(&value))
    }

    pub(super) fn histograms<'v, V: AsRef<[&'v str]>>(
        &mut self,
        metric: &Metric,
        samples: impl IntoIterator<Item = (V, HistogramReading)>,
    ) -> fmt::Result {
        self.family(metric, MetricType::Histogram, samples, |encoder, reading| {
            let bounds = BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(reading.buckets).collect();
            let no_exemplars = None::<&HashMap<usize, Exemplar<Labels<'_>, f64>>>;
            encoder.encode_histogram(seconds(reading.sum_ns), reading.count, &buckets, no_exemplars)
        })
    }

    /// Writes a metric with all its samples, or nothing if there are none.
    fn family<'v, V: AsRef<[&'v str]>, T>(
        &mut self,
        metric: &Metric,
        kind: MetricType,
        samples: impl IntoIterator<Item = (V, T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let unit = unit(metric.measure);
        let mut encoder = self.0.encode_descriptor(base(metric), metric.help, unit.as_ref(), kind)?;
        for (values, value) in samples {
            if metric.labels.is_empty() {
                write(&mut encoder, value)?;
            } else {
                let labels = Labels(metric.labels, values.as_ref());
                write(&mut encoder.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }
}

/// Converts nanoseconds to seconds.
#[expect(clippy::cast_precision_loss, reason = "a metric needs no more than 52 bits")]
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The name without the suffixes that the encoder appends.
fn base(metric: &Metric) -> &'static str {
    let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
    match metric.measure {
        Measure::Number => name,
        Measure::Seconds => name.strip_suffix("_seconds").unwrap_or(name),
        Measure::Bytes => name.strip_suffix("_bytes").unwrap_or(name),
    }
}

fn unit(measure: Measure) -> Option<Unit> {
    match measure {
        Measure::Number => None,
        Measure::Seconds => Some(Unit::Seconds),
        Measure::Bytes => Some(Unit::Bytes),
    }
}

/// Converts OpenMetrics to the older text format: a counter's family has the name of its samples, and there are no
/// units.
pub(super) fn as_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let renamed = ["# HELP ", "# TYPE "].iter().find_map(|start| {
            let (name, rest) = line.strip_prefix(start)?.split_once(' ')?;
            let total = format!("{name}_total");
            let counter =
                super::names::ALL.iter().any(|metric| metric.name == total && metric.kind == Kind::Counter);
            counter.then(|| format!("{start}{total} {rest}"))
        });
        text.push_str(renamed.as_deref().unwrap_or(line));
        text.push('\n');
    }
    text
}
