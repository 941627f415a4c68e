//! Workload identities: the tasks' tokens, as a third party would verify them.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, wait,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::JwkSet};
use serde_json::Value;

use crate::{
    common::{is_root, job, shell, sleeper},
    task_api::{secrets, status, token},
    templates::{RECORDER, recorded},
};

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
    let key = keys.find(header.kid.as_deref().unwrap()).unwrap();
    let mut rules = Validation::new(header.alg);
    rules.validate_aud = false;
    // Nomad's default identity does not expire; expirations of others are verified.
    rules.required_spec_claims.clear();
    assert!(matches!(header.alg, Algorithm::RS256 | Algorithm::EdDSA), "{header:?}");
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
    for (field, value) in [("kty", "RSA"), ("e", "AQAB"), ("alg", "RS256"), ("use", "sig")] {
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

fn keys(agent: &Agent) -> Value {
    let list = agent.cli(&["identity", "key", "list", "-o", "json"]).success().stdout;
    serde_json::from_str::<Value>(&list).unwrap()["keys"].clone()
}

#[test]
fn keys_are_rotated_and_old_tokens_stay_valid() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    assert_eq!(keys(&agent), serde_json::json!([]), "no task needs one");
    let identity = "identities: [{file: true}]";
    agent.apply_and_wait(&job("old", "service", "", &[sleeper("t", identity), sleeper("u", identity)]));
    let member = agent.single("old.g[0]", "t");
    let dir = secrets(&agent, &member.alloc, "t");
    let old = token(&dir);
    let kid = |token: &str| jsonwebtoken::decode_header(token).unwrap().kid.unwrap();
    let rotate = |more: &[&str]| {
        let rotated =
            agent.cli(&[&["identity", "key", "rotate", "-o", "json"], more].concat()).success().stdout;
        serde_json::from_str::<Value>(&rotated).unwrap()["keys"][0].clone()
    };
    // One that services learn first does not sign yet.
    let next = rotate(&["--publish-for", "10h", "--algorithm", "eddsa"]);
    assert_eq!((&next["state"], &next["algorithm"]), (&"prepublished".into(), &"EdDSA".into()));
    let added = rotate(&[]);
    assert_eq!(keys(&agent).as_array().unwrap().len(), 3);
    let refused = agent.cli(&["identity", "key", "remove", &kid(&old)]).ended(1);
    assert!(refused.stderr.contains("less than an hour ago"), "{}", refused.stderr);
    agent.crash();
    agent.apply_and_wait(&job("new", "service", "", &[sleeper("t", identity)]));
    let new = token(&secrets(&agent, &agent.single("new.g[0]", "t").alloc, "t"));
    assert_eq!(kid(&new), added["id"].as_str().unwrap());
    assert_eq!(token(&dir), old, "nothing is issued again");
    assert_eq!(agent.single("old.g[0]", "t"), member);
    for token in [&old, &new] {
        assert_eq!(claims(&agent, token)["nomad_task"], "t");
        assert_eq!(status(&dir, "/v1/vars", token), Some(200));
    }
    // Without its key, a token is refused. One that was accepted is cached for a while, so this is another one.
    let other = token(&secrets(&agent, &member.alloc, "u"));
    assert_eq!(kid(&other), kid(&old));
    agent.cli(&["identity", "key", "remove", "--force", &kid(&old)]).success();
    assert_eq!(status(&dir, "/v1/vars", &other), Some(403));
    assert_eq!(status(&dir, "/v1/vars", &new), Some(200));
    agent.finish();
}

/// An agent that had restarted never renewed such a token.
#[test]
fn an_expiring_variable_is_renewed_by_the_next_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let identities = "identities: [{name: brief, aud: [x.test], ttl: 20s, env: true, change_mode: restart}]";
    agent.apply_and_wait(&job("env", "service", "", &[sleeper("t", identities)]));
    let variable = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        environment.split('\0').find_map(|pair| Some(pair.strip_prefix("NOMAD_TOKEN_brief=")?.to_owned()))
    };
    let first = agent.single("env.g[0]", "t");
    let before = variable(first.pid).unwrap();
    agent.crash();
    let next = wait::until("a restart with a new token", || {
        let member = agent.members().into_iter().find(|member| member.pid != first.pid)?;
        variable(member.pid).filter(|token| *token != before)
    });
    assert!(claims(&agent, &next)["exp"].as_u64().unwrap() > now());
    agent.finish();
}

#[test]
fn a_task_gets_the_signal_of_its_identity_when_the_token_is_renewed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let identities = "identities: [{name: brief, aud: [x.test], ttl: 20s, file: true, change_mode: signal, change_signal: SIGUSR1}]";
    agent.apply_and_wait(&job("sig", "service", "", &[shell("t", RECORDER, identities)]));
    let member = agent.single("sig.g[0]", "t");
    let file = secrets(&agent, &member.alloc, "t").join("nomad_brief.jwt");
    let first = fs::read_to_string(&file).unwrap();
    wait::until_true("the signal", || recorded(&agent, "sig.g[0]", "t").iter().any(|line| line == "usr1"));
    // Not at once if the first token was read after the first renewal.
    let second =
        wait::until("a new token", || fs::read_to_string(&file).ok().filter(|token| *token != first));
    assert!(claims(&agent, &second)["exp"].as_u64() > claims(&agent, &first)["exp"].as_u64());
    assert_eq!(agent.single("sig.g[0]", "t"), member);
    agent.finish();
}

#[test]
fn services_discover_the_issuer_and_its_claims() {
    if !is_root() {
        return;
    }
    let config = "identities:\n  oidc_issuer: https://id.example.test\n  extra_claims: {where: \"${node.datacenter}\"}\n  \
                  optional_extra_claims: {who: \"${job.id}/${task.name}\"}\n";
    let mut agent = Agent::start_with(Setup::default().config(config));
    let served = http::get(&agent.peer(), "/.well-known/openid-configuration").unwrap().json();
    assert_eq!(
        (&served["issuer"], &served["jwks_uri"]),
        (&"https://id.example.test".into(), &"https://id.example.test/.well-known/jwks.json".into())
    );
    let identities =
        "identities: [{name: api, aud: [x.test], file: true, extra_claims: [who, none]}, {file: true}]";
    agent.apply_and_wait(&job("told", "service", "", &[sleeper("t", identities)]));
    let dir = secrets(&agent, &agent.single("told.g[0]", "t").alloc, "t");
    let api = claims(&agent, &fs::read_to_string(dir.join("nomad_api.jwt")).unwrap());
    assert_eq!(api["iss"], "https://id.example.test");
    assert_eq!(api["extra_claims"], serde_json::json!({ "where": "dc1", "who": "told/t" }));
    let plain = claims(&agent, &token(&dir));
    assert_eq!(plain["extra_claims"], serde_json::json!({ "where": "dc1" }));
    agent.finish();
}

#[test]
fn damaged_keys_delay_new_tasks_only() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let identity = "identities: [{file: true}]";
    agent.apply_and_wait(&job("before", "service", "", &[sleeper("t", identity)]));
    let member = agent.single("before.g[0]", "t");
    let dir = secrets(&agent, &member.alloc, "t");
    let first = token(&dir);
    agent.kill();
    let file = agent.home.state().join("keys/identity.json");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    agent.launch();
    agent.apply(&job("after", "service", "", &[sleeper("t", identity)]));
    agent.until_printed(&["explain", "after.g[0]"], |text| text.contains("identity.json is damaged"));
    assert_eq!(status(&dir, "/v1/vars", &first), Some(500));
    assert_eq!((agent.single("before.g[0]", "t"), token(&dir)), (member, first.clone()));
    assert_eq!(fs::read(&file).unwrap().len(), whole.len() / 2, "it is not replaced");
    fs::write(&file, &whole).unwrap();
    agent.until_running("after.g[0]", "t");
    assert_eq!(status(&dir, "/v1/vars", &first), Some(200));
    assert_eq!(token(&dir), first);
    agent.finish();
}
