//! The token of a task at Consul: log-in, verification, replacement, log-out.
//!
//! In: the task's `consul` block. Out: the token in the task's directories, the time of the next verification.
//! Rules: an outage of Consul never ends the use of a token; tokens that exist after a restart of the agent are used again.
//! Each log-in and log-out has an audit line, without values.

mod session;

use std::{sync::Arc, time::Duration};

use herdlet_api_types::{
    Duration as Span,
    alloc::Allocation,
    job::{ConsulAccess, Task},
};
use herdlet_plan::{
    action::Outcome,
    env::Variables,
    facts::{Facts, Revision},
    time::Deadline,
};
use herdlet_render::{AccessToken, ConsulRights, vault::time_before};
use herdlet_storage::{file_access::FileAccess, task_dir::TaskDir};
use herdlet_vault::secret::SecretText;
use tokio_util::sync::CancellationToken;

pub(super) use self::session::{Holder, Keeper, Session};
use super::{
    Context, PlaceVerb, Refusal, Workload,
    blocking::{inspected, on_files},
    file_access,
    login_identity::{self, LoginIdentity},
};
use crate::{
    consul::{ConsulCluster, owed::OwedToken},
    held_token::{Confirmation, HeldToken, OF_CONSUL, TaskFile, TokenFiles, TokenPlace},
    present,
    token_audit::TokenHolder,
    vault::boot_now,
};

/// A task whose Consul is not in the config asks again in this period; a restart with another config comes first.
const UNCONFIGURED_PERIOD: Duration = Duration::from_secs(3_600);
/// A replacement that takes longer is continued by a later try.
const REPLACEMENT_MAX: Duration = Duration::from_secs(30);
/// Consul reports no event when a token is deleted: it is looked up once in this period.
const VERIFICATION_PERIOD: Duration = Duration::from_secs(300);

/// What a task wants of Consul.
enum TokenNeed {
    /// No token of its own: its templates read with the agent's.
    Nothing,
    /// A token, by this identity.
    Token(Arc<ConsulCluster>, LoginIdentity),
    /// Its Consul is not in the config.
    Unconfigured,
}

/// Gets a task's token or verifies it, inspects it, or logs it out.
pub async fn consul(
    context: &Arc<Context>,
    workload: &Workload,
    verb: PlaceVerb,
    cancelled: &CancellationToken,
) -> Outcome {
    let outcome = match verb {
        PlaceVerb::Inspect => inspect(context, workload).await,
        PlaceVerb::Up => ensure(context, workload, cancelled).await,
        PlaceVerb::Down => release(context, workload).await,
    };
    outcome.unwrap_or_else(Outcome::from)
}

/// `CONSUL_HTTP_TOKEN` and `CONSUL_TOKEN`, if the task has a token.
///
/// # Errors
/// If the token is not there, or can't be read.
pub async fn variables(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    let Some(held) = token(context, workload).await? else { return Ok(Variables::new()) };
    // Nomad's names.
    Ok(["CONSUL_HTTP_TOKEN", "CONSUL_TOKEN"].map(|name| (name.to_owned(), held.reveal().to_owned())).into())
}

/// Where the templates of a task read, and with which token.
///
/// # Errors
/// If the token is not there, or can't be read.
pub async fn rights(context: &Arc<Context>, workload: &Workload) -> Result<ConsulRights, Refusal> {
    let access = workload.task().and_then(|task| task.consul.as_ref());
    let access = context.services.catalogs.consuls.named(access);
    let token = token(context, workload).await?;
    Ok(ConsulRights {
        cluster: access.cluster,
        namespace: access.namespace.unwrap_or_default(),
        partition: access.partition.unwrap_or_default(),
        token: token.map(|held| AccessToken::new(held.reveal())).unwrap_or_default(),
    })
}

/// The token of a task that wants one.
async fn token(context: &Arc<Context>, workload: &Workload) -> Result<Option<HeldToken>, Refusal> {
    let Some((access, TokenNeed::Token(..))) = wanted(context, workload) else { return Ok(None) };
    let held = read(context, workload).await?.filter(|held| is_for(context, held, access));
    held.map(Some).ok_or_else(|| Refusal::retry("read the token of Consul: it is not there".to_owned()))
}

/// `None` if the task has no block.
fn wanted<'w>(context: &Context, workload: &'w Workload) -> Option<(&'w ConsulAccess, TokenNeed)> {
    let task = workload.task()?;
    let access = task.consul.as_ref()?;
    let Some(cluster) = context.consuls.cluster(&access.cluster) else {
        return Some((access, TokenNeed::Unconfigured));
    };
    let identity = identity_of((&workload.alloc, task), access, cluster);
    let wanted =
        identity.map_or(TokenNeed::Nothing, |identity| TokenNeed::Token(Arc::clone(cluster), identity));
    Some((access, wanted))
}

/// The identity that a task logs in with: of the job, or of the config. Those of servers' tasks come from servers.
fn identity_of(
    (alloc, task): (&Allocation, &Task),
    access: &ConsulAccess,
    cluster: &ConsulCluster,
) -> Option<LoginIdentity> {
    let name = access.identity_name();
    let rules = cluster.logins.tasks.identity.as_ref();
    let is_defined = task.identities.iter().any(|identity| identity.name == name);
    let is_wanted = is_defined || (alloc.server.is_none() && rules.is_some());
    is_wanted.then(|| LoginIdentity {
        name,
        audiences: rules.map(|rules| rules.audiences.clone()).unwrap_or_default(),
        ttl: rules.map(|rules| rules.ttl).unwrap_or_default(),
    })
}

async fn inspect(context: &Arc<Context>, workload: &Workload) -> Result<Outcome, Refusal> {
    let held = read(context, workload).await?;
    let (access, wanted) = wanted(context, workload).ok_or("find the block `consul` of the task")?;
    let held = held.filter(|held| is_for(context, held, access));
    let held = match (held, wanted) {
        (None, TokenNeed::Nothing) => return Ok(Outcome::Present(None)),
        // `ensure` releases it.
        (Some(_), TokenNeed::Nothing) | (None, TokenNeed::Token(..) | TokenNeed::Unconfigured) => {
            return Ok(Outcome::Absent);
        }
        (Some(held), TokenNeed::Token(..) | TokenNeed::Unconfigured) => held,
    };
    let facts = facts(&held);
    let files = files(context, workload);
    let seen =
        on_files("inspect the token of Consul", move || files.inspect(&held, TaskFile::Written)).await?;
    Ok(inspected(seen, Some(facts)))
}

async fn ensure(
    context: &Arc<Context>,
    workload: &Workload,
    cancelled: &CancellationToken,
) -> Result<Outcome, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let held = read(context, workload).await?;
    let (access, wanted) = wanted(context, workload).ok_or("find the block `consul` of the task")?;
    let (cluster, identity) = match wanted {
        TokenNeed::Nothing => return release(context, workload).await,
        TokenNeed::Token(cluster, identity) => (cluster, identity),
        TokenNeed::Unconfigured => {
            let known = context.consuls.known();
            let on = format!("Consul `{}`: {known}: correct `cluster` of the block `consul`", access.cluster);
            return Ok(Outcome::Pending { on, ask_in: Span::from_std(UNCONFIGURED_PERIOD) });
        }
    };
    let last = held.as_ref().map(|held| held.id);
    let (held, other) = match held {
        Some(held) if is_at(context, &held, access) => (Some(held), None),
        other => (None, other),
    };
    let files = TokenFiles { access: file_access::find(context, task).await?, ..files(context, workload) };
    let files = Arc::new(files);
    let session = Session {
        owed: &context.owed_tokens,
        cluster: &cluster,
        place: place_of(context, access),
        method: &cluster.logins.tasks.method,
        holder: Holder { alloc: workload.alloc.id, name: TokenHolder::Task(task.name.clone()) },
        replacement_max: REPLACEMENT_MAX,
    };
    let keeper = TaskKeeper { context, workload, identity, files };
    if let Some(other) = other {
        session.owe(other).await?;
    }
    let held = tokio::select! {
        biased;
        () = cancelled.cancelled() => return Err(Refusal::retry("get a token of Consul: the task is to end".to_owned())),
        ensured = session.ensure(held, &keeper) => ensured?,
    };
    let shown = keeper.show(&held).await;
    // Also if it could not be shown: templates read the token in `private`.
    if last.is_some_and(|last| last != held.id) {
        context.renderer.consul_token_changed(workload.alloc.id, workload.position());
    }
    shown?;
    let now = boot_now();
    Ok(match (held.lease.failing_since_ns(now), held.lease.due_in(now)) {
        (Some(since_ns), Some(ask_in)) => {
            let since = time_before(Duration::from_nanos(now.ns.saturating_sub(since_ns)));
            let end = if held.lease.is_past_end(now) { ", and it has expired" } else { "" };
            let why = held.failure.as_deref().unwrap_or("it is tried again");
            let on = format!("Consul, which has given no other token since {since}{end}: {why}");
            Outcome::Outdated { on, ask_in: Span::from_std(ask_in), since_ns }
        }
        (Some(_), None) | (None, _) => Outcome::Done(Some(facts(&held))),
    })
}

/// The token of a task.
struct TaskKeeper<'a> {
    context: &'a Arc<Context>,
    workload: &'a Workload,
    identity: LoginIdentity,
    files: Arc<TokenFiles>,
}

impl Keeper for TaskKeeper<'_> {
    async fn bearer(&self) -> Result<SecretText, Refusal> {
        let (context, workload) = (Arc::clone(self.context), self.workload.clone());
        let identity = self.identity.clone();
        let work = move || login_identity::of_task(&context, &workload, ("Consul", identity));
        on_files("get the identity for Consul", work).await
    }

    /// The task's own file follows, see [`Self::show`].
    async fn keep(&self, held: &HeldToken) -> Result<(), Refusal> {
        self.write(held, TaskFile::Disabled).await
    }
}

impl TaskKeeper<'_> {
    /// Stores the token, and writes it to the task's file.
    async fn show(&self, held: &HeldToken) -> Result<(), Refusal> {
        self.write(held, TaskFile::Written).await
    }

    async fn write(&self, held: &HeldToken, file: TaskFile) -> Result<(), Refusal> {
        let (files, held) = (Arc::clone(&self.files), held.clone());
        on_files("keep the token of Consul", move || files.write(&held, file)).await
    }
}

/// Removes the token from the task, and has it logged out.
async fn release(context: &Arc<Context>, workload: &Workload) -> Result<Outcome, Refusal> {
    let files = Arc::new(files(context, workload));
    if let Some(held) = read(context, workload).await? {
        let name = workload.task().map(|task| task.name.clone()).unwrap_or_default();
        let (owed, own, alloc) = (Arc::clone(&context.owed_tokens), Arc::clone(&files), workload.alloc.id);
        on_files("store the token of Consul for its log-out", move || {
            // The next agent must not use it. Without space, only a crash before the removal makes a difference.
            let released = held.released();
            let _ = own.write(&released, TaskFile::Disabled);
            owed.add(OwedToken { alloc, holder: TokenHolder::Task(name), held: released })
        })
        .await?;
    }
    on_files("remove the token of Consul", move || files.remove()).await?;
    Ok(Outcome::Done(None))
}

async fn read(context: &Arc<Context>, workload: &Workload) -> Result<Option<HeldToken>, Refusal> {
    let files = files(context, workload);
    on_files("read the token of Consul", move || files.read()).await
}

/// The files of a task, for anything but writing them.
fn files(context: &Context, workload: &Workload) -> TokenFiles {
    let task = workload.task();
    let name = task.map_or("", |task| task.name.as_str());
    let dir = TaskDir::new(context.paths.task(&workload.alloc.id, name), context.privileges);
    let access = task.map_or(FileAccess::Owner(None), file_access::widest);
    TokenFiles { names: &OF_CONSUL, dir, access }
}

/// Whether the task can use the token.
fn is_for(context: &Context, held: &HeldToken, access: &ConsulAccess) -> bool {
    held.confirmation != Confirmation::Released && is_at(context, held, access)
}

/// Whether the token is valid where the task needs it. Earlier versions stored the namespace `default` too, where it is not sent.
fn is_at(context: &Context, held: &HeldToken, access: &ConsulAccess) -> bool {
    let TokenPlace { cluster, namespace, partition } = held.place.clone();
    place_of(context, &ConsulAccess { cluster, namespace, partition }) == place_of(context, access)
}

fn place_of(context: &Context, access: &ConsulAccess) -> TokenPlace {
    let named = context.services.catalogs.consuls.named(Some(access));
    let ConsulAccess { cluster, namespace, partition } = named;
    TokenPlace { cluster, namespace, partition }
}

fn facts(held: &HeldToken) -> Arc<Facts> {
    let verification = verification_in(held);
    let next = held.lease.due_in(boot_now()).map_or(verification, |due| due.min(verification));
    let renew_at = Some(Deadline::after(present::now(), Span::from_std(next)));
    Arc::new(Facts { revision: Revision(held.id), renew_at, ..Facts::none() })
}

/// The time until the next verification: once in a period, at the same times whenever this is asked, and not for all tokens at once.
fn verification_in(held: &HeldToken) -> Duration {
    let period_ns = u64::try_from(VERIFICATION_PERIOD.as_nanos()).unwrap_or(u64::MAX);
    let age = held.lease.age(boot_now()).unwrap_or_default();
    let age_ns = u64::try_from(age.as_nanos()).unwrap_or_default();
    Duration::from_nanos(period_ns - age_ns.wrapping_add(held.id % period_ns) % period_ns)
}
