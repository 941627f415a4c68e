//! How one task or service gets a token of Consul, and keeps it.
//!
//! In: the token that it has, if any; an identity. Out: a token that Consul's agent knows. A new token is stored before its first
//! use. A token is replaced only if it is about to expire, or Consul has deleted it.

use std::{future::Future, sync::Arc, time::Duration};

use herdlet_api_types::AllocId;
use herdlet_base::observation::Class;
use herdlet_services::catalog::{AclError, ConsulLogin};
use herdlet_vault::{
    error::LeaseFailure,
    lease::{BootTime, Step},
    secret::SecretText,
    spread::Spread,
};
use tokio::time::{sleep, timeout};

use crate::{
    consul::{ConsulCluster, owed::LastHolder},
    executor::{Context, Refusal, blocking::on_files},
    held_token::{HeldToken, TokenPlace},
    token_audit::{TokenAudit, TokenHolder},
    vault::boot_now,
};

/// A replacement in progress delays the end of its task; the last token is kept, so it can wait.
const STEP_MAX: Duration = Duration::from_secs(30);
/// How long the start of a task waits within one try until Consul's agent knows its new token.
const PREFLIGHT_MAX: Duration = Duration::from_secs(10);
/// The pauses between look-ups of a new token.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LONGEST: Duration = Duration::from_secs(1);
/// A token that is unknown for longer has been deleted, and is not only late.
const LATE_MAX: Duration = Duration::from_secs(120);
/// What a token has failed in that Consul's agent has never confirmed.
const UNCONFIRMED: &str = "Consul's agent does not know it yet";

/// Who gets a token.
pub(in crate::executor) struct Holder {
    pub(in crate::executor) alloc: AllocId,
    pub(in crate::executor) name: LastHolder,
}

/// How a holder proves its identity, and where its token is.
pub(in crate::executor) trait Keeper: Sync {
    /// The identity to log in with, a JWT.
    fn bearer(&self) -> impl Future<Output = Result<SecretText, Refusal>> + Send;

    /// Stores the token.
    fn keep(&self, held: &HeldToken) -> impl Future<Output = Result<(), Refusal>> + Send;
}

/// A holder at a Consul.
pub(in crate::executor) struct Session<'a> {
    pub(in crate::executor) context: &'a Arc<Context>,
    pub(in crate::executor) cluster: &'a Arc<ConsulCluster>,
    pub(in crate::executor) place: TokenPlace,
    /// The auth method.
    pub(in crate::executor) method: &'a str,
    pub(in crate::executor) holder: Holder,
}

impl Session<'_> {
    /// Returns a token that can be used now. `held` is the last one, which stays in use while Consul gives no other.
    pub(in crate::executor) async fn ensure(
        &self,
        held: Option<HeldToken>,
        keeper: &impl Keeper,
    ) -> Result<HeldToken, Refusal> {
        let Some(mut held) = held else { return self.begin(keeper).await };
        match held.lease.step(boot_now()) {
            Step::Replace(_) => {}
            Step::Wait { .. } | Step::Renew => match self.confirm(&mut held).await {
                Ok(()) => return Ok(held),
                // One that has never been confirmed is of no use yet.
                Err(LookUpFailure::Later(why)) if held.failure.as_deref() == Some(UNCONFIRMED) => {
                    return Err(refused(why));
                }
                Err(LookUpFailure::Later(why)) => {
                    tracing::debug!(why, accessor = held.accessor, "failed to verify a token of Consul");
                    return Ok(held);
                }
                Err(LookUpFailure::Gone) => {
                    let why = "Consul has no such token any more; it logs in again";
                    self.audit("verify", &held.accessor).end(Some(why));
                    held = held.lost();
                }
            },
        }
        let why = match timeout(STEP_MAX, self.begin(keeper)).await {
            Ok(Ok(other)) => {
                self.owe(held).await?;
                return Ok(other);
            }
            Ok(Err(refusal)) => refusal.why,
            Err(_) => "log in: no answer in time".to_owned(),
        };
        held.lease.failed(LeaseFailure::Later { retry_after: None }, boot_now(), Spread::random());
        held.failure = Some(why);
        Ok(held)
    }

    /// Has a token logged out that is no longer used.
    pub(in crate::executor) async fn owe(&self, held: HeldToken) -> Result<(), Refusal> {
        let (owed, alloc, name) =
            (Arc::clone(&self.context.owed_tokens), self.holder.alloc, self.holder.name.clone());
        on_files("store the token of Consul for its log-out", move || owed.add(alloc, name, held)).await
    }

    /// Logs in, and waits until Consul's agent knows the token.
    async fn begin(&self, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        let mut held = self.log_in(keeper).await?;
        held.failure = Some(UNCONFIRMED.to_owned());
        keeper.keep(&held).await?;
        match self.confirm(&mut held).await {
            Ok(()) => Ok(held),
            Err(LookUpFailure::Later(why)) => Err(refused(why)),
            Err(LookUpFailure::Gone) => {
                Err(refused("log in: Consul has deleted the token at once".to_owned()))
            }
        }
    }

    async fn log_in(&self, keeper: &impl Keeper) -> Result<HeldToken, Refusal> {
        let bearer = keeper.bearer().await?;
        let (kind, name) = match &self.holder.name {
            LastHolder::Task(name) => ("task", name),
            LastHolder::Service(name) => ("service", name),
        };
        let login = ConsulLogin {
            method: self.method,
            bearer: bearer.reveal(),
            // As Nomad does.
            meta: [("requested_by", format!("nomad_{kind}_{name}"))].into(),
            namespace: self.place.namespace.as_deref(),
            partition: self.place.partition.as_deref(),
        };
        match self.context.consuls.log_in(self.cluster, login).await {
            Ok(new) => {
                self.audit("log in", &new.accessor).end(None);
                Ok(HeldToken::new(new, self.place.clone()))
            }
            Err(error) => {
                let why = format!("{error} (auth method `{}`)", self.method);
                self.audit("log in", "").end(Some(&why));
                // Also a refused one: methods and rules of Consul change while tasks wait.
                Err(refused(why))
            }
        }
    }

    /// Checks that Consul's agent knows the token; waits for a while if it is new.
    async fn confirm(&self, held: &mut HeldToken) -> Result<(), LookUpFailure> {
        let looking = async {
            let mut pause = LOOK_FIRST;
            loop {
                match self.cluster.reader.look_up(held.reveal()).await {
                    Err(AclError::NotFound { .. }) if is_new(held, boot_now()) => {}
                    // Without the right to read itself, the token may still exist.
                    Ok(()) | Err(AclError::Refused { .. }) => return Ok(()),
                    Err(AclError::NotFound { .. }) => return Err(LookUpFailure::Gone),
                    Err(error @ AclError::Unreachable { .. }) => {
                        return Err(LookUpFailure::Later(error.to_string()));
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_LONGEST);
            }
        };
        let looked = timeout(PREFLIGHT_MAX, looking).await;
        looked.unwrap_or_else(|_| Err(LookUpFailure::Later(UNCONFIRMED.to_owned())))?;
        held.failure = None;
        Ok(())
    }

    fn audit<'s>(&'s self, operation: &'static str, accessor: &'s str) -> TokenAudit<'s> {
        TokenAudit {
            system: "Consul",
            alloc: self.holder.alloc,
            holder: match &self.holder.name {
                LastHolder::Task(name) => TokenHolder::Task(name),
                LastHolder::Service(name) => TokenHolder::Service(name),
            },
            operation,
            cluster: &self.place.cluster,
            accessor,
        }
    }
}

/// Why a token is not known to be usable.
enum LookUpFailure {
    /// Consul does not answer, or its agent does not know the token yet.
    Later(String),
    /// It was deleted.
    Gone,
}

/// Whether Consul's agent may not know the token yet.
fn is_new(held: &HeldToken, now: BootTime) -> bool {
    held.failure.as_deref() == Some(UNCONFIRMED) && held.lease.age(now).is_some_and(|age| age < LATE_MAX)
}

fn refused(why: String) -> Refusal {
    Refusal { class: Class::Retry, why }
}
