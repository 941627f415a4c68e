//! The signing keys of this agent: rotation, publication, and how long an old key is kept.
//!
//! In: requests of clients, the published allocations. Out: the keys as their clients see them. A key that no longer signs
//! is kept while a token that it has signed may be valid, and then removed. The keys themselves are in
//! [`herdlet_storage::identity`].

use std::{path::PathBuf, sync::Arc, time::Duration};

use herdlet_api_types::{alloc::Allocation, view::AllocView};
use herdlet_base::clock;
use herdlet_runtime::{Gate, off_thread};
use herdlet_storage::identity::Signer;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::publish::ReadModel;

pub use herdlet_storage::identity::{IdentityError, KeyState, SigningAlgorithm, SigningKeyInfo};

/// Minimum time for which a key is kept after it has signed: services cache the keys, and clocks differ. As in Nomad.
const KEPT_SECONDS: u64 = 60 * 60;

/// Allocations change often, and an old key has time.
const QUIET_TIME: Duration = Duration::from_secs(10);

/// How often an old key is examined if nothing changes.
const EXAMINED_EACH: Duration = Duration::from_secs(10 * 60);

/// The signing keys, for clients.
pub struct IdentityKeys {
    signer: Arc<Signer>,
    model: Arc<ReadModel>,
    /// The URL below which others find the keys.
    issuer: Option<String>,
    /// A key may have become inactive.
    rotated: Notify,
}

impl IdentityKeys {
    /// The keys in a directory. Reads nothing yet.
    pub fn new(dir: PathBuf, model: Arc<ReadModel>, issuer: Option<String>) -> Self {
        Self { signer: Arc::new(Signer::new(dir)), model, issuer, rotated: Notify::new() }
    }

    /// What signs and verifies tokens.
    pub fn signer(&self) -> Arc<Signer> {
        Arc::clone(&self.signer)
    }

    /// The public keys as a JWK set (RFC 7517).
    ///
    /// # Errors
    /// If the keys can't be used.
    pub async fn jwks(&self) -> Result<Value, IdentityError> {
        self.with(Signer::jwks).await
    }

    /// The OpenID Connect discovery document; none without an issuer.
    pub fn discovery(&self) -> Option<Value> {
        let issuer = self.issuer.as_deref()?;
        let algorithms = [SigningAlgorithm::Rs256, SigningAlgorithm::EdDsa].map(SigningAlgorithm::as_str);
        Some(json!({
            "issuer": issuer,
            "jwks_uri": format!("{}/.well-known/jwks.json", issuer.trim_end_matches('/')),
            "id_token_signing_alg_values_supported": algorithms,
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
        }))
    }

    /// All keys, the newest first.
    ///
    /// # Errors
    /// If the keys can't be used.
    pub async fn infos(&self) -> Result<Vec<SigningKeyInfo>, IdentityError> {
        self.with(Signer::infos).await
    }

    /// Adds a key, which signs from `active_from_s` on, but not before now.
    ///
    /// # Errors
    /// If it can't be generated or stored.
    pub async fn rotate(
        &self,
        algorithm: SigningAlgorithm,
        active_from_s: u64,
    ) -> Result<SigningKeyInfo, IdentityError> {
        let added = self.with(move |signer| signer.rotate(algorithm, active_from_s)).await?;
        tracing::info!(key = added.kid, algorithm = algorithm.as_str(), "added a signing key for identities");
        self.rotated.notify_one();
        Ok(added)
    }

    /// Removes a key that no token needs; with [`Removal::Forced`] also if tokens become invalid by that.
    ///
    /// # Errors
    /// If it is needed or unknown.
    pub async fn remove(&self, kid: &str, removal: Removal) -> Result<(), IdentityError> {
        let infos = self.infos().await?;
        let info = infos.iter().find(|info| info.kid == kid);
        if let Some(info) = info
            && removal == Removal::Checked
            && let Some(why) = needed(info, &self.model.allocs(), now_s())
        {
            return Err(IdentityError::InUse { kid: kid.to_owned(), why });
        }
        let id = kid.to_owned();
        self.with(move |signer| signer.remove(&id)).await?;
        tracing::info!(key = kid, "removed a signing key of identities");
        Ok(())
    }

    /// Removes old keys as soon as no token needs them.
    pub async fn maintain(self: Arc<Self>, restored: Gate) {
        // Without the stored state, no allocation seems to need a key.
        if restored.opened().await.is_err() {
            return;
        }
        loop {
            let version = self.model.version();
            let old = self.remove_unneeded().await;
            match old {
                0 => self.rotated.notified().await,
                _ => tokio::select! {
                    () = self.model.changed(version) => {}
                    () = self.rotated.notified() => {}
                    () = tokio::time::sleep(EXAMINED_EACH) => {}
                },
            }
            tokio::time::sleep(QUIET_TIME).await;
        }
    }

    /// Returns how many keys don't sign any more or not yet.
    async fn remove_unneeded(&self) -> usize {
        let infos = self.infos().await.unwrap_or_default();
        let (allocs, now) = (self.model.allocs(), now_s());
        let mut left = 0;
        for info in infos.iter().filter(|info| info.state != KeyState::Active) {
            let is_over =
                matches!(info.state, KeyState::Inactive { .. }) && needed(info, &allocs, now).is_none();
            if !is_over || self.remove(&info.kid, Removal::Forced).await.is_err() {
                left += 1;
            }
        }
        left
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Signer) -> Result<T, IdentityError> + Send + 'static,
    ) -> Result<T, IdentityError> {
        let signer = Arc::clone(&self.signer);
        off_thread(move || act(&signer)).await.unwrap_or(Err(IdentityError::Generate))
    }
}

/// Whether a removal heeds the tokens that a key has signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Checked,
    Forced,
}

/// Why a token that this key has signed may be valid; none if there is no such token.
fn needed(info: &SigningKeyInfo, allocs: &[Arc<AllocView>], now_s: u64) -> Option<String> {
    let until_s = match info.state {
        KeyState::Active => return Some("it signs; rotate first".to_owned()),
        KeyState::Prepublished => return None,
        KeyState::Inactive { until_s } => until_s,
    };
    if now_s < until_s.saturating_add(KEPT_SECONDS) {
        return Some("it has signed until less than an hour ago".to_owned());
    }
    let count = allocs.iter().filter(|view| holds_token(view, until_s, now_s)).count();
    (count > 0).then(|| format!("tokens of {count} allocations may be signed with it"))
}

/// Whether a task of the allocation may have a valid token that was signed until `until_s`.
fn holds_token(view: &AllocView, until_s: u64, now_s: u64) -> bool {
    let spec: &Allocation = &view.spec;
    let created_s = u64::try_from(spec.create_time.0 / 1_000_000_000).unwrap_or_default();
    // Clocks are set now and then.
    if spec.server.is_some() || created_s > until_s.saturating_add(KEPT_SECONDS) {
        return false;
    }
    let tasks =
        spec.job.groups.iter().filter(|group| group.name == spec.group).flat_map(|group| &group.tasks);
    let mut ttls = tasks.flat_map(|task| &task.identities).map(|identity| identity.ttl);
    ttls.any(|ttl| match ttl {
        // One that expires is replaced meanwhile, also while its allocation runs.
        Some(ttl) => now_s < until_s.saturating_add(ttl.as_secs().unsigned_abs()),
        None => !view.status.is_terminal(),
    })
}

fn now_s() -> u64 {
    u64::try_from(clock::wall_now().0 / 1_000_000_000).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        UnixNanos,
        alloc::ClientStatus,
        job::{ChangeMode, Identity},
    };
    use herdlet_manifest::fixture::{alloc_view, job};

    use super::*;

    fn view(ttl: Option<u64>) -> AllocView {
        let mut web = job("web", "front", "httpd");
        Arc::make_mut(&mut web).groups[0].tasks[0].identities.push(Identity {
            name: "api".to_owned(),
            aud: vec!["x".to_owned()],
            ttl: ttl.map(|ttl| herdlet_api_types::Duration::from_secs(ttl.cast_signed())),
            env: false,
            file: true,
            filepath: None,
            change_mode: ChangeMode::Noop,
            change_signal: None,
            extra_claims: Vec::new(),
        });
        let mut view = alloc_view(&web, 0, 7);
        Arc::make_mut(&mut view.spec).create_time = UnixNanos(1_000 * 1_000_000_000);
        view
    }

    fn inactive(until_s: u64) -> SigningKeyInfo {
        SigningKeyInfo {
            kid: "k".to_owned(),
            algorithm: SigningAlgorithm::Rs256,
            created_s: 1,
            active_from_s: 1,
            state: KeyState::Inactive { until_s },
        }
    }

    #[test]
    fn a_key_is_kept_while_a_token_that_it_has_signed_may_be_valid() {
        let hour = KEPT_SECONDS;
        let is_needed = |key: &SigningKeyInfo, view: &AllocView, now| {
            needed(key, &[Arc::new(view.clone())], now).is_some()
        };
        let mut lasting = view(None);
        let old = inactive(2_000);
        assert!(is_needed(&old, &lasting, 1_000_000_000), "a token without an end, of a task that runs");
        lasting.status = ClientStatus::Complete;
        assert!(is_needed(&old, &lasting, 2_000 + hour - 1) && !is_needed(&old, &lasting, 2_000 + hour));
        // One with an end, also after the allocation has ended.
        let mut day = view(Some(24 * hour));
        for status in [ClientStatus::Running, ClientStatus::Complete] {
            day.status = status;
            assert!(is_needed(&old, &day, 2_000 + 24 * hour - 1), "{status:?}");
            assert!(!is_needed(&old, &day, 2_000 + 24 * hour), "{status:?}");
        }
        // An allocation from after the rotation, or without identities.
        let mut newer = view(None);
        Arc::make_mut(&mut newer.spec).create_time = UnixNanos(i64::MAX);
        assert!(!is_needed(&old, &newer, 1_000_000_000));
        assert!(!is_needed(&old, &alloc_view(&job("web", "front", "httpd"), 0, 7), 1_000_000_000));
        for (state, kept) in [(KeyState::Active, true), (KeyState::Prepublished, false)] {
            assert_eq!(is_needed(&SigningKeyInfo { state, ..old.clone() }, &newer, 1_000_000_000), kept);
        }
    }

    #[tokio::test]
    async fn a_needed_key_is_removed_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let keys = IdentityKeys::new(path.clone(), Arc::default(), Some("https://id.test/a/".to_owned()));
        let first = keys.jwks().await.unwrap()["keys"][0]["kid"].as_str().unwrap().to_owned();
        assert!(matches!(keys.remove(&first, Removal::Forced).await, Err(IdentityError::InUse { .. })));
        let second = keys.rotate(SigningAlgorithm::EdDsa, 0).await.unwrap();
        assert_eq!(keys.jwks().await.unwrap()["keys"].as_array().unwrap().len(), 2);
        let error = keys.remove(&first, Removal::Checked).await.unwrap_err();
        assert!(error.to_string().contains("less than an hour ago"), "{error}");
        assert_eq!(keys.remove_unneeded().await, 1);
        keys.remove(&first, Removal::Forced).await.unwrap();
        assert_eq!(keys.infos().await.unwrap(), [second]);
        assert_eq!(keys.remove_unneeded().await, 0);
        assert_eq!(keys.discovery().unwrap()["jwks_uri"], "https://id.test/a/.well-known/jwks.json");
        let bare = IdentityKeys::new(path, Arc::default(), None);
        assert_eq!(bare.discovery(), None);
    }
}
