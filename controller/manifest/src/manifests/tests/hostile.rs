//! No input causes a panic, and accepted input survives a round trip.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::{Drivers, Set, job_to_yaml, parse, volume_to_yaml};
use super::{examples, read};

/// The examples and the bad manifests.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut texts: Vec<String> =
        examples().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let bad = include_str!("bad.txt").split("### ").skip(1);
    texts.extend(bad.filter_map(|case| Some(case.split_once('\n')?.1.split_once("\n>>>\n")?.0.to_owned())));
    texts
});

/// Fragments with a meaning somewhere in a manifest.
const PIECES: [&str; 40] = [
    "",
    " ",
    "\n",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "#",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "|",
    ">",
    "---\n",
    "null",
    "~",
    "0",
    "-1",
    "1e400",
    "99999999999999999999",
    "${",
    "..",
    "/",
    "\0",
    "\u{85}",
    "é",
    "[0]",
    "%",
    "name",
    "depends_on",
    "x-a",
    "tasks",
    "[[[[[[",
    "static: 1",
    "9223372036854775807ns",
];

#[track_caller]
fn comes_back(set: &Set) {
    for loaded in &set.jobs {
        let written = job_to_yaml(&loaded.object).unwrap();
        let again = read(&written).unwrap_or_else(|problems| panic!("{written}\n{problems}"));
        assert_eq!(again.jobs[0].object, loaded.object, "{written}");
    }
    for loaded in &set.volumes {
        let written = volume_to_yaml(&loaded.object).unwrap();
        let again = read(&written).unwrap_or_else(|problems| panic!("{written}\n{problems}"));
        assert_eq!(again.volumes[0].object, loaded.object, "{written}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse("x", &bytes, &Drivers::built_in());
    }

    #[test]
    fn changed_manifests(
        text in 0..58_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..12_usize, 0..PIECES.len()), 1..6),
    ) {
        let mut text = TEXTS[text % TEXTS.len()].clone();
        for (at, length, piece) in changes {
            let from = floor(&text, at.index(text.len() + 1));
            let to = floor(&text, (from + length).min(text.len()));
            text.replace_range(from..to, PIECES[piece]);
        }
        if let Ok(set) = read(&text) {
            comes_back(&set);
        }
    }

    #[test]
    fn lines_elsewhere(text in 0..58_usize, from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()) {
        let text = &TEXTS[text % TEXTS.len()];
        let mut lines: Vec<&str> = text.lines().collect();
        let line = lines.remove(from.index(lines.len()));
        lines.insert(to.index(lines.len() + 1), line);
        if let Ok(set) = read(&lines.join("\n")) {
            comes_back(&set);
        }
    }
}

/// The nearest character boundary at or before an offset.
fn floor(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
