//! Whole texts with their expected messages, as readable files.
//!
//! `golden/NAME.yaml` is checked against the model; `golden/NAME.txt` is the expected output.
//! `HERDLET_BLESS=1` updates it.

use std::path::Path;

use super::model::Manifest;
use super::*;

#[test]
fn golden_files_match() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/yaml/tests/golden");
    for name in ["slips", "foreign", "two_documents"] {
        let source = format!("{name}.yaml");
        let text = std::fs::read(folder.join(&source)).unwrap();
        let Parsed { documents, mut problems } = parse(&source, &text);
        for document in &documents {
            problems.append(check(&document.root(), &schema_for::<Manifest>()));
        }
        let shown = format!("{problems}\n");
        let golden = folder.join(format!("{name}.txt"));
        if std::env::var_os("HERDLET_BLESS").is_some() {
            std::fs::write(&golden, &shown).unwrap();
        }
        assert_eq!(shown, std::fs::read_to_string(&golden).unwrap(), "{name}");
    }
}
