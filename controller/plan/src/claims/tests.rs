//! Claims of tokens, by example.

use super::*;
use crate::env::fixture;

const NOW: UnixNanos = UnixNanos(1_790_000_000_900_000_000);

fn claims(identity: &Identity, issuer: Option<&str>) -> serde_json::Value {
    let (alloc, task) = (fixture::alloc(), fixture::task());
    let grant = Grant { alloc: &alloc, task: &task, identity, issued_at: NOW, token_id: "an-id", issuer };
    serde_json::to_value(Claims::new(&grant)).unwrap()
}

#[test]
fn a_default_identity() {
    assert_eq!(
        claims(&fixture::identity("default", &[], None), None),
        serde_json::json!({
            "nomad_namespace": "default",
            "nomad_job_id": "web",
            "nomad_allocation_id": fixture::ALLOC_ID,
            "nomad_task": "redis",
            "sub": "global:default:web:cache:redis:default",
            "aud": ["nomadproject.io"],
            "iat": 1_790_000_000,
            "nbf": 1_790_000_000,
            "jti": "an-id",
        })
    );
}

#[test]
fn an_identity_with_audience_ttl_and_issuer() {
    let identity = fixture::identity("api", &["example.test", "b"], Some(Duration::from_millis(3_600_100)));
    let claims = claims(&identity, Some("https://node.test"));
    assert_eq!(claims["sub"], "global:default:web:cache:redis:api");
    assert_eq!(claims["aud"], serde_json::json!(["example.test", "b"]));
    // 0.9 s + 3600.1 s
    assert_eq!(claims["exp"], 1_790_003_601);
    assert_eq!(claims["iss"], "https://node.test");
}

#[test]
fn a_ttl_of_nothing_is_none_and_an_endless_one_ends() {
    let nothing = fixture::identity("api", &["a"], Some(Duration::ZERO));
    assert!(claims(&nothing, None).get("exp").is_none());
    let endless = fixture::identity("api", &["a"], Some(Duration::MAX));
    assert_eq!(claims(&endless, None)["exp"], i64::MAX / 1_000_000_000);
}

// A job `web:cache` with a group `x` got the first parts of the subject of job `web`, group `cache`.
#[test]
fn a_name_with_a_colon_is_one_part_of_the_subject() {
    let (mut alloc, task) = (fixture::alloc(), fixture::task());
    alloc.job_key.id = "web:cache".into();
    alloc.group = "a%3Ab".into();
    let identity = fixture::identity("default", &[], None);
    let grant = Grant {
        alloc: &alloc,
        task: &task,
        identity: &identity,
        issued_at: NOW,
        token_id: "x",
        issuer: None,
    };
    assert_eq!(Claims::new(&grant).sub, "global:default:web%3Acache:a%253Ab:redis:default");
}
