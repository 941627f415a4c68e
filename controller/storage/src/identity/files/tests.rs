//! Token files: writing and inspection.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use herdlet_api_types::{Duration, UnixNanos, job::ChangeMode};
use herdlet_base::{observation::Class, privileges::Privileges};

use super::*;
use crate::identity::SigningAlgorithm;

const NOW: UnixNanos = UnixNanos(1_700_000_000_500_000_000);

fn identity(name: &str, aud: &[&str], ttl: Option<Duration>) -> Identity {
    Identity {
        extra_claims: Vec::new(),
        name: name.to_owned(),
        aud: aud.iter().map(|aud| (*aud).to_owned()).collect(),
        ttl,
        env: true,
        file: true,
        filepath: None,
        change_mode: ChangeMode::Noop,
        change_signal: None,
    }
}

fn token_spec(task: &str, identity: &Identity, now: UnixNanos) -> WantedToken {
    let issued = now.0 / 1_000_000_000;
    let mut claims = serde_json::json!({
        "sub": format!("global:default:web:g:{task}:{}", identity.name), "aud": identity.aud,
        "iat": issued, "nbf": issued, "jti": uuid::Uuid::new_v4(),
    });
    if let Some(ttl) = identity.ttl {
        claims["exp"] = (issued + ttl.as_secs()).into();
    }
    WantedToken { identity: identity.clone(), claims, given: None }
}

fn token_specs(identities: &[Identity], now: UnixNanos) -> Vec<WantedToken> {
    identities.iter().map(|identity| token_spec("httpd", identity, now)).collect()
}

struct World {
    _temp: tempfile::TempDir,
    signer: Signer,
    dir: TaskDir,
    path: std::path::PathBuf,
}

fn world() -> World {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("task");
    let dir = TaskDir::new(path.clone(), Privileges::none());
    dir.up().unwrap();
    let signer = Signer::new(temp.path().join("keys"));
    World { _temp: temp, signer, dir, path }
}

fn tokens(world: &World) -> TaskTokens<'_> {
    TaskTokens { signer: &world.signer, task_dir: &world.dir, task: "httpd", access: FileAccess::Owner(None) }
}

#[test]
fn token_files_are_written_inspected_and_renewed() {
    let world = world();
    let tokens = tokens(&world);
    let identities = [
        identity("default", &[], None),
        identity("api", &["example.test"], Some(Duration::from_secs(3600))),
        identity("short", &["x"], Some(Duration::from_secs(60))),
    ];
    assert_eq!(tokens.inspect(&token_specs(&identities, NOW)).unwrap(), Observation::Absent);
    // Before half of the shortest life, and the same for the next agent.
    let renew_in = tokens.up(&token_specs(&identities, NOW)).unwrap().renew_in.unwrap();
    assert!((24..=30).contains(&renew_in.as_secs()), "{renew_in:?}");
    let soon = UnixNanos(NOW.0 + 10_000_000_000);
    let left = tokens.renew_in(&token_specs(&identities, soon));
    assert_eq!(left, Some(renew_in - std::time::Duration::from_secs(10)));
    assert_eq!(tokens.inspect(&token_specs(&identities, NOW)).unwrap(), Observation::Present);
    let file = world.path.join("secrets/nomad_api.jwt");
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    let first = std::fs::read_to_string(&file).unwrap();
    assert_eq!(world.signer.verify(&first).unwrap()["aud"][0], "example.test");
    let default = std::fs::read_to_string(world.path.join("secrets/nomad_token")).unwrap();
    assert_eq!(world.signer.verify(&default).unwrap()["sub"], "global:default:web:g:httpd:default");

    // The shortest-lived one has expired.
    let later = UnixNanos(NOW.0 + 61_000_000_000);
    assert!(
        matches!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Foreign { why } if why.contains("expired"))
    );
    let read = |name: &str| std::fs::read_to_string(world.path.join("secrets").join(name)).unwrap();
    let short = read("nomad_short.jwt");
    tokens.up(&token_specs(&identities, later)).unwrap();
    assert_eq!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Present);
    assert_ne!(short, read("nomad_short.jwt"));
    // The others are not due.
    assert_eq!((first.clone(), default), (read("nomad_api.jwt"), read("nomad_token")));

    // Others must not be able to read it.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Foreign { .. }));
    // Another task's token was put there.
    let stolen = world.signer.sign(&token_spec("other", &identities[1], later).claims).unwrap();
    std::fs::write(&file, stolen.reveal()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(
        matches!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Foreign { why } if why.contains("wrong claims"))
    );
    std::fs::write(&file, "rubbish").unwrap();
    assert!(matches!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Foreign { .. }));
    std::fs::remove_file(&file).unwrap();
    assert!(
        matches!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Foreign { why } if why.contains("missing"))
    );
}

/// An agent that has restarted did not know when such a token is due, and never renewed it.
#[test]
fn an_expiring_variable_is_renewed_also_after_a_restart() {
    let world = world();
    let tokens = tokens(&world);
    let variable = Identity { file: false, ..identity("api", &["x"], Some(Duration::from_secs(1_000))) };
    let plain = Identity { file: false, ..identity("default", &[], None) };
    let wanted = |now| token_specs(&[variable.clone(), plain.clone()], now);
    let at = |seconds: i64| UnixNanos(NOW.0 + seconds * 1_000_000_000);
    let renew_in = tokens.up(&wanted(NOW)).unwrap().renew_in.unwrap();
    assert!((400..=500).contains(&renew_in.as_secs()), "{renew_in:?}");
    let env = |now| tokens.env(&wanted(now)).unwrap();
    let value = |now| env(now)[0].1.reveal().to_owned();
    let first = value(NOW);
    assert_eq!(tokens.renew_in(&wanted(at(100))).unwrap(), renew_in - std::time::Duration::from_secs(100));
    assert_eq!(value(at(100)), first, "a restarted task gets the same one");
    assert_ne!(env(at(100))[1].1.reveal(), env(at(100))[1].1.reveal(), "one that doesn't expire has no file");
    assert_eq!(std::fs::read_dir(world.path.join("secrets")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(world.path.join("private")).unwrap().count(), 1);
    // It is due: both the file and the variable change.
    tokens.up(&wanted(at(501))).unwrap();
    assert_ne!(value(at(501)), first);
    // A release without this file has issued it.
    std::fs::remove_file(world.path.join("private/nomad_api.jwt")).unwrap();
    assert_eq!(tokens.inspect(&wanted(at(501))).unwrap(), Observation::Present);
    let left = tokens.renew_in(&wanted(at(501))).unwrap();
    assert!((400..=500).contains(&left.as_secs()), "{left:?}");
}

#[test]
fn tokens_of_one_time_are_not_renewed_together() {
    let claims = |id: u32| serde_json::json!({ "iat": 0, "exp": 3_600, "jti": format!("id {id}") });
    let waits: Vec<u64> = (0..100).map(|id| renew_in(&claims(id), 0).unwrap().as_secs()).collect();
    assert!(waits.iter().all(|wait| (1_440..=1_800).contains(wait)), "{waits:?}");
    let (first, last) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(last - first > 200, "{first} {last}");
    assert_eq!(renew_in(&claims(1), 1_800), Some(std::time::Duration::ZERO));
    assert_eq!(
        renew_in(&serde_json::json!({ "iat": 0, "exp": 1 }), 0),
        Some(std::time::Duration::from_secs(1))
    );
    let endless = serde_json::json!({ "iat": 0, "exp": i64::MAX });
    assert!(renew_in(&endless, 0).unwrap() > std::time::Duration::from_secs(1 << 60));
    assert_eq!(renew_in(&serde_json::json!({ "iat": 0 }), 0), None);
}

#[test]
fn tokens_of_an_old_key_stay_and_those_of_damaged_keys_are_unknown() {
    let world = world();
    let tokens = tokens(&world);
    let wanted = token_specs(&[identity("default", &[], None)], NOW);
    tokens.up(&wanted).unwrap();
    let file = world.path.join("secrets/nomad_token");
    let first = std::fs::read_to_string(&file).unwrap();
    world.signer.rotate(SigningAlgorithm::EdDsa, 0).unwrap();
    tokens.up(&wanted).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), first);
    let keys = world._temp.path().join("keys");
    std::fs::write(keys.join("identity.json"), "{").unwrap();
    let unreadable = Signer::new(keys);
    let later = TaskTokens { signer: &unreadable, ..tokens };
    let error = later.inspect(&wanted).unwrap_err();
    assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
    assert_eq!(
        (later.up(&wanted).unwrap_err().class(), std::fs::read_to_string(&file).unwrap()),
        (Class::Retry, first)
    );
}

/// A token's clock is the machine's: after a set-back it would have been due far in the future.
#[test]
fn a_token_from_the_future_is_replaced() {
    let world = world();
    let tokens = tokens(&world);
    let short = [identity("api", &["x"], Some(Duration::from_secs(60)))];
    tokens.up(&token_specs(&short, UnixNanos(NOW.0 + 3_600_000_000_000))).unwrap();
    let renew_in = tokens.up(&token_specs(&short, NOW)).unwrap().renew_in.unwrap();
    assert!(renew_in.as_secs() <= 30, "{renew_in:?}");
}

#[test]
fn token_file_is_written_to_its_path() {
    let world = world();
    let tokens = tokens(&world);
    for path in ["secrets/deep/token", "local/a/b/c.jwt", "./token", "new/token"] {
        let wanted = token_specs(
            &[Identity { filepath: Some(path.to_owned()), ..identity("api", &["x"], None) }],
            NOW,
        );
        assert_eq!(tokens.inspect(&wanted).unwrap(), Observation::Absent, "{path}");
        tokens.up(&wanted).unwrap();
        assert_eq!(tokens.inspect(&wanted).unwrap(), Observation::Present, "{path}");
        let file = world.path.join(path);
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        assert!(!world.path.join("secrets/nomad_api.jwt").exists());
    }
    // As a task can put it there.
    std::os::unix::fs::symlink("/tmp", world.path.join("local/link")).unwrap();
    for path in [
        "../other/token",
        "/../other/token",
        "/private/token",
        "",
        ".",
        "local/link/token",
        "local",
        "tmp/.",
        "secrets",
        "private/token",
        "alloc",
        "alloc/token",
    ] {
        let wanted = token_specs(
            &[Identity { filepath: Some(path.to_owned()), ..identity("api", &["x"], None) }],
            NOW,
        );
        assert_eq!(tokens.up(&wanted).unwrap_err().class(), Class::Fatal, "{path}");
    }
    assert!(!world.path.join("private/token").exists() && !world.path.join("alloc").exists());
}

#[test]
fn link_in_place_of_a_token_file_is_replaced() {
    let world = world();
    let victim = world.path.join("local/victim");
    std::fs::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, world.path.join("secrets/nomad_token")).unwrap();
    let identities = [identity("default", &[], None)];
    assert!(matches!(
        tokens(&world).inspect(&token_specs(&identities, NOW)).unwrap(),
        Observation::Foreign { .. }
    ));
    tokens(&world).up(&token_specs(&identities, NOW)).unwrap();
    assert_eq!(tokens(&world).inspect(&token_specs(&identities, NOW)).unwrap(), Observation::Present);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn missing_secrets_directory_prevents_writing() {
    let world = world();
    let elsewhere = tempfile::tempdir().unwrap();
    let identities = [identity("default", &[], None)];
    let secrets = world.path.join("secrets");
    std::fs::remove_dir(&secrets).unwrap();
    assert!(matches!(tokens(&world).up(&token_specs(&identities, NOW)), Err(IdentityError::NoDir { .. })));
    std::os::unix::fs::symlink(elsewhere.path(), &secrets).unwrap();
    let error = tokens(&world).up(&token_specs(&identities, NOW)).unwrap_err();
    assert_eq!(error.class(), Class::Fatal, "{error}");
    assert!(std::fs::read_dir(elsewhere.path()).unwrap().next().is_none());
}

#[test]
fn the_environment_gets_tokens_under_nomads_names() {
    let world = world();
    let mut identities =
        [identity("default", &[], None), identity("api", &["x"], None), identity("no", &["x"], None)];
    identities[2].env = false;
    let env = tokens(&world).env(&token_specs(&identities, NOW)).unwrap();
    let names: Vec<_> = env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["NOMAD_TOKEN", "NOMAD_TOKEN_api"]);
    assert_eq!(world.signer.verify(env[1].1.reveal()).unwrap()["sub"], "global:default:web:g:httpd:api");
}

/// A container whose user is one of its image could not read its token.
#[test]
fn an_unknown_user_of_an_image_can_read_a_token() {
    let world = world();
    let closed = tokens(&world);
    let open = TaskTokens { access: FileAccess::Anybody, ..tokens(&world) };
    let specs = token_specs(&[identity("default", &[], None)], NOW);
    let file = world.path.join("secrets/nomad_token");
    let mode = || file.metadata().unwrap().mode() & 0o777;
    closed.up(&specs).unwrap();
    assert_eq!(mode(), 0o600);
    // The file of an older release stays until the next renewal or start.
    assert_eq!(open.inspect(&specs).unwrap(), Observation::Present);
    open.up(&specs).unwrap();
    assert_eq!((mode(), open.inspect(&specs).unwrap()), (0o644, Observation::Present));
    assert!(matches!(closed.inspect(&specs).unwrap(), Observation::Foreign { .. }));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(open.inspect(&specs).unwrap(), Observation::Foreign { .. }));
}
