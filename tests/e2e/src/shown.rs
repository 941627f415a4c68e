//! The agent's view of its allocations, in the terms of Nomad's API.
//!
//! In: the JSON of `/v1/allocations` or of one allocation. Out: names, states, events, ports. No other module
//! of these tests knows the field names.

use serde_json::Value;

use super::http::{self, Peer};

/// Returns an agent's allocations; empty if it does not answer.
pub fn allocs(peer: &Peer) -> Vec<Alloc> {
    let answer = http::get(peer, "/v1/allocations").filter(|answer| answer.status == 200);
    let list = answer.map(|answer| answer.json());
    list.and_then(|list| list.as_array().cloned()).unwrap_or_default().into_iter().map(Alloc).collect()
}

/// Returns an allocation with all that lists leave out.
pub fn alloc(peer: &Peer, id: &str) -> Option<Alloc> {
    let answer = http::get(peer, &format!("/v1/allocation/{id}"))?;
    (answer.status == 200).then(|| Alloc(answer.json()))
}

/// The JSON of an allocation.
#[derive(Debug, Clone)]
pub struct Alloc(pub Value);

impl Alloc {
    pub fn id(&self) -> String {
        text(&self.0, "ID")
    }

    /// `job.group[index]`.
    pub fn name(&self) -> String {
        text(&self.0, "Name")
    }

    pub fn job(&self) -> String {
        text(&self.0, "JobID")
    }

    /// `pending`, `running`, `complete`, `failed`, `unknown`.
    pub fn status(&self) -> String {
        text(&self.0, "ClientStatus")
    }

    /// `run` or `stop`.
    pub fn desired(&self) -> String {
        text(&self.0, "DesiredStatus")
    }

    /// A task's state: `pending`, `running`, `dead`.
    pub fn state(&self, task: &str) -> String {
        text(self.task(task), "State")
    }

    pub fn failed(&self, task: &str) -> bool {
        self.task(task)["Failed"].as_bool().unwrap_or(false)
    }

    /// Returns how often a task was restarted.
    pub fn restarts(&self, task: &str) -> u64 {
        self.task(task)["Restarts"].as_u64().unwrap_or(0)
    }

    /// Returns the types of a task's events, oldest first.
    pub fn events(&self, task: &str) -> Vec<String> {
        let events = self.task(task)["Events"].as_array().cloned().unwrap_or_default();
        events.iter().map(|event| text(event, "Type")).collect()
    }

    /// Returns the exit codes in its events of type `Terminated`, oldest first.
    pub fn exit_codes(&self, task: &str) -> Vec<i64> {
        let events = self.task(task)["Events"].as_array().cloned().unwrap_or_default();
        let terminated = events.iter().filter(|event| event["Type"] == "Terminated");
        terminated
            .map(|event| {
                event["ExitCode"]
                    .as_i64()
                    .or_else(|| event["Details"]["exit_code"].as_str()?.parse().ok())
                    .unwrap_or(-1)
            })
            .collect()
    }

    /// Returns the host port of a label.
    pub fn port(&self, label: &str) -> Option<u16> {
        find_port(&self.0, label)
    }

    fn task(&self, task: &str) -> &Value {
        &self.0["TaskStates"][task]
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

/// Finds `{Label, Value}` in `AllocatedResources.Shared.Ports`, or in the networks.
fn find_port(value: &Value, label: &str) -> Option<u16> {
    match value {
        Value::Object(fields) => {
            let here = fields.get("Label").and_then(Value::as_str) == Some(label);
            if here && let Some(port) = fields.get("Value").and_then(Value::as_u64) {
                return u16::try_from(port).ok().filter(|port| *port > 0);
            }
            let inner = fields.iter().filter(|(name, _)| *name != "Job");
            inner.filter_map(|(_, value)| find_port(value, label)).next()
        }
        Value::Array(items) => items.iter().filter_map(|value| find_port(value, label)).next(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
