//! Plugins as shell scripts.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;

struct Plugins(tempfile::TempDir);

impl Plugins {
    fn with(name: &str, script: &str) -> Self {
        let plugins = Self(tempfile::tempdir().unwrap());
        plugins.add(name, script);
        plugins
    }

    fn add(&self, name: &str, script: &str) {
        let path = self.0.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    async fn fetch(
        &self,
        name: &str,
        cancelled: &CancellationToken,
    ) -> Result<BTreeMap<String, String>, PluginError> {
        let env =
            [("TOKEN".to_owned(), "t".to_owned()), ("CPI_OPERATION".to_owned(), "mine".to_owned())].into();
        fetch(self.0.path(), PluginRequest { name, path: "a b", env: &env, cancelled }).await
    }

    async fn error(&self, name: &str) -> (Class, String) {
        let error = self.fetch(name, &CancellationToken::new()).await.unwrap_err();
        (error.class(), error.to_string())
    }
}

#[tokio::test]
async fn a_plugin_gets_its_path_and_environment_and_nothing_else() {
    let script = r#"echo "{\"result\": {\"call\": \"$CPI_OPERATION $1 $2 $#\", \"token\": \"$TOKEN\", \"home\": \"$HOME$CARGO\"}}""#;
    let values = Plugins::with("p", script).fetch("p", &CancellationToken::new()).await.unwrap();
    let values: Vec<_> = values.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(values, [("call", "fetch fetch a b 2"), ("home", ""), ("token", "t")]);
    let none = Plugins::with("p", "echo '{}'").fetch("p", &CancellationToken::new()).await.unwrap();
    assert!(none.is_empty());
}

#[tokio::test]
async fn failures_name_the_plugin_and_quote_no_value() {
    for (script, expected) in [
        ("echo hunter2 >&2; exit 3", "run the secrets plugin p: it ended with exit status: 3"),
        (
            r#"printf %s '{"error": "no such path\nhunter2"}'; exit 1"#,
            "run the secrets plugin p: its error is: no such path",
        ),
        (
            r#"echo '{"result": {"a": "hunter2"}, "error": "denied"}'"#,
            "run the secrets plugin p: its error is: denied",
        ),
        (
            r#"echo '{"result": "hunter2"}'"#,
            "is not {\"result\": {\"KEY\": \"VALUE\"}, \"error\": null} (line 1, column 20)",
        ),
        ("echo hunter2", "(line 1, column 1)"),
        ("head -c 2000000 /dev/zero", "it has more than 1048576 bytes"),
    ] {
        let (class, error) = Plugins::with("p", script).error("p").await;
        assert!(
            class == Class::Fatal && error.contains(expected) && !error.contains("hunter2"),
            "{script}: {error}"
        );
    }
}

/// A plugin runs as root.
#[tokio::test]
async fn a_plugin_that_others_can_change_is_not_started() {
    let plugins = Plugins::with("p", "echo '{}'");
    let path = plugins.0.path().join("p");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let (class, error) = plugins.error("p").await;
    assert!(class == Class::Fatal && error.contains("start the secrets plugin p: trust "), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(plugins.error("p").await.1.contains("Permission denied"));
    let (class, error) = plugins.error("none").await;
    assert!(class == Class::Fatal && error.contains("there is no file"), "{error}");
}

/// The clock stands still until nothing else is left to do, so both limits are reached.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_end_is_forced_to() {
    let plugins = Plugins::with("p", "trap '' TERM; while :; do sleep 1000; done");
    assert_eq!(
        plugins.error("p").await,
        (Class::Fatal, "wait for the secrets plugin p: it did not end within 60 s".to_owned())
    );
    plugins.add("q", "exec sleep 1000");
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let error = plugins.fetch("q", &cancelled).await.unwrap_err();
    assert!(matches!(error, PluginError::Withdrawn { .. }) && error.class() == Class::Retry, "{error}");
}

#[tokio::test]
async fn versions_are_those_of_secrets_plugins() {
    let answer = |kind: &str| {
        format!(
            "[ $CPI_OPERATION$1 = fingerprintfingerprint ] && echo '{{\"type\": \"{kind}\", \"version\": \"1.2.0\"}}'"
        )
    };
    let plugins = Plugins::with("good", &answer("secrets"));
    plugins.add("other", &answer("host_volume"));
    plugins.add("broken", "exit 1");
    plugins.add(".hidden", &answer("secrets"));
    assert_eq!(versions(plugins.0.path()).await, [("good".to_owned(), "1.2.0".to_owned())].into());
    assert!(versions(Path::new("/none")).await.is_empty());
}
