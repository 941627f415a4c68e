//! Jobs in the JSON of Nomad's API, as printed by `nomad job run -output`, `nomad job inspect` and `GET
//! /v1/job/ID`.
//!
//! In: the tree of the text, since YAML's parser reads JSON. Out: a document, or problems with the API's own
//! paths. What a server has added to a job (its state, empty fields, defaults of features that aren't built)
//! is ignored.

use std::sync::Arc;

use super::names::to_manifest_name;
use super::shape::Shape;
use super::{Fields, collection, defaults, problem};
use crate::manifests::document::JOB;
use crate::yaml::{Document, Entry, Node, Position, Problems, Trail, Value};

/// Returns whether a document is an API job.
pub(crate) fn is_job(document: &Document) -> bool {
    let root = &document.root;
    let is_ours = root.get("apiVersion").is_some() || root.get("kind").is_some();
    !is_ours && (root.get("Job").is_some() || root.get("TaskGroups").is_some() || root.get("ID").is_some())
}

/// Fields with the server's state of a job, not its specification.
const STATE: [&str; 17] = [
    "CreateIndex",
    "CreateTime",
    "DispatchIdempotencyToken",
    "Dispatched",
    "JobModifyIndex",
    "ModifyIndex",
    "ModifyTime",
    "NomadTokenID",
    "ParentID",
    "Stable",
    "Status",
    "StatusDescription",
    "SubmitTime",
    "Submission",
    "Version",
    "VersionTag",
    "Payload",
];

/// Fields of a registration request that don't change the job.
const REQUEST: [&str; 5] = ["JobModifyIndex", "Namespace", "Region", "SecretID", "Submission"];

/// Fields in which 0 means the same as an absent field.
const ZERO_IS_NOTHING: [&str; 8] =
    ["CPU", "MemoryMB", "MemoryMaxMB", "To", "Value", "TTL", "Priority", "MaxRunDuration"];

/// Blocks that servers fill in with Nomad's defaults. An unbuilt feature is ignored if it has only this
/// default.
const DEFAULTS: [(&str, &str); 8] = [
    ("Type", r#""horizontal""#),
    ("SpecType", r#""cron""#),
    ("HostNetwork", r#""default""#),
    ("Cluster", r#""default""#),
    ("OnUpdate", r#""require_healthy""#),
    ("PropagationMode", r#""private""#),
    ("Consul", r#"{"Cluster": "default", "Namespace": "", "Partition": ""}"#),
    (
        "Migrate",
        r#"{"HealthCheck": "checks", "HealthyDeadline": 300000000000, "MaxParallel": 1, "MinHealthyTime": 10000000000}"#,
    ),
];

/// How to handle unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Report: the author wanted something.
    Reported,
    /// Ignore: it is from a later release, whose servers expect that older nodes ignore it.
    PassedOver,
}

/// Translates a job.
pub(crate) fn document(written: &Document, unknown: Unknown) -> (Document, Problems) {
    let mut reading = Reading { source: &written.source, unknown, problems: Problems::new() };
    let root = Trail::begin("");
    let (job, trail) = match written.root.get("Job") {
        Some(job) => {
            reading.request(&written.root, &root);
            (job, Trail::begin("Job"))
        }
        None => (&*written.root, root),
    };
    let root = reading.job(job, &trail);
    (Document { root, ..written.clone() }, reading.problems)
}

struct Reading<'r> {
    source: &'r str,
    unknown: Unknown,
    problems: Problems,
}

impl Reading<'_> {
    fn wrong(&mut self, position: Position, trail: &Trail<'_>, message: &str) {
        self.problems.push(problem(self.source, position, &trail.to_string(), message.to_owned()));
    }

    /// Checks the fields beside `Job`.
    fn request(&mut self, root: &Node, trail: &Trail<'_>) {
        for entry in root.entries().unwrap_or_default() {
            let key = &*entry.key;
            if key != "Job" && !REQUEST.contains(&key) && !is_nothing(&entry.value) {
                self.wrong(
                    entry.key_position,
                    &trail.field(key),
                    "is not a known field of a request with `Job`",
                );
            }
        }
    }

    fn job(&mut self, job: &Node, trail: &Trail<'_>) -> Arc<Node> {
        let shape = Shape::of(&JOB).field("spec").unwrap_or_default();
        let mut spec = Fields::new(job.position);
        match job.entries() {
            Some(entries) => self.fields(&shape, entries, &mut spec, trail),
            None => self.wrong(job.position, trail, "must be a job"),
        }
        let mut metadata = Fields::new(job.position);
        for (theirs, ours) in [("id", "name"), ("namespace", "namespace")] {
            if let Some(at) = spec.entries.iter().position(|entry| &*entry.key == theirs) {
                let entry = spec.entries.remove(at);
                metadata.entries.push(Entry { key: ours.into(), ..entry });
            }
        }
        if metadata.get("name").is_none()
            && let Some(name) = spec.get("name").cloned()
        {
            metadata.insert_default("name", name);
        }
        defaults::job(&mut spec);
        super::document(metadata, spec)
    }

    fn fields(&mut self, shape: &Shape<'_>, entries: &[Entry], fields: &mut Fields, trail: &Trail<'_>) {
        for entry in entries {
            let (key, position, value) = (&*entry.key, entry.key_position, &entry.value);
            let trail = trail.field(key);
            if STATE.contains(&key) {
                continue;
            }
            let name = to_manifest_name(key);
            if let Some(identities) =
                shape.field("identities").filter(|_| key == "Identity" && !is_nothing(value))
            {
                // The default identity; the others are in `Identities`.
                let identity = self.value(&identities.items().unwrap_or_default(), value, &trail);
                if !fields.push("identities", position, identity) {
                    self.wrong(position, &trail, "can't be combined with `Identities`, which is not a list");
                }
                continue;
            }
            let Some(shape) = shape.field(&name) else {
                let is_metadata = name == "id" || name == "namespace";
                let is_told = self.unknown == Unknown::Reported || shape.is_unbuilt(&name);
                if !is_nothing(value) && (is_metadata || is_told && !is_default(key, value)) {
                    // The schema check reports it.
                    let _ = fields.insert(&name, position, Arc::clone(value));
                }
                continue;
            };
            if adds_nothing(key, value) {
                continue;
            }
            let value = match (key, &value.value) {
                ("Networks", Value::Seq(networks)) => match networks.as_slice() {
                    [] => continue,
                    [network] => self.network(&shape, network, &trail.item(0)),
                    [_, second, ..] => {
                        self.wrong(second.position, &trail.item(1), "a group can have only one network");
                        continue;
                    }
                },
                ("Services", Value::Seq(services)) => self.services(&shape, services, value.position, &trail),
                ("Scaling", Value::Map(entries)) => self.scaling(&shape, entries, value.position, &trail),
                ("Config", _) => Arc::clone(value),
                _ => self.value(&shape, value, &trail),
            };
            if !fields.insert(&name, position, value) {
                self.wrong(position, &trail, "is written twice");
            }
        }
    }

    fn value(&mut self, shape: &Shape<'_>, node: &Arc<Node>, trail: &Trail<'_>) -> Arc<Node> {
        if let Value::Seq(items) = &node.value {
            let shape = shape.items().unwrap_or_default();
            let items = items.iter().enumerate();
            let items = items.map(|(index, item)| self.value(&shape, item, &trail.item(index)));
            return collection(Value::Seq(items.collect()), node.position);
        }
        let Value::Map(entries) = &node.value else { return shape.fit(node) };
        if shape.field_names() {
            let mut fields = Fields::new(node.position);
            self.fields(shape, entries, &mut fields, trail);
            return fields.into_node();
        }
        let Some(values) = shape.values().filter(|values| values.field_names()) else {
            return shape.fit(node);
        };
        let entries = entries.iter().map(|entry| {
            let mut fields = Fields::new(entry.value.position);
            // The value repeats the name of the volume.
            let written = entry.value.entries().unwrap_or_default();
            let written: Vec<Entry> = written.iter().filter(|inner| &*inner.key != "Name").cloned().collect();
            self.fields(&values, &written, &mut fields, &trail.field(&entry.key));
            Entry { value: fields.into_node(), ..entry.clone() }
        });
        collection(Value::Map(entries.collect()), node.position)
    }

    fn services(
        &mut self,
        shape: &Shape<'_>,
        services: &[Arc<Node>],
        position: Position,
        trail: &Trail<'_>,
    ) -> Arc<Node> {
        let shape = shape.items().unwrap_or_default();
        let services = services.iter().enumerate().map(|(index, service)| {
            let mut fields = Fields::new(service.position);
            self.fields(&shape, service.entries().unwrap_or_default(), &mut fields, &trail.item(index));
            defaults::service(&mut fields);
            fields.into_node()
        });
        collection(Value::Seq(services.collect()), position)
    }

    /// Translates the bounds of a group's count. `ID` and `Target` only repeat the path.
    fn scaling(
        &mut self,
        shape: &Shape<'_>,
        entries: &[Entry],
        position: Position,
        trail: &Trail<'_>,
    ) -> Arc<Node> {
        let own = entries.iter().filter(|entry| !matches!(&*entry.key, "ID" | "Target"));
        let own: Vec<Entry> = own.cloned().collect();
        let mut fields = Fields::new(position);
        self.fields(shape, &own, &mut fields, trail);
        fields.into_node()
    }

    /// Translates a network, whose ports are two lists in the API.
    fn network(&mut self, shape: &Shape<'_>, network: &Node, trail: &Trail<'_>) -> Arc<Node> {
        let written = network.entries().unwrap_or_default();
        let is_ports = |entry: &&Entry| matches!(&*entry.key, "ReservedPorts" | "DynamicPorts");
        let others: Vec<Entry> = written.iter().filter(|entry| !is_ports(entry)).cloned().collect();
        let mut fields = Fields::new(network.position);
        self.fields(shape, &others, &mut fields, trail);
        let mut ports = Fields::new(network.position);
        let port_shape = shape.field("ports").and_then(|ports| ports.values()).unwrap_or_default();
        for list in written.iter().filter(is_ports) {
            let trail = trail.field(&list.key);
            for (index, port) in list.value.items().unwrap_or_default().iter().enumerate() {
                self.port(&port_shape, port, &mut ports, &trail.item(index));
            }
        }
        if !ports.entries.is_empty() {
            fields.insert_default("ports", ports.into_node());
        }
        fields.into_node()
    }

    fn port(&mut self, shape: &Shape<'_>, port: &Node, ports: &mut Fields, trail: &Trail<'_>) {
        let mut fields = Fields::new(port.position);
        let mut label = None;
        let mut others = Vec::new();
        for entry in port.entries().unwrap_or_default() {
            match &*entry.key {
                "Label" => label = entry.value.scalar_text(),
                "Value" if !adds_nothing("Value", &entry.value) => {
                    let _ = fields.insert("static", entry.key_position, Arc::clone(&entry.value));
                }
                "Value" => {}
                _ => others.push(entry.clone()),
            }
        }
        self.fields(shape, &others, &mut fields, trail);
        let Some(label) = label else { return self.wrong(port.position, trail, "needs a `Label`") };
        if !ports.insert(label, port.position, fields.into_node()) {
            self.wrong(port.position, trail, "has the label of another port");
        }
    }
}

/// Returns whether a supported field has the same meaning as if it were absent.
fn adds_nothing(key: &str, node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Str => node.text.is_empty(),
        Value::Int(0) => ZERO_IS_NOTHING.contains(&key),
        Value::Seq(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty() || key == "Update" && is_nothing(node),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Refused => false,
    }
}

/// Returns whether a value is empty at every level.
fn is_nothing(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::Str => node.text.is_empty(),
        Value::Seq(items) => items.iter().all(|item| is_nothing(item)),
        Value::Map(entries) => entries.iter().all(|entry| is_nothing(&entry.value)),
        Value::Refused => false,
    }
}

/// Returns whether a value is the default that Nomad's servers fill in.
fn is_default(key: &str, node: &Node) -> bool {
    DEFAULTS
        .iter()
        .filter(|(name, _)| *name == key)
        .any(|(_, text)| serde_json::from_str(text).is_ok_and(|default| equals(node, &default)))
}

/// Compares a tree with a JSON value. Empty fields may be absent.
fn equals(node: &Node, json: &serde_json::Value) -> bool {
    use serde_json::Value as Json;
    match (&node.value, json) {
        (Value::Map(entries), Json::Object(fields)) => {
            entries.iter().all(|entry| match fields.get(&*entry.key) {
                Some(field) => equals(&entry.value, field),
                None => is_nothing(&entry.value),
            })
        }
        (Value::Str, Json::String(text)) => *node.text == **text,
        (Value::Int(value), Json::Number(number)) => number.as_i128() == Some(*value),
        (Value::Bool(value), Json::Bool(other)) => value == other,
        _ => is_nothing(node),
    }
}
