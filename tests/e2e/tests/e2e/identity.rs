//! Workload identities: the tasks' tokens, as a third party would verify them.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{agent::Agent, http, wait};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::JwkSet};
use serde_json::Value;

use crate::common::{is_root, job, shell, sleeper};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the claims of a token, verified like a third party with the key that the agent serves under the
/// token's key id.
fn claims(agent: &Agent, token: &str) -> Value {
    let served = http::get(&agent.peer(), "/.well-known/jwks.json").unwrap();
    assert_eq!(served.status, 200, "{}", served.body);
    let keys: JwkSet = serde_json::from_str(&served.body).unwrap();
    let header = jsonwebtoken::decode_header(token.trim()).unwrap();
    let key = keys.find(&header.kid.unwrap()).unwrap();
    let mut rules = Validation::new(Algorithm::EdDSA);
    rules.validate_aud = false;
    // Nomad's default identity does not expire; expirations of others are verified.
    rules.required_spec_claims.clear();
    let key = DecodingKey::from_jwk(key).unwrap();
    jsonwebtoken::decode::<Value>(token.trim(), &key, &rules).unwrap().claims
}

#[test]
fn identity_tokens_are_signed_and_expire() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let identities =
        "identities:\n- {name: api, aud: [example.test], ttl: 1h, file: true, env: true}\n- {file: true}";
    agent.apply_and_wait(&job("who", "service", "", &[sleeper("t", identities)]));
    let member = agent.single("who.g[0]", "t");
    let dir = agent.home.state().join("alloc").join(&member.alloc).join("t/secrets");
    let file = dir.join("nomad_api.jwt");
    let token = fs::read_to_string(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o077, 0, "only the owner can read it");
    let environment = fs::read(format!("/proc/{}/environ", member.pid)).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let variable =
        environment.split('\0').find_map(|variable| variable.strip_prefix("NOMAD_TOKEN_api=")).unwrap();
    assert_eq!(claims(&agent, variable)["nomad_task"], "t");

    let claims_of_api = claims(&agent, &token);
    assert!(
        claims_of_api["aud"] == "example.test" || claims_of_api["aud"] == serde_json::json!(["example.test"]),
        "{claims_of_api}"
    );
    let keys = http::get(&agent.peer(), "/.well-known/jwks.json").unwrap().json();
    let key = &keys["keys"][0];
    for (field, value) in [("kty", "OKP"), ("crv", "Ed25519"), ("alg", "EdDSA"), ("use", "sig")] {
        assert_eq!(key[field], value, "{keys}");
    }
    assert_eq!(claims_of_api["nomad_job_id"], "who");
    assert_eq!(claims_of_api["nomad_task"], "t");
    assert_eq!(claims_of_api["nomad_allocation_id"], Value::from(member.alloc.clone()));
    assert!(claims_of_api["sub"].as_str().is_some_and(|sub| sub.contains(":who:g:t:")), "{claims_of_api}");
    let (issued, expires) = (claims_of_api["iat"].as_u64().unwrap(), claims_of_api["exp"].as_u64().unwrap());
    assert_eq!(expires - issued, 3600);
    // Neither in the future nor expired; the test's duration must not matter.
    assert!(issued <= now() + 1 && expires > now());

    let plain = fs::read_to_string(dir.join("nomad_token")).unwrap();
    assert_eq!(claims(&agent, &plain)["nomad_job_id"], "who");

    // The key is stored: a token stays valid after a crash.
    agent.crash();
    assert_eq!(claims(&agent, &token), claims_of_api);
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
    assert_eq!(agent.single("who.g[0]", "t"), member);
    agent.finish();
}

#[test]
fn token_is_renewed_without_touching_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let identities = "identities: [{name: brief, aud: [x.test], ttl: 4s, file: true}]";
    let path = agent.manifest(&job("renewed", "service", "", &[sleeper("t", identities)]));
    let output = agent.cli(&["apply", "--wait", "-f", &path.display().to_string()]);
    if output.code == 2 {
        eprintln!("a ttl this short is refused: {}", output.stderr);
        agent.finish();
        return;
    }
    let member = agent.single("renewed.g[0]", "t");
    let file = agent.home.state().join("alloc").join(&member.alloc).join("t/secrets/nomad_brief.jwt");
    let first = fs::read_to_string(&file).unwrap();
    let ends = claims(&agent, &first)["exp"].as_u64();
    let second = wait::until("a new token", || {
        fs::read_to_string(&file).ok().filter(|token| *token != first && !token.is_empty())
    });
    assert!(claims(&agent, &second)["exp"].as_u64() > ends);
    assert_eq!(agent.single("renewed.g[0]", "t"), member);
    agent.finish();
}

#[test]
fn a_task_without_identities_has_no_token() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job(
        "anon",
        "batch",
        "",
        &[shell("t", "env | grep -c NOMAD_TOKEN; ls secrets; echo done", "")],
    ));
    let alloc = agent.until_alloc("anon.g[0]", "complete", |alloc| {
        ["complete", "failed"].contains(&alloc.status().as_str())
    });
    let log = agent.until_logged(&alloc.id(), "t", "stdout", |output| output.ends_with("done\n"));
    assert!(log.starts_with("0\n") && !log.contains("token") && !log.contains("jwt"), "{log}");
    agent.finish();
}
