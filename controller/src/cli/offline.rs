//! Commands that need no agent: `validate`, `schema`, `completions`.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::{
    failure::{FAILED, Failure, USAGE},
    show::{self, styled},
    style,
};
use crate::desired::manifests::{self, Drivers};

/// Arguments of `herdlet validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Warnings are problems too
    #[arg(long)]
    strict: bool,
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
pub(super) fn validate(args: &ValidateArgs) -> u8 {
    let missing: Vec<_> =
        args.files.iter().filter(|path| path.as_os_str() != "-" && !path.exists()).collect();
    if !missing.is_empty() {
        for path in missing {
            anstream::eprintln!("{}: there is no such file", path.display());
        }
        return USAGE;
    }
    let set = match manifests::load(&args.files, &Drivers::built_in()) {
        Ok(set) => set,
        Err(problems) => {
            anstream::eprintln!("{problems}");
            return FAILED;
        }
    };
    for warning in &set.warnings {
        anstream::eprintln!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    if set.jobs.is_empty() && set.volumes.is_empty() {
        anstream::eprintln!("there is no manifest in what was given");
        return USAGE;
    }
    let (jobs, volumes) = (counted(set.jobs.len(), "job"), counted(set.volumes.len(), "volume"));
    show::out(&format!("good: {jobs}, {volumes}\n"));
    if args.strict && !set.warnings.is_empty() { FAILED } else { 0 }
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
