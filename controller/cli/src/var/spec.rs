//! Specifications of variables, and items on the command line.
//!
//! In: the words of `herdlet var put`, files, standard input. Out: a variable, and the items to change. No error has a value.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::Path,
};

use clap::ValueEnum;
use herdlet_api_types::{
    manifest::Text,
    variable::{Variable, VariableItems, VariableMetadata},
};
use herdlet_manifest::{hcl1, yaml};
use serde::Deserialize;

use super::plain_path;
use crate::failure::{Failure, USAGE};

/// More than a variable holds in any form.
const BYTES_MAX: u64 = 1 << 20;

/// The format of a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum InForm {
    Hcl,
    Json,
}

/// A variable to write.
#[derive(Debug)]
pub(super) struct Specification {
    /// From a file or standard input; empty otherwise.
    pub(super) variable: Variable,
    /// Items from the command line, in order; an empty value removes an item.
    pub(super) changes: Vec<(String, String)>,
}

/// A specification in HCL, with Nomad's names.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HclVariable {
    namespace: Text,
    path: Text,
    create_index: u64,
    modify_index: u64,
    create_time: i64,
    modify_time: i64,
    items: BTreeMap<String, Text>,
}

/// Reads the words of the command.
pub(super) fn read(words: &[String], form: Option<InForm>) -> Result<Specification, Failure> {
    read_with(words, form, &mut io::stdin().lock())
}

fn read_with(words: &[String], form: Option<InForm>, stdin: &mut dyn Read) -> Result<Specification, Failure> {
    let usage = |message: &str| Failure::new(message).code(USAGE);
    let (first, rest) =
        words.split_first().ok_or_else(|| usage("name a path, or a specification: @FILE or -"))?;
    // Standard input can be read once.
    let mut stdin = Some(stdin);
    let (path, source, pairs) = match (is_source(first), rest.split_first()) {
        (true, _) => (None, Some(first), rest),
        (false, Some((second, pairs))) if is_source(second) => (Some(plain_path(first)), Some(second), pairs),
        (false, Some(_)) => (Some(plain_path(first)), None, rest),
        (false, None) => {
            let failure = usage("there is nothing to write: give items, or a specification");
            return Err(failure.hint(format!("examples: {first} user=me, or {first} @spec.nv.json")));
        }
    };
    let mut variable = match source {
        Some(source) => read_source(source, form, &mut stdin)?,
        None => Variable::default(),
    };
    if let Some(path) = path {
        // The specification of another path is a copy, so its index does not count.
        if !variable.metadata.path.is_empty() && variable.metadata.path != path {
            variable.metadata.modify_index = 0;
        }
        path.clone_into(&mut variable.metadata.path);
    }
    if variable.metadata.path.is_empty() {
        return Err(usage("the specification has no path: name it before the file"));
    }
    let changes = pairs.iter().map(|pair| read_pair(pair, &mut stdin)).collect::<Result<_, _>>()?;
    Ok(Specification { variable, changes })
}

/// Changes items. Names that templates can't use with a dot are reported on standard error.
pub(super) fn apply(variable: &mut Variable, changes: Vec<(String, String)>) {
    let items = &mut variable.items.get_or_insert_default().0;
    for (name, value) in changes {
        if value.is_empty() {
            items.remove(&name);
            continue;
        }
        if !name.chars().all(|char| char.is_alphanumeric() || char == '_') {
            herdlet_base::stderr_line!(
                "warning: in templates, the item {name:?} needs the function index, because its name has other characters \
                 than letters, digits and \"_\""
            );
        }
        items.insert(name, value);
    }
}

/// Whether a word names a specification.
fn is_source(word: &str) -> bool {
    word == "-" || word.starts_with('@')
}

fn read_source(
    source: &str,
    form: Option<InForm>,
    stdin: &mut Option<&mut dyn Read>,
) -> Result<Variable, Failure> {
    let (name, bytes) = match source.strip_prefix('@') {
        Some(path) => (path, read_file(path)?),
        None => ("standard input", read_stdin(stdin)?),
    };
    let by_extension = match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("hcl") => Some(InForm::Hcl),
        Some("json") => Some(InForm::Json),
        Some(_) | None => None,
    };
    match form.or(by_extension).unwrap_or(InForm::Json) {
        InForm::Json => from_json(name, &bytes),
        InForm::Hcl => from_hcl(name, &bytes),
    }
}

fn from_json(name: &str, bytes: &[u8]) -> Result<Variable, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        // Its own text can have a value.
        let (line, column) = (error.line(), error.column());
        let message = format!("{name}:{line}:{column}: this is not a variable in JSON");
        Failure::new(message).code(USAGE).hint("Items has names and texts; for HCL: --in hcl")
    })
}

pub(super) fn from_hcl(name: &str, bytes: &[u8]) -> Result<Variable, Failure> {
    let invalid = |problem: yaml::Problem| {
        let yaml::Problem { line, column, path, .. } = problem;
        let of = if path.is_empty() { String::new() } else { format!(" ({path})") };
        let message = format!("{name}:{line}:{column}: this is not a variable in HCL{of}");
        Failure::new(message).code(USAGE).hint("example: herdlet var init")
    };
    let root = hcl1::parse(name, bytes).map_err(invalid)?;
    let place = yaml::Located { source: name, path: String::new(), node: &root };
    let read: HclVariable = yaml::from_node(&place).map_err(invalid)?;
    let metadata = VariableMetadata {
        namespace: read.namespace.0,
        path: read.path.0,
        create_index: read.create_index,
        modify_index: read.modify_index,
        create_time: read.create_time,
        modify_time: read.modify_time,
        lock: None,
    };
    let items = read.items.into_iter().map(|(name, value)| (name, value.0)).collect();
    Ok(Variable { metadata, items: Some(VariableItems(items)) })
}

/// `KEY=VALUE`, `KEY=@FILE`, `KEY=-`, or `KEY=\@VALUE` for a value that begins with `@`.
fn read_pair(pair: &str, stdin: &mut Option<&mut dyn Read>) -> Result<(String, String), Failure> {
    let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        // It may be a value.
        return Err(Failure::new("an item is not KEY=VALUE, KEY=@FILE or KEY=-").code(USAGE));
    };
    let bytes = match (value, value.strip_prefix('@')) {
        ("-", _) => read_stdin(stdin)?,
        (_, Some(path)) => read_file(path)?,
        (_, None) => value.strip_prefix('\\').filter(|rest| rest.starts_with('@')).unwrap_or(value).into(),
    };
    let value = String::from_utf8(bytes);
    let value = value.map_err(|_| Failure::new(format!("the value of {name} is not UTF-8")).code(USAGE))?;
    Ok((name.to_owned(), value))
}

fn read_file(path: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{path}: cannot be read: {error}")).code(USAGE);
    bounded(path, &mut std::fs::File::open(path).map_err(failed)?)
}

fn read_stdin(stdin: &mut Option<&mut dyn Read>) -> Result<Vec<u8>, Failure> {
    match stdin.take() {
        Some(stdin) => bounded("standard input", stdin),
        None => Err(Failure::new("standard input can be used once only").code(USAGE)),
    }
}

fn bounded(name: &str, source: &mut dyn Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = source.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::new(format!("{name}: cannot be read: {error}")).code(USAGE))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Failure::new(format!("{name}: has more than {BYTES_MAX} bytes")).code(USAGE));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(words: &[&str], form: Option<InForm>, stdin: &str) -> Result<Variable, Failure> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let Specification { mut variable, changes } = read_with(&words, form, &mut stdin.as_bytes())?;
        apply(&mut variable, changes);
        Ok(variable)
    }

    fn shown(variable: &Variable) -> String {
        let items = variable.items.clone().unwrap_or_default().0;
        let items: Vec<String> = items.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {} {}", variable.metadata.path, variable.metadata.modify_index, items.join(","))
    }

    const JSON: &str = r#"{"Path":"a/b","ModifyIndex":7,"Items":{"user":"me","password":"hunter2"}}"#;
    const HCL: &str = "path = \"a/b\"\nmodify_index = 7\nitems {\n  user = \"me\"\n  \"my.key\" = 5\n}\n";

    #[test]
    fn words_are_read_as_in_nomad() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            format!("@{}", path.display())
        };
        let (json, hcl, secret) =
            (file("spec.nv.json", JSON), file("spec.nv.hcl", HCL), file("secret", "top\n"));
        let from_file = format!("key={secret}");
        for (words, form, stdin, expected) in [
            (&["/a/b/", "x=1", "y=a=b"][..], None, "", "a/b 0 x=1,y=a=b"),
            (&["a", "x=-"], None, "from stdin\n", "a 0 x=from stdin\n"),
            (&["a", &from_file], None, "", "a 0 key=top\n"),
            (&["a", "x=\\@y"], None, "", "a 0 x=@y"),
            (&[&json], None, "", "a/b 7 password=hunter2,user=me"),
            (&[&hcl], None, "", "a/b 7 my.key=5,user=me"),
            (&["-"], None, JSON, "a/b 7 password=hunter2,user=me"),
            (&["-", "user=you", "password="], None, JSON, "a/b 7 user=you"),
            (&["-"], Some(InForm::Hcl), HCL, "a/b 7 my.key=5,user=me"),
            (&["a/b", "-"], None, JSON, "a/b 7 password=hunter2,user=me"),
            (&["c", &json, "z=1"], None, "", "c 0 password=hunter2,user=me,z=1"),
        ] {
            let variable =
                written(words, form, stdin).unwrap_or_else(|failure| panic!("{words:?}: {failure}"));
            assert_eq!(shown(&variable), expected, "{words:?}");
        }
    }

    #[test]
    fn mistakes_are_named_without_values() {
        for (words, form, stdin) in [
            (&["a"][..], None, ""),
            (&["a", "hunter2"], None, ""),
            (&["a", "=hunter2"], None, ""),
            (&["a", "x=-", "y=-"], None, "hunter2"),
            (&["a", "x=@/none/hunter"], None, ""),
            (&["@/none/x.json"], None, ""),
            (&["-"], None, r#"{"Path":"a","Items":{"x":["hunter2"]}}"#),
            (&["-"], None, r#"{"Path":"a","Items":"hunter2"}"#),
            (&["-"], None, r#"{"Items":{"x":"hunter2"}}"#),
            (&["-"], Some(InForm::Hcl), "items { x = hunter2 }"),
            (&["-"], Some(InForm::Hcl), "items { x = [\"hunter2\"] }"),
            (&["-"], Some(InForm::Hcl), "other = \"hunter2\""),
        ] {
            let failure = written(words, form, stdin).unwrap_err();
            let text = format!("{failure} {}", failure.hint_text());
            assert!(!text.contains("hunter2") && failure.code == USAGE, "{words:?}: {text}");
        }
    }
}
