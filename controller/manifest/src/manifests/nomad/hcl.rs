//! Job files in HCL.
//!
//! In: an evaluated body. Out: a document for each `job` block.

use std::sync::Arc;

use super::shape::Shape;
use super::{Fields, collection, defaults, document, problem, text, values};
use crate::hcl::{Block, Body};
use crate::manifests::document::JOB;
use crate::manifests::drivers::Drivers;
use crate::yaml::{Document, Entry, Node, Position, Problems, Trail, Value};

/// Translates the job blocks of a job file.
pub(crate) fn documents(source: &str, body: &Body, drivers: &Drivers) -> (Vec<Document>, Problems) {
    let mut reading = Reading { source, drivers, secrets: Vec::new(), problems: Problems::new() };
    let root = Trail::begin("");
    for attribute in &body.attributes {
        let message = format!("a job file can't contain `{}` outside of its job", attribute.name);
        reading.report(attribute.position, &root, message);
    }
    let mut documents = Vec::new();
    for block in &body.blocks {
        if &*block.kind != "job" {
            let message = format!(
                "a job file can't contain a block `{}`; expected job, variable or locals",
                block.kind
            );
            reading.report(block.position, &root, message);
            continue;
        }
        let root = reading.job(block);
        documents.push(Document { source: source.into(), index: documents.len(), root });
    }
    if documents.is_empty() && reading.problems.is_empty() {
        reading.report(Position::default(), &root, "has no `job` block".to_owned());
    }
    (documents, reading.problems)
}

struct Reading<'r> {
    source: &'r str,
    drivers: &'r Drivers,
    /// The `secret` blocks of the job, which are those of all its tasks (Nomad's `jobspec2/parse_job.go`).
    secrets: Vec<&'r Block>,
    problems: Problems,
}

impl<'r> Reading<'r> {
    fn report(&mut self, position: Position, trail: &Trail<'_>, message: String) {
        self.problems.push(problem(self.source, position, &trail.to_string(), message));
    }

    fn job(&mut self, block: &'r Block) -> Arc<Node> {
        let shape = Shape::of(&JOB);
        let spec_shape = shape.field("spec").unwrap_or_default();
        let trail = Trail::begin("spec");
        let mut metadata = Fields::new(block.position);
        match block.labels.as_slice() {
            [label] => metadata.insert_default("name", text(&label.text, label.position)),
            _ => self.report(block.position, &trail, "needs one name: `job \"NAME\" { … }`".to_owned()),
        }
        self.secrets = block.body.blocks.iter().filter(|inner| &*inner.kind == "secret").collect();
        let mut spec = Fields::new(block.position);
        self.body(&spec_shape, &block.body, &mut spec, &trail);
        if let Some(at) = spec.entries.iter().position(|entry| &*entry.key == "stop") {
            let entry = spec.entries.remove(at);
            let message =
                "is not a field of Nomad's job files; to stop the job, run: herdlet stop JOB".to_owned();
            self.report(entry.key_position, &trail.field("stop"), message);
        }
        if let Some(at) = spec.entries.iter().position(|entry| &*entry.key == "namespace") {
            metadata.entries.push(spec.entries.remove(at));
        }
        if let Some(at) = spec.entries.iter().position(|entry| &*entry.key == "id") {
            let id = spec.entries.remove(at);
            if let Some(at) = metadata.entries.iter().position(|entry| &*entry.key == "name") {
                // The label is then only the shown name.
                let label = metadata.entries.remove(at);
                spec.insert_default("name", label.value);
            }
            metadata.entries.push(Entry { key: "name".into(), ..id });
        }
        defaults::job(&mut spec);
        document(metadata, spec)
    }

    /// Translates a task directly in a job into a group of the same name.
    fn lone_task(&mut self, shape: &Shape<'_>, block: &Block, fields: &mut Fields, trail: &Trail<'_>) {
        let shape = shape.field("groups").and_then(|groups| groups.items()).unwrap_or_default();
        let mut group = Fields::new(block.position);
        if let [label] = block.labels.as_slice() {
            group.insert_default("name", text(&label.text, label.position));
        }
        let groups = trail.field("groups");
        let index = fields.get("groups").and_then(|list| list.items()).map_or(0, <[_]>::len);
        self.block(&shape, &Body::default(), block, &mut group, &groups.item(index));
        if !fields.push("groups", block.position, group.into_node()) {
            self.twice("groups", block.position, trail);
        }
    }

    /// Translates a body.
    fn body(&mut self, shape: &Shape<'_>, body: &Body, fields: &mut Fields, trail: &Trail<'_>) {
        for attribute in &body.attributes {
            if attribute.value.value == Value::Null {
                continue;
            }
            let place = shape.field(&attribute.name).or_else(|| shape.values()).unwrap_or_default();
            let value = place.fit(&attribute.value);
            let value = match shape.field(&attribute.name) {
                Some(_) if values::is_replaced(shape, &attribute.name, &value) => None,
                Some(_) => values::value(shape, &attribute.name, value),
                None => Some(value),
            };
            let Some(value) = value else { continue };
            if !fields.insert(&attribute.name, attribute.position, value) {
                self.twice(&attribute.name, attribute.position, trail);
            }
        }
        for block in &body.blocks {
            self.block(shape, body, block, fields, trail);
        }
    }

    fn twice(&mut self, name: &str, position: Position, trail: &Trail<'_>) {
        self.report(position, &trail.field(name), format!("`{name}` is written twice"));
    }

    fn block(
        &mut self,
        shape: &Shape<'_>,
        around: &Body,
        block: &Block,
        fields: &mut Fields,
        trail: &Trail<'_>,
    ) {
        if &*block.kind == "task" && shape.field("groups").is_some() {
            return self.lone_task(shape, block, fields, trail);
        }
        if &*block.kind == "secret" && shape.field("groups").is_some() {
            return;
        }
        let name = plural(shape, &block.kind);
        if shape.block() == Some("Scaling") && name == "policy" {
            if !fields.insert(&name, block.position, free(&block.body, block.position)) {
                self.twice(&name, block.position, trail);
            }
            return;
        }
        let inner = match (&*block.kind, shape.field(&name)) {
            ("config", Some(_)) if shape.field("driver").is_some() => driver_of(around)
                .and_then(|driver| self.drivers.get(driver))
                .map(|rules| Shape::of(&rules.config)),
            (_, inner) => inner,
        };
        let inner = inner.unwrap_or_default();
        let trail = trail.field(&name);
        let added = match (inner.items(), block.labels.as_slice()) {
            (Some(item), labels) => {
                let index = fields.get(&name).and_then(|list| list.items()).map_or(0, <[_]>::len);
                let trail = trail.item(index);
                let mut fields_of_item = Fields::new(block.position);
                match labels {
                    [] => {}
                    [label] => match TAKES_LABEL.iter().find(|(kind, _)| *kind == &*block.kind) {
                        Some((_, field)) => {
                            fields_of_item.insert_default(field, text(&label.text, label.position));
                        }
                        None => self.label_in_vain(block, label.position, &trail),
                    },
                    [label, ..] => self.label_in_vain(block, label.position, &trail),
                }
                self.body(&item, &block.body, &mut fields_of_item, &trail);
                match &*block.kind {
                    "service" => defaults::service(&mut fields_of_item),
                    "task" => {
                        for secret in self.secrets.clone() {
                            self.block(&item, &block.body, secret, &mut fields_of_item, &trail);
                        }
                    }
                    _ => {}
                }
                fields.push(&name, block.position, fields_of_item.into_node())
            }
            (None, [label]) if inner.values().is_some_and(|values| values.field_names()) => {
                let values = inner.values().unwrap_or_default();
                let trail = trail.field(&label.text);
                let mut entry = Fields::new(block.position);
                self.body(&values, &block.body, &mut entry, &trail);
                let mut map = Fields::new(block.position);
                if let Some(at) = fields.entries.iter().position(|entry| *entry.key == *name) {
                    let before = fields.entries.remove(at);
                    map.position = before.value.position;
                    map.entries = before.value.entries().unwrap_or_default().to_vec();
                }
                let added = map.insert(&label.text, label.position, entry.into_node());
                let map_position = map.position;
                let _ = fields.insert(&name, map_position, map.into_node());
                added
            }
            (None, labels) => {
                if let Some(label) = labels.first().filter(|_| inner.is_known()) {
                    self.label_in_vain(block, label.position, &trail);
                }
                let mut map = Fields::new(block.position);
                self.body(&inner, &block.body, &mut map, &trail);
                fields.insert(&name, block.position, map.into_node()) || !inner.is_known()
            }
        };
        if !added {
            let what = block.labels.first().map_or(&*name, |label| &*label.text);
            self.report(block.position, &trail, format!("`{what}` is written twice"));
        }
    }

    fn label_in_vain(&mut self, block: &Block, position: Position, trail: &Trail<'_>) {
        let kind = &block.kind;
        self.report(position, trail, format!("`{kind}` takes no name here: `{kind} {{ … }}`"));
    }
}

/// Returns a block without a schema as Nomad does: nested blocks are lists, labels are keys.
fn free(body: &Body, position: Position) -> Arc<Node> {
    let mut fields = Fields::new(position);
    for attribute in &body.attributes {
        // The syntax has no repeated attributes.
        let _ = fields.insert(&attribute.name, attribute.position, Arc::clone(&attribute.value));
    }
    for block in &body.blocks {
        let inner = free(&block.body, block.position);
        let labeled = block.labels.iter().rev().fold(inner, |inner, label| {
            let mut entry = Fields::new(label.position);
            entry.insert_default(&label.text, collection(Value::Seq(vec![inner]), label.position));
            entry.into_node()
        });
        let _ = fields.push(&block.kind, block.position, labeled);
    }
    fields.into_node()
}

/// The blocks whose label becomes a field of the item, with that field.
const TAKES_LABEL: [(&str, &str); 5] =
    [("group", "name"), ("task", "name"), ("secret", "name"), ("action", "name"), ("target", "value")];

/// Returns the field for a block: its own name or the plural of it.
fn plural(shape: &Shape<'_>, kind: &str) -> String {
    let candidates = [kind.to_owned(), format!("{kind}s"), format!("{}ies", kind.trim_end_matches('y'))];
    let known = candidates.iter().find(|name| shape.field(name).is_some());
    known.unwrap_or(&candidates[0]).clone()
}

fn driver_of(task: &Body) -> Option<&str> {
    let attribute = task.attributes.iter().find(|attribute| &*attribute.name == "driver")?;
    attribute.value.scalar_text()
}
