//! Servers that know tokens, forget them, and become unreachable.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_rpc::{address::Address, error::ServerError, framed::Framed, mux::Io};

use super::*;
use crate::{
    acl::Capability,
    cluster_client::Answer,
    test_recordings::{self, text},
};

const OPERATOR: &str = "a8fdd8d2-8773-761b-e930-95fea6bcff5d";
const READER: &str = "f9cac8c8-9442-452c-b414-e204de93dd54";
const BY_ROLE: &str = "4b78fe38-11a5-b1e5-fd34-d3cdfeb80b84";
const BRIEF: &str = "11111111-0000-0000-0000-000000000000";
const LEADER: &str = "22222222-0000-0000-0000-000000000000";

/// Stand-in servers with the error texts of real ones.
#[derive(Default)]
struct Cluster {
    asked: AtomicUsize,
    away: AtomicBool,
    has_no_acls: AtomicBool,
    forgets: AtomicBool,
    /// Before 1.5.
    is_old: AtomicBool,
}

fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| field(name, value.clone())).collect())
}

fn token(kind: &str, policies: &[&str], more: &[(&str, Value)]) -> Value {
    let policies = policies.iter().map(|name| text(name)).collect();
    let mut fields = vec![("Type", text(kind)), ("Policies", Value::List(policies))];
    fields.extend(more.iter().cloned());
    map(&[("Token", map(&fields))])
}

fn error(text: &str) -> CallError {
    ServerError::new(text).into()
}

impl Cluster {
    fn answer(&self, question: &Question) -> Result<Value, CallError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(CallError::NoServers);
        }
        if self.has_no_acls.load(Ordering::SeqCst) {
            return Err(error("rpc error: ACL support disabled"));
        }
        let body = question.body("global", Duration::ZERO);
        assert_eq!(body.get("AllowStale"), Some(&Value::Bool(true)));
        let caller = body.get("AuthToken").and_then(Value::as_text).unwrap();
        match &*question.method {
            "ACL.ResolveToken" => {
                assert_eq!(caller, "", "the call itself is anonymous");
                Ok(match body.get("SecretID").and_then(Value::as_text).unwrap() {
                    _ if self.forgets.load(Ordering::SeqCst) => map(&[("Token", Value::Nil)]),
                    OPERATOR => token("management", &[], &[]),
                    READER => token("client", &["reader"], &[("ExpirationTime", Value::Nil)]),
                    BY_ROLE => {
                        let role = map(&[("ID", text("r1")), ("Name", text("r"))]);
                        token("client", &[], &[("Roles", Value::List(vec![role]))])
                    }
                    BRIEF => {
                        let until = Time::from(SystemTime::now() + Duration::from_secs(1));
                        let until = herdlet_rpc::codec::decode(&herdlet_rpc::codec::encode(&until).unwrap());
                        token("management", &[], &[("ExpirationTime", until.unwrap())])
                    }
                    _ => map(&[("Token", Value::Nil)]),
                })
            }
            "ACL.WhoAmI" if self.is_old.load(Ordering::SeqCst) => {
                Err(error("rpc: can't find method ACL.WhoAmI"))
            }
            "ACL.WhoAmI" if caller == LEADER => {
                let token = token("management", &[], &[]);
                let token = token.get("Token").cloned().unwrap();
                Ok(map(&[("Identity", map(&[("ACLToken", token)]))]))
            }
            "ACL.WhoAmI" => Err(error("ACL token not found")),
            "ACL.GetRolesByID" => {
                let policy = map(&[("Name", text("reader"))]);
                let role = map(&[("Policies", Value::List(vec![policy]))]);
                Ok(map(&[("ACLRoles", map(&[("r1", role)]))]))
            }
            "ACL.GetPolicies" => {
                let Some(Value::List(names)) = body.get("Names") else { panic!("expected a list of names") };
                let known = |name: &Value| match name.as_text().unwrap() {
                    "reader" => Some("namespace \"default\" { capabilities = [\"read-job\",\"read-logs\"] }"),
                    "anonymous" if caller.is_empty() => Some("namespace \"open\" { policy = \"read\" }"),
                    _ => None,
                };
                let rules = names.iter().filter_map(|name| {
                    Some((name.clone(), map(&[("Rules", text(known(name)?)), ("RulesJSON", Value::Nil)])))
                });
                Ok(map(&[("Policies", Value::Map(rules.collect()))]))
            }
            "ACL.GetClaimPolicies" if caller == "a.task.identity" => {
                let rules = map(&[("Rules", text("namespace \"own\" { policy = \"write\" }"))]);
                Ok(map(&[("Policies", map(&[("_:/default/web", rules)]))]))
            }
            "ACL.GetClaimPolicies" => Err(error("Permission denied")),
            other => panic!("unexpected call {other}"),
        }
    }
}

impl Servers for Arc<Cluster> {
    fn registered(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        let answer = self.answer(&question).map(Answer);
        async move { answer }.boxed()
    }

    fn stream(&self, _: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        async { Err(CallError::NoServers) }.boxed()
    }

    fn set_addresses(&self, _: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        async { Ok(()) }.boxed()
    }

    fn signed(&self) -> Secret {
        Secret::default()
    }

    fn renew_identity(&self) {}

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }
}

fn test_env(mode: Mode) -> (Arc<Cluster>, Resolver) {
    let cluster = Arc::new(Cluster::default());
    let settings = Settings { mode, ..Settings::default() };
    (Arc::clone(&cluster), Resolver::new(Arc::new(cluster), settings))
}

async fn resolve(resolver: &Resolver, token: &str) -> Result<Arc<Acl>, Denied> {
    resolver.resolve(&token.into()).await
}

#[tokio::test(start_paused = true)]
async fn tokens_of_every_kind_are_resolved() {
    let (cluster, resolver) = test_env(Mode::On);
    assert_eq!(*resolve(&resolver, OPERATOR).await.unwrap(), Acl::Management);
    for token in [READER, BY_ROLE] {
        let acl = resolve(&resolver, token).await.unwrap();
        assert!(acl.allows("default", Capability::ReadLogs) && !acl.allows("default", Capability::ReadFs));
    }
    let anonymous = resolve(&resolver, "").await.unwrap();
    assert!(
        anonymous.allows("open", Capability::ReadJob) && !anonymous.allows("default", Capability::ReadJob)
    );
    let task = resolve(&resolver, "a.task.identity").await.unwrap();
    assert!(task.allows("own", Capability::AllocExec) && !task.node().reads());
    assert_eq!(resolve(&resolver, "a.forged.identity").await, Err(Denied::Refused));
    assert_eq!(*resolve(&resolver, LEADER).await.unwrap(), Acl::Management);
    assert_eq!(resolve(&resolver, "a secret of a node").await, Err(Denied::Unknown));
    cluster.is_old.store(true, Ordering::SeqCst);
    assert_eq!(resolve(&resolver, "another one").await, Err(Denied::Unknown));
}

#[tokio::test(start_paused = true)]
async fn acl_answer_is_cached_longer_without_servers() {
    let (cluster, resolver) = test_env(Mode::On);
    resolve(&resolver, READER).await.unwrap();
    let asked = cluster.asked.load(Ordering::SeqCst);
    tokio::time::advance(Duration::from_secs(29)).await;
    resolve(&resolver, READER).await.unwrap();
    assert_eq!(cluster.asked.load(Ordering::SeqCst), asked);
    cluster.away.store(true, Ordering::SeqCst);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert!(resolve(&resolver, READER).await.is_ok());
    assert!(matches!(resolve(&resolver, OPERATOR).await, Err(Denied::Unsaid(_))), "the token is not cached");
    cluster.away.store(false, Ordering::SeqCst);
    cluster.forgets.store(true, Ordering::SeqCst);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(resolve(&resolver, READER).await, Err(Denied::Unknown), "a revoked token is not cached");
    // The denial is cached for a while too.
    let asked = cluster.asked.load(Ordering::SeqCst);
    assert_eq!(resolve(&resolver, READER).await, Err(Denied::Unknown));
    assert_eq!(cluster.asked.load(Ordering::SeqCst), asked);
}

#[tokio::test(start_paused = true)]
async fn without_acls_everything_is_allowed_unless_required() {
    for token in ["", OPERATOR, "a.task.identity", "rubbish"] {
        let (cluster, resolver) = test_env(Mode::Cluster);
        cluster.has_no_acls.store(true, Ordering::SeqCst);
        assert_eq!(*resolve(&resolver, token).await.unwrap(), Acl::Disabled, "{token:?}");
        let (cluster, resolver) = test_env(Mode::On);
        cluster.has_no_acls.store(true, Ordering::SeqCst);
        let denied = resolve(&resolver, token).await.unwrap_err();
        assert_eq!(denied.to_string(), "ACL support disabled");
        // Until a server reports that ACLs are disabled, they are assumed to be enabled.
        let (cluster, resolver) = test_env(Mode::Cluster);
        cluster.away.store(true, Ordering::SeqCst);
        assert!(resolve(&resolver, token).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expires_is_refused_a_little_early() {
    let (_cluster, resolver) = test_env(Mode::On);
    let denied = resolve(&resolver, BRIEF).await.unwrap_err();
    assert_eq!((denied.to_string().as_str(), denied.code()), ("ACL token expired", 403));
}

#[tokio::test(start_paused = true)]
async fn concurrent_resolutions_share_one_query() {
    let (cluster, resolver) = test_env(Mode::On);
    let asking = (0..50).map(|_| resolve(&resolver, OPERATOR));
    assert!(futures_util::future::join_all(asking).await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(cluster.asked.load(Ordering::SeqCst), 1);
    for guess in 0..3 * TOKENS_LEN_MAX {
        assert!(resolve(&resolver, &format!("guess {guess}")).await.is_err());
        resolve(&resolver, OPERATOR).await.unwrap();
    }
    assert_eq!(resolver.0.known.lock().unwrap().len(), TOKENS_LEN_MAX);
    assert!(!format!("{resolver:?}").contains(OPERATOR));
}

struct Hanging;

impl Servers for Hanging {
    fn registered(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn ask(&self, _: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        std::future::pending().boxed()
    }

    fn stream(&self, _: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        async { Err(CallError::NoServers) }.boxed()
    }

    fn set_addresses(&self, _: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        async { Ok(()) }.boxed()
    }

    fn signed(&self) -> Secret {
        Secret::default()
    }

    fn renew_identity(&self) {}

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_hang_are_not_waited_for() {
    let resolver = Resolver::new(Arc::new(Hanging), Settings::default());
    let began = Instant::now();
    assert!(matches!(resolve(&resolver, READER).await, Err(Denied::Unsaid(_))));
    assert_eq!(began.elapsed(), ANSWER_MAX);
}

/// We make the calls that stock clients made in the recordings, and understand the responses of stock servers.
#[tokio::test]
async fn recorded_answers_are_understood() {
    let mut seen = BTreeSet::new();
    for message in test_recordings::messages() {
        let is_answer = message.kind == "response" && message.method.starts_with("ACL.");
        if !is_answer {
            continue;
        }
        let (_, body) = message.plain();
        let bytes = Answer(body);
        match &*message.method {
            "ACL.ResolveToken" => {
                let token = bytes.decode::<TokenResponse>().unwrap().token;
                if let Some(token) = token {
                    assert!(["management", "client"].contains(&&*token.kind), "{message}");
                    assert_eq!(token.policies.is_empty(), token.kind == "management", "{message}");
                }
            }
            "ACL.GetPolicies" => {
                let acl = bytes.decode::<PolicySet>().unwrap().acl().ok().unwrap();
                assert!(acl.allows("default", Capability::ReadLogs), "{message}");
                assert!(!acl.allows("default", Capability::AllocExec), "{message}");
            }
            "ACL.GetRolesByID" => {
                let roles = bytes.decode::<RoleSet>().unwrap().acl_roles;
                let role = roles.values().next().unwrap();
                assert_eq!(role.policies.first().unwrap().name, "reader", "{message}");
            }
            "ACL.GetClaimPolicies" => {
                bytes.decode::<PolicySet>().unwrap();
            }
            "ACL.WhoAmI" => {
                bytes.decode::<WhoAmIResponse>().unwrap();
            }
            _ => continue,
        }
        seen.insert(message.method.clone());
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
    for message in test_recordings::messages() {
        let asks = ["ACL.ResolveToken", "ACL.GetPolicies", "ACL.GetRolesByID"].contains(&&*message.method);
        if !asks || message.kind != "request" {
            continue;
        }
        let (_, body) = message.plain();
        let ours = Question {
            token: body.get("AuthToken").and_then(Value::as_text).unwrap().into(),
            stale: true,
            fields: map(&["SecretID", "Names", "ACLRoleIDs"]
                .map(|name| (name, body.get(name).cloned()))
                .iter()
                .filter_map(|(name, value)| Some((*name, value.clone()?)))
                .collect::<Vec<_>>()),
            ..Question::new(&message.method)
        };
        let Value::Map(ours) = ours.body("global", Duration::ZERO) else { panic!() };
        for (name, value) in ours {
            let theirs = body.get(name.as_text().unwrap()).unwrap();
            let zero = [Value::Uint(0), Value::Int(0)];
            assert!(
                *theirs == value || zero.contains(theirs) && zero.contains(&value),
                "{message}: {name:?}"
            );
        }
    }
}
