//! The tables of `docs/nomad/templates.md`: constructs with an example, and all functions with what they need.
//!
//! `UPDATE_GOLDEN=1` writes the page.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use herdlet_template::{Group, Options, Support, Template, functions, source::Fixed};

/// Constructs of the language: name, example, output.
const CONSTRUCTS: [(&str, &str, &str); 21] = [
    ("actions", r#"{{ "a" }}"#, "a"),
    ("comments", "a{{/* no output */}}b", "ab"),
    ("trimmed space", "a {{- \"b\" -}} c", "abc"),
    ("pipelines", r#"{{ "a b" | split " " | join "-" }}"#, "a-b"),
    ("parentheses and fields of their value", r#"{{ (parseJSON "{\"a\":{\"b\":1}}").a.b }}"#, "1"),
    ("variables", "{{ $x := 1 }}{{ $x = 2 }}{{ $x }}", "2"),
    ("`if`, `else if`, `else`", "{{ if false }}a{{ else if true }}b{{ else }}c{{ end }}", "b"),
    ("`with`, `else with`", r#"{{ with "" }}a{{ else with "b" }}{{ . }}{{ end }}"#, "b"),
    ("`range` over lists", r#"{{ range $i, $v := split "," "a,b" }}{{ $i }}{{ $v }}{{ end }}"#, "0a1b"),
    (
        "`range` over maps, sorted by key",
        r#"{{ range $k, $v := parseJSON "{\"b\":2,\"a\":1}" }}{{ $k }}{{ $v }}{{ end }}"#,
        "a1b2",
    ),
    ("`range` over integers", "{{ range 3 }}{{ . }}{{ end }}", "012"),
    ("`range` with `else`", r#"{{ range split "," "" }}a{{ else }}b{{ end }}"#, "b"),
    (
        "`break`, `continue`",
        "{{ range 9 }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}",
        "02",
    ),
    ("`define`, `template`", r#"{{ define "T" }}<{{ . }}>{{ end }}{{ template "T" 1 }}"#, "<1>"),
    ("`block`", r#"{{ block "B" 1 }}<{{ . }}>{{ end }}"#, "<1>"),
    ("comparisons", r#"{{ eq 1 2 1 }} {{ lt 1.5 2.5 }} {{ ge "b" "a" }}"#, "true true true"),
    ("`and`, `or`, which stop early", r#"{{ or "a" (index "" 9) }}"#, "a"),
    ("numbers of all bases", "{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1.5e3 }}", "31 3 15 1000 1500"),
    ("character constants", "{{ 'a' }}", "97"),
    ("raw strings", r"{{ `a\n` }}", r"a\n"),
    (
        "formats of `printf`",
        r#"{{ printf "%05d %-3s| %q %.2f %v" 42 "a" "b" 1.234 true }}"#,
        "00042 a  | \"b\" 1.23 true",
    ),
];

/// Functions that depend on data; `data.rs` tests them.
const GROUPS_OF_DATA: [Group; 3] = [Group::Nomad, Group::Consul, Group::Vault];
const TESTED_WITH_DATA: [&str; 8] =
    ["byKey", "byMeta", "byPort", "byTag", "env", "envOrDefault", "explode", "mustEnv"];
const WITHOUT_VECTOR: [&str; 2] = ["file", "sockaddr"];

fn title(group: Group) -> &'static str {
    match group {
        Group::Go => "Go",
        Group::Nomad => "Nomad",
        Group::Consul => "Consul",
        Group::Vault => "Vault",
        Group::Local => "task and node",
        Group::Encoding => "encoding",
        Group::Text => "text",
        Group::Collections => "collections",
        Group::Math => "arithmetic",
        Group::Debug => "debugging",
        Group::Sprig => "sprig",
    }
}

fn status(support: Support) -> String {
    match support {
        Support::Works => "supported".to_owned(),
        Support::NeedsConsul => "supported with a Consul".to_owned(),
        Support::NeedsVault => "supported in tasks with a token of Vault".to_owned(),
        Support::Refused(why) => format!("not offered: {why}"),
    }
}

fn tables() -> String {
    let mut page = "| construct | example | output |\n| --- | --- | --- |\n".to_owned();
    for (name, example, output) in CONSTRUCTS {
        let template =
            Template::parse(example, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
        let rendered = template.render(&Fixed::default()).result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(String::from_utf8_lossy(&rendered), output, "{example}");
        let cell = |text: &str| {
            let fence = if text.contains('`') { "`` " } else { "`" };
            let close = if text.contains('`') { " ``" } else { "`" };
            format!("{fence}{}{close}", text.replace('|', "\\|"))
        };
        let _ = writeln!(page, "| {name} | {} | {} |", cell(example), cell(output));
    }
    let mut rows: BTreeMap<(Group, String), Vec<&str>> = BTreeMap::new();
    for function in functions::all() {
        rows.entry((function.group, status(function.support()))).or_default().push(function.name);
    }
    page.push_str("\n| group | functions | state |\n| --- | --- | --- |\n");
    for ((group, status), mut names) in rows {
        names.sort_unstable();
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| {} | {} | {status} |", title(group), names.join(", "));
    }
    page
}

#[test]
fn page_lists_constructs_and_functions() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/nomad/templates.md"].iter().collect();
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- table -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    let wanted = format!("{before}<!-- table -->\n{}<!-- end -->{after}", tables());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    assert_eq!(page, wanted, "UPDATE_GOLDEN=1 writes the page");
}

/// The functions that 967 `template` blocks of 489 public job files use. Besides, they use the actions `with`, `range` and `if`.
const OF_PUBLIC_JOB_FILES: [&str; 15] = [
    "env",
    "eq",
    "executeTemplate",
    "index",
    "key",
    "keyOrDefault",
    "node",
    "nomadService",
    "nomadVar",
    "parseInt",
    "printf",
    "secret",
    "service",
    "sockaddr",
    "toJSON",
];

#[test]
fn functions_of_public_job_files_are_offered() {
    for name in OF_PUBLIC_JOB_FILES {
        let support = functions::all().find(|function| function.name == name).map(|found| found.support());
        assert!(
            support.is_some_and(|support| !matches!(support, Support::Refused(_))),
            "{name}: {support:?}"
        );
    }
}

#[test]
fn every_function_is_in_a_vector() {
    let mut text = String::new();
    for file in ["language", "functions", "sprig"] {
        let path: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "tests/vectors", &format!("{file}.jsonl")].iter().collect();
        text.push_str(&std::fs::read_to_string(path).unwrap());
    }
    let words: std::collections::BTreeSet<&str> =
        text.split(|char: char| !(char.is_alphanumeric() || char == '_')).collect();
    let is_untested = |function: &&herdlet_template::Function| {
        function.support() == Support::Works
            && !GROUPS_OF_DATA.contains(&function.group)
            && !TESTED_WITH_DATA.contains(&function.name)
            && !WITHOUT_VECTOR.contains(&function.name)
            && !words.contains(function.name)
    };
    let untested: Vec<&str> = functions::all().filter(is_untested).map(|function| function.name).collect();
    assert!(untested.is_empty(), "add vectors for {untested:?}");
}
