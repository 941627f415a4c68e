//! Bad manifests and their problems: `bad.txt` is a list of cases, each a manifest, `>>>` and the problems.
//! `UPDATE_GOLDEN=1 cargo test -p herdlet-manifest bad_manifests` updates the problems.

use std::fmt::Write;

use super::{read, repository};

#[test]
fn bad_manifests() {
    let path = repository().join("controller/manifest/src/manifests/tests/bad.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut now = String::new();
    for case in golden.split("### ").skip(1) {
        let (name, rest) = case.split_once('\n').unwrap();
        let (text, _) = rest.split_once("\n>>>\n").unwrap_or_else(|| panic!("{name}: no >>>"));
        let problems = match read(text) {
            Ok(_) => panic!("{name}: the manifest is valid"),
            Err(problems) => problems,
        };
        write!(now, "### {name}\n{text}\n>>>\n{problems}\n\n").unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &now).unwrap();
    } else {
        let line = golden.lines().zip(now.lines()).position(|(old, new)| old != new);
        assert!(
            golden == now,
            "bad.txt differs from the current messages at line {line:?}; see UPDATE_GOLDEN in bad.rs"
        );
    }
}
