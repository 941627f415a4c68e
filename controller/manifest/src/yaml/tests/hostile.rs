//! Hostile and meaningless texts: limits hold, nothing panics, nothing takes long.

use std::sync::LazyLock;
use std::time::Instant;

use proptest::prelude::*;

use super::model::Manifest;
use super::*;

/// Longer is a hang: an idle machine needs one second for the slowest test, a busy one up to twenty.
const HANG: std::time::Duration = std::time::Duration::from_secs(300);

#[test]
fn a_text_that_is_too_large_is_not_read() {
    let text = vec![b'#'; 10 << 20];
    assert_eq!(render(&parse("t.yaml", &text).problems), "has 10.0 MiB; the limit is 4.0 MiB");
}

#[test]
fn invalid_utf8_is_reported_with_its_position() {
    let problems_of = |bytes: &[u8]| render(&parse("t.yaml", bytes).problems);
    assert_eq!(problems_of(b"a: 1\nb: \xc3\xa9\xff\n"), "2:5: is not UTF-8: byte 0xff at offset 10");
    assert_eq!(problems_of(b"a: 1\r\nb:\rc\xff"), "3:2: is not UTF-8: byte 0xff at offset 10");
    assert_eq!(problems_of(b"\xc3"), "1:1: is not UTF-8: byte 0xc3 at offset 0");
    assert_eq!(problems_of(b"\xff\xfea\0"), "is UTF-16; save it as UTF-8");
}

#[test]
fn billion_laughs_are_not_laughed() {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..=9 {
        let before = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", ")));
    }
    let begun = Instant::now();
    assert!(problems_of(&text).contains("has more than 250000 values, including those that aliases repeat"));
    assert!(begun.elapsed() < HANG);
}

#[test]
fn aliases_multiply_neither_text_nor_depth_nor_merges() {
    let mut text = format!("a: &a {}\nb:\n", "x".repeat(1 << 20));
    text.push_str(&"  - *a\n".repeat(20));
    assert_eq!(problems_of(&text), "19:5: b[16]: aliases repeat more than 16 MiB of text");

    let mut text = String::from("a0: &a0 [x]\n");
    for level in 1..=70 {
        text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert_eq!(problems_of(&text), "64:12: a63[0]: lists and maps are nested more than 64 deep");

    let mut text = String::from("a0: &a0 {k: v}\n");
    for level in 1..=40 {
        text.push_str(&format!("a{level}: &a{level} {{<<: [*a{0}, *a{0}], k{level}: v}}\n", level - 1));
    }
    assert!(problems_of(&text).contains("more than 250000 values"));
}

#[test]
fn nesting_has_an_end() {
    let begun = Instant::now();
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
        let text = format!("{}x{}", open.repeat(200_000), close.repeat(200_000));
        let problems = problems_of(&text);
        assert!(problems.contains("nested more than 64 deep"), "{open}: {problems}");
        let text = format!("{}x{}", open.repeat(60), close.repeat(60));
        assert!(!parse("t.yaml", text.as_bytes()).problems.to_string().contains("nested"), "{open}");
    }
    let text: String = (0..70).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert!(problems_of(&text).contains("nested more than 64 deep"));
    assert!(begun.elapsed() < HANG);
}

#[test]
fn numbers_of_values_and_documents_have_an_end() {
    let text = format!("[{}]", "1,".repeat(300_000));
    assert_eq!(
        problems_of(&text),
        "1:500002: [250000]: has more than 250000 values, including those that aliases repeat"
    );
    assert_eq!(problems_of(&"---\na\n".repeat(20_000)), "20001:1: has more than 10000 documents");
}

#[test]
fn large_input_is_fast() {
    // A sixteenth of the limit; at the limit an optimised build takes two seconds for the slowest case.
    let size = 256 << 10;
    for part in [
        "a",
        "\"",
        "'",
        "[",
        "{",
        "-",
        "- ",
        "? ",
        ": ",
        "a: ",
        "&a ",
        "*a ",
        "!a ",
        "!",
        "|\n",
        ">\n ",
        "#",
        "%",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "--- ",
        "---\n",
        "...\n",
        "a: b: ",
        "{a",
        "[a, ",
        "a\n",
        " a\n",
        "\\",
        "\"\\u0041",
        "é",
        "\u{feff}",
        "<<: ",
        "<<: {",
        "a: 1\n",
        "- a: 1\n",
        "&a a\n",
        "%TAG ! x\n",
        "a:\n- ",
        "x #",
        "\"a\" ",
        "''",
        "&a [",
        "a: [\n---\n",
        "{a: [}\n---\n",
        "? a\n: b\n",
    ] {
        let text = part.repeat(size / part.len());
        let begun = Instant::now();
        let parsed = parse("t.yaml", text.as_bytes());
        let taken = begun.elapsed();
        assert!(taken < HANG, "{part:?} takes {taken:?}");
        for document in &parsed.documents {
            let _ = check(&document.root(), schema());
        }
    }
}

/// The schema of the model, generated once.
fn schema() -> &'static schemars::Schema {
    static SCHEMA: LazyLock<schemars::Schema> = LazyLock::new(schema_for::<Manifest>);
    &SCHEMA
}

/// Fragments from which random texts become similar to manifests.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\n".to_owned()),
        Just("\n  ".to_owned()),
        Just("\n    ".to_owned()),
        Just("\n---\n".to_owned()),
        prop::sample::select(vec![
            "spec:",
            "groups:",
            "name: ",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            ": ",
            "&a ",
            "*a",
            "<<: ",
            "!x ",
            "!!str ",
            "|",
            ">",
            "'",
            "\"",
            "#",
            "\t",
            "\u{feff}",
            "cpu: ",
            "count: ",
            "env: ",
            "ports: ",
            "true",
            "no",
            "8080",
            "1.10",
            "512Mi",
            "500m",
            "7d",
            "~",
            "0x1",
            "? ",
            "\\",
            "é",
            "restart: ",
            "mode: ",
            "config: ",
            "args: ",
            "%",
            "...",
        ])
        .prop_map(str::to_owned),
        "[a-z]{1,6}",
        any::<char>().prop_map(String::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(pieces in prop::collection::vec(piece(), 0..60)) {
        exercise(pieces.concat().as_bytes());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&bytes);
    }

    #[test]
    fn no_typing_error_panics(
        which in 0..SAMPLES.len(),
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, piece()), 1..4),
    ) {
        let mut bytes = SAMPLES[which].to_vec();
        for (at, length, typed) in slips {
            let at = at.index(bytes.len());
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, typed.bytes());
        }
        exercise(&bytes);
    }

    #[test]
    fn any_path_is_read_or_refused(path in ".{0,40}") {
        let document = document("a: [{b: 1}]\n");
        let _ = document.at(&path);
        let _ = document.problem(&path, "x");
    }

    #[test]
    fn written_yaml_reads_back(value in value()) {
        let text = to_yaml(&value).unwrap();
        let parsed = parse("t.yaml", text.as_bytes());
        prop_assert!(parsed.problems.is_empty(), "{}\n{}", parsed.problems, text);
        // A bare null at the top is an empty document.
        prop_assert_eq!(parsed.documents.len(), 1, "{}", text);
        let read: serde_json::Value = from_node(&parsed.documents[0].root()).unwrap();
        prop_assert_eq!(read, value, "{}", text);
    }
}

/// Texts to insert.
const SAMPLES: [&[u8]; 3] = [
    include_bytes!("golden/slips.yaml"),
    include_bytes!("golden/foreign.yaml"),
    include_bytes!("golden/two_documents.yaml"),
];

fn exercise(bytes: &[u8]) {
    let parsed = parse("t.yaml", bytes);
    let _ = parsed.problems.to_string();
    for document in &parsed.documents {
        let root = document.root();
        let problems = check(&root, schema());
        for problem in &problems {
            let Position { line, column } = problem.position();
            assert!(line > 0 && column > 0, "{problem}");
        }
        let typed = from_node::<Manifest>(&root);
        // Serde can deserialize all that the schema accepts.
        if problems.is_empty() && parsed.problems.is_empty() {
            typed.unwrap();
        }
        let _ = from_node::<serde_json::Value>(&root);
    }
}

/// Any JSON whose keys YAML could resolve to another type.
fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<u64>().prop_map(serde_json::Value::from),
        "[ -~]{0,12}".prop_map(serde_json::Value::from),
        prop::sample::select(vec![
            "no", "~", "", "1.10", "0x10", "<<", "=", "- a", "a: b", " x ", "x\ny\n", "1e3", "#"
        ])
        .prop_map(serde_json::Value::from),
    ];
    let inner = leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z<~0-9. -]{1,6}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    // Not null at the top, because that is an empty document.
    prop::collection::vec(inner, 0..4).prop_map(serde_json::Value::from)
}
