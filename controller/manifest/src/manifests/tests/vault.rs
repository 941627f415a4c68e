//! `vault` blocks: what is refused or warned of, and the same block in three languages.

use herdlet_api_types::job::{ChangeMode, VaultAccess};

use super::{Drivers, parse, read};

fn access(name: &str, text: &str) -> Vec<Option<VaultAccess>> {
    let set = parse(name, text.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
    set.jobs[0].object.groups.iter().flat_map(|group| &group.tasks).map(|task| task.vault.clone()).collect()
}

fn job(config: &str, vault: &str) -> String {
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  groups:\n    - name: web\n      tasks:\n        - name: web\n          driver: raw_exec\n          config: {{command: \"{config}\"}}\n          {vault}\n"
    )
}

#[test]
fn wrong_blocks_are_refused() {
    for (vault, expected) in [
        ("vault: {cluster: \"a b\"}", "vault.cluster: must be 1 to 64 letters"),
        ("vault: {role: \"a b\"}", "vault.role: must be visible ASCII"),
        (
            "vault: {change_signal: SIGUSR1}",
            "vault.change_signal: is only allowed with `change_mode: signal`",
        ),
        ("vault: {change_mode: signal, change_signal: NOSUCH}", "vault.change_signal"),
        (
            "vault: {}\n          identities: [{name: a, aud: [x], file: true, filepath: secrets/vault_token}]",
            "identities[0].filepath: its file conflicts with that of the token of Vault",
        ),
    ] {
        let problems = read(&job("x", vault)).unwrap_err().to_string();
        assert!(problems.contains(expected), "{vault}: {problems}");
    }
}

#[test]
fn policies_of_old_job_files_are_a_warning() {
    let hcl = "job \"web\" {\n  group \"web\" {\n    task \"web\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"x\"\n      }\n      vault {\n        policies = [\"a\"]\n      }\n    }\n  }\n}\n";
    let set = parse("job.hcl", hcl.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
    assert_eq!(set.warnings.len(), 1);
    assert!(
        set.warnings[0].to_string().contains("the role in Vault has the policies"),
        "{}",
        set.warnings[0]
    );
}

#[test]
fn variables_of_the_token_are_known() {
    assert!(read(&job("${VAULT_TOKEN}", "vault: {}")).is_ok());
    for without in ["vault: {env: false}", "leader: false"] {
        let problems = read(&job("${VAULT_TOKEN}", without)).unwrap_err().to_string();
        assert!(problems.contains("the task will have no variable `VAULT_TOKEN`"), "{problems}");
    }
}

#[test]
fn the_block_is_the_same_in_each_language() {
    let yaml = "vault: {role: r, namespace: n, cluster: eu, env: false, disable_file: true, change_mode: signal, change_signal: sigusr1, allow_token_expiration: true}";
    let expected = access("job.yaml", &job("x", yaml));
    let hcl = "job \"web\" {\n  group \"web\" {\n    task \"web\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"x\"\n      }\n      vault {\n        role = \"r\"\n        namespace = \"n\"\n        cluster = \"eu\"\n        env = false\n        disable_file = true\n        change_mode = \"signal\"\n        change_signal = \"SIGUSR1\"\n        allow_token_expiration = true\n      }\n    }\n  }\n}\n";
    assert_eq!(access("job.hcl", hcl), expected);
    let json = r#"{"ID": "web", "TaskGroups": [{"Name": "web", "Tasks": [{"Name": "web", "Driver": "raw_exec", "Config": {"command": "x"},
        "Vault": {"Policies": null, "Role": "r", "Namespace": "n", "Cluster": "eu", "Env": false, "DisableFile": true,
        "ChangeMode": "signal", "ChangeSignal": "SIGUSR1", "AllowTokenExpiration": true}}]}]}"#;
    assert_eq!(access("job.json", json), expected);
    let access = expected[0].clone().unwrap();
    assert_eq!((access.identity_name().as_str(), access.signal().as_str()), ("vault_eu", "SIGUSR1"));
}

/// As in Nomad, the innermost block counts, and as a whole.
#[test]
fn blocks_of_groups_and_jobs_are_for_tasks_without_one() {
    let hcl = r#"job "web" {
      vault { role = "of-job" }
      group "a" {
        vault { role = "of-group" }
        task "own" {
          driver = "raw_exec"
          config { command = "x" }
          vault { change_mode = "noop" }
        }
        task "of-group" {
          driver = "raw_exec"
          config { command = "x" }
        }
      }
      group "b" {
        task "of-job" {
          driver = "raw_exec"
          config { command = "x" }
        }
      }
    }"#;
    let found: Vec<_> = access("job.hcl", hcl).into_iter().flatten().collect();
    let roles: Vec<_> = found.iter().map(|access| access.role.as_deref()).collect();
    assert_eq!(roles, [None, Some("of-group"), Some("of-job")]);
    assert_eq!((found[0].change_mode, found[1].change_mode), (ChangeMode::Noop, ChangeMode::Restart));
}
