//! Jobs in the JSON of Nomad's API, as printed by `nomad job run -output`, `nomad job inspect` and `GET
//! /v1/job/ID`.
//!
//! In: the tree of the text, since YAML's parser reads JSON. Out: a document, or problems with the API's own
//! paths. What a server has added to a job by itself ([`implied`]) is ignored. Fields that are unknown here keep
//! their value under the name of a manifest, so that they are judged like those of every other language.

use std::sync::Arc;

use super::implied::{self, Implied};
use super::names::to_manifest_name;
use super::shape::Shape;
use super::{Fields, collection, defaults, problem, values};
use crate::manifests::document::JOB;
use crate::yaml::{Document, Entry, Node, Position, Problems, Trail, Value};

/// Returns whether a document is an API job.
pub(crate) fn is_job(document: &Document) -> bool {
    let root = &document.root;
    let is_ours = root.get("apiVersion").is_some() || root.get("kind").is_some();
    !is_ours && (root.get("Job").is_some() || root.get("TaskGroups").is_some() || root.get("ID").is_some())
}

/// Fields of a registration request that don't change the job.
const REQUEST: [&str; 10] = [
    "EnforceIndex",
    "EvalPriority",
    "JobModifyIndex",
    "Namespace",
    "PolicyOverride",
    "PreserveCounts",
    "PreserveResources",
    "Region",
    "SecretID",
    "Submission",
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
    let root = Trail::begin("");
    let (job, trail) = match written.root.get("Job") {
        Some(job) => (job, Trail::begin("Job")),
        None => (&*written.root, Trail::begin("")),
    };
    let implied = Implied::of(job);
    let mut reading = Reading { source: &written.source, unknown, implied, problems: Problems::new() };
    if written.root.get("Job").is_some() {
        reading.request(&written.root, &root);
    }
    let root = reading.job(job, &trail);
    (Document { root, ..written.clone() }, reading.problems)
}

struct Reading<'r> {
    source: &'r str,
    unknown: Unknown,
    implied: Implied<'r>,
    problems: Problems,
}

impl Reading<'_> {
    fn report(&mut self, position: Position, trail: &Trail<'_>, message: &str) {
        self.problems.push(problem(self.source, position, &trail.to_string(), message.to_owned()));
    }

    /// Checks the fields beside `Job`.
    fn request(&mut self, root: &Node, trail: &Trail<'_>) {
        for entry in root.entries().unwrap_or_default() {
            let key = &*entry.key;
            if key != "Job" && !REQUEST.contains(&key) && !implied::is_nothing(&entry.value) {
                self.report(
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
            None => self.report(job.position, trail, "must be a job"),
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
            if value.value == Value::Null || self.implied.is_state(shape.block(), entry) {
                continue;
            }
            let name = to_manifest_name(key);
            if let Some(identities) =
                shape.field("identities").filter(|_| key == "Identity" || key == "Identities")
            {
                self.identities(&identities.items().unwrap_or_default(), entry, fields, &trail);
                continue;
            }
            let Some(inner) = shape.field(&name) else {
                let is_metadata = shape.block() == Some("JobSpec") && (name == "id" || name == "namespace");
                let is_reported = is_metadata || self.unknown == Unknown::Reported;
                // The search for unbuilt features or the schema check reports it, the latter as it is written.
                let is_unbuilt = shape.is_unbuilt(&name);
                if is_unbuilt || is_reported && !implied::is_nothing(value) {
                    let name = if is_unbuilt || is_metadata { &*name } else { key };
                    let _ = fields.insert(name, position, renamed(value));
                }
                continue;
            };
            if implied::adds_nothing(shape.block(), entry) {
                continue;
            }
            let value = match (key, &value.value) {
                ("Networks", Value::Seq(networks)) => match networks.as_slice() {
                    [] => continue,
                    [network] => self.network(&inner, network, &trail.item(0)),
                    [_, second, ..] => {
                        self.report(
                            second.position,
                            &trail.item(1),
                            "a group or task can have only one network",
                        );
                        continue;
                    }
                },
                ("Services", Value::Seq(services)) => self.services(&inner, services, value.position, &trail),
                ("Constraints", Value::Seq(all)) if self.unknown == Unknown::Reported => {
                    let own = all.iter().filter(|constraint| !implied::is_constraint(constraint)).cloned();
                    self.value(&inner, &collection(Value::Seq(own.collect()), value.position), &trail)
                }
                ("Config" | "Policy", _) => Arc::clone(value),
                _ => self.value(&inner, value, &trail),
            };
            let is_replaced = self.unknown == Unknown::Reported && values::is_replaced(shape, &name, &value);
            let Some(value) = values::value(shape, &name, value).filter(|_| !is_replaced) else { continue };
            if !fields.insert(&name, position, value) {
                self.report(position, &trail, "is written twice");
            }
        }
    }

    /// Translates `Identity`, the default one, or `Identities`, the others. Servers write the default one into every task.
    fn identities(&mut self, shape: &Shape<'_>, entry: &Entry, fields: &mut Fields, trail: &Trail<'_>) {
        let one = [Arc::clone(&entry.value)];
        let all = entry.value.items().unwrap_or(&one);
        for (index, identity) in
            all.iter().enumerate().filter(|(_, identity)| !implied::is_identity(identity))
        {
            let item = trail.item(index);
            let trail = if entry.value.items().is_some() { &item } else { trail };
            let identity = self.value(shape, identity, trail);
            if !fields.push("identities", entry.key_position, identity) {
                self.report(entry.key_position, trail, "must be a list");
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
            let written = implied::without_repeated_name(service.entries().unwrap_or_default());
            self.fields(&shape, &written, &mut fields, &trail.item(index));
            defaults::service(&mut fields);
            fields.into_node()
        });
        collection(Value::Seq(services.collect()), position)
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
            if !matches!(list.value.value, Value::Seq(_) | Value::Null) {
                self.report(list.value.position, &trail, "must be a list");
            }
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
                "Value" => {
                    if let Some(value) = values::value(shape, "static", Arc::clone(&entry.value)) {
                        let _ = fields.insert("static", entry.key_position, value);
                    }
                }
                _ => others.push(entry.clone()),
            }
        }
        self.fields(shape, &others, &mut fields, trail);
        let Some(label) = label else { return self.report(port.position, trail, "needs a `Label`") };
        if !ports.insert(label, port.position, fields.into_node()) {
            self.report(port.position, trail, "has the label of another port");
        }
    }
}

/// Renames the fields of a value of an unbuilt feature to those of a manifest.
fn renamed(node: &Arc<Node>) -> Arc<Node> {
    let value = match &node.value {
        Value::Seq(items) => Value::Seq(items.iter().map(renamed).collect()),
        Value::Map(entries) => {
            let entry = |entry: &Entry| Entry {
                key: to_manifest_name(&entry.key).into(),
                value: renamed(&entry.value),
                ..entry.clone()
            };
            Value::Map(entries.iter().map(entry).collect())
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str | Value::Refused => {
            return Arc::clone(node);
        }
    };
    collection(value, node.position)
}
