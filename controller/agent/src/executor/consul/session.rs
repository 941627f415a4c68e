//! How one task or service gets a token of Consul, and keeps it.
//!
//! In: the token that it has, if any; an identity. Out: a token that Consul's agent knows. A token is replaced only if it is about to
//! expire, or Consul has deleted it. A new token is stored before its first use, beside the one that it replaces: a later try, also of the
//! next agent, goes on with it. One that can't be stored is logged out.

use std::{future::Future, sync::Arc, time::Duration};

use herdlet_api_types::AllocId;
use herdlet_services::catalog::{AclError, ConsulLogin};
use herdlet_vault::{
    error::LeaseFailure,
    lease::{BootTime, Step},
    secret::SecretText,
    spread::Spread,
};
use tokio::time::{sleep, timeout};

use crate::{
    consul::{
        ConsulCluster, new_token,
        owed::{IssuedToken, OwedToken, OwedTokens},
    },
    executor::{Refusal, blocking::on_files},
    held_token::{Confirmation, HeldToken, TokenPlace},
    token_audit::{TokenAudit, TokenHolder},
    vault::boot_now,
};

/// How long one look-up of a token, or the wait for a new one, may take.
const LOOK_UP_MAX: Duration = Duration::from_secs(10);
/// The pauses between look-ups of a new token.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LONGEST: Duration = Duration::from_secs(1);
/// A token that is unknown for longer has been deleted, and is not only late.
const LATE_MAX: Duration = Duration::from_secs(120);

/// Who gets a token.
#[derive(Clone)]
pub(in crate::executor) struct Holder {
    pub(in crate::executor) alloc: AllocId,
    pub(in crate::executor) name: TokenHolder,
}

/// How a holder proves its identity, and where its token is.
pub(in crate::executor) trait Keeper: Sync {
    /// The identity to log in with, a JWT.
    fn bearer(&self) -> impl Future<Output = Result<SecretText, Refusal>> + Send;

    /// Stores the token in place of the last one. After an error, nothing has changed.
    fn keep(&self, held: &HeldToken) -> impl Future<Output = Result<(), Refusal>> + Send;
}

/// A holder at a Consul.
pub(in crate::executor) struct Session<'a> {
    pub(in crate::executor) owed: &'a Arc<OwedTokens>,
    pub(in crate::executor) cluster: &'a Arc<ConsulCluster>,
    pub(in crate::executor) place: TokenPlace,
    /// The auth method.
    pub(in crate::executor) method: &'a str,
    pub(in crate::executor) holder: Holder,
    /// How long a replacement may take; the last token is kept, so it can wait.
    pub(in crate::executor) replacement_max: Duration,
}

impl Session<'_> {
    /// Returns a token that can be used now. `held` is the last one, which stays in use while Consul gives no other.
    ///
    /// A token that is replaced because it expires soon ends by itself: a running process and Consul's entries still have it.
    pub(in crate::executor) async fn ensure(
        &self,
        held: Option<HeldToken>,
        keeper: &impl Keeper,
    ) -> Result<HeldToken, Refusal> {
        let Some(mut held) = held else { return self.begin(keeper).await };
        match (held.confirmation, held.lease.step(boot_now())) {
            (Confirmation::Given, Step::Replace(_)) => {}
            // It stays in use until the next try.
            (Confirmation::Given, Step::Wait { .. }) if held.lease.is_lost() => return Ok(held),
            (Confirmation::Given, Step::Wait { .. } | Step::Renew) => match self.confirm(&mut held).await {
                Ok(()) => return Ok(held),
                Err(LookUpFailure::Later(why)) => {
                    tracing::debug!(why, accessor = held.accessor, "failed to verify a token of Consul");
                    return Ok(held);
                }
                Err(LookUpFailure::Gone) => {
                    let why = "Consul has no such token any more; it logs in again";
                    audit(&self.holder, &self.place, ("verify", &held.accessor)).end(Some(why));
                    // Another of Consul's servers may still have it.
                    let next = held.next.take();
                    self.owe(held.clone()).await?;
                    held = held.lost();
                    held.next = next;
                }
            },
            (Confirmation::Awaited, Step::Wait { .. } | Step::Renew) => match self.confirm(&mut held).await {
                Ok(()) => return Ok(held),
                Err(LookUpFailure::Later(why)) => return Err(Refusal::retry(why)),
                Err(LookUpFailure::Gone) => return self.begin_again(held, keeper).await,
            },
            (Confirmation::Awaited, Step::Replace(_)) | (Confirmation::Released, _) => {
                return self.begin_again(held, keeper).await;
            }
        }
        let why = match timeout(self.replacement_max, self.replace(&mut held, keeper)).await {
            Ok(Ok(other)) => return Ok(other),
            Ok(Err(refusal)) => refusal.why,
            Err(_) => "log in: no answer in time".to_owned(),
        };
        held.lease.failed(LeaseFailure::Later { retry_after: None }, boot_now(), Spread::random());
        held.failure = Some(why);
        Ok(held)
    }

    /// Has a token logged out that is no longer used.
    pub(in crate::executor) async fn owe(&self, held: HeldToken) -> Result<(), Refusal> {
        let (owed, token) = (Arc::clone(self.owed), self.owed_token(held));
        on_files("store the token of Consul for its log-out", move || owed.add(token)).await
    }

    /// Logs in for a holder whose last token nothing uses.
    async fn begin_again(&self, last: HeldToken, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        self.owe(last).await?;
        self.begin(keeper).await
    }

    /// Logs in for a holder without a token.
    async fn begin(&self, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        let mut held = self.log_in(keeper).await?;
        if let Err(refusal) = keeper.keep(&held).await {
            self.return_unkept(held).await;
            return Err(refusal);
        }
        self.confirm(&mut held).await?;
        Ok(held)
    }

    /// Logs in for a holder with a token, unless it has done so before. Returns the new token once it is confirmed.
    async fn replace(&self, held: &mut HeldToken, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        let mut next = match held.next.clone() {
            Some(next) => *next,
            None => {
                let next = self.log_in(keeper).await?;
                held.next = Some(Box::new(next.clone()));
                if let Err(refusal) = keeper.keep(held).await {
                    held.next = None;
                    self.return_unkept(next).await;
                    return Err(refusal);
                }
                next
            }
        };
        match self.confirm(&mut next).await {
            Ok(()) => Ok(next),
            Err(LookUpFailure::Gone) => {
                // The next try logs in again.
                held.next = None;
                self.owe(next).await?;
                Err(LookUpFailure::Gone.into())
            }
            Err(later) => Err(later.into()),
        }
    }

    /// Has a new token logged out that its holder can't store.
    async fn return_unkept(&self, held: HeldToken) {
        if self.owe(held.clone()).await.is_err() {
            self.log_out(held).await;
        }
    }

    /// Logs a token out that can't be stored. The audit has the result.
    async fn log_out(&self, held: HeldToken) {
        let _ = self.owed_token(held).log_out(self.cluster).await;
    }

    fn owed_token(&self, held: HeldToken) -> OwedToken {
        OwedToken { alloc: self.holder.alloc, holder: self.holder.name.clone(), held }
    }

    /// Logs in. A token that Consul issues after this was dropped is logged out.
    async fn log_in(&self, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        let bearer = keeper.bearer().await?;
        let (kind, name) = match &self.holder.name {
            TokenHolder::Task(name) => ("task", name),
            TokenHolder::Service(name) => ("service", name),
        };
        // As Nomad does.
        let requested_by = format!("nomad_{kind}_{name}");
        let (cluster, owed, method) =
            (Arc::clone(self.cluster), Arc::clone(self.owed), self.method.to_owned());
        let (holder, place) = (self.holder.clone(), self.place.clone());
        let request = async move {
            let login = ConsulLogin {
                method: &method,
                bearer: bearer.reveal(),
                meta: [("requested_by", requested_by)].into(),
                namespace: place.namespace.as_deref(),
                partition: place.partition.as_deref(),
            };
            let issued = cluster.reader.log_in(login).await?;
            let mut held = HeldToken::new(new_token(issued), place.clone());
            held.confirmation = Confirmation::Awaited;
            audit(&holder, &place, ("log in", &held.accessor)).end(None);
            let token = OwedToken { alloc: holder.alloc, holder: holder.name, held };
            Ok(IssuedToken::new(owed, token))
        };
        match self.cluster.log_in(request).await {
            Ok(issued) => Ok(issued.take()),
            Err(error) => {
                let why = format!("{error} (auth method `{}`)", self.method);
                audit(&self.holder, &self.place, ("log in", "")).end(Some(&why));
                // Also a refused one: methods and rules of Consul change while tasks wait.
                Err(Refusal::retry(why))
            }
        }
    }

    /// Checks that Consul's agent knows the token; waits for a while if it is new.
    async fn confirm(&self, held: &mut HeldToken) -> Result<(), LookUpFailure> {
        let looking = async {
            let mut pause = LOOK_FIRST;
            loop {
                match self.cluster.reader.look_up(held.reveal()).await {
                    Ok(()) => return Ok(()),
                    // Without the right to read itself, the token may still exist.
                    Err(error) if error.is_denied() => return Ok(()),
                    Err(AclError::NotFound { .. }) if is_new(held, boot_now()) => {}
                    Err(AclError::NotFound { .. }) => return Err(LookUpFailure::Gone),
                    Err(error) => return Err(LookUpFailure::Later(error.to_string())),
                }
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_LONGEST);
            }
        };
        let late = || LookUpFailure::Later("look up a token: Consul's agent does not know it yet".to_owned());
        timeout(LOOK_UP_MAX, looking).await.unwrap_or_else(|_| Err(late()))?;
        held.failure = None;
        held.confirmation = Confirmation::Given;
        Ok(())
    }
}

/// The audit of an operation on the token with this accessor.
fn audit<'h>(
    holder: &'h Holder,
    place: &'h TokenPlace,
    (operation, accessor): (&'static str, &'h str),
) -> TokenAudit<'h> {
    TokenAudit {
        system: "Consul",
        alloc: holder.alloc,
        holder: holder.name.clone(),
        operation,
        cluster: &place.cluster,
        accessor,
    }
}

/// Why a token is not known to be usable.
#[derive(Debug, thiserror::Error)]
enum LookUpFailure {
    /// Consul does not answer, or its agent does not know the token yet.
    #[error("{0}")]
    Later(String),
    /// It was deleted.
    #[error("look up a token: Consul has deleted it")]
    Gone,
}

impl From<LookUpFailure> for Refusal {
    fn from(failure: LookUpFailure) -> Self {
        Self::retry(failure.to_string())
    }
}

/// Whether Consul's agent may not know the token yet.
fn is_new(held: &HeldToken, now: BootTime) -> bool {
    held.confirmation == Confirmation::Awaited && held.lease.age(now).is_some_and(|age| age < LATE_MAX)
}

#[cfg(test)]
mod tests;
