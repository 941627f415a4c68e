//! Project rules that can be checked in the text: the dependencies of the planner, the drivers and the
//! runtime, how files begin and how long they are.

#![expect(clippy::expect_used, reason = "tests may panic")]

mod cycles;
mod language;
mod signatures;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// The allowed dependencies of the planner: all without std, none with IO.
const PLAN_DEPENDENCIES: [&str; 7] =
    ["herdlet-api-types", "jiff", "regex", "serde", "serde_json", "sha2", "thiserror"];

/// Maximum lines of code in a file.
const LINES_MAX: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns every Rust file in a folder, with its path in the workspace and its text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).expect("a readable source file");
                let name = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

/// Returns the lines of code: neither empty nor a comment.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// Returns whether a line contains a word that is not the prefix of a longer name.
fn holds(line: &str, word: &str) -> bool {
    let is_of_name = |char: char| char.is_alphanumeric() || char == '_';
    let ends_in_name = word.ends_with(is_of_name);
    line.match_indices(word).any(|(at, _)| !ends_in_name || !line[at + word.len()..].starts_with(is_of_name))
}

/// Fails with all places where code contains one of the words.
fn nowhere(files: &[(String, String)], words: &[&str], why: &str) {
    let mut places = Vec::new();
    for (name, text) in files {
        for word in words {
            let lines = code(text).filter(|line| holds(line, word));
            places.extend(lines.map(|line| format!("{name}: {word}: {line}")));
        }
    }
    assert!(places.is_empty(), "{why}\n{}", places.join("\n"));
}

fn table_keys(manifest: &str, table: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(manifest)).expect("a manifest");
    let lines = text.lines().skip_while(|line| line.trim() != table).skip(1);
    let keys = lines.take_while(|line| !line.starts_with('['));
    keys.filter_map(|line| line.split(['.', '=', ' ']).next())
        .filter(|key| !key.is_empty() && !key.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// The folders of the project, and what may lie beside them in files.
const FOLDERS: [&str; 6] = ["api-types", "controller", "deploy", "docs", "manifests", "tests"];
const ENDINGS: [&str; 3] = ["md", "toml", "lock"];

#[test]
fn the_top_level_has_known_folders_and_plain_files() {
    let is_known = |name: &str| {
        let plain = name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
        let hidden = name.starts_with('.') || name.starts_with("target");
        plain || hidden || name.starts_with("LICENSE-") || FOLDERS.contains(&name)
    };
    let entries = std::fs::read_dir(root()).expect("the project's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let unknown: Vec<String> = names.filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "move or remove what is at the top level: {unknown:?}");
}

#[test]
fn planner_has_no_io_dependencies() {
    let allowed: BTreeSet<String> = PLAN_DEPENDENCIES.map(str::to_owned).into();
    let used = table_keys("controller/plan/Cargo.toml", "[dependencies]");
    assert!(used.is_subset(&allowed), "the planner depends on {used:?}");
    for lib in ["controller/plan/src/lib.rs", "api-types/src/lib.rs"] {
        let text = std::fs::read_to_string(root().join(lib)).expect("a library");
        assert!(text.contains("#![no_std]"), "{lib} is no_std");
    }
    let words =
        ["std::time", "std::fs", "std::net", "std::env", "rand::", "tracing", "async ", ".await", "println!"];
    nowhere(
        &sources("controller/plan/src"),
        &words,
        "a plan reads no clock, draws no chance, does no IO, logs nothing",
    );
    nowhere(
        &sources("controller/plan/src"),
        &["HashMap", "HashSet"],
        "no decision may depend on a map's order",
    );
}

/// Crates of the agent, each with the other workspace crates that it may depend on.
const EDGES: [(&str, &str); 22] = [
    ("base", "api-types"),
    ("csi", "base runtime"),
    ("unpack", "base"),
    ("images", "base runtime unpack"),
    ("network", "base"),
    ("cni", "base network"),
    ("rootfs", "base"),
    ("vault", "base"),
    ("driver", "api-types base"),
    ("fingerprint", "api-types base network nomad plan"),
    ("manifest", "api-types base plan template"),
    ("config", "api-types base cni driver fingerprint manifest network nomad plan rpc"),
    ("process", "api-types base driver rootfs runtime shim"),
    ("docker", "api-types base driver images network process rootfs runtime shim"),
    ("storage", "api-types base config runtime unpack"),
    ("services", "api-types base driver runtime"),
    ("variables", "api-types base runtime"),
    ("render", "api-types base fingerprint runtime services template variables vault"),
    (
        "agent",
        "api-types base cni config csi docker driver fingerprint manifest network nomad plan process render runtime services shim storage variables vault",
    ),
    ("api", "agent api-types base config driver fingerprint manifest plan runtime services variables"),
    (
        "node",
        "agent api api-types base cni config driver fingerprint manifest nomad plan process render rpc runtime services storage template unpack",
    ),
    ("cli", "api-types base config driver manifest plan template"),
];

/// Drivers, storage and services can't query the planner: they execute orders without knowing the reason.
#[test]
fn crates_depend_only_on_those_below_them() {
    for (name, allowed) in EDGES {
        let allowed: BTreeSet<String> = allowed.split(' ').map(|name| format!("herdlet-{name}")).collect();
        let mut used = table_keys(&format!("controller/{name}/Cargo.toml"), "[dependencies]");
        used.retain(|name| name.starts_with("herdlet"));
        assert_eq!(
            used, allowed,
            "dependencies of herdlet-{name}; update this list to exactly what the crate needs"
        );
    }
}

/// A change in the agent builds its program again, and none of the tests that run it.
#[test]
fn end_to_end_tests_depend_on_no_crate_of_the_agent() {
    let manifest = "tests/e2e/Cargo.toml";
    let mut used = table_keys(manifest, "[dependencies]");
    used.extend(table_keys(manifest, "[dev-dependencies]"));
    let allowed = ["herdlet-nomad", "herdlet-nomad-server", "herdlet-rpc", "herdlet-shim"];
    used.retain(|name| name.starts_with("herdlet") && !allowed.contains(&name.as_str()));
    assert!(used.is_empty(), "{manifest} depends on {used:?}");
}

/// The table in `controller/api/src/http/routes` has all paths of Nomad; only herdlet's own paths are plain
/// axum routes.
#[test]
fn every_nomad_route_is_in_the_table() {
    let mut routes = 0;
    for (name, text) in [sources("controller/api/src"), sources("controller/node/src")].concat() {
        if name.contains("/tests") {
            continue;
        }
        for path in text.split(".route(").skip(1) {
            routes += 1;
            let own = ["\"/v1/herdlet/", "\"/ui", "\"/metrics\"", "\"/healthz\"", "\"/readyz\""];
            let is_own = own.iter().any(|begin| path.trim_start().starts_with(begin));
            let is_of_table = path.starts_with("&pattern::axum_path(");
            assert!(is_own || is_of_table, "{name} has a route beside the table: {path:.60}");
        }
    }
    assert!(routes > 20, "the file of the routes has moved: {routes}");
}

#[test]
fn runtime_has_no_allocation_types() {
    let words = ["herdlet_plan", "herdlet_api_types", "AllocId", "Allocation", "Nomad", "nomad"];
    nowhere(&sources("controller/runtime/src"), &words, "the runtime runs keys, whatever they are");
}

#[test]
fn rpc_has_no_workspace_dependencies() {
    let used = table_keys("controller/rpc/Cargo.toml", "[dependencies]");
    assert!(used.iter().all(|name| !name.starts_with("herdlet")), "the RPC depends on {used:?}");
    let words = ["herdlet_plan", "herdlet_api_types", "herdlet_runtime", "herdlet::", "AllocId"];
    nowhere(&sources("controller/rpc/src"), &words, "the RPC does not depend on the contents of messages");
}

/// The caller decides when a plugin is called, and whether a call is repeated.
#[test]
fn csi_calls_are_not_repeated() {
    let words = ["sleep(", "interval(", "SystemTime", "tokio::spawn"];
    let mut files = sources("controller/csi/src");
    files.retain(|(name, _)| !name.ends_with("/supervision.rs"));
    nowhere(&files, &words, "a call has a deadline, and nothing else waits");
}

#[test]
fn templates_are_rendered_without_io() {
    let used = table_keys("controller/template/Cargo.toml", "[dependencies]");
    assert!(used.iter().all(|name| !name.starts_with("herdlet")), "the language depends on {used:?}");
    let words = [
        "std::fs",
        "std::net",
        "std::env",
        "std::time",
        "std::process",
        "async ",
        ".await",
        "tokio",
        "HashMap",
    ];
    let mut files = sources("controller/template/src");
    files.retain(|(name, _)| !name.ends_with("tests.rs"));
    nowhere(&files, &words, "a source of the caller has all data");
}

/// The next agent reads a record of a lease alike, whatever the time of its clock.
#[test]
fn leases_are_planned_without_io() {
    let mut files = sources("controller/vault/src");
    files.retain(|(name, _)| name.ends_with("/lease.rs"));
    assert_eq!(files.len(), 1);
    let words =
        ["Instant", "SystemTime", "wall_now", "Spread::random", "std::fs", "async ", ".await", "tokio"];
    nowhere(&files, &words, "times and chance are arguments");
}

#[test]
fn being_a_node_needs_only_the_rpc() {
    let used = table_keys("controller/nomad/Cargo.toml", "[dependencies]");
    let ours: Vec<_> = used.iter().filter(|name| name.starts_with("herdlet")).collect();
    assert_eq!(ours, ["herdlet-rpc"], "herdlet-nomad is independent of how allocations run");
    let words =
        ["Instant::now", "SystemTime", "Chance::new", "async ", ".await", "Pool", "tokio::spawn", "std::fs"];
    let decisions = sources("controller/nomad/src/decide");
    let decisions: Vec<_> = decisions.into_iter().filter(|(name, _)| !name.ends_with("tests.rs")).collect();
    let code = decisions.into_iter().map(|(name, text)| {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        (name, text)
    });
    let why = "when and what is decided without a clock, chance or IO";
    nowhere(&code.collect::<Vec<_>>(), &words, why);
}

/// Statics that change, with the reason that none of them is the state of one agent: a process may hold many.
const STATICS: [(&str, &str, &str); 11] = [
    ("controller/agent/src/telemetry/monitor.rs", "LINES", "the log of the process"),
    ("controller/base/src/directory.rs", "SAID", "one warning per process"),
    ("controller/base/src/directory/hub.rs", "HUB", "the kernel limits inotify queues per user"),
    ("controller/base/src/mounts/table.rs", "KNOWN", "the mount table of the process"),
    ("controller/base/src/mounts/table.rs", "MADE", "each watch takes those below its own directory"),
    ("controller/cli/src/stdout.rs", "FAILED", "the standard output of the process"),
    ("controller/cli/src/stdout.rs", "FAULT", "the standard output of the process"),
    ("controller/nomad/src/wire/job/shared.rs", "JOBS", "equal jobs share memory, across nodes too"),
    ("controller/runtime/src/off_thread.rs", "NUDGES", "signals to threads of the process"),
    ("controller/storage/src/access.rs", "DEVICES", "file systems without access control lists"),
    ("controller/storage/src/access.rs", "WARNED", "one warning per process"),
];

#[test]
fn no_static_holds_agent_state() {
    let mut found = BTreeSet::new();
    for (name, text) in sources("controller") {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        if name.contains("/tests/") || name.ends_with("tests.rs") || name.starts_with("controller/shim/") {
            continue;
        }
        for line in code(text) {
            let is_static = line.split(' ').find(|word| !word.starts_with("pub")) == Some("static");
            let declared = line.split_once("static ").filter(|_| is_static);
            let Some((variable, kind)) = declared.and_then(|(_, rest)| rest.split_once(": ")) else {
                continue;
            };
            let changes = ["Mutex", "RwLock", "OnceLock", "Once ", "Atomic", "Notify", "Sender", "OnceCell"];
            if changes.iter().any(|word| kind.contains(word)) {
                found.insert((name.clone(), variable.to_owned()));
            }
        }
    }
    let known = STATICS.iter().map(|(file, name, _)| ((*file).to_owned(), (*name).to_owned()));
    assert_eq!(found, known.collect(), "make the static a field of its owner, or list it here with a reason");
}

/// What an allocation's origin means is its policy, which is decided once.
#[test]
fn no_part_asks_whether_it_is_a_servers() {
    let mut files = sources("controller/plan/src");
    files.retain(|(name, _)| {
        let decides = name.ends_with("/policy.rs") || name.ends_with("/world/servers.rs");
        !decides && !name.contains("/tests") && !name.ends_with("fixture.rs")
    });
    nowhere(&files, &["spec.server", ".server.is_some()", ".server.is_none()"], "ask its policy");
}

#[test]
fn no_process_test_is_judged_by_elapsed_time() {
    let mut files = sources("tests/e2e/tests/e2e");
    // Only the time distinguishes the agent's periodic inspection, every 30 s, from a report by the kernel.
    files.retain(|(name, _)| !name.ends_with("/drift.rs"));
    let why =
        "a busy machine takes any time: wait for the event, or make impossible what must not be waited for";
    nowhere(&files, &[".elapsed() <"], why);
}

#[test]
fn every_file_is_short_and_documented() {
    let mut broken = Vec::new();
    for folder in ["api-types", "controller", "tests"] {
        for (name, text) in sources(folder) {
            if !text.starts_with("//!") {
                broken.push(format!("{name} does not begin with `//!`"));
            }
            // A test file may be a long list.
            let is_list = name.contains("/tests/") || name.ends_with("tests.rs");
            let lines = code(&text).count();
            if lines > LINES_MAX && !is_list {
                broken.push(format!("{name} has {lines} lines of code, more than {LINES_MAX}"));
            }
            let loose = ["#[", "allow("].concat();
            if code(&text).any(|line| line.starts_with(&loose)) {
                broken.push(format!("{name} allows a lint; expect it, with a reason"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
