//! Plain words: rules of CONTRIBUTING.md about language that can be checked in the text.
//!
//! `words.txt` has words that are not plain technical English, and `names.txt` has names that say too little, each with the number of
//! places that are left. The numbers only fall. `nomad-texts.txt` has texts of Nomad that other programs compare: they are never
//! reworded. `.ci/subjects` checks the subjects of commits.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{FOLDERS, code, root, sources};

/// Maximum words in a sentence of a document. CONTRIBUTING.md asks for about 25; lists of names need a few more.
const WORDS_MAX: usize = 30;

/// One-word functions that cannot be searched for.
const FUNCTIONS: [&str; 3] = ["of", "said", "all"];

/// Participles that do not end in `ed`.
const PARTICIPLES: [&str; 16] = [
    "Done", "Found", "Given", "Gone", "Held", "Kept", "Known", "Left", "Lost", "Made", "Said", "Seen",
    "Sent", "Shown", "Taken", "Told",
];

/// Ends of names of types without a meaning.
const VAGUE: [&str; 5] = ["Handler", "Helper", "Manager", "Util", "Utils"];

type Counts = BTreeMap<String, usize>;

/// Reads lines of a name and a number.
fn counts(text: &str) -> Counts {
    let line = |line: &str| {
        let (name, number) = line.rsplit_once(' ').expect("a name and a number");
        (name.to_owned(), number.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

/// Fails if a name is found more often than listed, or less often.
fn compare(found: &Counts, listed: &Counts, file: &str) {
    let number = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or_default();
    let names = || found.keys().chain(listed.keys());
    let more: Vec<String> = names()
        .filter(|name| number(found, name) > number(listed, name))
        .map(|name| format!("{name}: {} places, {} are left", number(found, name), number(listed, name)))
        .collect();
    assert!(more.is_empty(), "use other words ({file}): {more:#?}");
    if more.is_empty() && std::env::var_os("UPDATE_GOLDEN").is_some() {
        let lines = listed.keys().map(|name| format!("{name} {}\n", number(found, name)));
        let path = root().join("tests/tests/architecture").join(file);
        return fs::write(path, lines.collect::<String>()).expect("a writable file");
    }
    let fewer: Vec<&String> = names().filter(|name| number(found, name) < number(listed, name)).collect();
    assert!(
        fewer.is_empty(),
        "fewer places are left: UPDATE_GOLDEN=1 lowers the numbers in {file}: {fewer:#?}"
    );
}

/// Returns the Markdown pages and scripts, with their paths and texts.
fn documents() -> Vec<(String, String)> {
    let mut folders: Vec<PathBuf> = FOLDERS.map(|folder| root().join(folder)).into();
    let mut paths: Vec<PathBuf> = files_in(&root()).collect();
    while let Some(folder) = folders.pop() {
        paths.extend(files_in(&folder));
        let below = entries(&folder).filter(|path| path.is_dir());
        folders.extend(below.filter(|path| !path.ends_with("target")));
    }
    paths.extend(files_in(&root().join(".ci")));
    paths.sort();
    let name = |path: &Path| path.strip_prefix(root()).expect("below the root").display().to_string();
    let is_text = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("md" | "sh" | "yaml" | "toml" | "hcl"))
            || path.parent().is_some_and(|parent| parent.file_name().is_some_and(|name| name == ".ci"))
    };
    let read = |path: PathBuf| Some((name(&path), fs::read_to_string(&path).ok()?));
    paths.into_iter().filter(is_text).filter_map(read).collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn files_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(folder).filter(|path| path.is_file())
}

/// The words of a text in small letters, also those within names such as `is_done` and `IsDone`.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_small = false;
    for char in text.chars() {
        if !char.is_alphabetic() || char.is_uppercase() && after_small {
            words.push(String::new());
        }
        after_small = char.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| char.is_alphabetic()) {
            word.extend(char.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn words_are_split_as_people_read_names() {
    assert_eq!(words("is_doneIsDone(\"so it's\")"), ["is", "done", "is", "done", "so", "it", "s"]);
}

#[test]
fn odd_words_only_disappear() {
    let listed = counts(include_str!("words.txt"));
    let mut found: Counts = listed.keys().map(|word| (word.clone(), 0)).collect();
    let code = ["api-types", "controller", "tests"].into_iter().flat_map(sources);
    for (_, text) in code.chain(documents()) {
        for word in words(&text) {
            if let Some(number) = found.get_mut(&word) {
                *number += 1;
            }
        }
    }
    compare(&found, &listed, "words.txt");
}

/// Types are nouns that can be searched for, functions are verbs.
#[test]
fn names_say_what_they_are() {
    let mut found = Counts::new();
    for (_, text) in ["api-types", "controller", "tests"].into_iter().flat_map(sources) {
        for line in code(&text) {
            let mut words = line.split([' ', '<', '(', '{', ';', ':']).filter(|word| !word.is_empty());
            let kind = words.find(|word| matches!(*word, "struct" | "enum" | "trait" | "type" | "fn"));
            let Some((kind, name)) = kind.zip(words.next()) else { continue };
            let counted = match kind {
                "fn" if FUNCTIONS.contains(&name) => format!("fn {name}"),
                "fn" => continue,
                _ if is_poor(name) => format!("type {name}"),
                _ => continue,
            };
            *found.entry(counted).or_default() += 1;
        }
    }
    compare(&found, &counts(include_str!("names.txt")), "names.txt");
}

/// Whether this is a participle alone, or ends in a word that says nothing.
fn is_poor(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(char::is_lowercase) && name.starts_with(char::is_uppercase);
    // Words such as `Need` are no participles.
    let is_participle = name.ends_with("ed") && !name.ends_with("eed") || PARTICIPLES.contains(&name);
    is_one_word && is_participle || VAGUE.iter().any(|end| name.ends_with(end))
}

/// The sentences of a Markdown page, without blocks of code, tables and headings. A colon or a semicolon ends one too.
fn sentences(text: &str) -> Vec<String> {
    let (mut found, mut paragraph, mut fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().map(str::trim).chain([""]) {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let is_text = !fenced && !line.is_empty() && !line.starts_with(['#', '|', '<', '`'])
            || (!fenced && is_span(line));
        let item = line.strip_prefix("- ").or_else(|| {
            line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok()).map(|(_, rest)| rest)
        });
        if !is_text || item.is_some() {
            split(&std::mem::take(&mut paragraph), &mut found);
        }
        if is_text {
            paragraph.push_str(item.unwrap_or(line));
            paragraph.push(' ');
        }
    }
    found
}

/// Whether a line begins with a code span, not with a fence.
fn is_span(line: &str) -> bool {
    line.starts_with('`') && !line.starts_with("```")
}

fn split(paragraph: &str, found: &mut Vec<String>) {
    let mut sentence = String::new();
    for word in paragraph.split(' ') {
        if word.contains(char::is_alphanumeric) {
            sentence.push_str(word);
            sentence.push(' ');
        }
        let end = word.trim_end_matches(['"', '`', ')', '*']);
        if end.ends_with(['.', '!', '?', ':', ';']) {
            found.push(std::mem::take(&mut sentence));
        }
    }
    if !sentence.is_empty() {
        found.push(sentence);
    }
}

#[test]
fn sentences_of_documents_are_short() {
    assert_eq!(
        sentences("# T\nOne two. Three\nfour: five\n\n```\nno no\n```\n- six\n- `seven` |\n| no |"),
        ["One two. ", "Three four: ", "five ", "six ", "`seven` "]
            .map(str::to_owned)
            .into_iter()
            .collect::<Vec<_>>()
    );
    let mut long = Vec::new();
    for (name, text) in documents().into_iter().filter(|(name, _)| name.ends_with(".md")) {
        for sentence in sentences(&text) {
            let number = sentence.split(' ').filter(|word| !word.is_empty()).count();
            if number > WORDS_MAX {
                long.push(format!("{name}: {number} words: {sentence}"));
            }
        }
    }
    assert!(long.is_empty(), "write sentences of at most {WORDS_MAX} words: {long:#?}");
}

/// Servers, the command line and the user interface compare some texts of Nomad, and people search for them.
#[test]
fn texts_of_nomad_are_kept() {
    let mut files: Vec<(String, String)> =
        ["api-types", "controller"].into_iter().flat_map(sources).collect();
    files.retain(|(name, _)| !name.contains("/tests/") && !name.ends_with("tests.rs"));
    let reworded: Vec<&str> = include_str!("nomad-texts.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter(|text| !files.iter().any(|(_, code)| code.contains(&format!("\"{text}"))))
        .collect();
    assert!(reworded.is_empty(), "Nomad has these texts; do not reword them: {reworded:#?}");
}
