//! Forged and stolen tokens: an attacker knows the public keys, other tokens and their parts, but no private key.

use std::fs;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use herdlet_e2e::{agent::Agent, http};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::{
    common::{is_root, job, sleeper},
    task_api::{IDENTITY, secrets, status, token},
};

/// Starts an agent with a task and a key of Ed25519, whose stored form the test can use. Returns the task's token too.
fn agent() -> (Agent, std::path::PathBuf, String) {
    let mut agent = Agent::start();
    agent.cli(&["identity", "key", "rotate", "--algorithm", "eddsa"]).success();
    agent.apply_and_wait(&job("one", "service", "", &[sleeper("t", IDENTITY)]));
    let dir = secrets(&agent, &agent.single("one.g[0]", "t").alloc, "t");
    let own = token(&dir);
    (agent, dir, own)
}

/// The id of the active key, and the key itself.
pub(super) fn active(agent: &Agent) -> (String, EncodingKey) {
    let text = fs::read(agent.home.state().join("keys/identity.json")).unwrap();
    let stored: Value = serde_json::from_slice(&text).unwrap();
    let key = stored["keys"].as_array().unwrap().last().unwrap();
    let pkcs8 = STANDARD.decode(key["pkcs8"].as_str().unwrap()).unwrap();
    (key["kid"].as_str().unwrap().to_owned(), EncodingKey::from_ed_der(&pkcs8))
}

fn claims_of(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

fn signed(header: &Header, claims: &Value, key: &EncodingKey) -> String {
    jsonwebtoken::encode(header, claims, key).unwrap()
}

#[test]
fn forged_tokens_are_refused() {
    if !is_root() {
        return;
    }
    let (agent, dir, own) = agent();
    let (other, _, others) = self::agent();
    let (kid, key) = active(&agent);
    let header = |algorithm, kid: Option<&str>| {
        let mut header = Header::new(algorithm);
        header.kid = kid.map(str::to_owned);
        header
    };
    let valid = claims_of(&own);
    let with = |name: &str, value: Value| {
        let mut claims = valid.clone();
        claims[name] = value;
        claims
    };
    let parts: Vec<&str> = own.split('.').collect();
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let jwks = http::get(&agent.peer(), "/.well-known/jwks.json").unwrap();
    let public = jwks.json()["keys"].as_array().unwrap().last().unwrap().clone();
    let public_bytes = URL_SAFE_NO_PAD.decode(public["x"].as_str().unwrap()).unwrap();
    let ours = header(Algorithm::EdDSA, Some(&kid));
    let (_, others_key) = active(&other);
    let second = 1_i64;
    let iat = valid["iat"].as_i64().unwrap();
    let mut forged: Vec<(&str, String)> = vec![
        ("another agent's token", others),
        ("another agent's key under our id", signed(&ours, &valid, &others_key)),
        ("no id", signed(&header(Algorithm::EdDSA, None), &valid, &key)),
        ("another id", signed(&header(Algorithm::EdDSA, Some("x")), &valid, &key)),
        ("not valid yet", signed(&ours, &with("nbf", (iat + 7_200).into()), &key)),
        ("expired", signed(&ours, &with("exp", (iat - 7_200).into()), &key)),
        ("expired at the beginning", signed(&ours, &with("exp", second.into()), &key)),
        ("another audience", signed(&ours, &with("aud", json!(["vault.io"])), &key)),
        ("no audience", signed(&ours, &with("aud", json!([])), &key)),
        ("an unknown allocation", signed(&ours, &with("nomad_allocation_id", json!(kid)), &key)),
        ("another job", signed(&ours, &with("nomad_job_id", json!("two")), &key)),
        ("another namespace", signed(&ours, &with("nomad_namespace", json!("prod")), &key)),
        ("an unknown task", signed(&ours, &with("nomad_task", json!("u")), &key)),
        (
            "other claims",
            format!("{}.{}.{}", parts[0], encoded(&with("nomad_job_id", json!("two"))), parts[2]),
        ),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("two parts", format!("{}.{}", parts[0], parts[1])),
    ];
    for name in ["none", "None", "NONE", ""] {
        let header = encoded(&json!({ "alg": name, "typ": "JWT", "kid": kid }));
        forged.push(("no algorithm", format!("{header}.{}.", parts[1])));
        forged.push(("no algorithm, but a signature", format!("{header}.{}.{}", parts[1], parts[2])));
    }
    let symmetric = header(Algorithm::HS256, Some(&kid));
    for secret in
        [&public_bytes[..], public["x"].as_str().unwrap().as_bytes(), public.to_string().as_bytes(), b""]
    {
        let key = EncodingKey::from_secret(secret);
        forged.push(("the public key as a secret", signed(&symmetric, &valid, &key)));
    }
    // A key of the attacker's in the header itself.
    let embedded =
        json!({ "alg": "EdDSA", "typ": "JWT", "kid": "mine", "jwk": public, "jku": "http://127.0.0.1:1/" });
    forged.push(("a key in the header", format!("{}.{}.{}", encoded(&embedded), parts[1], parts[2])));
    // The tests sign as the agent does.
    assert_eq!(status(&dir, "/v1/vars", &signed(&ours, &valid, &key)), Some(200));
    for (chunk, (what, token)) in forged.iter().enumerate() {
        let code = status(&dir, "/v1/vars", token);
        // A task may try only some unknown tokens in a second.
        let is_refused = matches!(code, Some(403 | 429));
        assert!(is_refused, "{chunk}: {what}: {code:?}");
        if code == Some(429) {
            let answered = herdlet_e2e::wait::until("it is judged", || {
                status(&dir, "/v1/vars", token).filter(|code| *code != 429)
            });
            assert_eq!(answered, 403, "{what}");
        }
    }
    assert_eq!(status(&dir, "/v1/vars", &own), Some(200));
    other.finish();
    agent.finish();
}

#[test]
fn keys_are_shown_to_nobody() {
    if !is_root() {
        return;
    }
    let (mut agent, _, own) = agent();
    let text = fs::read_to_string(agent.home.state().join("keys/identity.json")).unwrap();
    let stored: Value = serde_json::from_str(&text).unwrap();
    let secret = stored["keys"][0]["pkcs8"].as_str().unwrap().to_owned();
    let shown = [
        agent.cli(&["identity", "key", "list", "-o", "json"]).success().stdout,
        http::get(&agent.peer(), "/.well-known/jwks.json").unwrap().body,
        http::get(&agent.peer(), "/v1/operator/keyring/keys").unwrap().body,
        agent.cli(&["get", "jobs", "-o", "json"]).success().stdout,
    ];
    agent.crash();
    for text in shown.into_iter().chain([agent.log()]) {
        assert!(!text.contains(&secret[20..60]) && !text.contains(&own), "{text}");
    }
    agent.finish();
}
