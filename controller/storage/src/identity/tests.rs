//! Token files: writing and inspection.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use herdlet_api_types::{
    Duration, UnixNanos,
    job::{ChangeMode, Identity},
};
use herdlet_base::{observation::Observation, privileges::Privileges};

use super::*;
use crate::task_dir::TaskDir;

const NOW: UnixNanos = UnixNanos(1_700_000_000_500_000_000);

fn identity(name: &str, aud: &[&str], ttl: Option<Duration>) -> Identity {
    Identity {
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

#[test]
fn the_key_is_kept_and_the_same_after_a_restart() {
    let temp = tempfile::tempdir().unwrap();
    let keys = temp.path().join("keys");
    let first = Signer::load_or_create(&keys).unwrap();
    let second = Signer::load_or_create(&keys).unwrap();
    assert_eq!(first.kid(), second.kid());
    let file = keys.join(KEY_FILE).metadata().unwrap();
    assert_eq!((file.mode() & 0o777, keys.metadata().unwrap().mode() & 0o777), (0o600, 0o700));
    let token = first.sign(&serde_json::json!({"a": 1})).unwrap();
    assert_eq!(second.verify(token.reveal()).unwrap()["a"], 1);
    assert!(!format!("{token:?}{first:?}").contains(token.reveal()));
}

#[test]
fn only_tokens_of_this_key_with_its_id_are_verified() {
    let temp = tempfile::tempdir().unwrap();
    let ours = Signer::load_or_create(&temp.path().join("ours")).unwrap();
    let others = Signer::load_or_create(&temp.path().join("others")).unwrap();
    let claims = serde_json::json!({"a": 1});
    let token = ours.sign(&claims).unwrap();
    ours.verify(token.reveal()).unwrap();
    ours.verify(others.sign(&claims).unwrap().reveal()).unwrap_err();
    let encoded = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let parts: Vec<&str> = token.reveal().split('.').collect();
    let (payload, signature) = (parts[1], parts[2]);
    for header in [
        serde_json::json!({"alg": "none", "kid": ours.kid()}),
        serde_json::json!({"alg": "HS256", "kid": ours.kid()}),
        serde_json::json!({"alg": "EdDSA", "kid": ours.kid(), "typ": "JWT", "x": 1}),
    ] {
        for signature in ["", signature] {
            ours.verify(&format!("{}.{payload}.{signature}", encoded(header.clone()))).unwrap_err();
        }
    }
    let other_claims = encoded(serde_json::json!({"a": 2}));
    ours.verify(&format!("{}.{other_claims}.{signature}", parts[0])).unwrap_err();
    // Signed by our key, which the header does not name.
    for kid in [None, Some("other".to_owned())] {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = kid;
        let token = jsonwebtoken::encode(&header, &claims, &ours.private).unwrap();
        assert!(matches!(ours.verify(&token), Err(IdentityError::OtherKey)));
    }
}

#[test]
fn a_damaged_key_is_set_aside_and_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let first = Signer::load_or_create(temp.path()).unwrap();
    std::fs::write(temp.path().join(KEY_FILE), "rubbish").unwrap();
    let second = Signer::load_or_create(temp.path()).unwrap();
    assert_ne!(first.kid(), second.kid());
    assert_eq!(std::fs::read(temp.path().join(DAMAGED_FILE)).unwrap(), b"rubbish");
    let token = first.sign(&serde_json::json!({})).unwrap();
    assert!(matches!(second.verify(token.reveal()), Err(IdentityError::Verify(_))));
}

#[test]
fn the_key_set_verifies_tokens_and_its_key_id_is_the_thumbprint() {
    // The key pair and thumbprint from RFC 8037, appendix A.
    assert_eq!(
        thumbprint("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"),
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    );
    let temp = tempfile::tempdir().unwrap();
    let signer = Signer::load_or_create(temp.path()).unwrap();
    let set: jsonwebtoken::jwk::JwkSet = serde_json::from_value(signer.jwks()).unwrap();
    let token = signer.sign(&token_spec("httpd", &identity("api", &["a", "b"], None), NOW).claims).unwrap();
    let header = jsonwebtoken::decode_header(token.reveal()).unwrap();
    let key = DecodingKey::from_jwk(set.find(&header.kid.unwrap()).unwrap()).unwrap();
    let mut rules = Validation::new(Algorithm::EdDSA);
    rules.set_audience(&["b"]);
    rules.required_spec_claims.clear();
    let claims = jsonwebtoken::decode::<serde_json::Value>(token.reveal(), &key, &rules).unwrap().claims;
    assert_eq!(claims["sub"], "global:default:web:g:httpd:api");
    assert_eq!(claims["iat"], 1_700_000_000);
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
    let signer = Signer::load_or_create(&temp.path().join("keys")).unwrap();
    World { _temp: temp, signer, dir, path }
}

fn tokens(world: &World) -> TaskTokens<'_> {
    TaskTokens {
        signer: &world.signer,
        task_dir: &world.dir,
        task: "httpd",
        owner: None,
        privileges: Privileges::none(),
    }
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
    assert_eq!(
        tokens.up(&token_specs(&identities, NOW)).unwrap().renew_in,
        Some(std::time::Duration::from_secs(30))
    );
    let soon = UnixNanos(NOW.0 + 10_000_000_000);
    assert_eq!(tokens.renew_in(&token_specs(&identities, soon)), Some(std::time::Duration::from_secs(20)));
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
    tokens.up(&token_specs(&identities, later)).unwrap();
    assert_eq!(tokens.inspect(&token_specs(&identities, later)).unwrap(), Observation::Present);
    assert_ne!(first, std::fs::read_to_string(&file).unwrap());

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
