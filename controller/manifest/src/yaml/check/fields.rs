//! Fields of a map: known, missing, or unknown, and the likely intended field for an unknown one.
//!
//! In: a map and its schema. Out: problems. An unknown name is searched in this map, in the enclosing maps,
//! and in nested maps, because wrong indentation is the most common mistake in YAML.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::facets::Facets;
use super::{Enclosing, Walk, mismatch, shorten, units};
use crate::yaml::node::{Entry, Node};
use crate::yaml::path::Trail;
use crate::yaml::phrases::nearest;
use crate::yaml::problem::Problems;

/// Maximum number of names to list if none is similar.
const NAMES_SHOWN_MAX: usize = 12;

impl Walk<'_> {
    pub(super) fn fields(
        &mut self,
        facets: &Facets<'_>,
        node: &Node,
        entries: &[Entry],
        trail: &Trail<'_>,
        outer: Option<&Enclosing<'_>>,
    ) {
        let enclosing = Enclosing { facets, trail, outer };
        let meant: Vec<&str> = entries.iter().filter_map(|entry| self.field(&enclosing, entry)).collect();
        let required = facets.all("required").filter_map(Json::as_array).flatten().filter_map(Json::as_str);
        let is_there = |name: &str| entries.iter().any(|entry| &*entry.key == name);
        let missing: Vec<&str> = required.filter(|name| !is_there(name) && !meant.contains(name)).collect();
        for name in &missing {
            self.report(node.position, trail, || format!("`{name}` is missing"));
        }
        if self.absent.len() < Problems::SHOWN_MAX {
            // Only names are referred to elsewhere; other missing fields have no consequences.
            let names = missing.iter().filter(|name| **name == "name");
            self.absent.extend(meant.iter().chain(names).map(|name| trail.field(name).to_string()));
        }
    }

    /// Checks a field. For an unknown field, returns the likely intended one, which must not be reported as
    /// missing too.
    fn field<'s>(&mut self, here: &Enclosing<'s>, entry: &Entry) -> Option<&'s str> {
        let trail = here.trail.field(&entry.key);
        if let Some(names) = here.facets.get("propertyNames") {
            let names = here.facets.beside(names);
            if let Some(complaint) = names.text("x-name").and_then(|kind| units::judge_name(kind, &entry.key))
            {
                self.report(entry.key_position, &trail, || format!("the name {complaint}"));
            }
        }
        match field_schema(here.facets, &entry.key) {
            Field::Known(_) if here.facets.is("x-text") => self.text_as_written(&entry.value, &trail),
            Field::Known(schema) => self.node(schema, &entry.value, &trail, Some(here)),
            Field::Unchecked => {}
            Field::Unknown => {
                self.report(entry.key_position, &trail, || unknown(here, &entry.key));
                return meant(here.facets, &plain(&entry.key));
            }
        }
        None
    }
}

enum Field<'s> {
    Known(&'s Json),
    Unchecked,
    Unknown,
}

fn field_schema<'s>(facets: &Facets<'s>, name: &str) -> Field<'s> {
    if let Some(schema) = facets.field(name) {
        return Field::Known(schema);
    }
    for patterns in facets.all("patternProperties").filter_map(Json::as_object) {
        for (pattern, schema) in patterns {
            if pattern.strip_prefix('^').is_some_and(|prefix| name.starts_with(prefix)) {
                return Field::Known(schema);
            }
        }
    }
    // The choices validate their own fields.
    let in_choice = |choice| facets.beside(choice).field(name).is_some();
    if facets.choices().is_some_and(|choices| choices.iter().any(in_choice)) {
        return Field::Unchecked;
    }
    match facets.get("additionalProperties").or_else(|| facets.get("unevaluatedProperties")) {
        Some(Json::Bool(false)) => Field::Unknown,
        Some(Json::Bool(true)) | None => Field::Unchecked,
        Some(schema) => Field::Known(schema),
    }
}

fn unknown(here: &Enclosing<'_>, name: &str) -> String {
    let sentence = format!("unknown field `{}`", shorten(name));
    match misplaced(here, name).or_else(|| explain(here, &plain(name))) {
        Some(explanation) => format!("{sentence}; {explanation}"),
        None => sentence,
    }
}

/// A name with capitals, as Nomad's JSON has it, as names of fields are written here.
fn plain(name: &str) -> Cow<'_, str> {
    if !name.starts_with(char::is_uppercase) {
        return Cow::Borrowed(name);
    }
    let mut plain = String::new();
    let mut after_small = false;
    for char in name.chars() {
        if char.is_uppercase() && after_small {
            plain.push('_');
        }
        after_small = char.is_lowercase();
        plain.extend(char.to_lowercase());
    }
    Cow::Owned(plain)
}

fn explain(here: &Enclosing<'_>, name: &str) -> Option<String> {
    let names = here.facets.field_names();
    if let Some((key, _)) = name.split_once(':').filter(|(key, _)| names.contains(key)) {
        return Some(format!("put a space after `{key}:`"));
    }
    misplaced(here, name)
        .or_else(|| plural(here.facets, name).map(|plural| plural_hint(&plural)))
        .or_else(|| elsewhere(here, name))
        .or_else(|| nearest(name, names.iter().copied()).map(|name| format!("did you mean `{name}`?")))
        .or_else(|| listing(&names))
}

/// Returns the likely intended field for an unknown one.
fn meant<'s>(facets: &Facets<'s>, name: &str) -> Option<&'s str> {
    let names = facets.field_names();
    let before_colon = name.split_once(':').map(|(key, _)| key);
    let plural = plural(facets, name);
    let is_one = |known: &&str| Some(*known) == before_colon || Some(*known) == plural.as_deref();
    names.iter().copied().find(|known| is_one(known)).or_else(|| nearest(name, names.iter().copied()))
}

/// Returns the message for a name in the schema's `x-misplaced` table.
fn misplaced(here: &Enclosing<'_>, name: &str) -> Option<String> {
    let of_root = here.facets.root().and_then(|root| root.get("x-misplaced"));
    here.facets
        .all("x-misplaced")
        .chain(of_root)
        .find_map(|table| table.get(name).and_then(Json::as_str))
        .map(str::to_owned)
}

/// Returns the list `tasks` for `task`.
fn plural(facets: &Facets<'_>, name: &str) -> Option<String> {
    let stem = name.strip_suffix('y').map(|stem| format!("{stem}ies"));
    let candidates = [Some(format!("{name}s")), Some(format!("{name}es")), stem];
    candidates.into_iter().flatten().find(|plural| {
        facets.field(plural).is_some_and(|schema| facets.beside(schema).types().contains(&"array"))
    })
}

fn plural_hint(plural: &str) -> String {
    format!("repeated blocks have plural names here: `{plural}` is a list")
}

/// Searches the name in the enclosing maps, then in nested ones.
fn elsewhere(here: &Enclosing<'_>, name: &str) -> Option<String> {
    let mut outer = here.outer;
    while let Some(enclosing) = outer {
        if enclosing.facets.field(name).is_some() {
            let path = enclosing.trail.to_string();
            return Some(match path.as_str() {
                "" => format!("`{name}` belongs to the document itself"),
                path => format!("`{name}` belongs to `{path}`"),
            });
        }
        outer = enclosing.outer;
    }
    within(here.facets, name, 2).map(|path| format!("`{name}` belongs to `{path}`"))
}

/// Returns the path to the shallowest nested map that has the field.
fn within(facets: &Facets<'_>, name: &str, depth: usize) -> Option<String> {
    let inner: Vec<(String, Facets<'_>)> = facets
        .field_names()
        .into_iter()
        .filter_map(|field| {
            let inner = facets.beside(facets.field(field)?);
            Some(match inner.get("items") {
                Some(items) => (format!("{field}[]"), facets.beside(items)),
                None => (field.to_owned(), inner),
            })
        })
        .collect();
    if let Some((path, _)) = inner.iter().find(|(_, inner)| inner.field(name).is_some()) {
        return Some(path.clone());
    }
    if depth <= 1 {
        return None;
    }
    inner.iter().find_map(|(path, inner)| within(inner, name, depth - 1).map(|rest| format!("{path}.{rest}")))
}

fn listing(names: &[&str]) -> Option<String> {
    match names {
        [] => Some("there are no fields here".to_owned()),
        names if names.len() <= NAMES_SHOWN_MAX => Some(format!("the fields here are {}", names.join(", "))),
        _ => None,
    }
}

/// Returns the only field of a map, which names a choice.
pub(super) fn only_field<'s>(facets: &Facets<'s>) -> Option<&'s str> {
    match facets.field_names().as_slice() {
        [only] if mismatch::expected(facets) == ["a map"] => Some(only),
        _ => None,
    }
}
