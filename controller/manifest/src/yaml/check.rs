//! Validates a tree against a JSON Schema and reports all problems at once.
//!
//! In: a place in a tree and a schema that `schemars` derived from serde types. Out: every problem with its
//! position and, where possible, a remedy. Supports the keywords that serde types need: `$ref`, `allOf`,
//! `anyOf`, `oneOf`, `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`,
//! `patternProperties` (prefixes `^x-`), `propertyNames`, `items`, bounds of numbers and lengths, integer
//! formats. This module must not know what fields mean.

use std::sync::Arc;

use schemars::Schema;
use serde_json::Value as Json;

use super::node::{Located, Node, Value};
use super::path::Trail;
use super::phrases::{describe_node, one_of, shorten};
use super::problem::{Position, Problem, Problems};

mod alternatives;
mod facets;
mod fields;
mod mismatch;
mod prepare;
mod units;

use facets::Facets;
pub use prepare::{schema_for, strictly};

/// Validates a place against a schema.
///
/// Our own keywords, set on types and fields with `#[schemars(extend("x-text" = true))]`:
///
/// | keyword | value | meaning |
/// | --- | --- | --- |
/// | `x-text` | `true` | any scalar but null; its source text is the string. On a map or list: its values |
/// | `x-duration` | `true` | a Go duration with a unit, not negative; `0` needs no unit |
/// | `x-mib` | `true` | an integer of MiB; the message for `512Mi` suggests 512 |
/// | `x-mhz` | `true` | an integer of MHz; the messages for `500m` and `0.5` explain the unit |
/// | `x-name` | `"job-id"`, `"namespace"`, `"part"` (of a path), `"variable"`, `"restart"`, `"network-mode"` | the characters that a string may contain |
/// | `x-nullable` | `true` | null is allowed ([`schema_for`] refuses it elsewhere) |
/// | `x-hint` | sentence | follows "expected …, found …" instead of a generic remedy |
/// | `x-port` | `true` | on a map: the messages for `8080` and `"8080:80"` suggest `{static: 8080, to: 80}` |
/// | `x-command` | `true` | on a string: the message for `[a, b]` suggests `command: a` and `args: [b]` |
/// | `x-misplaced` | `{name: sentence}` | on a map, or on the root for all maps: messages for fields that don't belong there |
pub fn check(place: &Located<'_>, schema: &Schema) -> Problems {
    check_fields(place, schema).problems
}

/// The result of a validation.
pub(crate) struct Checked {
    pub(crate) problems: Problems,
    /// Paths of absent fields that were reported: missing names, and the likely intended fields of unknown
    /// ones.
    pub(crate) absent: Vec<String>,
}

/// Validates a place against a schema, and returns the absent fields.
pub(crate) fn check_fields(place: &Located<'_>, schema: &Schema) -> Checked {
    let mut walk =
        Walk { root: schema.as_value(), source: place.source, problems: Problems::new(), absent: Vec::new() };
    walk.node(schema.as_value(), place.node, &Trail::begin(&place.path), None);
    Checked { problems: walk.problems, absent: walk.absent }
}

/// Walks through tree and schema in parallel.
struct Walk<'s> {
    root: &'s Json,
    source: &'s str,
    problems: Problems,
    /// See [`Checked`].
    absent: Vec<String>,
}

/// The maps around the current node, for fields that belong further out.
struct Enclosing<'a> {
    facets: &'a Facets<'a>,
    trail: &'a Trail<'a>,
    outer: Option<&'a Enclosing<'a>>,
}

impl Walk<'_> {
    fn node(&mut self, schema: &Json, node: &Node, trail: &Trail<'_>, outer: Option<&Enclosing<'_>>) {
        let facets = Facets::resolve(self.root, schema);
        if node.value == Value::Refused || facets.is_anything() {
            return;
        }
        if facets.is_nothing() {
            return self.report(node.position, trail, || "is not allowed here".to_owned());
        }
        if node.value == Value::Null {
            if !facets.accepts_null() {
                self.report(node.position, trail, || mismatch::empty(&facets));
            }
            return;
        }
        if let Some(verdict) = units::judge(&facets, node) {
            if let Err(message) = verdict {
                self.report(node.position, trail, || message);
            }
            return;
        }
        if let Some(choices) = facets.choices() {
            self.alternatives(&facets, choices, node, trail, outer);
        }
        if !mismatch::type_fits(&facets, node) {
            return self.report(node.position, trail, || mismatch::message(&facets, node));
        }
        self.constants(&facets, node, trail);
        match &node.value {
            Value::Int(_) | Value::Float(_) => self.number(&facets, node, trail),
            Value::Str => self.text(&facets, node, trail),
            Value::Seq(items) => {
                self.length(&facets, items.len(), ["minItems", "maxItems"], "item", node, trail);
                self.items(&facets, items, trail, outer);
            }
            Value::Map(entries) => {
                let names = ["minProperties", "maxProperties"];
                self.length(&facets, entries.len(), names, "entry", node, trail);
                self.fields(&facets, node, entries, trail, outer);
            }
            Value::Null | Value::Bool(_) | Value::Refused => {}
        }
    }

    fn report(&mut self, position: Position, trail: &Trail<'_>, message: impl FnOnce() -> String) {
        let source = self.source;
        self.problems.push_with(position, || Problem {
            source: source.to_owned(),
            line: position.line,
            column: position.column,
            path: trail.to_string(),
            message: message(),
        });
    }

    fn constants(&mut self, facets: &Facets<'_>, node: &Node, trail: &Trail<'_>) {
        // If each constant is a choice, the choices already reported it.
        if facets.choices().is_none()
            && let Some(values) = facets.constants()
            && !values.iter().any(|value| mismatch::equals(node, value))
        {
            self.report(node.position, trail, || mismatch::not_one_of(&values, node));
        }
    }

    fn items(
        &mut self,
        facets: &Facets<'_>,
        items: &[Arc<Node>],
        trail: &Trail<'_>,
        outer: Option<&Enclosing<'_>>,
    ) {
        for (index, item) in items.iter().enumerate() {
            let trail = trail.item(index);
            if facets.is("x-text") {
                self.text_as_written(item, &trail);
            } else if let Some(schema) = facets.get("items") {
                self.node(schema, item, &trail, outer);
            }
        }
    }

    /// Checks a value in a map or list with the keyword `x-text`.
    fn text_as_written(&mut self, node: &Node, trail: &Trail<'_>) {
        if let Err(message) = units::judge_text(node) {
            self.report(node.position, trail, || message);
        }
    }

    fn number(&mut self, facets: &Facets<'_>, node: &Node, trail: &Trail<'_>) {
        let value = match node.value {
            Value::Int(value) => value as f64,
            Value::Float(value) => value,
            Value::Null | Value::Bool(_) | Value::Str | Value::Seq(_) | Value::Map(_) | Value::Refused => {
                return;
            }
        };
        if let Some(complaint) = octal_or_decimal(&node.text) {
            return self.report(node.position, trail, || complaint);
        }
        let (least, most) = facets.bounds();
        if let Some(least) = least
            && value < least
        {
            self.report(node.position, trail, || {
                format!("must be at least {least}, found {}", shorten(&node.text))
            });
        }
        if let Some(most) = most
            && value > most
        {
            self.report(node.position, trail, || {
                format!("must be at most {most}, found {}", shorten(&node.text))
            });
        }
    }

    fn text(&mut self, facets: &Facets<'_>, node: &Node, trail: &Trail<'_>) {
        let length = node.text.chars().count();
        if length == 0 && facets.count("minLength") == Some(1) {
            return self.report(node.position, trail, || "must not be the empty string".to_owned());
        }
        self.length(facets, length, ["minLength", "maxLength"], "character", node, trail);
        if let Some(kind) = facets.text("x-name")
            && let Some(complaint) = units::judge_name(kind, &node.text)
        {
            self.report(node.position, trail, || complaint);
        }
    }

    fn length(
        &mut self,
        facets: &Facets<'_>,
        length: usize,
        [least, most]: [&str; 2],
        unit: &str,
        node: &Node,
        trail: &Trail<'_>,
    ) {
        let unit = |count: u64| match (unit, count) {
            (unit, 1) => unit.to_owned(),
            ("entry", _) => "entries".to_owned(),
            (unit, _) => format!("{unit}s"),
        };
        let found = length as u64;
        if let Some(least) = facets.count(least).filter(|least| found < *least) {
            self.report(node.position, trail, || {
                format!("needs at least {least} {}, has {found}", unit(least))
            });
        }
        if let Some(most) = facets.count(most).filter(|most| found > *most) {
            self.report(node.position, trail, || format!("takes at most {most} {}, has {found}", unit(most)));
        }
    }
}

/// Returns the message for an integer like `0755`, which is octal in YAML 1.1 and decimal in 1.2.
fn octal_or_decimal(text: &str) -> Option<String> {
    let digits = text.trim_start_matches(['+', '-']);
    if digits.len() < 2 || !digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimal = match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => shorten(digits),
    };
    let text = shorten(text);
    Some(match digits.contains(['8', '9']) {
        true => format!("{text} has a leading zero, which some YAML parsers read as octal; write {decimal}"),
        false => format!(
            "{text} is octal for some YAML parsers and decimal for others; write {decimal} or 0o{decimal}"
        ),
    })
}
