//! A driver's own check of a task's `config`.

use std::collections::BTreeSet;

use herdlet_api_types::driver::{Planned, Sharing, Verdict};
use herdlet_api_types::job::Task;
use serde_json::Value as Json;

use super::{Findings, GroupContext};
use crate::yaml::{PathStep, Trail, parse_path};

pub(super) fn of_task(
    context: &GroupContext<'_>,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(check) = context.drivers.get(&task.driver).and_then(|rules| rules.check) else { return };
    let config = trail.field("config");
    // A finding about an unreadable part would only repeat its problem.
    let is_unread = [&config, &trail.field("resources"), &context.trail.field("network")]
        .into_iter()
        .any(|part| findings.is_unread(part));
    if is_unread || findings.has_problem_in(&config) {
        return;
    }
    let of_group = context.group.network.iter().flat_map(|network| network.ports.keys());
    let ports: BTreeSet<&str> = of_group.chain(task.ports.keys()).map(String::as_str).collect();
    let network = if context.group.has_own_network() { Sharing::Shares } else { Sharing::Own };
    let planned = Planned { config: &task.config, resources: &task.resources, ports: &ports, network };
    for finding in check.findings(&planned) {
        // Only the start knows the value.
        if finding.field.contains("${") || is_open(value_at(&task.config, &finding.field)) {
            continue;
        }
        let path = match finding.field.starts_with("resources.") {
            true => format!("{trail}.{}", finding.field),
            false => format!("{config}.{}", finding.field),
        };
        match finding.verdict {
            Verdict::Refused => findings.problem_at(&path, finding.message),
            Verdict::NoEffect => findings.warning_at(&path, finding.message),
        }
    }
}

/// The innermost value on a path. A list of maps counts as the map of all their keys: it is a repeated block.
fn value_at<'c>(config: &'c Json, field: &str) -> &'c Json {
    let mut value = config;
    for step in parse_path(field).unwrap_or_default() {
        let next = match (&step, value) {
            (PathStep::Field(name), Json::Object(map)) => map.get(name),
            (PathStep::Field(name), Json::Array(items)) => items.iter().find_map(|item| item.get(name)),
            (PathStep::Item(index), Json::Array(items)) => items.get(*index),
            // One that is written without the list around it.
            (PathStep::Item(_), _) => Some(value),
            (PathStep::Field(_), _) => None,
        };
        let Some(next) = next else { return &Json::Null };
        value = next;
    }
    value
}

/// Whether a value has a part that is interpolated.
fn is_open(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
        Json::String(text) => text.contains("${"),
        Json::Array(items) => items.iter().any(is_open),
        Json::Object(map) => map.iter().any(|(key, value)| key.contains("${") || is_open(value)),
    }
}
