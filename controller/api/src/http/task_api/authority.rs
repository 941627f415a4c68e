//! Who a token belongs to.
//!
//! In: tokens. Out: a [`Principal`], or why there is none. [`LocalAuthority`] accepts the token of the API on TCP, and
//! identities that this agent has signed for tasks whose allocation has not ended. A node has an authority of its own,
//! which asks the servers. Accepted tokens are cached by their hash: no token is stored, and the time of a look-up tells
//! nothing about one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_agent::publish::ReadModel;
use herdlet_api_types::{AllocId, view::AllocView};
use herdlet_base::clock;
use herdlet_plan::identity_claims::{Claims, DEFAULT_AUDIENCE};
use herdlet_runtime::Gate;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::http::auth::Token;

/// How long an accepted token is cached.
const KNOWN_MAX: Duration = Duration::from_secs(30);

/// Cached tokens; the one that was accepted first gives way.
const TOKENS_MAX: usize = 1_024;

/// How far clocks may differ, as in Nomad.
const LEEWAY_SECONDS: i64 = 60;

/// How long a request waits for the agent's stored state, without which no allocation is known.
const RESTORE_MAX: Duration = Duration::from_secs(4);

/// Longer texts are not tokens.
const TOKEN_LEN_MAX: usize = 8 * 1_024;

/// The owner of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A caller who may use the whole API, as far as its router permits.
    Operator,
    /// A task of this agent.
    Task(Arc<TaskPrincipal>),
}

/// The task that an identity was issued to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPrincipal {
    pub alloc: AllocId,
    pub namespace: String,
    /// The job; for a child its parent.
    pub job: String,
    pub group: String,
    pub task: String,
}

/// Why a token has no principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unidentified {
    /// It is not valid, or anonymous.
    Rejected,
    /// It can't be checked now.
    Failed(String),
}

/// Tells who tokens belong to.
pub trait Authority: Send + Sync {
    /// The owner of a token that was accepted a moment ago and still holds.
    fn known(&self, token: &str) -> Option<Principal>;

    /// Looks the token up.
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Principal, Unidentified>>;
}

/// What is known about accepted tokens, for [`KNOWN_MAX`].
pub struct TokenCache<T>(Mutex<HashMap<[u8; 32], (Instant, T)>>);

impl<T> Default for TokenCache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> TokenCache<T> {
    /// What was kept for this token.
    pub fn get(&self, token: &str) -> Option<T> {
        let known = self.lock();
        let (at, kept) = known.get(&hash(token))?;
        (at.elapsed() < KNOWN_MAX).then(|| kept.clone())
    }

    /// Keeps this for a token.
    pub fn keep(&self, token: &str, what: T) {
        let mut known = self.lock();
        if known.len() >= TOKENS_MAX {
            known.retain(|_, (at, _)| at.elapsed() < KNOWN_MAX);
        }
        if known.len() >= TOKENS_MAX {
            let oldest = known.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| *key);
            oldest.map(|oldest| known.remove(&oldest));
        }
        known.insert(hash(token), (Instant::now(), what));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], (Instant, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Checks the signature of an identity, and returns its claims.
pub type Verifier = Box<dyn Fn(&str) -> Result<serde_json::Value, Unidentified> + Send + Sync>;

/// The authority of an agent without a cluster.
pub struct LocalAuthority {
    verify: Verifier,
    model: Arc<ReadModel>,
    restored: Gate,
    /// The token of the API on TCP.
    token: Option<Token>,
    /// Claims with a valid signature. Whether they hold now is decided anew for each request.
    verified: TokenCache<Arc<Claims>>,
}

impl LocalAuthority {
    pub fn new(verify: Verifier, (model, restored): (Arc<ReadModel>, Gate), token: Option<Token>) -> Self {
        Self { verify, model, restored, token, verified: TokenCache::default() }
    }

    /// The task of claims that hold now.
    fn principal(&self, claims: &Claims) -> Option<Principal> {
        let now = clock::wall_now().0.div_euclid(1_000_000_000);
        let is_early = claims.nbf.saturating_sub(LEEWAY_SECONDS) > now;
        let is_late = claims.exp.is_some_and(|exp| exp.saturating_add(LEEWAY_SECONDS) <= now);
        let is_ours = claims.aud.iter().any(|audience| audience == DEFAULT_AUDIENCE);
        if is_early || is_late || !is_ours {
            return None;
        }
        let alloc = AllocId(claims.nomad_allocation_id.parse().ok()?);
        let view = self.model.alloc(&alloc)?;
        Self::is_of(claims, &view).then(|| {
            Principal::Task(Arc::new(TaskPrincipal {
                alloc,
                namespace: claims.nomad_namespace.clone(),
                job: claims.nomad_job_id.clone(),
                group: view.spec.group.clone(),
                task: claims.nomad_task.clone(),
            }))
        })
    }

    /// Whether the allocation has not ended, and has what is claimed. One that is stopping keeps its rights. Servers sign the
    /// identities of their own allocations.
    fn is_of(claims: &Claims, view: &AllocView) -> bool {
        let spec = &view.spec;
        let job = spec.job.identity_owner().unwrap_or(&spec.job_key.id);
        !view.status.is_terminal()
            && spec.server.is_none()
            && *spec.job_key.namespace == *claims.nomad_namespace
            && job == claims.nomad_job_id
            && spec.task(&claims.nomad_task).is_some()
    }

    async fn look_up(&self, token: &str) -> Result<Principal, Unidentified> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(Unidentified::Rejected);
        }
        let claims = serde_json::from_value::<Claims>((self.verify)(token)?);
        let claims = Arc::new(claims.map_err(|_| Unidentified::Rejected)?);
        if !self.restored.is_open() {
            let opened = tokio::time::timeout(RESTORE_MAX, self.restored.opened()).await;
            if !matches!(opened, Ok(Ok(_))) {
                return Err(Unidentified::Failed("the agent is still restoring its state".to_owned()));
            }
        }
        let principal = self.principal(&claims).ok_or(Unidentified::Rejected)?;
        self.verified.keep(token, claims);
        Ok(principal)
    }
}

impl Authority for LocalAuthority {
    fn known(&self, token: &str) -> Option<Principal> {
        if self.token.as_ref().is_some_and(|own| own.is(token.as_bytes())) {
            return Some(Principal::Operator);
        }
        let claims = self.verified.get(token)?;
        self.principal(&claims)
    }

    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Principal, Unidentified>> {
        self.look_up(token).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_cached_for_half_a_minute() {
        let cache = TokenCache::default();
        cache.keep("a", 1);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!((cache.get("a"), cache.get("b")), (Some(1), None));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(cache.get("a"), None);
        cache.keep("a", 2);
        assert_eq!(cache.get("a"), Some(2), "accepted again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_cache_drops_the_token_that_was_accepted_first() {
        let cache = TokenCache::default();
        for token in 0..1_024 {
            cache.keep(&token.to_string(), token);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(cache.get("0"), Some(0));
        cache.keep("1024", 1_024);
        assert_eq!(cache.lock().len(), 1_024);
        assert_eq!(
            ["0", "1", "1023", "1024"].map(|token| cache.get(token)),
            [None, Some(1), Some(1_023), Some(1_024)]
        );
    }
}
