//! Every name that leaves the program: fields of stored, sent and printed data, metrics, flags and fields of
//! manifests.
//!
//! In: the source, the library, and the golden files in `tests/fixtures/formats`. A name in code may change,
//! its external form may not: a renamed field gets `#[serde(rename = "…")]`, a renamed flag `#[arg(long =
//! "…")]`. To change a form on purpose, run `HERDLET_WRITE_FORMATS=1 cargo test -p herdlet-tests --test
//! formats` and commit the changed files.

#![expect(clippy::expect_used, clippy::panic, reason = "tests may panic")]

mod flags;
mod records;
mod schema;
mod wire_names;

use herdlet_agent::telemetry::names;

use std::{collections::BTreeSet, fs, path::PathBuf};

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("a workspace").to_owned()
}

/// Returns whether to write the golden files instead of comparing them.
fn writes() -> bool {
    std::env::var_os("HERDLET_WRITE_FORMATS").is_some_and(|value| value == "1")
}

/// Compares lines with the golden file, and fails with the differences.
fn assert_golden(file: &str, lines: &[String]) {
    let path = root().join("tests/fixtures/formats").join(file);
    let now = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    if writes() {
        fs::write(&path, now).expect("a writable golden file");
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if golden == now {
        return;
    }
    let gone = golden.lines().filter(|line| !lines.iter().any(|other| other == line));
    let new = lines.iter().filter(|line| !golden.lines().any(|other| other == *line));
    let difference: Vec<String> =
        gone.map(|line| format!("- {line}")).chain(new.map(|line| format!("+ {line}"))).collect();
    panic!(
        "{file} differs (without lines below: in the order or a count). Keep the written name with \
         #[serde(rename)] or #[arg(long)]. If the change is intended, set HERDLET_WRITE_FORMATS=1.\n{}",
        difference.join("\n")
    );
}

#[test]
fn metrics_keep_their_names() {
    let line = |metric: &names::Metric| {
        format!("{} {:?} {:?} {}", metric.name, metric.kind, metric.measure, metric.labels.join(","))
    };
    assert_golden("metrics.txt", &names::ALL.iter().map(line).collect::<Vec<_>>());
}

#[test]
fn alerts_name_metrics_that_exist() {
    let text = fs::read_to_string(root().join("deploy/alerts.yaml")).expect("alerts");
    let expressions: String = text.lines().filter(|line| line.trim_start().starts_with("expr:")).collect();
    let words = expressions.split(|char: char| char != '_' && !char.is_ascii_alphanumeric());
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("herdlet_")).collect();
    let known: BTreeSet<&str> = names::ALL.iter().map(|metric| metric.name).collect();
    assert!(named.len() > 5 && named.is_subset(&known), "{named:?}");
}
