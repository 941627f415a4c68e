//! `secret` blocks: what is refused, and the same block in three languages.

use herdlet_api_types::job::Secret;

use super::{Drivers, parse, read};

fn secrets(name: &str, text: &str) -> Vec<Secret> {
    let set = parse(name, text.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
    set.jobs[0].object.groups[0].tasks[0].secrets.clone()
}

fn job(config: &str, secrets: &str) -> String {
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  groups:\n    - name: web\n      tasks:\n        - name: web\n          driver: raw_exec\n          config: {{command: \"{config}\"}}\n          secrets:\n            - {secrets}\n"
    )
}

#[test]
fn wrong_secrets_are_refused_with_the_remedy() {
    for (secrets, expected) in [
        ("{name: a, provider: nomad, path: p, env: {A: b}}", "secrets[0].env: is only for plugins"),
        (
            "{name: a, provider: nomad, path: p, config: {engine: kv}}",
            "config.engine: is only for the provider `vault`",
        ),
        (
            "{name: a, provider: vault, path: p}",
            "secrets[0].provider: needs a token of Vault; add a block `vault`",
        ),
        (
            "{name: a, provider: vault, path: p, config: {engine: kv}}",
            "secrets[0].config.engine: must be `kv_v1` or `kv_v2`",
        ),
        (
            "{name: a, provider: vault, path: p, config: {namespace: n}}",
            "secrets[0].config.namespace: is only for the provider `nomad`",
        ),
        ("{name: a, provider: vault, path: p, env: {A: b}}", "secrets[0].env: is only for plugins"),
        ("{name: a-b, provider: nomad, path: p}", "secrets[0].name: must be 1 to 128 letters"),
        (
            "{name: a, provider: ../up, path: p}",
            "secrets[0].provider: must be `nomad`, `vault`, or the name of a secrets plugin",
        ),
        (
            "{name: a, provider: .up, path: p}",
            "secrets[0].provider: must be `nomad`, `vault`, or the name of a secrets plugin",
        ),
        (
            "{name: a, provider: own, path: p, config: {namespace: x}}",
            "secrets[0].config: is not for plugins",
        ),
        ("{name: a, provider: nomad, path: \"a\\nb\"}", "secrets[0].path: must be 1 to 4096 characters"),
        ("{name: a, provider: nomad}", "path"),
    ] {
        let problems = read(&job("x", secrets)).unwrap_err().to_string();
        assert!(problems.contains(expected), "{secrets}: {problems}");
    }
    let twice = "{name: a, provider: nomad, path: p}\n            - {name: a, provider: own, path: q}";
    assert!(read(&job("x", twice)).unwrap_err().to_string().contains("secrets[1]"));
    let known = "{name: a, provider: nomad, path: p}";
    assert!(read(&job("${secret.a.key}", known)).is_ok());
    let of_vault = "{name: a, provider: vault, path: p, config: {engine: kv_v1}}\n          vault: {}";
    assert!(read(&job("${secret.a.key}", of_vault)).is_ok());
    let problems = read(&job("${secret.b.key}", known)).unwrap_err().to_string();
    assert!(problems.contains("the task will have no variable `secret.b.key`"), "{problems}");
}

#[test]
fn a_secret_is_the_same_in_each_language() {
    let yaml = "{name: db, provider: nomad, path: nomad/jobs/web, config: {namespace: prod}}\n            - {name: own, provider: my-plugin, path: p, env: {A: b}}";
    let expected = secrets("job.yaml", &job("x", yaml));
    let hcl = "job \"web\" {\n  group \"web\" {\n    task \"web\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"x\"\n      }\n      secret \"db\" {\n        provider = \"nomad\"\n        path = \"nomad/jobs/web\"\n        config {\n          namespace = \"prod\"\n        }\n      }\n      secret \"own\" {\n        provider = \"my-plugin\"\n        path = \"p\"\n        env {\n          A = \"b\"\n        }\n      }\n    }\n  }\n}\n";
    assert_eq!(secrets("job.hcl", hcl), expected);
    let json = r#"{"ID": "web", "TaskGroups": [{"Name": "web", "Tasks": [{"Name": "web", "Driver": "raw_exec", "Config": {"command": "x"},
        "Secrets": [{"Name": "db", "Provider": "nomad", "Path": "nomad/jobs/web", "Config": {"namespace": "prod"}, "Env": null},
        {"Name": "own", "Provider": "my-plugin", "Path": "p", "Config": null, "Env": {"A": "b"}}]}]}]}"#;
    assert_eq!(secrets("job.json", json), expected);
    assert_eq!((expected[0].namespace.as_deref(), expected[1].env["A"].as_str()), (Some("prod"), "b"));
}
