//! Examples of texts, errors with their positions, and the bounds.

use serde_json::{Value as Json, json};

use super::*;

fn to_json(node: &Node) -> Json {
    match &node.value {
        Value::Null | Value::Refused => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(i64::try_from(*value).unwrap()),
        Value::Float(value) => json!(value),
        Value::Str => json!(node.text),
        Value::Seq(items) => items.iter().map(|item| to_json(item)).collect(),
        // As pairs, to show repeated names.
        Value::Map(entries) => {
            entries.iter().map(|entry| json!([entry.key, to_json(&entry.value)])).collect()
        }
    }
}

fn read(text: &str) -> Json {
    to_json(&parse("a.hcl", text.as_bytes()).unwrap())
}

#[test]
fn blocks_names_and_values_are_read_as_nomads_agent_does() {
    assert_eq!(
        read(
            "# one\nregion = \"eu\" // two\nports { http = 0x10 rpc = 5, }\n\
             plugin \"raw_exec\" { config { enabled = true } }\n/* three\n*/ list = [1, \"b\", ]\n\
             options = { \"driver.raw_exec.enable\" = \"1\" }\nmeta { \"a-b\" = \"${x \"y\"}\\n\" }"
        ),
        json!([
            ["region", "eu"],
            ["ports", [["http", 16], ["rpc", 5]]],
            ["plugin", [["raw_exec", [["config", [["enabled", true]]]]]]],
            ["list", [1, "b"]],
            ["options", [["driver.raw_exec.enable", "1"]]],
            ["meta", [["a-b", "${x \"y\"}\n"]]],
        ])
    );
    assert_eq!(
        read("a = <<EOF\n x\n  y\nEOF\nb = <<-END\n    x\n      y\n  END\n"),
        json!([["a", " x\n  y\n"], ["b", "x\n  y\n"]])
    );
    assert_eq!(read("a = 1.5\na = -2\nz = \"\\u00e9\""), json!([["a", 1.5], ["a", -2], ["z", "é"]]));
    assert_eq!(read(" \n# nothing"), json!([]));
}

#[test]
fn syntax_errors_name_their_position() {
    for (text, expected) in [
        ("a", "1:2: expected `=` or `{` after a name"),
        ("a =\n  nope", "2:3: expected a value, found `nope`; strings need quotes"),
        ("a = 12abc", "1:5: `12abc` is not a number; strings need quotes"),
        ("client {\n  x = 1\n", "3:1: ends within a `{` that is not closed"),
        ("a = [1, 2", "1:10: ends within a `[` that is not closed"),
        ("a = \"x\nb = 1", "1:5: begins a string that is not closed on its line"),
        ("a = \"\\q\"", "1:6: is not a valid escape sequence"),
        ("é = ?", "1:5: expected a value, found `?`"),
        ("}", "1:1: expected a name, found `}`"),
        ("/* x", "1:1: begins a comment that is not closed"),
        ("a = <<EOF\nx\n", "1:5: begins a heredoc that is not closed"),
    ] {
        let problem = parse("a.hcl", text.as_bytes()).unwrap_err();
        assert_eq!(problem.to_string(), format!("a.hcl:{expected}"), "{text}");
    }
}

#[test]
fn a_hostile_text_has_bounds() {
    for text in ["a = [".repeat(1_000), "a {".repeat(1_000), "a=1\n".repeat(30_000), "[".repeat(9_000)] {
        assert!(parse("a", text.as_bytes()).is_err());
    }
    assert!(parse("a", &vec![b' '; BYTES_MAX + 1]).is_err());
    assert!(parse("a", &[0xff]).is_err());
    assert!(parse("a", format!("a = {}1", "[".repeat(2_000)).as_bytes()).is_err());
}
