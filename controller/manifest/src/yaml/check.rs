//! A tree against a JSON Schema, all problems at once.
//!
//! In: a place in a tree and a schema as `schemars` makes it from serde types. Out: every problem, placed, with what to
//! write instead where that is plain. Of JSON Schema it knows what serde types need: `$ref`, `allOf`, `anyOf`, `oneOf`,
//! `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `patternProperties` (prefixes `^x-`),
//! `propertyNames`, `items`, bounds of numbers and lengths, integer formats. It must not know what fields mean.

use std::sync::Arc;

use schemars::Schema;
use serde_json::Value as Json;

use super::node::{Node, Place, Value};
use super::path::Trail;
use super::problem::{Position, Problem, Problems};
use super::words::{found, one_of, shorten};

mod alternatives;
mod facets;
mod fields;
mod mismatch;
mod prepare;
mod units;

use facets::Facets;
pub use prepare::{schema_for, strictly};

/// Compares what is at a place with a schema.
///
/// Keywords of our own, put on types and fields with `#[schemars(extend("x-text" = true))]`:
///
/// | keyword | value | meaning |
/// | --- | --- | --- |
/// | `x-text` | `true` | any scalar but null; its source text is the string. On a map or list: its values |
/// | `x-duration` | `true` | a Go duration with a unit, not negative; `0` may stand alone |
/// | `x-mib` | `true` | an integer of MiB; `512Mi` is told to be 512 |
/// | `x-mhz` | `true` | an integer of MHz; `500m` and `0.5` are explained |
/// | `x-name` | `"dns-label"`, `"file-name"`, `"variable"` | what a string may be made of |
/// | `x-nullable` | `true` | null may be written ([`schema_for`] refuses it elsewhere) |
/// | `x-hint` | sentence | said after "expected …, found …" instead of a generic remedy |
/// | `x-port` | `true` | on a map: `8080` and `"8080:80"` are told to be `{static: 8080, to: 80}` |
/// | `x-command` | `true` | on a string: `[a, b]` is told to be `command: a` and `args: [b]` |
/// | `x-misplaced` | `{name: sentence}` | on a map, or on the root for all maps: fields that people write there in vain |
pub fn check(place: &Place<'_>, schema: &Schema) -> Problems {
    check_fields(place, schema).problems
}

/// What comparing with a schema came to.
pub(crate) struct Checked {
    pub(crate) problems: Problems,
    /// Paths of fields that are not there and were told of: missing names, and those that an unknown field was probably to be.
    pub(crate) absent: Vec<String>,
}

/// Compares what is at a place with a schema, and says of which fields nothing is known.
pub(crate) fn check_fields(place: &Place<'_>, schema: &Schema) -> Checked {
    let mut walk =
        Walk { root: schema.as_value(), source: place.source, problems: Problems::new(), absent: Vec::new() };
    walk.node(schema.as_value(), place.node, &Trail::begin(&place.path), None);
    Checked { problems: walk.problems, absent: walk.absent }
}

/// A walk through tree and schema side by side.
struct Walk<'s> {
    root: &'s Json,
    source: &'s str,
    problems: Problems,
    /// See [`Checked`].
    absent: Vec<String>,
}

/// The maps around where the walk stands, for fields that belong further out.
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
            return self.tell(node.position, trail, || "is not allowed here".to_owned());
        }
        if node.value == Value::Null {
            if !facets.accepts_null() {
                self.tell(node.position, trail, || mismatch::empty(&facets));
            }
            return;
        }
        if let Some(verdict) = units::judge(&facets, node) {
            if let Err(message) = verdict {
                self.tell(node.position, trail, || message);
            }
            return;
        }
        if let Some(choices) = facets.choices() {
            self.alternatives(&facets, choices, node, trail, outer);
        }
        if !mismatch::type_fits(&facets, node) {
            return self.tell(node.position, trail, || mismatch::message(&facets, node));
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

    fn tell(&mut self, position: Position, trail: &Trail<'_>, message: impl FnOnce() -> String) {
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
        // Values that are choices were judged with the choices.
        if facets.choices().is_none()
            && let Some(values) = facets.constants()
            && !values.iter().any(|value| mismatch::equals(node, value))
        {
            self.tell(node.position, trail, || mismatch::not_one_of(&values, node));
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

    /// The keyword `x-text` on a map or a list speaks of what is in it.
    fn text_as_written(&mut self, node: &Node, trail: &Trail<'_>) {
        if let Err(message) = units::judge_text(node) {
            self.tell(node.position, trail, || message);
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
            return self.tell(node.position, trail, || complaint);
        }
        let (least, most) = facets.bounds();
        if let Some(least) = least
            && value < least
        {
            self.tell(node.position, trail, || {
                format!("must be at least {least}, found {}", shorten(&node.text))
            });
        }
        if let Some(most) = most
            && value > most
        {
            self.tell(node.position, trail, || {
                format!("must be at most {most}, found {}", shorten(&node.text))
            });
        }
    }

    fn text(&mut self, facets: &Facets<'_>, node: &Node, trail: &Trail<'_>) {
        let length = node.text.chars().count();
        if length == 0 && facets.count("minLength") == Some(1) {
            return self.tell(node.position, trail, || "must not be the empty string".to_owned());
        }
        self.length(facets, length, ["minLength", "maxLength"], "character", node, trail);
        if let Some(kind) = facets.text("x-name")
            && let Some(complaint) = units::judge_name(kind, &node.text)
        {
            self.tell(node.position, trail, || complaint);
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
            self.tell(node.position, trail, || {
                format!("needs at least {least} {}, has {found}", unit(least))
            });
        }
        if let Some(most) = facets.count(most).filter(|most| found > *most) {
            self.tell(node.position, trail, || format!("takes at most {most} {}, has {found}", unit(most)));
        }
    }
}

/// What an integer like `0755` is told: YAML 1.1 takes it for octal, 1.2 for decimal.
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
        true => format!("{text} has a leading zero, which means octal to some; write {decimal}"),
        false => format!(
            "{text} is octal to some readers of YAML and decimal to others; write {decimal} or 0o{decimal}"
        ),
    })
}
