//! Texts → trees: scalars, positions, merges, aliases, and refused input.

use super::*;

fn scalar(text: &str) -> Value {
    document(&format!("v: {text}\n")).at("v").unwrap().node.value.clone()
}

#[test]
fn scalars_follow_yaml_1_2() {
    for text in [
        "no",
        "yes",
        "on",
        "off",
        "y",
        "n",
        "1_000",
        "12:30:45",
        "2024-01-01",
        "0b11",
        "1e",
        ".",
        "-a",
        "+",
        "e5",
    ] {
        assert_eq!(scalar(&format!("{text} # comment")), Value::Str, "{text}");
    }
    for text in [
        "0x", "0xg", "0o8", "-0x10", "+.nan", "inf", "nan", "1.2.3", "infinity", "0x1p4", "--1", "1-", "${a}",
    ] {
        assert_eq!(scalar(text), Value::Str, "{text}");
    }
    for text in ["", "~", "null", "Null", "NULL"] {
        assert_eq!(scalar(text), Value::Null, "{text}");
    }
    for (text, value) in [("true", true), ("True", true), ("TRUE", true), ("false", false), ("FALSE", false)]
    {
        assert_eq!(scalar(text), Value::Bool(value), "{text}");
    }
    for (text, value) in [
        ("0", 0),
        ("-0", 0),
        ("8080", 8080),
        ("+7", 7),
        ("-12", -12),
        ("0x10", 16),
        ("0xfF", 255),
        ("0o17", 15),
        ("0755", 755),
        ("18446744073709551616", 1 << 64),
    ] {
        assert_eq!(scalar(text), Value::Int(value), "{text}");
    }
    for (text, value) in [
        ("1.10", 1.1),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("-1.5E-2", -0.015),
        (".inf", f64::INFINITY),
        ("-.INF", f64::NEG_INFINITY),
        ("1000000000000000000000000000000000000000000", 1e42),
    ] {
        assert_eq!(scalar(text), Value::Float(value), "{text}");
    }
    assert!(matches!(scalar(".nan"), Value::Float(value) if value.is_nan()));
}

#[test]
fn plain_scalars_keep_their_source_text() {
    for text in
        ["1.10", "no", "0x10", "8080", "~", "007", "1e3", "+5", "TRUE", "a b", "x:y", "${NOMAD_PORT_http}"]
    {
        let document = document(&format!("v: {text}   # comment\n"));
        let node = document.at("v").unwrap().node;
        assert_eq!((&*node.text, node.style), (text, Style::Plain));
    }
    let document =
        document("a: 'no'\nb: \"a\\tb\"\nc: |\n  x: 1\n  y\nd: >-\n  x\n  y\ne:\nf: |2\n\n    \u{e9}\n  z\n");
    let text = |path: &str| {
        let node = document.at(path).unwrap().node;
        (node.text.to_string(), node.style)
    };
    assert_eq!(text("a"), ("no".to_owned(), Style::Quoted));
    assert_eq!(text("b"), ("a\tb".to_owned(), Style::Quoted));
    assert_eq!(text("c"), ("x: 1\ny\n".to_owned(), Style::Lines(Position { line: 4, column: 3 })));
    assert_eq!(text("d"), ("x y".to_owned(), Style::Block));
    assert_eq!(text("f"), ("\n  \u{e9}\nz\n".to_owned(), Style::Lines(Position { line: 11, column: 3 })));
    assert_eq!(text("e"), (String::new(), Style::Plain));
}

#[test]
fn everything_has_its_place() {
    let text = "spec:\n  groups:\n    - name: web\n      ports: {http: {to: 80}}\n    -   name: bé\n        é: [x, y]\n      \nlast:\n";
    let document = document(text);
    for (path, line, column) in [
        ("", 1, 1),
        ("spec", 2, 3),
        ("spec.groups", 3, 5),
        ("spec.groups[0]", 3, 7),
        ("spec.groups[0].name", 3, 13),
        ("spec.groups[0].ports", 4, 14),
        ("spec.groups[0].ports.http.to", 4, 26),
        ("spec.groups[1].name", 5, 15),
        ("spec.groups[1][\"é\"][1]", 6, 16),
        // An absent value has the position of its key.
        ("last", 8, 1),
    ] {
        let place = document.at(path).unwrap();
        assert_eq!(place.node.position, Position { line, column }, "{path}");
        assert_eq!(place.path, path);
    }
    assert!(document.at("spec.groups[2]").is_none());
    assert!(document.at("spec.groups.x").is_none());
    assert!(document.at("spec..groups").is_none());
    let problem = document.problem("spec.groups[0].tasks[1].name", "is missing");
    assert_eq!(problem.to_string(), "t.yaml:3:7: spec.groups[0].tasks[1].name: is missing");
}

#[test]
fn byte_order_mark_and_crlf_change_nothing() {
    let document = document("\u{feff}a: 1\r\nb:\r\n  - x\r\n  - |\r\n    y\r\n    z\r\n");
    assert_eq!(document.at("a").unwrap().node.position, Position { line: 1, column: 4 });
    assert_eq!(document.at("b[0]").unwrap().node.position, Position { line: 3, column: 5 });
    assert_eq!(&*document.at("b[1]").unwrap().node.text, "y\nz\n");
}

#[test]
fn documents_are_counted_without_the_empty_ones() {
    let parsed = parse("t.yaml", b"---\n# nothing\n---\na: 1\n---\n...\n---\nb: 2\n---\n~\n---\n");
    assert_eq!(parsed.problems, Problems::new());
    let roots: Vec<_> =
        parsed.documents.iter().map(|document| (document.index, &document.root.value)).collect();
    assert_eq!(roots.len(), 3);
    assert_eq!(roots[2], (2, &Value::Null));
    for text in ["", "\n\n", "# only a comment\n", "---\n", "\u{feff}", "--- # x\n...\n"] {
        assert_eq!(parse("t.yaml", text.as_bytes()).documents.len(), 0, "{text:?}");
        assert_eq!(problems_of(text), "", "{text:?}");
    }
}

#[test]
fn merge_keys_add_missing_keys() {
    let document = document(
        "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\none: {<<: *base, a: 9}\ntwo:\n  <<: [*base, *more]\n  d: 5\n\
         three: {<<: {x: 1}, \"<<\": literal}\n",
    );
    let keys = |path: &str| -> Vec<(String, String)> {
        let entries = document.at(path).unwrap().node.entries().unwrap();
        entries.iter().map(|entry| (entry.key.to_string(), entry.value.text.to_string())).collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(keys("one"), pairs(&[("a", "9"), ("b", "2")]));
    assert_eq!(keys("two"), pairs(&[("d", "5"), ("a", "1"), ("b", "2"), ("c", "4")]));
    // A merged value keeps its own position.
    assert_eq!(document.at("two.c").unwrap().node.position, Position { line: 2, column: 23 });
}

#[test]
fn duplicate_key_is_reported_with_both_positions() {
    assert_eq!(
        problems_of("a:\n  b: 1\n  c: 2\n  b: 3\n  \"b\": 4\n"),
        "4:3: a: duplicate key `b`; it is already at line 2, column 3\n\
         5:3: a: duplicate key `b`; it is already at line 2, column 3"
    );
    // 1 and "1" are the same key.
    assert_eq!(
        problems_of("x: [{1: a, '1': b}]\n"),
        "1:12: x[0]: duplicate key `1`; it is already at line 1, column 6"
    );
    assert_eq!(
        problems_of("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n"),
        "4:3: b: duplicate key `<<`; it is already at line 3, column 3"
    );
    // The first occurrence is kept, so that its other problems are reported too.
    let parsed = parse("t.yaml", b"a: 1\na: 2\n");
    assert_eq!(&*parsed.documents[0].at("a").unwrap().node.text, "1");
}

#[test]
fn unusual_keys_tags_and_aliases_are_refused() {
    for (text, expected) in [
        (
            "a: !vault x\n",
            "1:4: a: the tag `!vault` is not supported; remove it, or put a value that begins with `!` in quotes",
        ),
        (
            "a: !!binary aGk=\n",
            "1:4: a: the tag `!!binary` is not supported; remove it, or put a value that begins with `!` in quotes",
        ),
        (
            "a: !!python/object:os.system x\n",
            "1:4: a: the tag `!!python/object:os.system` is not supported; remove it, or put a value that begins with `!` in quotes",
        ),
        (
            "a: !!map [x]\n",
            "1:4: a: the tag `!!map` is not supported; remove it, or put a value that begins with `!` in quotes",
        ),
        ("a: !!int x\n", "1:10: a: does not match its tag `!!int`"),
        ("a: [*b]\n", "1:5: a[0]: there is no anchor `&b` above; put a value that begins with `*` in quotes"),
        ("a: &a [*a]\n", "1:8: a[0]: an alias can't be inside the value that it repeats"),
        ("a: {? [x] : y}\n", "1:7: a: a key must be a word, not a list"),
        (
            "a: {? {x: 1} : y}\n",
            "1:7: a: a key must be a word, not a map; put a value that begins with `{` in quotes",
        ),
        ("~: x\n", "1:1: a key must be a word; put it in quotes if it is meant to be \"~\""),
        ("<<: x\n", "1:5: `<<` takes a map, or a list of maps"),
        ("a: {<<: [{x: 1}, 2]}\n", "1:18: a: `<<` takes a map, or a list of maps"),
    ] {
        assert_eq!(problems_of(text), expected, "{text}");
        assert_eq!(parse("t.yaml", text.as_bytes()).documents.len(), 1, "{text}");
    }
}

#[test]
fn core_tags_and_anchors_work() {
    let document = document(
        "a: !!str 8080\nb: !!int \"5\"\nc: ! 12\nd: !!float 3\ne: !!map {x: &x [1, 2]}\nf: *x\n? k\n: v\n*x2 : 1\n"
            .replace("*x2 : 1\n", "")
            .as_str(),
    );
    let value = |path: &str| document.at(path).unwrap().node.value.clone();
    assert_eq!(value("a"), Value::Str);
    assert_eq!(value("b"), Value::Int(5));
    assert_eq!(value("c"), Value::Str);
    assert_eq!(value("d"), Value::Float(3.0));
    assert_eq!(value("f"), value("e.x"));
    assert_eq!(document.at("f[1]").unwrap().node.position, Position { line: 5, column: 21 });
    assert_eq!(&*document.at("k").unwrap().node.text, "v");
}

#[test]
fn a_broken_document_does_not_end_the_text() {
    let parsed = parse("t.yaml", b"a: [1, 2\n---\nb: 1\nb: 2\n---\nc: \"x\n---\nd: 1\n");
    assert_eq!(parsed.documents.len(), 2);
    assert_eq!(&*parsed.documents[1].at("d").unwrap().node.text, "1");
    assert_eq!(
        render(&parsed.problems),
        "1:4: a[1]: is not YAML: unclosed bracket '['\n\
         4:1: duplicate key `b`; it is already at line 3, column 1\n\
         7:1: c: is not YAML: invalid indentation in multiline quoted scalar; look for a quote that is not closed"
    );
}

#[test]
fn invalid_yaml_is_reported_with_its_cause() {
    for (text, expected) in [
        ("a:\n\tb: 1\n", "indent with spaces"),
        ("a: 1\n\tb: 2\n", "indent with spaces"),
        (
            "a: b: c\n",
            "1:5: is not YAML: mapping values are not allowed in this context; check the indentation, and put a value that contains `: ` in quotes",
        ),
        ("a: 1\n  b: 2\n", "check the indentation"),
        ("a: @x\n", "put the value in quotes"),
        ("a: `x`\n", "put the value in quotes"),
        ("a: \"x\nb: 1\n", "look for a quote that is not closed"),
        ("a: \"\\q\"\n", "in single quotes, a backslash is literal"),
        ("a: 1\nb\n", "a line of a map reads `key: value`"),
        (
            "a: [-m, ${PORT}]\n",
            "1:10: a[2]: is not YAML: while parsing a flow sequence, expected ',' or ']'; within brackets, put a value that contains `${…}` in quotes",
        ),
        ("a: {b: x${PORT}}\n", "within brackets, put a value that contains `${…}` in quotes"),
        ("a: [1, 2\nb: 1\n", "look for a bracket that is not closed"),
        ("a: {b: 1\nc: 1\n", "look for a bracket that is not closed"),
        ("a: * * * * *\n", "put a value that begins with `*` or `&` in quotes"),
        ("a:\n  b: 1\n c: 2\n", "did not find expected key; check the indentation"),
        ("a: - b\n", "begin the list on the next line"),
        ("a: 'it's'\n", "within single quotes write ' twice"),
        ("a: \"x\" y\n", "within double quotes write \\\""),
        ("a: {{ key }}\n", "put a value that begins with `{` in quotes"),
    ] {
        let problems = problems_of(text);
        assert!(problems.contains(expected), "{text:?}: {problems}");
        assert_eq!(problems.lines().count(), 1);
    }
}
