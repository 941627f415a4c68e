//! Claims of tokens, by example.

use super::*;
use crate::env::fixture;

const NOW: UnixNanos = UnixNanos(1_790_000_000_900_000_000);

fn claims(identity: &Identity, issuer: &Issuer) -> serde_json::Value {
    let (alloc, task, node) = (fixture::alloc(), fixture::task(), fixture::node());
    let grant = Grant {
        alloc: &alloc,
        holder: Holder::Task(&task),
        identity,
        issued_at: NOW,
        token_id: "an-id",
        issuer,
        node: &node,
    };
    serde_json::to_value(Claims::new(&grant)).unwrap()
}

fn none() -> Issuer {
    Issuer::default()
}

#[test]
fn a_default_identity() {
    assert_eq!(
        claims(&fixture::identity("default", &[], None), &none()),
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
    let issuer = Issuer { url: Some("https://node.test".to_string()), ..none() };
    let claims = claims(&identity, &issuer);
    assert_eq!(claims["sub"], "global:default:web:cache:redis:api");
    assert_eq!(claims["aud"], serde_json::json!(["example.test", "b"]));
    // 0.9 s + 3600.1 s
    assert_eq!(claims["exp"], 1_790_003_601);
    assert_eq!(claims["iss"], "https://node.test");
}

#[test]
fn a_ttl_of_nothing_is_none_and_an_endless_one_ends() {
    let nothing = fixture::identity("api", &["a"], Some(Duration::ZERO));
    assert!(claims(&nothing, &none()).get("exp").is_none());
    let endless = fixture::identity("api", &["a"], Some(Duration::MAX));
    assert_eq!(claims(&endless, &none())["exp"], i64::MAX / 1_000_000_000);
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
        holder: Holder::Task(&task),
        identity: &identity,
        issued_at: NOW,
        token_id: "x",
        issuer: &none(),
        node: &fixture::node(),
    };
    assert_eq!(Claims::new(&grant).sub, "global:default:web%3Acache:a%253Ab:redis:default");
}

// It got the audience of the default identity, with which it could have read the variables of its job.
#[test]
fn another_identity_without_audience_has_none() {
    assert!(claims(&fixture::identity("api", &[], None), &none()).get("aud").is_none());
}

#[test]
fn the_operator_adds_claims_and_offers_others() {
    let claim = |name: &str, text: &str| (name.to_string(), text.to_string());
    let issuer = Issuer {
        extra_claims: [claim("pool", "${node.pool}/${node.class}"), claim("where", "x${nothing}")].into(),
        optional_extra_claims: [
            claim("who", "${job.namespace}/${job.id}/${group.name}/${task.name}@${node.id}"),
            claim("secret", "${job.meta.none}"),
        ]
        .into(),
        ..none()
    };
    let mut identity = fixture::identity("api", &["x"], None);
    let pool = serde_json::json!({ "pool": "default/edge", "where": "x${nothing}" });
    assert_eq!(claims(&identity, &issuer)["extra_claims"], pool);
    identity.extra_claims = vec!["who".to_string(), "unknown".to_string()];
    let all = serde_json::json!({ "pool": "default/edge", "where": "x${nothing}", "who": "default/web/cache/redis@n-1" });
    assert_eq!(claims(&identity, &issuer)["extra_claims"], all);
    assert!(claims(&identity, &none()).get("extra_claims").is_none());
}

/// As in Nomad 1.7: a role of Vault can be bound to them.
#[test]
fn only_the_identity_for_vault_has_its_role_and_namespace() {
    let (alloc, mut task, node) = (fixture::alloc(), fixture::task(), fixture::node());
    let access = herdlet_api_types::fixture::vault_access();
    let (role, namespace) = (Some("web".to_string()), Some("team".to_string()));
    task.vault = Some(herdlet_api_types::job::VaultAccess { role, namespace, ..access });
    for (name, expected) in [("vault_default", Some("web team")), ("vault_other", None), ("api", None)] {
        let identity = fixture::identity(name, &["vault.io"], None);
        let grant = Grant {
            alloc: &alloc,
            holder: Holder::Task(&task),
            identity: &identity,
            issued_at: NOW,
            token_id: "an-id",
            issuer: &none(),
            node: &node,
        };
        let claims = Claims::new(&grant);
        let found = claims.vault_role.zip(claims.vault_namespace).map(|(role, of)| role + " " + &of);
        assert_eq!(found.as_deref(), expected, "{name}");
    }
}

/// As in Nomad 1.7: binding rules of Consul name services.
#[test]
fn the_identity_of_a_service_names_the_service() {
    let (alloc, node) = (fixture::alloc(), fixture::node());
    let grant = Grant {
        alloc: &alloc,
        holder: Holder::Service("web"),
        identity: &fixture::identity("consul-service_web-http", &["consul.io"], None),
        issued_at: NOW,
        token_id: "an-id",
        issuer: &none(),
        node: &node,
    };
    let claims = serde_json::to_value(Claims::new(&grant)).unwrap();
    assert_eq!(claims["nomad_service"], "web");
    assert_eq!(claims["sub"], "global:default:web:cache:web:consul-service_web-http");
    assert!(claims.get("nomad_task").is_none());
}
