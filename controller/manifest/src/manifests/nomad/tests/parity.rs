//! HCL, the API's JSON and YAML refuse and warn about the same: the test walks the table of unbuilt features and of
//! those without effect, which is the schema, through a job in each language.

use std::collections::BTreeSet;

use super::super::names::to_api_name;
use super::{JOB, read_set};

/// One job in three languages. A line `@BLOCK` is where a field of that block may stand.
const TEXTS: [(&str, &str); 3] = [
    ("job.hcl", include_str!("parity/job.hcl")),
    ("job.json", include_str!("parity/job.json")),
    ("job.yaml", include_str!("parity/job.yaml")),
];

/// Lists of names in the schema, by block: not built, and without effect.
fn table() -> Vec<(String, String, &'static str)> {
    let mut table = Vec::new();
    for (block, schema) in JOB.as_value()["$defs"].as_object().unwrap() {
        let unbuilt = schema.get("x-not-built").and_then(|names| names.as_array()).into_iter().flatten();
        table.extend(unbuilt.map(|name| (block.clone(), name.as_str().unwrap().to_owned(), "refused")));
        let idle = schema.get("x-no-effect").and_then(|names| names.as_object()).into_iter().flatten();
        table.extend(idle.map(|(name, _)| (block.clone(), name.clone(), "warned")));
    }
    table
}

/// The text with a line in place of a block's mark and without other marks.
fn with(text: &str, block: &str, line: &str) -> String {
    let lines = text.lines().map(|original| match original.trim().strip_prefix('@') {
        Some(name) if name == block => {
            let indent = original.len() - original.trim_start().len();
            format!("{}{line}\n", " ".repeat(indent))
        }
        Some(_) => String::new(),
        None => format!("{original}\n"),
    });
    lines.collect()
}

/// Whether the only message about a text names this field, and its kind.
fn verdict(name: &str, text: &str, field: &str) -> String {
    let (kind, warnings) = match read_set(name, text) {
        Ok(set) => ("warned", set.warnings),
        Err(problems) => ("refused", problems.into_vec()),
    };
    match warnings.as_slice() {
        // In the API, `network` and `networks` are one name.
        [only] if only.message.starts_with(&format!("`{}", field.trim_end_matches('s'))) => kind.to_owned(),
        warnings => format!("{warnings:?}"),
    }
}

#[test]
fn all_languages_give_the_same_errors_and_warnings() {
    let table = table();
    assert!(table.len() >= 48, "{}", table.len());
    let blocks: BTreeSet<&str> = table.iter().map(|(block, _, _)| block.as_str()).collect();
    for (name, text) in TEXTS {
        let plain = read_set(name, &with(text, "", "")).unwrap_or_else(|problems| panic!("{problems}"));
        assert!(plain.warnings.is_empty(), "{name}: {:?}", plain.warnings);
        let marks: BTreeSet<&str> = text.lines().filter_map(|line| line.trim().strip_prefix('@')).collect();
        assert_eq!(marks, blocks, "{name}");
    }
    for (block, field, expected) in &table {
        for (name, text) in TEXTS {
            // The API has its ports in two lists of these names.
            if name == "job.json" && field.ends_with("_ports") {
                continue;
            }
            let line = match name {
                "job.hcl" => format!("{field} = \"x\""),
                "job.json" => format!("\"{}\": \"x\",", to_api_name(field)),
                _ => format!("{field}: x"),
            };
            let found = verdict(name, &with(text, block, &line), field);
            assert_eq!(found, *expected, "{block}.{field} in {name}");
        }
    }
}

/// The reason was that all allocations are on this machine, but a drain does stop them in turns.
#[test]
fn the_warning_about_migrate_says_how_a_drain_stops_allocations() {
    for ((name, text), line) in TEXTS.into_iter().zip([
        "migrate {\n  max_parallel = 2\n}",
        "\"Migrate\": {\"MaxParallel\": 2},",
        "migrate: {max_parallel: 2}",
    ]) {
        let set = read_set(name, &with(text, "GroupSpec", line)).unwrap();
        let warning = set.warnings[0].to_string();
        assert!(warning.ends_with("stops one allocation of each group at a time"), "{warning}");
    }
}

#[test]
fn blocks_and_values_are_the_same_in_every_language() {
    for (block, field, lines, expected) in [
        (
            "Service",
            "connect",
            [
                "connect {\n  sidecar_service {}\n}",
                "\"Connect\": {\"SidecarService\": {}},",
                "connect: {sidecar_service: {}}",
            ],
            "refused",
        ),
        (
            "Service",
            "connect",
            ["connect {\n  gateway {}\n}", "\"Connect\": {\"Gateway\": {}},", "connect: {gateway: {}}"],
            "refused",
        ),
        (
            "GroupSpec",
            "migrate",
            [
                "migrate {\n  max_parallel = 2\n}",
                "\"Migrate\": {\"MaxParallel\": 2},",
                "migrate: {max_parallel: 2}",
            ],
            "warned",
        ),
        ("GroupSpec", "migrate", ["migrate {}", "\"Migrate\": {},", "migrate: {}"], "silent"),
        ("TaskSpec", "vault", ["vault {}", "\"Vault\": {},", "vault: {}"], "silent"),
        (
            "TaskSpec",
            "vault",
            ["vault {\n  role = \"x\"\n}", "\"Vault\": {\"Role\": \"x\"},", "vault: {role: x}"],
            "silent",
        ),
        (
            "TaskSpec",
            "consul",
            [
                "consul {\n  cluster = \"default\"\n}",
                "\"Consul\": {\"Cluster\": \"default\"},",
                "consul: {cluster: default}",
            ],
            "silent",
        ),
        ("Network", "bridge", ["mode = \"bridge\"", "\"Mode\": \"bridge\",", "mode: bridge"], "silent"),
        ("Network", "cni/x", ["mode = \"cni/x\"", "\"Mode\": \"cni/x\",", "mode: cni/x"], "silent"),
        (
            "Port",
            "host_network",
            ["host_network = \"default\"", "\"HostNetwork\": \"default\",", "host_network: default"],
            "silent",
        ),
    ] {
        for ((name, text), line) in TEXTS.into_iter().zip(lines) {
            let text = with(text, block, line);
            match expected {
                "silent" => {
                    let set = read_set(name, &text).unwrap_or_else(|problems| panic!("{line}: {problems}"));
                    assert!(set.warnings.is_empty(), "{line}: {:?}", set.warnings);
                }
                expected => assert_eq!(verdict(name, &text, field), expected, "{line}"),
            }
        }
    }
}
