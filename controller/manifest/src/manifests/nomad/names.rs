//! Names in Nomad's API (`TaskGroups`, `MemoryMB`) and in manifests (`groups`, `memory`).
//!
//! In: a name or a path. Out: its translation.

use crate::yaml::{
    PathStep, parse_path,
    path::{Step, write_steps},
};

/// Names that differ in more than their case.
const NAMES: [(&str, &str); 28] = [
    ("TaskGroups", "groups"),
    ("RestartPolicy", "restart"),
    ("ReschedulePolicy", "reschedule"),
    ("ParameterizedJob", "parameterized"),
    ("Networks", "network"),
    ("SizeMB", "size"),
    ("PortLabel", "port"),
    ("MemoryMB", "memory"),
    ("MemoryMaxMB", "memory_max"),
    ("DiskMB", "disk"),
    ("LogConfig", "logs"),
    ("MaxFileSizeMB", "max_file_size"),
    ("Audience", "aud"),
    ("TaskName", "task"),
    ("CSIPluginConfig", "csi_plugin"),
    ("ScalingPolicies", "scalings"),
    ("LTarget", "attribute"),
    ("RTarget", "value"),
    ("Operand", "operator"),
    ("SpreadTarget", "targets"),
    ("Spec", "cron"),
    ("Specs", "crons"),
    ("MBits", "mbits"),
    ("PluginID", "plugin_id"),
    ("CPU", "cpu"),
    ("IOPS", "iops"),
    ("ID", "id"),
    ("SELinuxLabel", "selinux_label"),
];

/// Further names within a block, or the items of a list. Elsewhere, these manifest names mean something else.
const NAMES_WITHIN: [(&str, &[(&str, &str)]); 3] =
    [("Artifacts", &OF_ARTIFACTS), ("Templates", &OF_TEMPLATES), ("Resources", &[("SecretsMB", "secrets")])];

const OF_ARTIFACTS: [(&str, &str); 6] = [
    ("GetterSource", "source"),
    ("GetterOptions", "options"),
    ("GetterHeaders", "headers"),
    ("GetterMode", "mode"),
    ("GetterInsecure", "insecure"),
    ("RelativeDest", "destination"),
];

const OF_TEMPLATES: [(&str, &str); 7] = [
    ("SourcePath", "source"),
    ("DestPath", "destination"),
    ("EmbeddedTmpl", "data"),
    ("Envvars", "env"),
    ("LeftDelim", "left_delimiter"),
    ("RightDelim", "right_delimiter"),
    ("ErrMissingKey", "error_on_missing_key"),
];

/// Words that the API writes in capitals.
const CAPITALS: [&str; 11] = ["tls", "ttl", "dns", "grpc", "cni", "csi", "ui", "numa", "id", "url", "se"];

/// Translates a name of the API into that of a manifest.
pub fn to_manifest_name(name: &str) -> String {
    let within = NAMES_WITHIN.iter().flat_map(|(_, names)| *names);
    if let Some((_, ours)) = NAMES.iter().chain(within).find(|(theirs, _)| *theirs == name) {
        return (*ours).to_owned();
    }
    let chars: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (at, char) in chars.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| chars.get(at));
        let begins_word = char.is_ascii_uppercase()
            && before.is_some_and(|before| {
                !before.is_ascii_uppercase() || chars.get(at + 1).is_some_and(char::is_ascii_lowercase)
            });
        if begins_word {
            snake.push('_');
        }
        snake.push(char.to_ascii_lowercase());
    }
    snake
}

/// Translates a name of a manifest into that of the API.
pub(super) fn to_api_name(name: &str) -> String {
    if let Some((theirs, _)) = NAMES.iter().find(|(_, ours)| *ours == name) {
        return (*theirs).to_owned();
    }
    let words = name.split('_').map(|word| match CAPITALS.contains(&word) {
        true => word.to_ascii_uppercase(),
        false => word
            .chars()
            .next()
            .map(|first| first.to_ascii_uppercase())
            .into_iter()
            .chain(word.chars().skip(1))
            .collect(),
    });
    words.collect()
}

/// Fields with user-defined keys.
const FREE: [&str; 11] = [
    "Config",
    "Env",
    "Meta",
    "CanaryMeta",
    "TaggedAddresses",
    "Header",
    "Volumes",
    "Ports",
    "Labels",
    "GetterOptions",
    "GetterHeaders",
];

/// Translates a path of a manifest into that of the API: `spec.groups[0].tasks[1]` becomes
/// `Job.TaskGroups[0].Tasks[1]`. `job` is the prefix of the job's fields: `Job` or empty.
pub(crate) fn to_api_path(path: &str, job: &str) -> String {
    let Some(steps) = parse_path(path) else { return path.to_owned() };
    let mut api_path: Vec<PathStep> = Vec::new();
    if !job.is_empty() {
        api_path.push(PathStep::Field(job.to_owned()));
    }
    let (mut is_free, mut is_config) = (false, false);
    let mut within: &[(&str, &str)] = &[];
    for (depth, step) in steps.into_iter().enumerate() {
        match step {
            PathStep::Field(name) if depth == 0 && (name == "spec" || name == "metadata") => {}
            PathStep::Field(name) if depth == 1 && name == "name" && !path.starts_with("spec") => {
                api_path.push(PathStep::Field("ID".to_owned()));
            }
            PathStep::Field(name) if is_free || is_config => {
                is_free = false;
                api_path.push(PathStep::Field(name));
            }
            PathStep::Field(name) => {
                let of_item = within.iter().find(|(_, ours)| *ours == name);
                let word = of_item.map_or_else(|| to_api_name(&name), |(theirs, _)| (*theirs).to_owned());
                within = NAMES_WITHIN.iter().find(|(list, _)| *list == word).map_or(&[], |(_, names)| *names);
                is_free = FREE.contains(&word.as_str());
                is_config = word == "Config";
                let is_network = word == "Networks";
                api_path.push(PathStep::Field(word));
                if is_network {
                    api_path.push(PathStep::Item(0));
                }
            }
            item @ PathStep::Item(_) => api_path.push(item),
        }
    }
    let steps: Vec<Step<'_>> = api_path
        .iter()
        .map(|step| match step {
            PathStep::Field(name) => Step::Field(name),
            PathStep::Item(index) => Step::Item(*index),
        })
        .collect();
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = write_steps(&mut text, &steps);
    text
}
