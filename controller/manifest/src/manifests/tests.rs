//! Examples of whole texts. The expected problems of bad ones are in golden files.

use std::path::{Path, PathBuf};

use herdlet_api_types::driver::{DriverInfo, FsIsolation};

use super::{Drivers, Set, job_to_yaml, load, parse, schema, volume_to_yaml};
use crate::hcl::Variables;
use crate::yaml::Problems;

mod bad;
mod consul;
mod csi_plugin;
mod folders;
mod hostile;
mod networks;
mod secrets;
mod vault;

fn read(text: &str) -> Result<Set, Problems> {
    parse("test.yaml", text.as_bytes(), &Drivers::built_in())
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The example manifests of the repository.
fn examples() -> Vec<PathBuf> {
    let folder = repository().join("manifests");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml" || extension == "hcl"));
    paths.sort();
    assert!(paths.len() >= 6, "{paths:?}");
    paths
}

#[test]
fn examples_load_and_come_back() {
    for path in examples() {
        let set = load(std::slice::from_ref(&path), &Drivers::built_in(), &Variables::default())
            .unwrap_or_else(|problems| panic!("{}:\n{problems}", path.display()));
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
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 50, "{} has {lines} lines", path.display());
    }
}

#[test]
fn examples_are_one_set() {
    let set = load(&[repository().join("manifests")], &Drivers::built_in(), &Variables::default())
        .unwrap_or_else(|all| panic!("{all}"));
    assert_eq!((set.jobs.len(), set.volumes.len()), (31, 4));
}

#[test]
fn hello_is_as_the_readme_says() {
    let set = load(&[repository().join("manifests/hello.yaml")], &Drivers::built_in(), &Variables::default())
        .unwrap();
    let job = &set.jobs[0].object;
    assert_eq!(
        (job.id.as_str(), job.groups[0].name.as_str(), job.groups[0].tasks[0].name.as_str()),
        ("hello", "hello", "greet")
    );
    assert!(set.warnings.is_empty());
}

#[test]
fn stored_only_field_is_warned_about() {
    let text = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: web}\nspec:\n  type: service\n  update: {canary: 1, \
                stagger: 1m}\n  groups: [{name: g, tasks: [{name: t, driver: mock}]}]\n";
    let set = parse("web.yaml", text.as_bytes(), &Drivers::built_in()).unwrap();
    let warnings: Vec<String> = set.warnings.iter().map(|warning| warning.message.clone()).collect();
    assert_eq!(warnings, ["stagger has no effect in this release; the rest of `update` has"]);
}

#[test]
fn scalars_keep_their_text() {
    let set = read(
        r#"
apiVersion: herdlet/v1
kind: Job
metadata: {name: a, labels: {v: 1.10}}
x-notes: {anything: [goes]}
spec:
  meta: {on: off, n: 0x10}
  groups:
    - name: g
      tasks:
        - name: t
          driver: raw_exec
          user: 1000
          env: {PORT: 8080, VERSION: 1.10, FLAG: no, EMPTY: ""}
          config: {command: echo, args: [1.10, 1e3, yes, 08, true, 18446744073709551616]}
        - name: m
          driver: mock
          config: {run_for: 1m30s, kill_after: 0, exit_code: 3, stdout_string: 1.0}
"#,
    )
    .unwrap_or_else(|all| panic!("{all}"));
    let job = &set.jobs[0].object;
    assert_eq!(job.labels["v"], "1.10");
    assert_eq!((job.meta["on"].as_str(), job.meta["n"].as_str()), ("off", "0x10"));
    let [task, mock] = job.groups[0].tasks.as_slice() else { panic!("expected two tasks") };
    assert_eq!(task.user.as_deref(), Some("1000"));
    assert_eq!(
        (task.env["PORT"].as_str(), task.env["VERSION"].as_str(), task.env["FLAG"].as_str()),
        ("8080", "1.10", "no")
    );
    let args = serde_json::json!(["1.10", "1e3", "yes", "08", "true", "18446744073709551616"]);
    assert_eq!(task.config["args"], args);
    let config: herdlet_api_types::manifest::driver::MockConfig =
        serde_json::from_value(mock.config.clone()).unwrap();
    assert_eq!((config.exit_code, config.stdout_string.unwrap().0.as_str()), (3, "1.0"));
    assert_eq!(config.run_for.0, herdlet_api_types::Duration::from_secs(90));
    let written = job_to_yaml(job).unwrap();
    assert_eq!(&read(&written).unwrap_or_else(|all| panic!("{written}\n{all}")).jobs[0].object, job);
}

#[test]
fn the_published_schema_is_current() {
    let path = repository().join("manifests/schema.json");
    let current = format!("{:#}\n", schema());
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        published == current,
        "manifests/schema.json is outdated; run: UPDATE_SCHEMA=1 cargo test -p herdlet-manifest the_published"
    );
}

#[test]
fn a_job_is_written_as_a_person_would() {
    let set = load(&[repository().join("manifests/web.yaml")], &Drivers::built_in(), &Variables::default())
        .unwrap();
    let written = job_to_yaml(&set.jobs[0].object).unwrap();
    let path = repository().join("controller/manifest/src/manifests/tests/web.written.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert_eq!(written, std::fs::read_to_string(path).unwrap_or_default());
}

#[test]
fn unreachable_token_is_warned_about() {
    let set = read(
        "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [{name: g, tasks: [
           {name: t, driver: mock, identities: [{name: api, aud: [x]}, {env: true}]}]}]}}",
    )
    .unwrap_or_else(|all| panic!("{all}"));
    let warnings: Vec<String> = set.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["test.yaml:2:49: spec.groups[0].tasks[0].identities[0]: \
          neither `env` nor `file` is true, so the task won't see this token"]
    );
}

/// It was accepted without a warning, and no token was ever issued.
#[test]
fn the_identity_of_a_service_in_the_built_in_catalogue_is_warned_about() {
    let warnings = |provider: &str| {
        let text = format!(
            "{{apiVersion: herdlet/v1, kind: Job, metadata: {{name: a}}, spec: {{groups: [{{name: g,
               services: [{{name: web, provider: {provider}, identity: {{aud: [x]}}}}], tasks: [{{name: t, driver: mock}}]}}]}}}}"
        );
        let set = read(&text).unwrap_or_else(|all| panic!("{all}"));
        set.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let path = "spec.groups[0].services[0].identity";
    assert_eq!(
        warnings("nomad"),
        [format!("test.yaml:2:66: {path}: has an effect only with `provider: consul`")]
    );
    assert_eq!(warnings("consul"), [""; 0]);
}

#[test]
fn cron_without_any_launch_is_warned_about() {
    let set = read(
        "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {type: batch,
          periodic: {crons: [\"0 0 30 2 *\", \"0 0 28 2 *\"]}, groups: [{name: g, tasks: [{name: t, driver: mock}]}]}}",
    )
    .unwrap_or_else(|all| panic!("{all}"));
    let warnings: Vec<String> = set.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "test.yaml:2:30: spec.periodic.crons[0]: matches no day of any month, so it never launches anything"
        ]
    );
}

#[test]
fn cron_of_past_years_is_warned_about() {
    let set = read(
        "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {type: batch,
          periodic: {crons: [\"0 0 * * * 2001\", \"0 0 * * *\"]}, groups: [{name: g, tasks: [{name: t, driver: mock}]}]}}",
    )
    .unwrap_or_else(|all| panic!("{all}"));
    let warnings: Vec<String> = set.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "test.yaml:2:30: spec.periodic.crons[0]: matches only past years, so it no longer launches anything"
        ]
    );
}

#[test]
fn unknown_attribute_is_warned_about() {
    let set = read(
        "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {
          constraints: [{attribute: '${attr.kernel.nam}', value: linux}, {distinct_property: '${meta.rack}'}],
          affinities: [{attribute: '${attr.cpu.arch}', value: '${node.clas}'}],
          groups: [{name: g, tasks: [{name: t, driver: mock}]}]}}",
    )
    .unwrap_or_else(|all| panic!("{all}"));
    let warnings: Vec<String> = set.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "test.yaml:2:37: spec.constraints[0].attribute: no node has `${attr.kernel.nam}`; did you mean `${attr.kernel.name}`?",
            "test.yaml:3:63: spec.affinities[0].value: no node has `${node.clas}`; did you mean `${node.class}`?"
        ]
    );
}

/// Regression: `60s` was written instead of `1m`, and every allocation was replaced.
#[test]
fn durations_in_a_driver_config_are_normalized() {
    let config = |length: &str, args: &str| {
        let text = format!(
            "{{apiVersion: herdlet/v1, kind: Job, metadata: {{name: a}}, spec: {{groups: [{{name: g, tasks: [
               {{name: t, driver: mock, config: {{run_for: {length}}}}},
               {{name: u, driver: raw_exec, config: {{command: x, args: [{args}]}}}}]}}]}}}}"
        );
        read(&text).unwrap_or_else(|all| panic!("{all}")).jobs.remove(0).object
    };
    assert_eq!(config("60s", "60s"), config("1m", "60s"));
    assert_eq!(config("0", "60s"), config("0s", "60s"));
    assert_ne!(config("61s", "60s"), config("1m", "60s"));
    assert_ne!(config("1m", "60s"), config("1m", "1m"), "arguments are not compared as durations");
}

#[test]
fn driver_with_own_files_accepts_mounts_anywhere() {
    let mut boxed = DriverInfo { name: "boxed".to_owned(), ..DriverInfo::mock() };
    boxed.capabilities.fs_isolation = FsIsolation::Chroot;
    let drivers: Drivers = [&boxed].into_iter().collect();
    let text = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [{name: g,
        volumes: {data: {type: host, source: data}}, tasks: [
        {name: t, driver: boxed, volume_mounts: [{volume: data, destination: /srv}]}]}]}}";
    parse("x", text.as_bytes(), &drivers).unwrap_or_else(|all| panic!("{all}"));
}

#[test]
fn supported_fields_are_not_listed_as_missing() {
    fn look(schema: &serde_json::Value) {
        let fields = schema.get("properties").and_then(|fields| fields.as_object());
        for name in schema.get("x-not-built").and_then(|names| names.as_array()).into_iter().flatten() {
            let name = name.as_str().unwrap();
            assert!(fields.is_none_or(|fields| !fields.contains_key(name)), "{name} is built");
        }
        schema.as_object().into_iter().flatten().for_each(|(_, inner)| look(inner));
        schema.as_array().into_iter().flatten().for_each(look);
    }
    look(&schema());
}

/// It passed, and failed at its start: there is no program of that name.
#[test]
fn a_command_line_as_the_name_of_a_program_is_warned_about() {
    let warned = |config: &str| {
        let text = format!(
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: w}}\nspec:\n  groups:\n    - {{name: g, tasks: [{{name: t, driver: \
             raw_exec, config: {config}}}]}}\n"
        );
        read(&text).unwrap().warnings.into_iter().map(|warning| warning.message).collect::<Vec<_>>()
    };
    let message = warned("{command: \"python3 -m http.server\"}").join("");
    assert!(message.ends_with("`command` \"python3\", `args` [\"-m\", \"http.server\"]"), "{message}");
    assert!(warned("{command: \"my program\", args: [a]}").is_empty());
    assert!(warned("{command: python3}").is_empty());
}
