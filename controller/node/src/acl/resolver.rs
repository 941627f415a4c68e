//! Resolves tokens to permissions by asking the cluster's servers.
//!
//! In: a token of any kind: an operator's (a UUID), a task's identity (a JWT), or empty for the anonymous token. Out: an [`Acl`]. Results
//! are cached for a while; if no server can be reached, for longer, until the token expires.
//!
//! Facts: `hashicorp/nomad:client/acl.go`; servers before 1.5 lack `ACL.WhoAmI`, those before 1.4 lack roles.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use herdlet_config::AclRules;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    codec::{Time, Value},
    error::{CallError, ErrorKind},
};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tokio::{sync, time::Instant};

use super::{Acl, Policy};
use crate::cluster_client::{Question, Servers};

/// Maximum number of cached tokens.
const TOKENS_LEN_MAX: usize = 128;

/// Time limit for servers to resolve a token.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Tokens expire this much earlier here, since clocks differ.
const LEEWAY: Duration = Duration::from_secs(2);

/// The name of the policy for callers without a token.
const ANONYMOUS: &str = "anonymous";

/// The ACL settings of a node: the block `acl` of Nomad's agent files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether there are ACLs.
    pub mode: Mode,
    /// How long results are cached: the shortest of `token_ttl`, `policy_ttl` and `role_ttl`.
    pub ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mode: Mode::Cluster, ttl: Duration::from_secs(30) }
    }
}

impl From<&AclRules> for Settings {
    fn from(rules: &AclRules) -> Self {
        let mode = if rules.enabled { Mode::On } else { Mode::Cluster };
        Self { mode, ttl: rules.token_ttl.min(rules.policy_ttl).min(rules.role_ttl).to_std() }
    }
}

/// Whether ACLs are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// If the servers have them enabled.
    Cluster,
    /// Always: servers without ACLs are misconfigured, and every token is denied.
    On,
}

/// Why a token is denied. The texts are Nomad's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No server knows the token.
    #[error("ACL token not found")]
    Unknown,
    #[error("ACL token expired")]
    Expired,
    /// The token lacks the permission.
    #[error("Permission denied")]
    Refused,
    /// The permissions cannot be determined.
    #[error("{0}")]
    Unsaid(String),
}

impl Denied {
    /// The HTTP status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Unknown | Self::Expired | Self::Refused => 403,
            Self::Unsaid(_) => 500,
        }
    }
}

/// Resolves tokens. Clones share the cache.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    servers: Arc<dyn Servers>,
    settings: Settings,
    /// By hash of the token: the time of a lookup reveals nothing, and no token is stored.
    known: Mutex<HashMap<[u8; 32], CacheEntry>>,
}

/// A cached token. Concurrent requests wait for the same query.
struct CacheEntry {
    slot: Arc<sync::Mutex<Option<CachedAnswer>>>,
    used: Instant,
}

#[derive(Clone)]
struct CachedAnswer {
    answer: Result<ResolvedToken, Denied>,
    at: Instant,
}

#[derive(Clone)]
struct ResolvedToken {
    acl: Arc<Acl>,
    until: Option<SystemTime>,
}

/// Why servers gave no permissions.
enum Unanswered {
    /// They denied the token.
    Denied(Denied),
    /// They have no ACLs.
    Disabled,
    /// They could not be reached.
    Away(String),
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Resolver {
    /// Asks these servers.
    #[must_use]
    pub fn new(servers: Arc<dyn Servers>, settings: Settings) -> Self {
        Self(Arc::new(Inner { servers, settings, known: Mutex::default() }))
    }

    /// The permissions of a token; empty for the anonymous token.
    ///
    /// # Errors
    /// Why it is denied.
    pub async fn resolve(&self, token: &Secret) -> Result<Arc<Acl>, Denied> {
        let slot = self.slot(token);
        let mut slot = slot.lock().await;
        let is_fresh = slot.as_ref().is_some_and(|known| known.at.elapsed() < self.0.settings.ttl);
        if !is_fresh {
            let asked = tokio::time::timeout(ANSWER_MAX, self.ask(token)).await;
            let asked = asked.unwrap_or_else(|_| Err(Unanswered::Away(timeout_text())));
            let answer = match (asked, &*slot) {
                (Ok(answer), _) => Ok(answer),
                (Err(Unanswered::Disabled), _) if self.0.settings.mode == Mode::Cluster => {
                    Ok(ResolvedToken { acl: Arc::new(Acl::Disabled), until: None })
                }
                (Err(Unanswered::Disabled), _) => Err(Denied::Unsaid("ACL support disabled".to_owned())),
                (Err(Unanswered::Denied(denied)), _) => Err(denied),
                // Keep using the last result.
                (Err(Unanswered::Away(why)), Some(known)) => {
                    tracing::warn!(why, "failed to resolve a token; using the cached permissions");
                    known.answer.clone()
                }
                (Err(Unanswered::Away(why)), None) => return Err(Denied::Unsaid(why)),
            };
            *slot = Some(CachedAnswer { answer, at: Instant::now() });
        }
        match slot.as_ref().map(|known| &known.answer) {
            Some(Ok(answer)) if answer.until.is_some_and(|until| until <= SystemTime::now() + LEEWAY) => {
                Err(Denied::Expired)
            }
            Some(Ok(answer)) => Ok(Arc::clone(&answer.acl)),
            Some(Err(denied)) => Err(denied.clone()),
            None => Err(Denied::Refused),
        }
    }

    /// The token's cache entry. If the cache is full, the least recently used entry is removed.
    fn slot(&self, token: &Secret) -> Arc<sync::Mutex<Option<CachedAnswer>>> {
        let key: [u8; 32] = Sha256::digest(token.reveal().as_bytes()).into();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= TOKENS_LEN_MAX && !known.contains_key(&key) {
            let oldest = known.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
            oldest.map(|oldest| known.remove(&oldest));
        }
        let kept =
            known.entry(key).or_insert_with(|| CacheEntry { slot: Arc::default(), used: Instant::now() });
        kept.used = Instant::now();
        Arc::clone(&kept.slot)
    }

    async fn ask(&self, token: &Secret) -> Result<ResolvedToken, Unanswered> {
        if token.is_empty() {
            let acl = self.policies(token, BTreeSet::from([ANONYMOUS.to_owned()])).await?;
            return Ok(ResolvedToken { acl: Arc::new(acl), until: None });
        }
        if token.reveal().contains('.') {
            let claimed: PolicySet = self.call("ACL.GetClaimPolicies", token, Value::Map(Vec::new())).await?;
            return Ok(ResolvedToken { acl: Arc::new(claimed.acl()?), until: None });
        }
        let found = self.token(token).await?.ok_or(Unanswered::Denied(Denied::Unknown))?;
        let acl = if found.kind == "management" {
            Acl::Management
        } else {
            let mut names: BTreeSet<String> = found.policies.into_iter().collect();
            names.extend(self.of_roles(token, &found.roles).await?);
            self.policies(token, names).await?
        };
        let until = found.expiration_time.filter(|until| !until.is_zero());
        // A time before 1970 has certainly expired.
        let until = until.map(|until| until.try_into().unwrap_or(SystemTime::UNIX_EPOCH));
        Ok(ResolvedToken { acl: Arc::new(acl), until })
    }

    /// The token, if any server knows it.
    async fn token(&self, token: &Secret) -> Result<Option<Token>, Unanswered> {
        let fields = vec![field("SecretID", Value::Text(token.reveal().to_owned()))];
        let found =
            self.call::<TokenResponse>("ACL.ResolveToken", &Secret::default(), Value::Map(fields)).await;
        match found {
            Ok(TokenResponse { token: Some(token) }) => return Ok(Some(token)),
            Ok(TokenResponse { token: None }) | Err(Unanswered::Denied(_)) => {}
            Err(why) => return Err(why),
        }
        // A leader's own token is not in the list of tokens.
        match self.call::<WhoAmIResponse>("ACL.WhoAmI", token, Value::Map(Vec::new())).await {
            Ok(answer) => Ok(answer.identity.and_then(|identity| identity.acl_token)),
            Err(Unanswered::Denied(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// The names of the policies of roles.
    async fn of_roles(&self, token: &Secret, roles: &[Link]) -> Result<Vec<String>, Unanswered> {
        if roles.is_empty() {
            return Ok(Vec::new());
        }
        let ids = roles.iter().map(|role| Value::Text(role.id.clone())).collect();
        let fields = vec![field("ACLRoleIDs", Value::List(ids))];
        let found: RoleSet = self.call("ACL.GetRolesByID", token, Value::Map(fields)).await?;
        let policies = found.acl_roles.into_values().flat_map(|role| role.policies);
        Ok(policies.map(|policy| policy.name).collect())
    }

    async fn policies(&self, token: &Secret, names: BTreeSet<String>) -> Result<Acl, Unanswered> {
        if names.is_empty() {
            return Ok(Acl::of([]));
        }
        let names = names.into_iter().map(Value::Text).collect();
        let fields = vec![field("Names", Value::List(names))];
        self.call::<PolicySet>("ACL.GetPolicies", token, Value::Map(fields)).await?.acl()
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        token: &Secret,
        fields: Value,
    ) -> Result<T, Unanswered> {
        let question = Question { token: token.clone(), stale: true, fields, ..Question::new(method) };
        let answer = self.0.servers.ask(question).await;
        let answer = answer.and_then(|answer| answer.decode()).map_err(unanswered)?;
        Ok(answer)
    }
}

fn field(name: &str, value: Value) -> (Value, Value) {
    (Value::Text(name.to_owned()), value)
}

fn timeout_text() -> String {
    format!("failed to resolve the token: no server answered within {} s", ANSWER_MAX.as_secs())
}

fn unanswered(error: CallError) -> Unanswered {
    let CallError::Server(server) = &error else {
        return Unanswered::Away(format!("failed to resolve the token: {error}"));
    };
    match server.kind() {
        ErrorKind::Token if server.text().contains("ACL support disabled") => Unanswered::Disabled,
        ErrorKind::Token if server.text().contains("expired") => Unanswered::Denied(Denied::Expired),
        ErrorKind::Token => Unanswered::Denied(Denied::Unknown),
        ErrorKind::PermissionDenied | ErrorKind::UnknownMethod => Unanswered::Denied(Denied::Refused),
        ErrorKind::NoLeader
        | ErrorKind::NotReady
        | ErrorKind::Region
        | ErrorKind::NodeNotFound
        | ErrorKind::NodeSecret
        | ErrorKind::UnknownAllocation
        | ErrorKind::NoPathToNode
        | ErrorKind::Transport
        | ErrorKind::Other => Unanswered::Away(format!("failed to resolve the token: {error}")),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct TokenResponse {
    token: Option<Token>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct WhoAmIResponse {
    identity: Option<Identity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Identity {
    #[serde(rename = "ACLToken")]
    acl_token: Option<Token>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Token {
    #[serde(rename = "Type")]
    kind: String,
    policies: Vec<String>,
    roles: Vec<Link>,
    expiration_time: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Link {
    #[serde(rename = "ID")]
    id: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RoleSet {
    #[serde(rename = "ACLRoles")]
    acl_roles: BTreeMap<String, Role>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Role {
    policies: Vec<Link>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct PolicySet {
    policies: BTreeMap<String, PolicyBody>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct PolicyBody {
    rules: String,
}

impl PolicySet {
    fn acl(self) -> Result<Acl, Unanswered> {
        let read = self.policies.iter().map(|(name, written)| Policy::read(name, &written.rules));
        let read: Result<Vec<Policy>, _> = read.collect();
        let read = read.map_err(|error| Unanswered::Denied(Denied::Unsaid(format!("failed to {error}"))))?;
        Ok(Acl::of(&read))
    }
}

#[cfg(test)]
mod tests;
