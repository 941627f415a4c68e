//! The schema of one place, merged from the schema itself, its references, and its `allOf`.
//!
//! In: a schema and the root for its references. Out: keywords by name; the outermost wins.

use serde_json::{Map, Value as Json};

/// The schema objects that apply to one place, outermost first.
#[derive(Debug, Default)]
pub(super) struct Facets<'s> {
    parts: Vec<&'s Map<String, Json>>,
    root: Option<&'s Json>,
    refused: bool,
}

/// Maximum number of references; more is a cycle.
const REFERENCES_MAX: usize = 64;

impl<'s> Facets<'s> {
    pub(super) fn resolve(root: &'s Json, schema: &'s Json) -> Self {
        let mut facets = Self { root: Some(root), ..Self::default() };
        let mut waiting = vec![schema];
        while let Some(schema) = waiting.pop() {
            if *schema == Json::Bool(false) {
                facets.refused = true;
            }
            let Some(part) = schema.as_object() else { continue };
            if facets.parts.len() == REFERENCES_MAX {
                break;
            }
            facets.parts.push(part);
            waiting.extend(part.get("allOf").and_then(Json::as_array).into_iter().flatten().rev());
            waiting.extend(part.get("$ref").and_then(Json::as_str).and_then(|name| lookup(root, name)));
        }
        facets
    }

    /// Resolves another schema of the same root.
    pub(super) fn beside(&self, schema: &'s Json) -> Self {
        match self.root {
            Some(root) => Self::resolve(root, schema),
            None => Self::default(),
        }
    }

    pub(super) fn root(&self) -> Option<&'s Json> {
        self.root
    }

    /// Returns whether the schema allows everything.
    pub(super) fn is_anything(&self) -> bool {
        !self.refused && self.parts.iter().all(|part| part.is_empty())
    }

    /// Returns whether the schema allows nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.refused
    }

    /// Returns the outermost value of a keyword.
    pub(super) fn get(&self, keyword: &str) -> Option<&'s Json> {
        self.parts.iter().find_map(|part| part.get(keyword))
    }

    /// Returns every value of a keyword, outermost first.
    pub(super) fn all<'a>(&'a self, keyword: &'a str) -> impl Iterator<Item = &'s Json> + 'a {
        self.parts.iter().filter_map(move |part| part.get(keyword))
    }

    /// Returns the value of a string keyword.
    pub(super) fn text(&self, keyword: &str) -> Option<&'s str> {
        self.get(keyword).and_then(Json::as_str)
    }

    /// Returns the value of an integer keyword.
    pub(super) fn count(&self, keyword: &str) -> Option<u64> {
        self.get(keyword).and_then(Json::as_u64)
    }

    /// Returns whether one of our own keywords is set.
    pub(super) fn is(&self, keyword: &str) -> bool {
        self.get(keyword).is_some_and(|value| *value != Json::Bool(false))
    }

    /// Returns the names of the allowed types; empty if all are allowed.
    pub(super) fn types(&self) -> Vec<&'s str> {
        match self.get("type") {
            Some(Json::String(name)) => vec![name],
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the schemas of which one must fit.
    pub(super) fn choices(&self) -> Option<&'s [Json]> {
        self.get("anyOf").or_else(|| self.get("oneOf")).and_then(Json::as_array).map(Vec::as_slice)
    }

    /// Returns the allowed values of an enum, even if each of them is a separate choice.
    pub(super) fn constants(&self) -> Option<Vec<&'s Json>> {
        match (self.get("const"), self.get("enum")) {
            (Some(value), _) => Some(vec![value]),
            (None, Some(Json::Array(values))) => Some(values.iter().collect()),
            (None, _) => {
                let choices = self.choices()?.iter().map(|choice| self.beside(choice).constants());
                choices.collect::<Option<Vec<_>>>().map(|values| values.concat())
            }
        }
    }

    pub(super) fn accepts_null(&self) -> bool {
        if self.is("x-text") {
            return false;
        }
        let by_type = match self.types().as_slice() {
            [] => true,
            types => types.contains(&"null"),
        };
        let by_constant = self.constants().is_none_or(|values| values.iter().any(|value| value.is_null()));
        let by_choice = self
            .choices()
            .is_none_or(|choices| choices.iter().any(|choice| self.beside(choice).accepts_null()));
        by_type && by_constant && by_choice
    }

    /// Returns the schema of a named field.
    pub(super) fn field(&self, name: &str) -> Option<&'s Json> {
        self.all("properties").find_map(|fields| fields.get(name))
    }

    /// Returns the names of all fields in the schema's order.
    pub(super) fn field_names(&self) -> Vec<&'s str> {
        self.all("properties")
            .filter_map(Json::as_object)
            .flat_map(|fields| fields.keys())
            .map(|name| &**name)
            .collect()
    }

    /// Returns the minimum and maximum of a number, including those of its integer format.
    pub(super) fn bounds(&self) -> (Option<f64>, Option<f64>) {
        let (format_least, format_most) = match self.text("format") {
            Some("int8") => (Some(f64::from(i8::MIN)), Some(f64::from(i8::MAX))),
            Some("int16") => (Some(f64::from(i16::MIN)), Some(f64::from(i16::MAX))),
            Some("int32") => (Some(f64::from(i32::MIN)), Some(f64::from(i32::MAX))),
            Some("int64") => (Some(i64::MIN as f64), Some(i64::MAX as f64)),
            Some("uint8") => (Some(0.0), Some(f64::from(u8::MAX))),
            Some("uint16") => (Some(0.0), Some(f64::from(u16::MAX))),
            Some("uint32") => (Some(0.0), Some(f64::from(u32::MAX))),
            Some("uint64" | "uint") => (Some(0.0), Some(u64::MAX as f64)),
            _ => (None, None),
        };
        let number = |keyword| self.get(keyword).and_then(Json::as_f64);
        let least = [number("minimum"), format_least].into_iter().flatten().reduce(f64::max);
        let most = [number("maximum"), format_most].into_iter().flatten().reduce(f64::min);
        (least, most)
    }
}

/// Resolves `#/$defs/Name`.
fn lookup<'s>(root: &'s Json, reference: &str) -> Option<&'s Json> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(pointer).or_else(|| root.pointer(&decode(pointer)?))
}

/// Decodes the percent encoding of a reference.
fn decode(pointer: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(pointer.len());
    let mut rest = pointer.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
