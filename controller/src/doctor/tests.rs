//! Findings for machines unlike this one.

use herdlet_config::{File, Flags, Surroundings};

use super::{
    machine::{CLOCK_MIN, descriptors},
    peers::{unfit_tokens, wants_consul},
    *,
};

fn config(change: impl FnOnce(&mut Flags)) -> Config {
    let mut flags = Flags { state_dir: Some("/".into()), ..Flags::default() };
    change(&mut flags);
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "here" };
    Config::load(flags, &surroundings).unwrap()
}

#[test]
fn limits_are_compared_with_the_need_of_an_agent() {
    assert_eq!(descriptors(Some(64)).verdict, Verdict::Failure);
    assert_eq!(descriptors(Some(1_024)).verdict, Verdict::Warning);
    assert_eq!(descriptors(Some(524_288)).verdict, Verdict::Ok);
    assert_eq!(descriptors(None).verdict, Verdict::Ok);
    assert_eq!(inotify(None).verdict, Verdict::Failure);
    assert_eq!(inotify(Some(16)).verdict, Verdict::Warning);
    assert_eq!(inotify(Some(1_024)).verdict, Verdict::Ok);
}

#[test]
fn missing_sandbox_is_named() {
    assert_eq!(unpacking(Barrier::Landlock).verdict, Verdict::Ok);
    for (barrier, what) in
        [(Barrier::Root, "chroot"), (Barrier::User, "its user may access"), (Barrier::Nothing, "refused")]
    {
        let finding = unpacking(barrier);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.message.contains(what) && finding.hint.is_some(), "{}", finding.message);
    }
}

#[test]
fn dynamic_ports_stay_apart_from_those_of_connections() {
    let config = config(|_| {});
    assert_eq!(ports(&config, "32768\t60999\n").verdict, Verdict::Ok);
    assert_eq!(ports(&config, "").verdict, Verdict::Ok, "the range is unknown");
    let finding = ports(&config, "1024 65535");
    assert_eq!(finding.verdict, Verdict::Warning);
    assert!(finding.message.contains("20000-32000"), "{}", finding.message);
}

#[test]
fn variables_without_their_key_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(|_| {});
    let state = dir.path().to_owned();
    let examined = |config: &Config| variables::variables(config, StateDir::Planned(&state));
    assert_eq!(examined(&config), None, "there are none");
    let source = herdlet_variables::KeySource::choose(None, None, &state.join("keys"));
    let store = herdlet_variables::Store::open(&state, source).unwrap();
    let key =
        herdlet_api_types::variable::VariableKey { namespace: "default".to_owned(), path: "a".to_owned() };
    let items = [("a".to_owned(), "b".to_owned())].into_iter().collect();
    let items = herdlet_api_types::variable::VariableItems(items);
    store.put(&key, items, herdlet_variables::Check::Nothing, "").unwrap();
    assert_eq!(examined(&config).unwrap().verdict, Verdict::Ok);
    let damaged = state.join("variables/damaged");
    std::fs::write(&damaged, "x").unwrap();
    assert!(examined(&config).unwrap().message.contains("1 files of variables are damaged"));
    std::fs::create_dir(state.join("damaged")).unwrap();
    std::fs::rename(&damaged, state.join("damaged/variables.damaged.0")).unwrap();
    let finding = examined(&config).unwrap();
    assert!(finding.message.contains("has moved 1 damaged files of variables"), "{}", finding.message);
    std::fs::remove_dir_all(state.join("damaged")).unwrap();
    let keys = state.join("keys/variables");
    let open = |mode| fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    open(0o640);
    assert!(examined(&config).unwrap().message.contains("a group can read the keys"));
    open(0o604);
    assert!(examined(&config).unwrap().message.contains("can be read by every user"));
    fs::remove_file(&keys).unwrap();
    let finding = examined(&config).unwrap();
    assert_eq!(finding.verdict, Verdict::Warning);
    assert!(
        finding.message.contains("1 variables can't be decrypted") && finding.message.contains("is missing")
    );
    config.variables_key_file = Some(dir.path().join("none"));
    assert_eq!(examined(&config).unwrap().verdict, Verdict::Failure);
}

/// A folder in `/etc/herdlet` with mode 0755 exposed the passwords of all jobs to every user, and doctor reported nothing.
#[test]
fn passwords_that_every_user_can_read_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(dir.path(), 0o755);
    let config = config(|flags| flags.manifests = vec![dir.path().to_owned()]);
    let write = |env: &str| {
        let job = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  groups:\n    - name: g\n      tasks:\n        \
                   - name: t\n          driver: raw_exec\n          config: {command: /bin/true}\n          ";
        fs::write(dir.path().join("a.yaml"), format!("{job}{env}\n")).unwrap();
    };
    let found = |env: &str| {
        write(env);
        secrets::secrets(&config)
    };
    assert_eq!(found("env: {DB_USER: a, DB_PASSWORD_FILE: secret, DB_PASSWORD: '${NOMAD_META_x}'}"), None);
    let finding = found("env: {DB_PASSWORD: swordfish}").unwrap();
    assert_eq!(finding.verdict, Verdict::Warning);
    let manifest = dir.path().canonicalize().unwrap().join("a.yaml");
    assert!(
        finding.message.contains("a.yaml") && !finding.message.contains("swordfish"),
        "{}",
        finding.message
    );
    assert!(finding.hint.is_some_and(|hint| hint.contains("chmod o-rwx ")));
    mode(&manifest, 0o640);
    assert_eq!(secrets::secrets(&config), None);
    mode(&manifest, 0o644);
    mode(dir.path(), 0o750);
    assert_eq!(secrets::secrets(&config), None);
    mode(dir.path(), 0o755);
    fs::write(dir.path().join("db.env"), "PASSWORD=swordfish\n").unwrap();
    let finding = found("env_file: [db.env]").unwrap();
    assert!(finding.message.contains("db.env") && !finding.message.contains("a.yaml"), "{}", finding.message);
}

#[test]
fn damaged_keys_of_identities_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let examined = || identities::identities(StateDir::InUse(dir.path()));
    assert!(examined().is_none());
    let keys = dir.path().join("keys");
    let signer = herdlet_storage::identity::Signer::new(keys.clone());
    signer.jwks().unwrap();
    assert_eq!(examined().unwrap().verdict, Verdict::Ok);
    fs::write(keys.join("identity.json"), "half").unwrap();
    let finding = examined().unwrap();
    assert!(finding.verdict == Verdict::Failure && finding.message.contains("is damaged"), "{finding:?}");
}

#[test]
fn container_is_detected_by_its_marks() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(container(root.path()).verdict, Verdict::Ok);
    fs::write(root.path().join(".dockerenv"), "").unwrap();
    assert!(container(root.path()).message.contains("Docker"));
}

#[test]
fn clock_in_the_past_or_unset_is_wrong() {
    let systemd = tempfile::tempdir().unwrap();
    let now = (CLOCK_MIN + 1) * 1_000_000_000;
    assert_eq!(clock(0, systemd.path()).verdict, Verdict::Failure);
    assert_eq!(clock(now, systemd.path()).verdict, Verdict::Ok);
    fs::create_dir(systemd.path().join("timesync")).unwrap();
    assert_eq!(clock(now, systemd.path()).verdict, Verdict::Warning);
    fs::write(systemd.path().join("timesync/synchronized"), "").unwrap();
    assert_eq!(clock(now, systemd.path()).verdict, Verdict::Ok);
}

#[test]
fn a_state_directory_must_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let finding = disk(StateDir::Planned(&file.join("state")));
    assert_eq!(finding.verdict, Verdict::Failure);
    assert!(finding.message.ends_with("file is not a directory"), "{}", finding.message);
    assert_ne!(disk(StateDir::Planned(&dir.path().join("to/be/made"))).verdict, Verdict::Failure);
}

// `doctor` praised the disk of another directory while the agent's disk was full.
#[test]
fn disk_of_the_state_directory_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let finding = disk(StateDir::InUse(dir.path()));
    let says = format!(" free for {}, the state directory of the running agent", dir.path().display());
    assert!(finding.message.ends_with(&says), "{}", finding.message);
    // `/proc` has no free space and is not writable; only the first is reported for a running agent.
    let finding = disk(StateDir::InUse(Path::new("/proc")));
    assert!(finding.message.starts_with("0 MiB free for /proc"), "{}", finding.message);
}

#[test]
fn folders_and_volumes_that_are_not_there_are_waited_for() {
    assert_eq!(manifests(Path::new("/")).verdict, Verdict::Ok);
    assert_eq!(manifests(Path::new("/nowhere")).verdict, Verdict::Warning);
    assert_eq!(host_volume("site", Path::new("/")).verdict, Verdict::Ok);
    assert_eq!(host_volume("site", Path::new("/nowhere")).verdict, Verdict::Warning);
}

#[tokio::test]
async fn consul_is_checked_only_if_configured() {
    let config = config(|_| {});
    if std::env::var_os("CONSUL_HTTP_ADDR").is_none() {
        assert_eq!(consuls(&config).await, []);
    }
    let folder = tempfile::tempdir().unwrap();
    let folders = [folder.path().to_owned()];
    let web = "job \"web\" {\n  group \"g\" {\n    service {\n      name = \"web\"\n      PROVIDER\n    }\n    task \"t\" {\n      \
               driver = \"mock\"\n    }\n  }\n}\n";
    for (provider, wanted) in [("", true), ("provider = \"nomad\"", false)] {
        std::fs::write(folder.path().join("web.hcl"), web.replace("PROVIDER", provider)).unwrap();
        assert_eq!(wants_consul(&folders), wanted, "{provider}");
    }
    // A port of a service that no longer exists on any machine.
    let closed = "127.0.0.1:1";
    let file = File::read("agent.yaml", format!("consul: {{address: \"{closed}\"}}").as_bytes()).unwrap();
    let named = Config { consul: file.consul, ..config };
    let findings = consuls(&named).await;
    assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Warning]);
    let text = format!("consul: {{clusters: {{eu: {{address: \"{closed}\"}}}}}}");
    let file = File::read("agent.yaml", text.as_bytes()).unwrap();
    let named = Config { consul: file.consul, ..named };
    let findings = consuls(&named).await;
    assert!(findings.len() == 1 && findings[0].message.starts_with("`eu`: "), "{findings:?}");
    // One that can't be used hides no other.
    let text = format!(
        "consul: {{address: \"{closed}\", clusters: {{eu: {{address: \"{closed}\", token: \"two words\"}}, us: {{address: \"{closed}\"}}}}}}"
    );
    let file = File::read("agent.yaml", text.as_bytes()).unwrap();
    let findings = consuls(&Config { consul: file.consul, ..named }).await;
    let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, [Verdict::Warning, Verdict::Failure, Verdict::Warning]);
    assert!(findings[1].message.contains("consul.clusters.eu.token_file"), "{findings:?}");
}

#[test]
fn unusable_service_tokens_are_reported() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    for (name, text, mode) in
        [("web", "s3cret", 0o640), ("open", "s3cret", 0o644), ("empty", "", 0o600), (".swp", "", 0o644)]
    {
        std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let problems = unfit_tokens(dir.path());
    assert!(
        problems.len() == 2
            && problems[0].contains("/empty: it holds no token")
            && problems[1].contains("other users can access it"),
        "{problems:?}"
    );
    assert!(unfit_tokens(Path::new("/nowhere"))[0].contains("can't be read"));
}

#[test]
fn the_token_and_certificates_are_read_as_an_agent_would() {
    use std::os::unix::fs::PermissionsExt as _;
    let ground = tempfile::tempdir().unwrap();
    let token = ground.path().join("token");
    let on = |address: &str| {
        config(|flags| (flags.listen, flags.token_file) = (Some(address.to_owned()), Some(token.clone())))
    };
    let judged = |address: &str| listener(&on(address)).map(|finding| finding.verdict);
    assert_eq!(judged("127.0.0.1:1"), Some(Verdict::Failure), "the token is missing");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(judged("127.0.0.1:1"), Some(Verdict::Ok));
    assert_eq!(judged("0.0.0.0:1"), Some(Verdict::Warning), "plain text beyond loopback");
    let files = herdlet_config::TlsFiles { certificate: token.clone(), key: token.clone(), clients: None };
    let finding = listener(&Config { tls: Some(files), ..on("0.0.0.0:1") }).unwrap();
    assert!(finding.verdict == Verdict::Failure && finding.message.contains("there is no certificate in it"));
    assert!(listener(&config(|_| {})).is_none());
}

#[test]
fn files_of_variables_that_others_can_change_are_reported_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outer = beside.path().join("n.env");
    let job = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  groups:\n    - name: g\n      tasks:\n        \
               - {name: t, driver: raw_exec, config: {command: x}, env_file: [n.env, OUTER]}\n";
    std::fs::write(dir.path().join("a.yaml"), job.replace("OUTER", &outer.display().to_string())).unwrap();
    let config = config(|flags| flags.manifests = vec![dir.path().to_owned()]);
    for path in [dir.path().join("n.env"), outer] {
        std::fs::write(&path, "A=b").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let found = ownership::ownership(&config, StateDir::Planned(Path::new("/none")));
    let named: Vec<_> = found.iter().filter(|finding| finding.message.contains("n.env")).collect();
    assert!(named.len() == 2 && named.iter().all(|finding| finding.verdict == Verdict::Warning), "{found:?}");
}
