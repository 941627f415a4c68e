//! Trees of JSON values, without positions in a text.
//!
//! In: JSON values within the limits of a text. Out: the nodes that parsing their text would give. This
//! module must not know what the names mean.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{
    node::{Document, Entry, Node, Style, Value},
    parse::Limits,
    problem::{Position, Problem},
    scalar::resolve_plain,
};

/// Builds the tree of a JSON value.
///
/// # Errors
/// Deeper nesting or more values than the limits allow.
pub fn tree_of(source: &str, json: &Json, limits: Limits) -> Result<Document, Problem> {
    let mut builder = TreeBuilder { limits, nodes: 0 };
    match builder.node(json, 0) {
        Ok(root) => Ok(Document { source: source.into(), index: 0, root }),
        Err(TooMuch(message)) => {
            let Position { line, column } = Position::default();
            Err(Problem { source: source.to_owned(), line, column, path: String::new(), message })
        }
    }
}

struct TreeBuilder {
    limits: Limits,
    nodes: usize,
}

/// The tree exceeds a limit.
struct TooMuch(String);

impl TreeBuilder {
    fn node(&mut self, json: &Json, depth: usize) -> Result<Arc<Node>, TooMuch> {
        let Limits { depth_max, nodes_max, .. } = self.limits;
        self.nodes += 1;
        if self.nodes > nodes_max {
            return Err(TooMuch(format!("has more than {nodes_max} values")));
        }
        let is_collection = matches!(json, Json::Array(_) | Json::Object(_));
        if is_collection && depth >= depth_max {
            return Err(TooMuch(format!("lists and maps are nested more than {depth_max} deep")));
        }
        let (value, text, style) = match json {
            Json::Null => (Value::Null, "null".into(), Style::Plain),
            Json::Bool(is_true) => (Value::Bool(*is_true), is_true.to_string().into(), Style::Plain),
            Json::Number(number) => {
                let text = number.to_string();
                (resolve_plain(&text), text.into(), Style::Plain)
            }
            Json::String(text) => (Value::Str, text.as_str().into(), Style::Quoted),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.node(item, depth + 1)).collect::<Result<_, _>>()?;
                (Value::Seq(items), Box::default(), Style::Collection)
            }
            Json::Object(fields) => {
                let entry = |(key, value): (&String, &Json)| {
                    let value = self.node(value, depth + 1)?;
                    Ok(Entry { key: key.as_str().into(), key_position: Position::default(), value })
                };
                let entries = fields.iter().map(entry).collect::<Result<_, _>>()?;
                (Value::Map(entries), Box::default(), Style::Collection)
            }
        };
        Ok(Arc::new(Node { value, text, style, position: Position::default() }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml::parse;

    /// Removes the positions, which a tree of values lacks.
    fn without_places(node: &Node) -> Node {
        let position = Position::default();
        let value = match &node.value {
            Value::Seq(items) => Value::Seq(items.iter().map(|item| without_places(item).into()).collect()),
            Value::Map(entries) => {
                let entry = |entry: &Entry| Entry {
                    key: entry.key.clone(),
                    key_position: position,
                    value: without_places(&entry.value).into(),
                };
                Value::Map(entries.iter().map(entry).collect())
            }
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str
            | Value::Refused) => other.clone(),
        };
        Node { value, position, ..node.clone() }
    }

    #[test]
    fn a_tree_is_what_its_text_would_be_read_as() {
        let json = json!({
            "a": [1, -2, 3.5, 1e300, u64::MAX, true, false, null, "", "null", "yes", "0x1f", "é\n\u{1b}\"\\"],
            "b": { "c": {}, "d": [], "k: v": [[[]]] },
        });
        let tree = tree_of("job.json", &json, Limits::DEFAULT).unwrap();
        let parsed = parse("job.json", json.to_string().as_bytes());
        assert!(parsed.problems.is_empty());
        assert_eq!(*tree.root, without_places(&parsed.documents[0].root));
    }

    #[test]
    fn a_tree_has_the_bounds_of_a_text() {
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        assert!(tree_of("x", &nested(Limits::DEFAULT.depth_max), Limits::DEFAULT).is_ok());
        let problem = tree_of("x", &nested(Limits::DEFAULT.depth_max + 1), Limits::DEFAULT).unwrap_err();
        assert!(problem.message.contains("nested more than 64 deep"), "{problem}");
        let many = json!(vec![1; Limits::DEFAULT.nodes_max]);
        assert!(tree_of("x", &many, Limits::DEFAULT).unwrap_err().message.contains("values"));
    }
}
