//! Metrics in JSON, which Nomad's agents return unless Prometheus' format is requested.
//!
//! In: the page in Prometheus' text format. Out: the metrics that Nomad also has, under its names. All are gauges: current values, rather
//! than values over an interval as in Nomad's counters and samples.
//!
//! Facts: `hashicorp/nomad:command/agent/metrics_endpoint.go`, `hashicorp/go-metrics:inmem_endpoint.go` (`MetricsSummary`).

use axum::http::{HeaderMap, header};
use herdlet_api_types::UnixNanos;
use serde_json::{Map, Value as Json, json};

/// Prefix of the metrics of Nomad's clients.
const OF_CLIENT: &str = "nomad_client_";

/// Prefixes of names that also have a dot after their second word.
const OF_TWO_WORDS: [&str; 4] = ["allocs_cpu_", "allocs_memory_", "host_cpu_", "host_memory_"];

/// Whether JSON is requested. Prometheus sends an `Accept` header even if its config omits the parameter.
pub(super) fn wants_json(format: &str, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let takes_text = ["text/plain", "application/openmetrics-text"].iter().any(|one| accept.contains(one));
    format != "prometheus" && !takes_text
}

/// Converts a page.
pub(super) fn summary(page: &str, now: UnixNanos) -> Json {
    let gauges: Vec<Json> = page.lines().filter_map(gauge).collect();
    let at = jiff::Timestamp::from_nanosecond(i128::from(now.0)).unwrap_or_default();
    json!({
        "Timestamp": at.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string(),
        "Gauges": gauges, "Points": [], "Counters": [], "Samples": [],
    })
}

/// Converts a line of the page; `None` if it is not a metric of Nomad's clients.
fn gauge(line: &str) -> Option<Json> {
    let (series, value) = line.strip_prefix(OF_CLIENT)?.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels_of(labels.strip_suffix('}')?)?),
        None => (series, Map::new()),
    };
    let value: f64 = value.parse().ok()?;
    Some(json!({ "Name": dotted(name), "Value": value, "Labels": labels }))
}

/// The name in Nomad's format.
fn dotted(name: &str) -> String {
    let two = OF_TWO_WORDS.iter().find_map(|two| Some((*two, name.strip_prefix(two)?)));
    let name = match two {
        Some((two, rest)) => format!("{}{rest}", two.replace('_', ".")),
        None => name.replacen('_', ".", 1),
    };
    format!("nomad.client.{name}")
}

/// Parses `name="value",…`, where a value may contain `\\`, `\"` and `\n`.
fn labels_of(text: &str) -> Option<Map<String, Json>> {
    let mut labels = Map::new();
    let mut left = text;
    while !left.is_empty() {
        let (name, rest) = left.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value.into());
        left = rest.get(end + 1..)?;
        left = left.strip_prefix(',').unwrap_or(left);
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_summary_uses_nomad_names() {
        let page = "# TYPE nomad_client_uptime gauge\n\
                    herdlet_build_info{version=\"0.1.0\"} 1.0\n\
                    nomad_client_uptime 12\n\
                    nomad_client_host_cpu_total_percent{cpu=\"cpu0\",host=\"a\"} 2.5\n\
                    nomad_client_allocations_running{node_class=\"\"} 3\n\
                    nomad_client_allocs_memory_max_usage{job=\"a \\\"b\\\", {c}\\n\"} 4\n\
                    nomad_client_allocs_oom_killed{} 0\n\
                    nomad_client_torn{job=\"a 1\n";
        let summary = summary(page, UnixNanos(1_795_583_310_000_000_000));
        let gauge =
            |name: &str, value: f64, labels: Json| json!({ "Name": name, "Value": value, "Labels": labels });
        assert_eq!(
            summary,
            json!({
                "Timestamp": "2026-11-25 05:08:30 +0000 UTC",
                "Gauges": [
                    gauge("nomad.client.uptime", 12.0, json!({})),
                    gauge("nomad.client.host.cpu.total_percent", 2.5, json!({ "cpu": "cpu0", "host": "a" })),
                    gauge("nomad.client.allocations.running", 3.0, json!({ "node_class": "" })),
                    gauge("nomad.client.allocs.memory.max_usage", 4.0, json!({ "job": "a \"b\", {c}\n" })),
                    gauge("nomad.client.allocs.oom_killed", 0.0, json!({})),
                ],
                "Points": [], "Counters": [], "Samples": [],
            })
        );
    }
}
