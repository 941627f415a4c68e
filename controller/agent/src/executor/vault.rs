//! The token of a task at Vault: log-in, renewal, revocation.
//!
//! In: the task's `vault` block. Out: the token in the task's directories, the time of the next renewal.
//! Rules: a token that exists is never given up because Vault does not answer; what exists after a restart of the agent is
//! used again. Each log-in, failed renewal and refusal has an audit line, without values.

mod login;
mod revocation;
mod rights;

use std::{sync::Arc, time::Duration};

use herdlet_api_types::{Duration as Span, job::VaultAccess};
use herdlet_plan::{
    action::Outcome,
    env::Variables,
    facts::{Facts, Revision},
    time::Deadline,
};
use herdlet_render::vault::time_before;
use herdlet_storage::{file_access::FileAccess, task_dir::TaskDir};
use herdlet_vault::{
    client::VaultClient,
    error::{LeaseFailure, VaultError},
    lease::{LeaseTerms, Step},
    spread::Spread,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::login::Failure;
pub use self::{revocation::revoke_all, rights::rights};
use super::{
    blocking::{inspected, on_files},
    file_access,
};
use crate::{
    executor::{Context, PlaceVerb, Refusal, Workload},
    held_token::{HeldToken, OF_VAULT, TaskFile, TokenFiles, TokenPlace},
    present,
    token_audit::{TokenAudit, TokenHolder},
    vault::{Server, TaskKey, boot_now},
};

/// A task whose Vault is not in the config asks again in this period; a restart with another config comes first.
const UNCONFIGURED_PERIOD: Duration = Duration::from_secs(3_600);
/// A renewal or a replacement in progress delays the end of its task; the token is kept, so it can wait.
const STEP_MAX: Duration = Duration::from_secs(30);
/// The end of a task does not wait longer for its token to be revoked: it ends with its lease.
const REVOCATION_MAX: Duration = Duration::from_secs(5);

/// Gets a task's token or renews it, inspects it, or revokes it.
pub async fn vault(
    context: &Arc<Context>,
    workload: &Workload,
    verb: PlaceVerb,
    cancelled: &CancellationToken,
) -> Outcome {
    let outcome = match verb {
        PlaceVerb::Inspect => inspect(context, workload).await,
        PlaceVerb::Up => ensure(context, workload, cancelled).await,
        PlaceVerb::Down => revoke(context, workload).await,
    };
    outcome.unwrap_or_else(Outcome::from)
}

/// `VAULT_TOKEN` and the like, if the task wants them.
///
/// # Errors
/// If the token is not there, or can't be read.
pub async fn variables(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    let Some(access) = workload.task().and_then(|task| task.vault.as_ref()).filter(|access| access.env)
    else {
        return Ok(Variables::new());
    };
    let missing = || Refusal::retry("read the token of Vault: it is not there".to_owned());
    let held = read(context, workload).await?.ok_or_else(missing)?;
    let server = context.vaults.server(&access.cluster);
    // A path of the machine means nothing in a task's own root.
    let address = server.map(|server| server.config.address.clone()).filter(|text| text.starts_with("http"));
    let namespace = access.namespace.clone().or_else(|| server?.config.namespace.clone());
    let found = [
        ("VAULT_TOKEN", Some(held.reveal().to_owned())),
        ("VAULT_ADDR", address),
        ("VAULT_NAMESPACE", namespace),
    ];
    Ok(found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

async fn inspect(context: &Arc<Context>, workload: &Workload) -> Result<Outcome, Refusal> {
    let access = access_of(workload)?.clone();
    let Some(held) = read(context, workload).await?.filter(|held| held.place == place_of(&access)) else {
        return Ok(Outcome::Absent);
    };
    let facts = facts(&held, &access);
    context.vaults.note(key(workload), held.lease.failing_since_ns(boot_now()));
    let files = files(context, workload);
    let seen = on_files("inspect the token of Vault", move || files.inspect(&held, file_of(&access))).await?;
    Ok(inspected(seen, Some(facts)))
}

async fn ensure(
    context: &Arc<Context>,
    workload: &Workload,
    cancelled: &CancellationToken,
) -> Result<Outcome, Refusal> {
    let access = access_of(workload)?;
    let held = read(context, workload).await?.filter(|held| held.place == place_of(access));
    let last = held.as_ref().map(|held| held.id);
    let held = held.map(|held| if context.vaults.is_revoked(held.id) { held.lost() } else { held });
    let Some(server) = context.vaults.server(&access.cluster) else {
        let on = format!("Vault: set vault.{}.address in the agent's config", access.cluster);
        let ask_in = Span::from_std(UNCONFIGURED_PERIOD);
        let now = boot_now();
        return Ok(match held {
            Some(held) => {
                Outcome::Outdated { on, ask_in, since_ns: held.lease.failing_since_ns(now).unwrap_or(now.ns) }
            }
            None => Outcome::Pending { on, ask_in },
        });
    };
    let files = TokenFiles {
        access: file_access::find(context, workload.task().ok_or("find the task")?).await?,
        ..files(context, workload)
    };
    let client = server.client(access.namespace.as_deref()).await.map_err(Refusal::retry)?;
    let session = Session { context, workload, access, server, client };
    let work = async {
        match held {
            // One that was revoked is replaced nevertheless.
            Some(held) if access.allow_token_expiration && held.failure.is_none() => Ok(held),
            Some(held) => Ok(session.go_on(held).await),
            None => session.log_in().await,
        }
    };
    // Nothing is lost if this is dropped: a token that Vault is just making ends with its lease.
    let held = tokio::select! {
        biased;
        () = cancelled.cancelled() => return Err(Refusal::retry("get a token of Vault: the task is to end".to_owned())),
        held = work => held.map_err(|failure: Failure| failure.refusal)?,
    };
    let (kept, of_job) = (held.clone(), access.clone());
    on_files("keep the token of Vault", move || files.write(&kept, file_of(&of_job))).await?;
    // What is kept shows now that it was revoked.
    last.into_iter().for_each(|last| context.vaults.forget_revoked(last));
    if last.is_some_and(|last| last != held.id) {
        context.renderer.vault_token_changed(workload.alloc.id, workload.position());
    }
    let now = boot_now();
    let failing_since = held.lease.failing_since_ns(now);
    context.vaults.note(key(workload), failing_since);
    Ok(match (failing_since, held.lease.due_in(now)) {
        (Some(since_ns), Some(ask_in)) => {
            let on = outdated_text(&held, Duration::from_nanos(now.ns.saturating_sub(since_ns)));
            Outcome::Outdated { on, ask_in: Span::from_std(ask_in), since_ns }
        }
        (Some(_), None) | (None, _) => Outcome::Done(Some(facts(&held, access))),
    })
}

fn outdated_text(held: &HeldToken, failing_for: Duration) -> String {
    let since = time_before(failing_for);
    let end = if held.lease.is_past_end(boot_now()) { ", and its lease has ended" } else { "" };
    let why = held.failure.as_deref().unwrap_or("it is tried again");
    format!("Vault, which has not renewed it since {since}{end}: {why}")
}

async fn revoke(context: &Arc<Context>, workload: &Workload) -> Result<Outcome, Refusal> {
    context.vaults.note(key(workload), None);
    if let Some(held) = read(context, workload).await? {
        // The audit has the reason; the token ends with its lease.
        let _ = revoke_token(context, workload, &held).await;
        context.vaults.forget_revoked(held.id);
    }
    let files = files(context, workload);
    on_files("remove the token of Vault", move || files.remove()).await?;
    Ok(Outcome::Done(None))
}

/// Revokes a token, with its line in the audit.
async fn revoke_token(
    context: &Arc<Context>,
    workload: &Workload,
    held: &HeldToken,
) -> Result<(), VaultError> {
    let unusable = |why: String| VaultError::Invalid { doing: "revoke the token".to_owned(), why };
    let access = access_of(workload).map_err(|refusal| unusable(refusal.why))?;
    let revoking = async {
        let server = context.vaults.server(&access.cluster);
        let server = server
            .ok_or_else(|| unusable(format!("set vault.{}.address in the agent's config", access.cluster)))?;
        let client = server.client(access.namespace.as_deref()).await.map_err(unusable)?;
        client.revoke(&held.token()).await
    };
    let result = timeout(REVOCATION_MAX, revoking).await.unwrap_or_else(|_| {
        let (doing, why) = ("revoke the token".to_owned(), "no answer in time".to_owned());
        Err(VaultError::Unreachable { doing, address: format!("Vault `{}`", access.cluster), why })
    });
    audit(workload, "revoke", &held.accessor)
        .end(result.as_ref().err().map(VaultError::to_string).as_deref());
    result
}

/// A task at a server.
struct Session<'a> {
    context: &'a Arc<Context>,
    workload: &'a Workload,
    access: &'a VaultAccess,
    server: &'a Arc<Server>,
    client: Arc<VaultClient>,
}

impl Session<'_> {
    /// Renews or replaces a token as its lease demands, as often as that is due. It always returns a token: the last good
    /// one if Vault does not give another.
    async fn go_on(&self, mut held: HeldToken) -> HeldToken {
        loop {
            let (failure, why) = match held.lease.step(boot_now()) {
                Step::Wait { .. } => return held,
                Step::Renew => match timeout(STEP_MAX, self.renew(&held)).await {
                    Ok(Ok(terms)) => {
                        held.lease.renewed(terms, boot_now(), Spread::random());
                        held.failure = None;
                        continue;
                    }
                    Ok(Err(error)) => (error.lease_failure(), error.to_string()),
                    Err(_) => no_answer("renew a token"),
                },
                Step::Replace(_) => match timeout(STEP_MAX, self.log_in()).await {
                    Ok(Ok(other)) => return other,
                    Ok(Err(Failure { refusal, retry_after })) => {
                        (LeaseFailure::Later { retry_after }, refusal.why)
                    }
                    Err(_) => no_answer("log in"),
                },
            };
            held.lease.failed(failure, boot_now(), Spread::random());
            held.failure = Some(why);
        }
    }

    async fn renew(&self, held: &HeldToken) -> Result<LeaseTerms, VaultError> {
        let result = self.client.renew_token(&held.token(), None).await;
        if let Err(error) = &result {
            audit(self.workload, "renew", &held.accessor).end(Some(&error.to_string()));
        }
        result
    }
}

fn no_answer(doing: &str) -> (LeaseFailure, String) {
    (LeaseFailure::Later { retry_after: None }, format!("{doing}: no answer in time"))
}

fn audit<'a>(workload: &'a Workload, operation: &'static str, accessor: &'a str) -> TokenAudit<'a> {
    let task = workload.task();
    TokenAudit {
        system: "Vault",
        alloc: workload.alloc.id,
        holder: TokenHolder::Task(task.map(|task| task.name.clone()).unwrap_or_default()),
        operation,
        cluster: task.and_then(|task| task.vault.as_ref()).map_or("", |access| access.cluster.as_str()),
        accessor,
    }
}

fn place_of(access: &VaultAccess) -> TokenPlace {
    let VaultAccess { cluster, namespace, .. } = access;
    TokenPlace { cluster: cluster.clone(), namespace: namespace.clone(), partition: None }
}

fn file_of(access: &VaultAccess) -> TaskFile {
    if access.disable_file { TaskFile::Disabled } else { TaskFile::Written }
}

fn access_of(workload: &Workload) -> Result<&VaultAccess, Refusal> {
    Ok(workload.task().and_then(|task| task.vault.as_ref()).ok_or("find the block `vault` of the task")?)
}

async fn read(context: &Arc<Context>, workload: &Workload) -> Result<Option<HeldToken>, Refusal> {
    let files = files(context, workload);
    on_files("read the token of Vault", move || files.read()).await
}

/// The files of a task, for anything but writing them.
fn files(context: &Context, workload: &Workload) -> TokenFiles {
    let task = workload.task();
    let name = task.map_or("", |task| task.name.as_str());
    let dir = TaskDir::new(context.paths.task(&workload.alloc.id, name), context.privileges);
    TokenFiles { names: &OF_VAULT, dir, access: task.map_or(FileAccess::Owner(None), file_access::widest) }
}

fn facts(held: &HeldToken, access: &VaultAccess) -> Arc<Facts> {
    let next = held.lease.due_in(boot_now()).filter(|_| !access.allow_token_expiration);
    let renew_at = next.map(|next| Deadline::after(present::now(), Span::from_std(next)));
    Arc::new(Facts { revision: Revision(held.id), renew_at, ..Facts::none() })
}

fn key(workload: &Workload) -> TaskKey {
    (workload.alloc.id, workload.position())
}
