//! `herdlet schema`: prints the JSON Schema of manifests, or explains one field.
//!
//! In: a path as in manifests (`spec.groups.tasks.restart`), in Nomad's job files (`job.group.task.restart`) or in its API
//! (`Job.TaskGroups.Tasks.RestartPolicy`). Out: type, default, allowed values, fields and an example; or the nearest
//! names.

mod fields;

use clap::{Args, ValueEnum};
use herdlet_manifest::manifests;
use serde_json::Value as Json;

use super::{
    failure::{Failure, USAGE},
    show::{self, styled},
    style,
    table::{Heading, Table},
};
pub use fields::{Field, fields};
use fields::{Found, example_of};

/// Arguments of `herdlet schema`.
#[derive(Debug, Clone, Args)]
pub struct SchemaArgs {
    /// A field, such as spec.groups.tasks.resources [default: the whole manifest]
    field: Option<String>,
    /// Output format of a field: an explanation, or its JSON Schema
    #[arg(short = 'o', long = "output", value_enum, default_value = "text", value_name = "FORM")]
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

pub fn schema(args: &SchemaArgs) -> Result<u8, Failure> {
    let root = manifests::schema();
    let Some(wanted) = &args.field else {
        show::json(&root)?;
        return Ok(0);
    };
    let all = fields(&root);
    let found = match fields::find(&all, wanted) {
        Found::Fields(found) => found,
        Found::Near(near) => {
            let failure = Failure::new(format!("manifests have no field {wanted:?}")).code(USAGE);
            let hint = match near.is_empty() {
                true => "write it as a path, for instance spec.groups.tasks.resources".to_owned(),
                false => format!("did you mean {}?", near.join(", or ")),
            };
            return Err(failure.hint(hint));
        }
    };
    for (number, field) in found.iter().enumerate() {
        match args.form {
            Form::Json => show::json(&field.schema)?,
            Form::Text => {
                let gap = if number > 0 { "\n" } else { "" };
                show::out(&format!("{gap}{}", explained(field, &all)));
            }
        }
    }
    Ok(0)
}

/// The explanation of a field.
fn explained(field: &Field, all: &[Field]) -> String {
    let driver = field.driver.as_ref().map(|driver| format!(" (driver {driver})")).unwrap_or_default();
    let mut text =
        format!("{}  {}\n", styled(style::HEADING, format!("{}{driver}", field.path)), field.kind());
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name}: {value}\n"));
    if let Some(description) = field.description() {
        line("What", &description);
    }
    if field.is_required {
        line("Required", "yes");
    }
    if let Some(default) = field.default().filter(|_| !field.is_required) {
        line("Default", &default);
    }
    if let Some(values) = field.allowed() {
        line("Allowed", &values);
    }
    if let Some(unbuilt) = field.unbuilt() {
        line("Not supported", &unbuilt);
    }
    if let Some(names) = field.without_effect() {
        line("Accepted without effect", &names);
    }
    let is_inner = |other: &&Field| other.is_directly_in(&field.path) && other.driver == field.driver;
    let inner: Vec<&Field> = all.iter().filter(is_inner).collect();
    if !inner.is_empty() {
        text.push_str("  Fields:\n");
        let mut table = Table::new(&["", "", ""]);
        for field in inner {
            let description = field.description().unwrap_or_default();
            let first = first_clause(&description);
            table.row([format!("    {}", field.name()), field.kind(), format!("{first}{}", choices(field))]);
        }
        text.push_str(&table.render(Heading::Hidden));
    }
    if let Some(example) = example_of(&field.path).filter(|_| !fields::is_of_another(field, all)) {
        text.push_str("  Example:\n");
        example.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

/// The text before the first `.`, `;` or `:` that ends a clause: a space or nothing follows it, and it is neither in
/// quoted code nor in parentheses.
fn first_clause(text: &str) -> &str {
    let (mut is_code, mut depth) = (false, 0_u32);
    for (index, char) in text.char_indices() {
        let rest = &text[index + char.len_utf8()..];
        match char {
            '`' => is_code = !is_code,
            '(' if !is_code => depth += 1,
            ')' if !is_code => depth = depth.saturating_sub(1),
            '.' | ';' | ':'
                if !is_code && depth == 0 && rest.chars().next().is_none_or(char::is_whitespace) =>
            {
                return &text[..index];
            }
            _ => {}
        }
    }
    text
}

/// The values of a field that allows only a few, for a table.
fn choices(field: &Field) -> String {
    let Some(values) = field.allowed().filter(|_| field.kind() == "string") else { return String::new() };
    match field.default().filter(|_| !field.is_required) {
        Some(default) => format!(": {values}; default {default}"),
        None => format!(": {values}"),
    }
}

/// A value in one line.
fn short(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(path: &str) -> String {
        let root = manifests::schema();
        let all = fields(&root);
        match fields::find(&all, path) {
            Found::Fields(found) => found.iter().map(|field| explained(field, &all)).collect(),
            Found::Near(near) => format!("near: {}", near.join(" ")),
        }
    }

    #[test]
    fn a_field_is_explained() {
        let text = explain("spec.groups.tasks.restart");
        for part in [
            "spec.groups.tasks.restart",
            "object",
            "What: ",
            "Fields:",
            "attempts",
            "mode",
            "Example:",
            "attempts: ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = explain("spec.groups.restart.mode");
        let columns = "\n    attempts          integer   Restarts allowed within `interval`\n    delay             duration  Delay before";
        assert!(explain("spec.groups.restart").contains(columns), "{}", explain("spec.groups.restart"));
        assert!(text.contains("Default: fail") && text.contains("Allowed: delay, fail"), "{text}");
        let text = explain("spec.groups.depends_on");
        assert!(text.contains("The condition: completed, healthy, started; default healthy\n"), "{text}");
        assert!(explain("spec.groups.tasks.depends_on.condition").contains("Default: started"));
        assert!(explain("spec.groups.tasks.kill_timeout").contains("Default: 5s"));
        assert!(explain("metadata.name").contains("Required: yes"));
        assert!(explain("spec.groups.tasks.config.command").contains("program"));
        assert!(explain("spec.type").contains("Default: service"));
    }

    /// Texts were cut inside words and code: `How tasks with an /etc/resolv`.
    #[test]
    fn a_text_is_cut_only_where_a_clause_ends() {
        for (text, first) in [
            (
                "How tasks with an /etc/resolv.conf resolve names; else none",
                "How tasks with an /etc/resolv.conf resolve names",
            ),
            ("Limits `SOFT[:HARD]` by name. More", "Limits `SOFT[:HARD]` by name"),
            ("Of `a: b` and c: d", "Of `a: b` and c"),
            ("The first (not: this) part. Rest", "The first (not: this) part"),
            ("All", "All"),
            ("End.", "End"),
        ] {
            assert_eq!(first_clause(text), first);
        }
        let text = explain("spec.groups.network");
        assert!(text.contains("/etc/resolv.conf") && text.contains("its mode, ports"), "{text}");
    }

    /// `schema spec.groups.tasks` named no block that is missing.
    #[test]
    fn lists_name_what_their_items_do_not_support() {
        for (path, name) in [("spec.groups.tasks", "schedule"), ("spec.groups.services", "connect")] {
            let text = explain(path);
            let line = text.lines().find_map(|line| line.strip_prefix("  Not supported: ")).unwrap();
            assert!(line.split(", ").any(|known| known == name), "{text}");
        }
        assert!(explain("spec.groups").contains("  Accepted without effect: "));
    }

    #[test]
    fn the_settings_of_a_driver_are_those_of_that_driver() {
        let text = explain("spec.groups.tasks.config");
        let (of_all, rest) = text.split_once("spec.groups.tasks.config (driver raw_exec)").unwrap();
        let (of_raw_exec, of_mock) = rest.split_once("spec.groups.tasks.config (driver mock)").unwrap();
        assert!(!of_all.contains("Fields:") && !of_all.contains("Example:"), "{of_all}");
        assert!(of_raw_exec.contains("    command ") && !of_raw_exec.contains("run_for"), "{of_raw_exec}");
        assert!(of_raw_exec.contains("      command: /usr/bin/httpd"), "{of_raw_exec}");
        assert!(of_mock.contains("    run_for ") && !of_mock.contains("command:"), "{of_mock}");
        assert!(
            explain("spec.groups.tasks.config.run_for")
                .contains("spec.groups.tasks.config.run_for (driver mock)")
        );
    }

    #[test]
    fn a_field_is_found_in_every_spelling() {
        let wanted = explain("spec.groups.tasks.restart");
        for path in [
            "job.group.task.restart",
            "Job.TaskGroups[0].Tasks[1].RestartPolicy",
            "groups.tasks.restart",
            "spec.groups[0].tasks[1].restart",
        ] {
            assert_eq!(explain(path), wanted, "{path}");
        }
        assert_eq!(explain("job.group.network.port.static"), explain("spec.groups.network.ports.static"));
        assert_eq!(
            explain("Job.TaskGroups.Tasks.Resources.MemoryMaxMB"),
            explain("spec.groups.tasks.resources.memory_max")
        );
    }

    /// Durations were said to be from 0 to 0, and a required interval to have a default.
    #[test]
    fn durations_have_no_range_and_required_fields_no_default() {
        let root = manifests::schema();
        let all = fields(&root);
        for field in &all {
            let text = explained(field, &all);
            assert!(!text.contains("Allowed: 0 to 0"), "{text}");
            assert!(!field.is_required || !text.contains("  Default: "), "{text}");
        }
        for path in ["checks.interval", "checks.name", "name", "port"] {
            let text = explain(&format!("spec.groups.services.{path}"));
            assert!(!text.contains("Default: "), "{text}");
        }
    }

    /// `kill_signal` had no default, and its real-time signals were missing; the time zone's default was only in the text.
    #[test]
    fn optional_values_have_a_default() {
        let text = explain("spec.groups.tasks.kill_signal");
        assert!(text.contains("  Default: SIGINT\n"), "{text}");
        assert!(text.contains("SIGXFSZ, or names that match ^SIGRT(MIN"), "{text}");
        assert!(explain("spec.periodic.time_zone").contains("  Default: UTC\n"));
        // Their defaults were only in the text, or absent because of the words "default identity".
        for (path, default) in [
            ("groups.update.canary", "0"),
            ("groups.update.max_parallel", "1"),
            ("groups.update.progress_deadline", "10m"),
            ("groups.services.checks.success_before_passing", "1"),
            ("affinities.weight", "50"),
            ("spreads.targets.percent", "0"),
            ("groups.tasks.resources.cores", "0"),
            ("groups.tasks.templates.uid", "-1"),
            ("groups.tasks.identities.env", "false"),
            ("groups.services.identity.file", "false"),
        ] {
            let text = explain(&format!("spec.{path}"));
            assert!(text.contains(&format!("  Default: {default}\n")), "{path}: {text}");
        }
        let root = manifests::schema();
        let all = fields(&root);
        let is_ours = |field: &&Field| !field.path.contains(".config.") && !field.path.ends_with(".config");
        let is_value =
            |field: &&Field| matches!(field.kind().as_str(), "boolean" | "integer" | "number" | "duration");
        let without = all.iter().filter(is_ours).filter(is_value).filter(|field| {
            !field.is_required && field.default().is_none() && !says_what_absence_means(field)
        });
        let without: Vec<&str> = without.map(|field| &*field.path).collect();
        assert!(without.is_empty(), "{without:#?}");
    }

    /// Whether the description names a default that is no single value, or what happens without the field.
    fn says_what_absence_means(field: &Field) -> bool {
        let description = field.description().unwrap_or_default().to_lowercase();
        ["; default", ". default", "(default", "without", "only ", "absent", "if set"]
            .iter()
            .any(|word| description.contains(word))
    }

    #[test]
    fn unknown_field_suggests_the_nearest() {
        assert!(explain("spec.groups.restrat").contains("spec.groups.restart"));
        assert!(explain("kill_timeout").contains("spec.groups.tasks.kill_timeout"));
        assert_eq!(
            explain("config"),
            "near: spec.groups.tasks.config spec.groups.tasks.secrets.config spec.groups.tasks.config.logging.config"
        );
        assert_eq!(explain("spec.zzzzzzzz"), "near: ");
    }

    #[test]
    fn every_field_has_a_description_and_example() {
        let root = manifests::schema();
        for field in fields(&root) {
            assert!(field.description().is_some(), "{} has no description", field.path);
            let is_ours = !field.path.contains(".config.");
            // Tasks have no constraints about other allocations; they only share the shape, and the parser rejects such a
            // constraint.
            let is_ours = is_ours && !field.path.starts_with("spec.groups.tasks.constraints.distinct_");
            // Networks of tasks share the shape of those of groups, and the parser rejects these blocks.
            let of_group = ["dns", "cni", "hostname", "ports.host_network"]
                .map(|block| format!("spec.groups.tasks.resources.network.{block}"));
            let is_ours = is_ours && !of_group.iter().any(|block| field.path.starts_with(block));
            // The identity of a service has the shape of a task's, but no task gets its token.
            let is_ours = is_ours && !field.path.contains(".services.identity.");
            assert!(!is_ours || example_of(&field.path).is_some(), "{} has no example", field.path);
        }
    }
}
