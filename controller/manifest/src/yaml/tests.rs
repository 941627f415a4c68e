//! Tests of the YAML front end, by subject, with a small model of a manifest.

mod checked;
mod golden;
mod hostile;
mod model;
mod shown;
mod tree;
mod typed;

use super::*;

/// Parses a text with one document and no problems.
fn document(text: &str) -> Document {
    let Parsed { mut documents, problems } = parse("t.yaml", text.as_bytes());
    assert!(problems.is_empty(), "{text:?}: {problems}");
    assert_eq!(documents.len(), 1, "{text:?}");
    documents.remove(0)
}

/// Returns the problems of a text, one per line, without the name of the source.
fn problems_of(text: &str) -> String {
    render(&parse("t.yaml", text.as_bytes()).problems)
}

fn render(problems: &Problems) -> String {
    problems.to_string().replace("t.yaml: ", "").replace("t.yaml:", "")
}
