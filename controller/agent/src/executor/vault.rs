//! The token of a task at Vault: log-in, renewal, revocation.
//!
//! In: the task's `vault` block, and its identity. Out: the token in the task's directories, the time of the next renewal.
//! Rules: a token that exists is never given up because Vault does not answer; what exists after a restart of the agent is
//! used again. Each log-in, failed renewal and refusal has an audit line, without values.

use std::{sync::Arc, time::Duration};

use herdlet_api_types::{
    UnixNanos,
    job::{ChangeMode, Identity, VaultAccess},
    rfc3339::rfc3339,
};
use herdlet_base::{
    clock::wall_now,
    error::in_full,
    observation::{Class, Observation},
};
use herdlet_plan::{
    action::Outcome,
    env::Variables,
    facts::{Facts, Revision},
    identity_claims::{Claims, Grant},
    time::Deadline,
};
use herdlet_storage::{file_access::FileAccess, task_dir::TaskDir};
use herdlet_vault::{
    client::{JwtLogin, VaultClient},
    error::{FailureClass, LeaseFailure, VaultError},
    lease::{LeaseTerms, Step},
    secret::SecretText,
    spread::Spread,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{file_access, identities, reading::on_files};
use crate::{
    executor::{Context, PlaceVerb, Refusal, Workload},
    present,
    vault::{
        AUDIT, Server, TaskKey, boot_now,
        held::{HeldToken, TokenFiles},
    },
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
    let missing = || refused("read the token of Vault: it is not there".to_owned());
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
    let Some(held) = read(context, workload).await?.filter(|held| held.is_of(&access)) else {
        return Ok(Outcome::Absent);
    };
    let facts = facts(&held, &access);
    context.vaults.note(key(workload), held.lease.failing_for(boot_now()));
    let files = files(context, workload);
    let seen = on_files("inspect the token of Vault", move || files.inspect(&held, &access)).await?;
    Ok(match seen {
        Observation::Present => Outcome::Present(Some(facts)),
        Observation::Absent => Outcome::Absent,
        Observation::Foreign { why } => Outcome::Foreign { why },
        Observation::Lost { why } => Outcome::Lost { why },
    })
}

async fn ensure(
    context: &Arc<Context>,
    workload: &Workload,
    cancelled: &CancellationToken,
) -> Result<Outcome, Refusal> {
    let access = access_of(workload)?;
    let held = read(context, workload).await?.filter(|held| held.is_of(access));
    let Some(server) = context.vaults.server(&access.cluster) else {
        let on = format!("Vault: set vault.{}.address in the agent's config", access.cluster);
        let ask_in = length(UNCONFIGURED_PERIOD);
        return Ok(match held {
            Some(held) => Outcome::Outdated { on, ask_in, since_ns: outdated_since(&held) },
            None => Outcome::Pending { on, ask_in },
        });
    };
    let files = TokenFiles {
        access: file_access::find(context, workload.task().ok_or("find the task")?).await?,
        ..files(context, workload)
    };
    let client = server.client(access.namespace.as_deref()).await.map_err(refused)?;
    let session = Session { context, workload, access, server, client };
    let work = async {
        match held {
            Some(held) if access.allow_token_expiration => Ok(held),
            Some(held) => Ok(session.go_on(held).await),
            None => session.log_in().await,
        }
    };
    // Nothing is lost if this is dropped: a token that Vault is just making ends with its lease.
    let held = tokio::select! {
        biased;
        () = cancelled.cancelled() => return Err(refused("get a token of Vault: the task is to end".to_owned())),
        held = work => held.map_err(|failure| refused(failure.why))?,
    };
    let (kept, of_job) = (held.clone(), access.clone());
    on_files("keep the token of Vault", move || files.write(&kept, &of_job)).await?;
    let failing_for = held.lease.failing_for(boot_now());
    context.vaults.note(key(workload), failing_for);
    Ok(match (failing_for, next_in(&held)) {
        (Some(failing_for), Some(ask_in)) => {
            let on = outdated_text(&held, failing_for);
            Outcome::Outdated { on, ask_in: length(ask_in), since_ns: outdated_since(&held) }
        }
        (Some(_), None) | (None, _) => Outcome::Done(Some(facts(&held, access))),
    })
}

/// Since when the token could not be renewed, by `CLOCK_BOOTTIME`; now if it could.
fn outdated_since(held: &HeldToken) -> u64 {
    let now = boot_now();
    let length = held.lease.failing_for(now).unwrap_or_default();
    now.ns.saturating_sub(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

/// Since when tries fail is a time of day, because the text is shown until the next try.
fn outdated_text(held: &HeldToken, failing_for: Duration) -> String {
    const SECOND: i64 = 1_000_000_000;
    let since = wall_now().0.saturating_sub(length(failing_for).as_nanos());
    let since = rfc3339(UnixNanos(since - since.rem_euclid(SECOND))).unwrap_or_default();
    let end = if held.lease.is_past_end(boot_now()) { ", and its lease has ended" } else { "" };
    let why = held.failure.as_deref().unwrap_or("it is tried again");
    format!("Vault, which has not renewed it since {since}{end}: {why}")
}

async fn revoke(context: &Arc<Context>, workload: &Workload) -> Result<Outcome, Refusal> {
    context.vaults.note(key(workload), None);
    let held = read(context, workload).await?;
    let access = access_of(workload)?;
    if let (Some(held), Some(server)) = (&held, context.vaults.server(&access.cluster)) {
        let revoking = async {
            let client = server.client(access.namespace.as_deref()).await?;
            client.revoke(&held.token()).await.map_err(|error| error.to_string())
        };
        let result = timeout(REVOCATION_MAX, revoking).await;
        let result = result.unwrap_or_else(|_| Err("revoke the token: no answer in time".to_owned()));
        let audit =
            Audit { workload, operation: "revoke", cluster: &access.cluster, accessor: &held.accessor };
        audit.end(result.as_ref().err().map(String::as_str));
    }
    let files = files(context, workload);
    on_files("remove the token of Vault", move || files.remove()).await?;
    Ok(Outcome::Done(None))
}

/// A task at a server.
struct Session<'a> {
    context: &'a Arc<Context>,
    workload: &'a Workload,
    access: &'a VaultAccess,
    server: &'a Arc<Server>,
    client: Arc<VaultClient>,
}

/// Why there is no new token.
struct Failure {
    why: String,
    retry_after: Option<Duration>,
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
                    Ok(Err(Failure { why, retry_after })) => (LeaseFailure::Later { retry_after }, why),
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
            self.audit("renew", &held.accessor).end(Some(&error.to_string()));
        }
        result
    }

    async fn log_in(&self) -> Result<HeldToken, Failure> {
        let Self { context, access, server, .. } = self;
        let identity = self.identity().await.map_err(|why| Failure { why, retry_after: None })?;
        let role = access.role.as_deref().or(server.config.role.as_deref());
        let login = JwtLogin { mount: &server.config.auth_path, role, identity: &identity };
        let result = context.vaults.log_in(server, self.client.log_in(login)).await;
        match result {
            Ok(grant) => {
                self.audit("log in", &grant.accessor).end(None);
                Ok(HeldToken::new(grant, access))
            }
            Err(error) => {
                self.audit("log in", "").end(Some(&error.to_string()));
                let retry_after = match error.class() {
                    FailureClass::Later { retry_after } => retry_after,
                    FailureClass::Token | FailureClass::Absent | FailureClass::Request => None,
                };
                Err(Failure { why: error.to_string(), retry_after })
            }
        }
    }

    /// The identity to log in with: signed now, or by servers.
    async fn identity(&self) -> Result<SecretText, String> {
        let (context, workload) = (Arc::clone(self.context), self.workload.clone());
        let server = Arc::clone(self.server);
        let signed = herdlet_runtime::off_thread(move || match workload.alloc.server {
            None => sign(&context, &workload, &server),
            Some(_) => signed_by_servers(&context, &workload),
        });
        signed.await.map_err(|error| format!("get the identity for Vault: {error}")).flatten()
    }

    fn audit<'s>(&'s self, operation: &'static str, accessor: &'s str) -> Audit<'s> {
        Audit { workload: self.workload, operation, cluster: &self.access.cluster, accessor }
    }
}

fn no_answer(doing: &str) -> (LeaseFailure, String) {
    (LeaseFailure::Later { retry_after: None }, format!("{doing}: no answer in time"))
}

fn sign(context: &Context, workload: &Workload, server: &Server) -> Result<SecretText, String> {
    let task = workload.task().ok_or("find the task")?;
    let name = task.vault.as_ref().map(VaultAccess::identity_name).unwrap_or_default();
    let default = || Identity {
        name: name.clone(),
        aud: server.config.audiences.clone(),
        ttl: Some(server.config.identity_ttl),
        env: false,
        file: false,
        filepath: None,
        change_mode: ChangeMode::Noop,
        change_signal: None,
        extra_claims: Vec::new(),
    };
    let identity = task.identities.iter().find(|identity| identity.name == name).cloned();
    let claims = Claims::new(&Grant {
        alloc: &workload.alloc,
        task,
        identity: &identity.unwrap_or_else(default),
        issued_at: wall_now(),
        token_id: &uuid::Uuid::new_v4().to_string(),
        issuer: &context.issuer,
        node: &context.node.get(),
    });
    let signed = context.signer.sign(&claims).map_err(|error| in_full(&error))?;
    Ok(SecretText::new(signed.reveal().to_owned()))
}

fn signed_by_servers(context: &Context, workload: &Workload) -> Result<SecretText, String> {
    let task = workload.task().ok_or("find the task")?;
    let name = task.vault.as_ref().map(VaultAccess::identity_name).unwrap_or_default();
    let signed = identities::signed_by_servers(&context.server_tokens, workload.alloc.id, task);
    let mut signed = signed.map_err(|error| format!("read the identities signed by servers: {error}"))?;
    let identity = signed.remove(&name).ok_or_else(|| {
        format!(
            "find the identity {name} of the task: set default_identity in the block vault of the servers' config, or add \
             the identity to the job"
        )
    })?;
    Ok(SecretText::new(identity.token.reveal().to_owned()))
}

/// One line of the audit.
struct Audit<'a> {
    workload: &'a Workload,
    operation: &'static str,
    cluster: &'a str,
    accessor: &'a str,
}

impl Audit<'_> {
    fn end(self, failure: Option<&str>) {
        let Self { workload, operation, cluster, accessor } = self;
        let (alloc, task) = (workload.alloc.id, workload.task().map_or("", |task| task.name.as_str()));
        match failure {
            None => {
                tracing::info!(target: AUDIT, %alloc, task, operation, cluster, accessor, result = "ok", "token of Vault")
            }
            Some(why) => {
                tracing::info!(target: AUDIT, %alloc, task, operation, cluster, accessor, result = "failed", why, "token of Vault");
            }
        }
    }
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
    TokenFiles { dir, access: task.map_or(FileAccess::Owner(None), file_access::widest) }
}

fn facts(held: &HeldToken, access: &VaultAccess) -> Arc<Facts> {
    let next = next_in(held).filter(|_| !access.allow_token_expiration);
    let renew_at = next.map(|next| Deadline::after(present::now(), length(next)));
    Arc::new(Facts { revision: Revision(held.id), renew_at, ..Facts::none() })
}

/// The time until something is due for the token; `None` if nothing ever is.
fn next_in(held: &HeldToken) -> Option<Duration> {
    let now = boot_now();
    match held.lease.step(now) {
        Step::Wait { until_ns: u64::MAX } => None,
        Step::Wait { until_ns } => Some(Duration::from_nanos(until_ns.saturating_sub(now.ns))),
        Step::Renew | Step::Replace(_) => Some(Duration::ZERO),
    }
}

fn key(workload: &Workload) -> TaskKey {
    (workload.alloc.id, workload.position())
}

fn length(time: Duration) -> herdlet_api_types::Duration {
    herdlet_api_types::Duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

fn refused(why: String) -> Refusal {
    Refusal { class: Class::Retry, why }
}
