//! `herdlet config view`: prints the config that an agent with these flags would have.
//!
//! In: the flags of an agent, the environment, the file. Out: a config file; `--resolved` adds defaults, and the source of each
//! value.

use clap::{Args, Subcommand};
use herdlet_base::error::in_full;
use herdlet_config::{self, Flags, Setting, Source, Surroundings, host_name};
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::{Failure, USAGE},
    output::{Output, Reader},
    show::{self, styled},
    style,
};

/// Arguments of `herdlet config`.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Clone, Subcommand)]
enum ConfigVerb {
    /// Print the config that an agent with these flags would have, as a config file
    #[command(after_help = "Example:\n  herdlet config view --config /etc/herdlet/herdlet.yaml --resolved")]
    View(Box<ViewArgs>),
}

#[derive(Debug, Clone, Args)]
struct ViewArgs {
    #[command(flatten)]
    flags: Flags,
    /// Include defaults, and the source of each value
    #[arg(long)]
    resolved: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Report {
    settings: Vec<Setting>,
}

pub fn run(args: ConfigArgs) -> Result<u8, Failure> {
    let ConfigVerb::View(args) = args.verb;
    let host = host_name();
    let (config, mut settings) = herdlet_config::settings(args.flags, &Surroundings::of_process(&host))
        .map_err(|error| Failure::new(format!("failed to {}", in_full(&error))).code(USAGE))?;
    config.warnings.into_iter().for_each(|problem| herdlet_base::stderr_line!("warning: {problem}"));
    if !args.resolved {
        settings.retain(|setting| setting.source != Source::Default);
    }
    match args.output.reader() {
        Reader::Program => args.output.document(&Report { settings })?,
        Reader::Person => {
            let comments = if args.resolved { Comments::Sources } else { Comments::None };
            show::out(&file(&settings, comments));
        }
    }
    Ok(0)
}

/// What stands beside each setting.
#[derive(Debug, Clone, Copy)]
enum Comments {
    None,
    /// Where its value comes from.
    Sources,
}

/// The settings as a config file. Values are JSON, which is valid YAML and needs no further quoting, except that keys
/// that are plain words have no quotes.
fn file(settings: &[Setting], comments: Comments) -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in settings {
        let (outer, name) = setting.key.split_once('.').unwrap_or(("", setting.key));
        if !outer.is_empty() && outer != section {
            text.push_str(&format!("{outer}:\n"));
        }
        section = outer;
        let line = if setting.value.is_null() {
            format!("# {name}:")
        } else {
            format!("{name}: {}", flow(&setting.value))
        };
        let line = if outer.is_empty() { line } else { format!("  {line}") };
        let source = format!("# {}", source(setting));
        text.push_str(&match comments {
            Comments::Sources => format!("{line:<48}  {}\n", styled(style::DIM, source)),
            Comments::None => format!("{line}\n"),
        });
    }
    text
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            // A range begins with its lower end.
            entries.sort_by_key(|(key, _)| (*key != "min", key.as_str()));
            // In some versions of YAML these are no texts.
            let reserved = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
            let is_plain = |key: &str| {
                !reserved.contains(&key)
                    && key.starts_with(|char: char| char.is_ascii_lowercase())
                    && key.chars().all(|char| char == '_' || char.is_ascii_alphanumeric())
            };
            let entry = |(key, value): (&String, &Value)| {
                let key = if is_plain(key) { key.clone() } else { Value::from(key.as_str()).to_string() };
                format!("{key}: {}", flow(value))
            };
            format!("{{{}}}", entries.into_iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn source(setting: &Setting) -> String {
    match setting.source {
        Source::Flag => format!("--{}", name_of(setting).replace('_', "-")),
        Source::Environment if setting.key == "log_level" => "the environment".to_owned(),
        Source::Environment => format!("HERDLET_{}", name_of(setting).to_uppercase()),
        Source::File => "config file".to_owned(),
        Source::Default => "default".to_owned(),
    }
}

/// The name of the flag and the variable. Of all drivers, only one has them.
fn name_of(setting: &Setting) -> &'static str {
    match setting.key {
        "drivers" => "raw_exec",
        key => key.strip_suffix(".enabled").unwrap_or(key),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_written_as_a_file_that_says_the_same() {
        let setting = |key, value, source| Setting { key, value, source };
        let settings = [
            setting("name", json!("a \"b\""), Source::Flag),
            setting("listen", Value::Null, Source::Default),
            setting("raw_exec.enabled", json!(false), Source::File),
            setting("drivers", json!({"raw_exec": {"enabled": false}}), Source::Environment),
            setting("dynamic_ports", json!({"max": 32_000, "min": 20_000}), Source::Default),
            setting("meta", json!({"no": "y", "a.b": "1"}), Source::File),
            setting("consul.address", json!("unix:///run/c.sock"), Source::Environment),
            setting("consul.token_file", Value::Null, Source::Default),
        ];
        let text = file(&settings, Comments::Sources);
        let text = anstream::adapter::strip_str(&text).to_string();
        let parsed = herdlet_config::File::read("written", text.as_bytes()).unwrap();
        assert_eq!(parsed.name.map(|text| text.0).as_deref(), Some("a \"b\""));
        assert!(parsed.drivers["raw_exec"]["enabled"] == json!(false) && parsed.listen.is_none());
        assert_eq!(parsed.consul.address.as_deref(), Some("unix:///run/c.sock"));
        assert!(text.contains("dynamic_ports: {min: 20000, max: 32000}"), "{text}");
        assert!(text.starts_with("name: ") && text.contains("# --name\n"), "{text}");
        assert!(text.contains("# HERDLET_RAW_EXEC\n") && !text.contains("HERDLET_DRIVERS"), "{text}");
    }
}
