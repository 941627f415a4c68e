//! Invariants for any text that is parsed as a Nomad agent file; for tests and fuzzing only.
//!
//! In: its bytes, JSON if they begin with a brace. Out: its problems or warnings; a panic if an invariant is
//! violated.

use herdlet_manifest::yaml::Problems;

use crate::{
    Config, Flags, Surroundings,
    sources::{Language, Loaded, Sources},
};

/// The name of the text.
pub const NAME: &str = "agent";

/// Loads the text and asserts the invariants. Returns its warnings, or its problems.
pub fn feed(text: &[u8]) -> Result<Problems, Problems> {
    let once = load(&[text])?;
    // Loading the same text twice gives the same config.
    match load(&[text, text]) {
        Ok(twice) => assert_eq!(once.file, twice.file),
        Err(problems) => panic!("the same file twice is invalid: {problems}"),
    }
    let warnings = once.warnings.clone();
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "box" };
    // Merging may fail, but must not panic.
    let _ = Config::merge(Flags::default(), once, &surroundings);
    Ok(warnings)
}

fn load(texts: &[&[u8]]) -> Result<Loaded, Problems> {
    let mut sources = Sources::default();
    for text in texts {
        let is_json = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        sources.add(NAME, text, if is_json { Language::Json } else { Language::Hcl });
    }
    sources.file()
}
