//! What must hold for any text that is taken for an agent file of Nomad's; for tests and fuzzing only.
//!
//! In: its bytes, JSON where they begin with a brace. Out: what is wrong with it, or nothing; or a panic.

use herdlet_manifest::yaml::Problems;

use crate::{
    Config, Flags, Surroundings,
    sources::{Language, Loaded, Sources},
};

/// What the text is called.
pub const NAME: &str = "agent";

/// Takes the text and asserts what must hold. What is told of it is given back: warnings, or what is wrong.
pub fn feed(text: &[u8]) -> Result<Problems, Problems> {
    let once = load(&[text])?;
    // The same said twice says the same.
    match load(&[text, text]) {
        Ok(twice) => assert_eq!(once.file, twice.file),
        Err(problems) => panic!("said twice it is wrong: {problems}"),
    }
    let warnings = once.warnings.clone();
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "box" };
    // What the files come to as a whole has no place of its own to look at; it must not panic.
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
