//! Commands that need no agent: `validate`, `schema`, `completions`, `version`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::{FAILED, Failure, USAGE},
    output::{Output, Reader},
    show::{self, styled},
    style,
};
use crate::desired::{
    manifests::{self, Drivers, Set},
    yaml::{Problem, Problems},
};

/// Arguments of `herdlet validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Warnings are problems too
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: Output,
}

/// What `herdlet validate -o json` prints, good or not.
#[derive(Default, Serialize)]
struct Validation {
    /// The exit code is 0.
    good: bool,
    jobs: Vec<String>,
    volumes: Vec<String>,
    problems: Vec<Problem>,
    /// Problems that are not listed.
    more_problems: usize,
    warnings: Vec<Problem>,
}

/// Arguments of `herdlet version`.
#[derive(Debug, Clone, Args)]
pub struct VersionArgs {
    #[command(flatten)]
    output: Output,
}

/// What `herdlet version -o json` prints.
#[derive(Serialize)]
struct VersionReport {
    version: &'static str,
}

/// Arguments of `herdlet schema`.
#[derive(Debug, Clone, Args)]
pub struct SchemaArgs {
    /// A field, such as spec.groups.tasks.resources [default: the whole manifest]
    field: Option<String>,
}

/// Arguments of `herdlet completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(super) shell: clap_complete::Shell,
}

/// 0 where all is well, 1 for problems, 2 where nothing could be checked.
pub(super) fn validate(args: &ValidateArgs) -> Result<u8, Failure> {
    let missing = args.files.iter().find(|path| path.as_os_str() != "-" && !path.exists());
    if let Some(path) = missing {
        return Err(Failure::new(format!("{}: there is no such file", path.display())).code(USAGE));
    }
    let (set, problems) = match manifests::load(&args.files, &Drivers::built_in()) {
        Ok(set) => (set, Problems::new()),
        Err(problems) => (Set::default(), problems),
    };
    if problems.is_empty() && set.jobs.is_empty() && set.volumes.is_empty() {
        return Err(Failure::new("there is no manifest in what was given").code(USAGE));
    }
    let good = problems.is_empty() && (!args.strict || set.warnings.is_empty());
    match args.output.reader() {
        Reader::Person => say_validation(&set, &problems),
        Reader::Program => args.output.document(&Validation {
            good,
            jobs: set.jobs.iter().map(|loaded| loaded.object.key().to_string()).collect(),
            volumes: set.volumes.iter().map(|loaded| loaded.object.name.clone()).collect(),
            more_problems: problems.more(),
            problems: problems.into_vec(),
            warnings: set.warnings,
        })?,
    }
    Ok(if good { 0 } else { FAILED })
}

fn say_validation(set: &Set, problems: &Problems) {
    for warning in &set.warnings {
        anstream::eprintln!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    if problems.is_empty() {
        let (jobs, volumes) = (counted(set.jobs.len(), "job"), counted(set.volumes.len(), "volume"));
        show::out(&format!("good: {jobs}, {volumes}\n"));
    } else {
        anstream::eprintln!("{problems}");
    }
}

pub(super) fn version(args: &VersionArgs) -> Result<u8, Failure> {
    args.output.line(&format!("herdlet {}", crate::http::VERSION));
    args.output.document(&VersionReport { version: crate::http::VERSION })?;
    Ok(0)
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

pub(super) fn schema(args: &SchemaArgs) -> Result<u8, Failure> {
    let root = manifests::schema();
    let Some(field) = &args.field else {
        show::json(&root)?;
        return Ok(0);
    };
    let found = field_schema(&root, field);
    if found.is_empty() {
        return Err(Failure::new(format!("manifests have no field {field:?}"))
            .code(USAGE)
            .hint("write it as a path, for instance spec.groups.tasks.resources"));
    }
    for one in found {
        show::json(&one)?;
    }
    Ok(0)
}

/// The schemas of a field, in documents of any kind. Lists and maps are passed through: `groups.tasks` and `groups[0].tasks`.
fn field_schema(root: &Value, field: &str) -> Vec<Value> {
    let mut now: Vec<&Value> = vec![root];
    for name in field.split('.').map(|step| step.split('[').next().unwrap_or(step)) {
        now = now.into_iter().flat_map(|schema| steps(root, schema, name)).collect();
    }
    let mut found: Vec<Value> = Vec::new();
    for schema in now {
        // What a reference stands for says more than the reference.
        let mut whole = schema.clone();
        if let (Value::Object(whole), Some(Value::Object(target))) = (&mut whole, target(root, schema)) {
            whole.remove("$ref");
            whole.extend(target.clone().into_iter().filter(|(key, _)| key != "description"));
        }
        if !found.contains(&whole) {
            found.push(whole);
        }
    }
    found
}

fn steps<'s>(root: &'s Value, schema: &'s Value, name: &str) -> Vec<&'s Value> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    // References, alternatives and items lead to the same field; 64 of them are a circle.
    for _ in 0..64 {
        let Some(schema) = open.pop() else { break };
        if let Some(property) = schema.pointer("/properties").and_then(|all| all.get(name)) {
            found.push(property);
            continue;
        }
        open.extend(target(root, schema));
        for key in ["items", "additionalProperties"] {
            open.extend(schema.get(key).filter(|inner| inner.is_object()));
        }
        for key in ["oneOf", "anyOf", "allOf"] {
            open.extend(schema.get(key).and_then(Value::as_array).into_iter().flatten());
        }
    }
    found
}

fn target<'s>(root: &'s Value, schema: &Value) -> Option<&'s Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_field_is_found_by_its_path() {
        let root = manifests::schema();
        let found = field_schema(&root, "spec.groups.tasks.resources");
        assert!(found.iter().any(|schema| schema.pointer("/properties/cpu").is_some()), "{found:?}");
        assert_eq!(found, field_schema(&root, "spec.groups[0].tasks[1].resources"));
        assert!(!field_schema(&root, "metadata.name").is_empty());
        assert!(field_schema(&root, "spec.groups.nothing").is_empty());
    }
}
