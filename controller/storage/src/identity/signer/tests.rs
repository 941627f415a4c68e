//! Keys on disk: generation, rotation, removal, damage.

use std::os::unix::fs::MetadataExt as _;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};

use super::*;

fn env() -> (tempfile::TempDir, Signer) {
    let temp = tempfile::tempdir().unwrap();
    let signer = Signer::new(temp.path().join("keys"));
    (temp, signer)
}

fn again(signer: &Signer) -> Signer {
    Signer::new(signer.dir.clone())
}

fn kid_of(token: &Token) -> String {
    jsonwebtoken::decode_header(token.reveal()).unwrap().kid.unwrap()
}

#[test]
fn the_first_key_is_generated_when_it_is_needed_and_kept() {
    let (_temp, signer) = env();
    signer.check().unwrap();
    assert_eq!(signer.infos().unwrap(), []);
    assert_eq!(examine(&signer.dir).unwrap(), 0);
    let token = signer.sign(&json!({ "a": 1 })).unwrap();
    assert_eq!(jsonwebtoken::decode_header(token.reveal()).unwrap().alg, Algorithm::RS256);
    let next = again(&signer);
    assert_eq!(next.verify(token.reveal()).unwrap()["a"], 1);
    assert_eq!(next.infos().unwrap(), signer.infos().unwrap());
    assert_eq!(next.jwks().unwrap(), signer.jwks().unwrap());
    assert_eq!((next.infos().unwrap().len(), examine(&signer.dir).unwrap()), (1, 1));
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!((mode(&signer.path(KEYS_FILE)), mode(&signer.dir)), (0o600, 0o700));
    let shown = format!("{token:?}{signer:?}");
    assert!(!shown.contains(token.reveal()) && !shown.contains("pkcs8"), "{shown}");
}

#[test]
fn old_keys_verify_until_they_are_removed() {
    let (_temp, signer) = env();
    let first = signer.sign(&json!({ "a": 1 })).unwrap();
    let rotated = signer.rotate(SigningAlgorithm::EdDsa, 0).unwrap();
    assert_eq!((rotated.algorithm, rotated.state), (SigningAlgorithm::EdDsa, KeyState::Active));
    let second = signer.sign(&json!({ "a": 2 })).unwrap();
    assert_eq!(kid_of(&second), rotated.kid);
    for signer in [&signer, &again(&signer)] {
        assert_eq!(signer.verify(first.reveal()).unwrap()["a"], 1);
        assert_eq!(signer.verify(second.reveal()).unwrap()["a"], 2);
        assert_eq!(signer.jwks().unwrap()["keys"].as_array().unwrap().len(), 2);
    }
    let infos = signer.infos().unwrap();
    let until_s = infos[0].active_from_s;
    assert_eq!(infos[1].state, KeyState::Inactive { until_s });
    assert!(matches!(signer.remove(&rotated.kid), Err(IdentityError::InUse { .. })));
    assert!(matches!(signer.remove("other"), Err(IdentityError::NoSuchKey { .. })));
    signer.remove(&kid_of(&first)).unwrap();
    for signer in [&signer, &again(&signer)] {
        assert!(matches!(signer.verify(first.reveal()), Err(IdentityError::OtherKey)));
        signer.verify(second.reveal()).unwrap();
    }
}

#[test]
fn a_published_key_signs_when_its_time_has_come() {
    let (_temp, signer) = env();
    let first = kid_of(&signer.sign(&json!({})).unwrap());
    let from = now_s() + 3_600;
    let next = signer.rotate(SigningAlgorithm::Rs256, from).unwrap();
    assert_eq!((next.state, next.active_from_s), (KeyState::Prepublished, from));
    assert_eq!(kid_of(&signer.sign(&json!({})).unwrap()), first);
    assert_eq!(signer.jwks().unwrap()["keys"].as_array().unwrap().len(), 2);
    let keys = signer.keys().unwrap();
    let active = |now| keys[active_at(&keys, now)].kid.clone();
    assert_eq!((active(from - 1), active(from), active(0)), (first.clone(), next.kid.clone(), first.clone()));
    let states: Vec<_> = infos(&keys, from).into_iter().map(|info| (info.kid, info.state)).collect();
    assert_eq!(states, [(next.kid, KeyState::Active), (first, KeyState::Inactive { until_s: from })]);
}

/// A release without rotation has left its key.
#[test]
fn the_key_of_an_earlier_release_signs_until_the_first_rotation() {
    let (_temp, signer) = env();
    let old = SigningKey::generate(SigningAlgorithm::EdDsa, 0, 0).unwrap();
    std::fs::create_dir(&signer.dir).unwrap();
    std::fs::write(signer.path(FIRST_KEY_FILE), &*old.pkcs8).unwrap();
    let token = signer.sign(&json!({ "a": 1 })).unwrap();
    let kid = kid_of(&token);
    assert_eq!((kid.len(), signer.path(KEYS_FILE).exists()), (43, false), "its thumbprint");
    signer.rotate(SigningAlgorithm::Rs256, 0).unwrap();
    let next = again(&signer);
    assert_eq!((next.infos().unwrap().len(), examine(&signer.dir).unwrap()), (2, 2));
    assert_eq!(next.verify(token.reveal()).unwrap()["a"], 1);
    next.remove(&kid).unwrap();
    assert!(!signer.path(FIRST_KEY_FILE).exists());
    assert!(again(&signer).verify(token.reveal()).is_err());
}

/// The agent used to set a damaged file aside and to generate a new key, which invalidated all tokens.
#[test]
fn damaged_keys_are_an_error_until_they_are_repaired_or_removed() {
    let (_temp, signer) = env();
    let token = signer.sign(&json!({})).unwrap();
    let path = signer.path(KEYS_FILE);
    let whole = std::fs::read(&path).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let key = text.split("pkcs8\":\"").nth(1).unwrap()[..60].to_owned();
    let unknown = text.replace("RS256", "ES512");
    let other = text.replace("RS256", "EdDSA");
    for bad in [
        &whole[..0],
        &whole[..whole.len() / 2],
        b"{\"keys\":[]}",
        unknown.as_bytes(),
        other.as_bytes(),
        b"\xff\0",
    ] {
        std::fs::write(&path, bad).unwrap();
        let next = again(&signer);
        for error in [
            next.check().unwrap_err(),
            next.sign(&json!({})).unwrap_err(),
            next.verify(token.reveal()).unwrap_err(),
            next.jwks().unwrap_err(),
            next.rotate(SigningAlgorithm::EdDsa, 0).unwrap_err(),
            next.remove(&kid_of(&token)).unwrap_err(),
            examine(&signer.dir).unwrap_err(),
        ] {
            let message = error.to_string();
            assert!(matches!(error, IdentityError::Damaged { .. }) && !error.is_about_token(), "{message}");
            assert!(message.contains("identity.json is damaged") && !message.contains(&key), "{message}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), bad, "it is not touched");
        // A repaired file needs no restart.
        std::fs::write(&path, &whole).unwrap();
        next.verify(token.reveal()).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    assert!(again(&signer).verify(token.reveal()).unwrap_err().is_about_token());
    std::fs::write(signer.path(FIRST_KEY_FILE), "rubbish").unwrap();
    assert!(matches!(again(&signer).sign(&json!({})), Err(IdentityError::Damaged { .. })));
}

#[test]
fn forged_tokens_are_not_verified() {
    let (_temp, ours) = env();
    let (_other, others) = env();
    let claims = json!({ "a": 1 });
    ours.rotate(SigningAlgorithm::EdDsa, 0).unwrap();
    ours.rotate(SigningAlgorithm::Rs256, 0).unwrap();
    let keys = ours.keys().unwrap();
    let refused = |token: &str| assert!(ours.verify(token).unwrap_err().is_about_token(), "{token}");
    refused(others.sign(&claims).unwrap().reveal());
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for key in keys.iter() {
        let token = key.sign(&claims).unwrap();
        let parts: Vec<&str> = token.reveal().split('.').collect();
        ours.verify(token.reveal()).unwrap();
        // Another payload, no signature, or a header that the signature is not of.
        refused(&format!("{}.{}.{}", parts[0], encoded(&json!({ "a": 2 })), parts[2]));
        for algorithm in ["none", "HS256", "RS256", "EdDSA", "RS512"] {
            let header = encoded(&json!({ "alg": algorithm, "kid": key.kid, "typ": "JWT" }));
            refused(&format!("{header}.{}.", parts[1]));
            let is_same = header == parts[0];
            if !is_same {
                refused(&format!("{header}.{}.{}", parts[1], parts[2]));
            }
        }
        // The public key as the secret of a symmetric algorithm.
        for secret in [key.jwk().to_string(), key.jwk()["x"].to_string(), key.jwk()["n"].to_string()] {
            let mut header = Header::new(Algorithm::HS256);
            header.kid = Some(key.kid.clone());
            let forged =
                jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap();
            refused(&forged);
        }
        // Signed by our key, which the header does not name, or with another one's algorithm.
        let algorithm = jsonwebtoken::decode_header(token.reveal()).unwrap().alg;
        let others: Vec<String> =
            keys.iter().map(|key| key.kid.clone()).filter(|kid| *kid != key.kid).collect();
        for kid in [None, Some("other".to_owned())].into_iter().chain(others.into_iter().map(Some)) {
            let mut header = Header::new(algorithm);
            header.kid = kid;
            refused(key.sign_with(&header, &claims).unwrap().reveal());
        }
    }
    refused("");
    refused("a.b.c");
}
