//! Conformance: templates whose output was established with Go's text/template and the real functions.
//!
//! `vectors/*.jsonl` has one case per line: the template, its data, and the output or the kind of error.
//! `vectors/differences.jsonl` lists the cases in which herdlet differs, with its own result and the reason.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{collections::BTreeMap, path::PathBuf};

use herdlet_template::{ErrorKind, MissingKey, Options, Template, source::Fixed};
use serde_json::Value;

struct Case {
    file: String,
    template: String,
    data: Value,
    options: Options,
    expected: String,
}

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "vectors"].iter().collect()
}

fn lines(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn expectation(case: &Value) -> String {
    match case["output"].as_str() {
        Some(output) => format!("output {output:?}"),
        None => format!("error {}", text(case, "error")),
    }
}

fn cases(file: &str) -> Vec<Case> {
    let read = |case: Value| Case {
        file: file.to_owned(),
        template: text(&case, "template"),
        data: case["data"].clone(),
        options: Options {
            left_delimiter: text(&case, "left"),
            right_delimiter: text(&case, "right"),
            missing_key: if text(&case, "missing_key") == "error" {
                MissingKey::Error
            } else {
                MissingKey::Zero
            },
            ..Options::default()
        },
        expected: expectation(&case),
    };
    lines(file).into_iter().map(read).collect()
}

fn result(case: &Case) -> (String, String) {
    let error = |error: herdlet_template::Error| {
        let kind = match error.kind {
            ErrorKind::Syntax => "syntax",
            ErrorKind::Evaluation | ErrorKind::Refused => "evaluation",
            ErrorKind::Limit => "limit",
        };
        (format!("error {kind}"), error.to_string())
    };
    let template = match Template::parse(&case.template, &case.options) {
        Ok(template) => template,
        Err(why) => return error(why),
    };
    // The time that the vectors were made with.
    let source = Fixed::default().with_unix_time(1_136_214_245);
    match template.render_with(&source, &case.data).result {
        Ok(output) => (format!("output {:?}", String::from_utf8_lossy(&output)), String::new()),
        Err(why) => error(why),
    }
}

#[test]
fn templates_render_as_with_go() {
    let mut differences: BTreeMap<(String, String), String> = BTreeMap::new();
    for case in lines("differences.jsonl") {
        assert!(!text(&case, "why").is_empty(), "a difference without a reason: {case}");
        differences.insert((text(&case, "template"), text(&case, "missing_key")), expectation(&case));
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for file in ["language.jsonl", "functions.jsonl", "sprig.jsonl"] {
        for case in cases(file) {
            count += 1;
            let (ours, detail) = result(&case);
            let missing_key = if case.options.missing_key == MissingKey::Error { "error" } else { "" };
            let known = differences.remove(&(case.template.clone(), missing_key.to_owned()));
            let is_good = match known {
                Some(known) => ours == known && ours != case.expected,
                None => ours == case.expected,
            };
            if !is_good {
                wrong.push(format!(
                    "{}: {}\n  Go:   {}\n  ours: {ours} {detail}",
                    case.file, case.template, case.expected
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases differ\n{}", wrong.len(), wrong.join("\n"));
    assert!(differences.is_empty(), "differences without a case: {:?}", differences.keys());
    assert!(count > 400, "{count} cases");
}
