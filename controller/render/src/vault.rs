//! Secrets of Vault for the templates and `secret` blocks of one task.
//!
//! In: queries, with the token of the task. Out: answers, and when the next one is due. What was issued once is kept in the
//! task's `private` ([`kept`](self)): the same agent and the next one renew it, and issue it again only if Vault has ended it.
//! A value that Vault gives no more stays in use. Each read, write and refusal has its line in the audit, without values.

mod kept;
mod request;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use herdlet_api_types::{UnixNanos, rfc3339::rfc3339};
use herdlet_base::{
    artifact::destination::Dirs,
    clock::{boot_id, wall_now},
};
use herdlet_runtime::{BootClock, Clock as _};
use herdlet_template::{Answer, Query};
use herdlet_vault::{
    client::VaultClient,
    error::{LeaseFailure, VaultError},
    lease::{BootTime, LeaseRecord, LeaseTerms, Step},
    secret::SecretText,
    spread::Spread,
};
use tokio_util::sync::CancellationToken;

pub use self::kept::KeepError;
pub(crate) use self::request::values;
use self::{
    kept::{KeptValue, KeptValues},
    request::{FetchedSecret, VaultRequest},
};
use crate::{sources::Reader, watches::Consumer};

/// The target of all audit lines, as for variables.
const AUDIT: &str = "herdlet::audit";

/// A value that exists can wait, and a task without one must show why it waits.
const ASK_MAX: Duration = Duration::from_secs(20);

/// Waits for values that were never there, as in consul-template, but with a longer first one.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LAST: Duration = Duration::from_secs(60);

/// Queries of Vault that one text names.
const NAMES_MAX: usize = 3;

/// What a task may do at Vault.
#[derive(Clone)]
pub enum VaultRights {
    /// The task has no block `vault`.
    Absent,
    /// It has no token yet, or the agent can't use the server; why, for people.
    Unready(String),
    Ready(VaultReader),
}

/// A task with a token.
#[derive(Clone)]
pub struct VaultReader {
    pub client: Arc<VaultClient>,
    pub token: SecretText,
    /// Identifies the token. Its leases end with it.
    pub token_id: u64,
    /// The agent's name for the server.
    pub cluster: String,
    /// Ends waits for Vault, because the task is to end.
    pub cancelled: CancellationToken,
}

/// What the values of Vault demand after a render.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// The time until a value is to be renewed or asked for; none if never.
    pub due_in: Option<Duration>,
    pub outdated: Option<OutdatedValues>,
}

/// Values that Vault has not renewed in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedValues {
    /// Their names and the reason, for people.
    pub on: String,
    /// Since when tries fail, by `CLOCK_BOOTTIME`.
    pub since_ns: u64,
}

/// The values of one consumer during one render.
pub(crate) struct VaultSession {
    consumer: Consumer,
    dirs: Dirs,
    kept: KeptValues,
    /// The kept values that this render uses, with their names for people.
    used: BTreeMap<String, String>,
    /// Why Vault is asked nothing more in this render.
    away: Option<String>,
    is_waiting: bool,
    is_changed: bool,
}

/// One query of a task.
struct Asking<'a> {
    reader: &'a Reader,
    rights: &'a VaultRights,
    request: &'a VaultRequest,
}

/// Why there is no answer.
struct AskFailure {
    lease: LeaseFailure,
    why: String,
}

impl VaultSession {
    /// Reads what is kept. Blocks.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn open(dirs: &Dirs, consumer: Consumer) -> Result<Self, KeepError> {
        let kept = KeptValues::read(dirs, consumer)?;
        let (used, away) = (BTreeMap::new(), None);
        Ok(Self { consumer, dirs: dirs.clone(), kept, used, away, is_waiting: false, is_changed: false })
    }

    /// The answer to a query, or why Vault does not give one. What it issues is kept before this returns.
    ///
    /// # Errors
    /// If a value can't be kept.
    pub(crate) async fn answer(
        &mut self,
        query: &Query,
        reader: &Reader,
        rights: &VaultRights,
    ) -> Result<Result<Answer, String>, KeepError> {
        let Query::Vault { function, arguments } = query else {
            return Ok(Ok(Answer::Failed("this is no query of Vault".to_owned())));
        };
        let request = match VaultRequest::new(function, arguments) {
            Ok(request) => request,
            Err(why) => return Ok(Ok(Answer::Failed(format!("{query}: {why}")))),
        };
        match rights {
            VaultRights::Absent => {
                return Ok(Ok(Answer::Failed(format!(
                    "{function} needs a token of Vault; add a block `vault` to the task"
                ))));
            }
            VaultRights::Unready(why) => drop(self.away.get_or_insert_with(|| why.clone())),
            VaultRights::Ready(_) => {}
        }
        let asking = Asking { reader, rights, request: &request };
        let key = request.key();
        let was_changed = std::mem::take(&mut self.is_changed);
        let kept = match self.kept.values.remove(&key) {
            Some(known) => self.go_on(&asking, known).await,
            None => match self.fetch(&asking).await {
                Ok(new) => new,
                Err(failure) => {
                    self.is_changed |= was_changed;
                    self.is_waiting = true;
                    return Ok(Err(failure.why));
                }
            },
        };
        let answer = Arc::clone(&kept.answer);
        // Earlier changes are written with the next one, or at the end of the render.
        let must_be_kept = self.is_changed && kept.is_issued;
        self.is_changed |= was_changed;
        self.used.insert(key.clone(), query.to_string());
        self.kept.values.insert(key, kept);
        if must_be_kept {
            self.write().await?;
        }
        Ok(Ok(Answer::Json(answer)))
    }

    /// Drops the values that a complete render has not used.
    pub(crate) fn drop_unused(&mut self) {
        let before = self.kept.values.len();
        self.kept.values.retain(|key, _| self.used.contains_key(key));
        self.is_changed |= self.kept.values.len() != before;
    }

    /// Ends a render. Returns what is due next.
    ///
    /// # Errors
    /// If the values can't be kept.
    pub(crate) async fn close(mut self) -> Result<Upkeep, KeepError> {
        let failures = if self.is_waiting { self.kept.failures.saturating_add(1) } else { 0 };
        self.is_changed |= self.kept.failures != failures;
        self.kept.failures = failures;
        if self.is_changed {
            self.write().await?;
        }
        Ok(self.upkeep(now()))
    }

    fn upkeep(&self, now: BootTime) -> Upkeep {
        let used = || self.used.iter().filter_map(|(key, name)| Some((name, self.kept.values.get(key)?)));
        let retry = self.is_waiting.then(|| retry_in(self.kept.failures));
        let due_in = used().filter_map(|(_, kept)| kept.lease.due_in(now)).chain(retry).min();
        let failing: Vec<_> =
            used().filter_map(|(name, kept)| Some((kept.lease.failing_for(now)?, name, kept))).collect();
        let outdated = failing.iter().max_by_key(|(length, ..)| *length).map(|(length, _, first)| {
            let names: BTreeSet<&String> = failing.iter().map(|(_, name, _)| *name).collect();
            let end = if first.lease.is_past_end(now) { ", and its time is over" } else { "" };
            let why = first.failure.as_deref().unwrap_or("it is tried again");
            let on = format!(
                "{} of Vault, which has not renewed it since {}{end}: {why}",
                joined(&names),
                time_before(*length)
            );
            OutdatedValues { on, since_ns: first.lease.failing_since_ns(now).unwrap_or(now.ns) }
        });
        Upkeep { due_in, outdated }
    }

    /// Renews or replaces a value as its lease demands. It always returns a value: the last one if Vault gives no other.
    async fn go_on(&mut self, asking: &Asking<'_>, mut kept: KeptValue) -> KeptValue {
        if let VaultRights::Ready(reader) = asking.rights
            && kept.lose_token(reader.token_id, now())
        {
            self.is_changed = true;
        }
        loop {
            let failure = match kept.lease.step(now()) {
                Step::Wait { .. } => return kept,
                Step::Renew if !kept.lease_id.is_empty() => match self.renew(asking, &kept.lease_id).await {
                    Ok(terms) => {
                        self.is_changed = true;
                        kept.failure = None;
                        kept.lease.renewed(terms, now(), Spread::random());
                        continue;
                    }
                    Err(failure) => failure,
                },
                Step::Renew | Step::Replace(_) => match self.fetch(asking).await {
                    Ok(new) => return new,
                    // Also if Vault denies the read: the value stays in use.
                    Err(AskFailure { lease: LeaseFailure::Lost, why }) => {
                        AskFailure { lease: LeaseFailure::Later { retry_after: None }, why }
                    }
                    Err(failure) => failure,
                },
            };
            self.is_changed = true;
            kept.lease.failed(failure.lease, now(), Spread::random());
            kept.failure = Some(failure.why);
        }
    }

    async fn renew(&mut self, asking: &Asking<'_>, lease_id: &str) -> Result<LeaseTerms, AskFailure> {
        self.ask(asking, "renew", async |reader| {
            reader.client.renew_lease(&reader.token, lease_id, None).await
        })
        .await
    }

    async fn fetch(&mut self, asking: &Asking<'_>) -> Result<KeptValue, AskFailure> {
        let request = asking.request;
        let FetchedSecret { answer, lease_id, terms, is_issued } = self
            .ask(asking, request.operation(), async |reader| {
                request.send(&reader.client, &reader.token).await
            })
            .await?;
        self.is_changed = true;
        let token_id = match asking.rights {
            VaultRights::Ready(reader) => reader.token_id,
            VaultRights::Absent | VaultRights::Unready(_) => 0,
        };
        let lease = LeaseRecord::granted(terms, now(), Spread::random());
        Ok(KeptValue { answer: Arc::new(answer), lease_id, token_id, is_issued, lease, failure: None })
    }

    /// Sends requests of one query, unless Vault does not answer.
    async fn ask<T>(
        &mut self,
        asking: &Asking<'_>,
        operation: &'static str,
        send: impl AsyncFnOnce(&VaultReader) -> Result<T, VaultError>,
    ) -> Result<T, AskFailure> {
        let later = |why: String| AskFailure { lease: LeaseFailure::Later { retry_after: None }, why };
        if let Some(why) = &self.away {
            return Err(later(why.clone()));
        }
        let VaultRights::Ready(reader) = asking.rights else {
            return Err(later("there is no token of Vault yet".to_owned()));
        };
        let path = asking.request.path();
        let sending = tokio::time::timeout(ASK_MAX, send(reader));
        let result = tokio::select! {
            biased;
            () = reader.cancelled.cancelled() => Err(later("the task is to end".to_owned())),
            result = sending => match result {
                Ok(Ok(found)) => Ok(found),
                Ok(Err(error)) => {
                    if error.is_of_server() {
                        self.away = Some(error.to_string());
                    }
                    Err(AskFailure { lease: error.lease_failure(), why: error.to_string() })
                }
                Err(_) => {
                    let why = format!("{operation} {path}: Vault has not answered in time");
                    self.away = Some(why.clone());
                    Err(later(why))
                }
            },
        };
        audit(
            asking.reader,
            (operation, &reader.cluster, path),
            result.as_ref().err().map(|failure| &*failure.why),
        );
        result
    }

    async fn write(&mut self) -> Result<(), KeepError> {
        let (kept, dirs, consumer) = (self.kept.clone(), self.dirs.clone(), self.consumer);
        let written = herdlet_runtime::off_thread(move || kept.write(&dirs, consumer)).await;
        written.map_err(|error| KeepError::Thread(error.to_string()))??;
        self.is_changed = false;
        Ok(())
    }
}

/// One line of the audit.
fn audit(reader: &Reader, (operation, cluster, path): (&str, &str, &str), failure: Option<&str>) {
    let Reader { alloc, task, .. } = reader;
    match failure {
        None => {
            tracing::info!(target: AUDIT, alloc, task, operation, cluster, path, result = "ok", "secret of Vault");
        }
        Some(why) => {
            tracing::info!(target: AUDIT, alloc, task, operation, cluster, path, result = "failed", why, "secret of Vault");
        }
    }
}

/// A time of day, because the text is shown until the next try.
pub fn time_before(length: Duration) -> String {
    const SECOND: i64 = 1_000_000_000;
    let since = wall_now().0.saturating_sub(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX));
    rfc3339(UnixNanos(since - since.rem_euclid(SECOND))).unwrap_or_default()
}

fn joined(names: &BTreeSet<&String>) -> String {
    let first: Vec<&str> = names.iter().take(NAMES_MAX).map(|name| name.as_str()).collect();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The wait after this many renders without a value.
fn retry_in(failures: u32) -> Duration {
    let doubled = RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(RETRY_LAST);
    doubled + Spread::random().share_of(doubled / 4)
}

fn now() -> BootTime {
    BootTime { boot_id: boot_id(), ns: BootClock.now().boot_ns }
}
