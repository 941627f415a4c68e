//! Identities of tasks that servers sign when they are asked (1.7 and later): all but the default one, which comes with the allocation.
//!
//! In: a task's `identities`, and servers. Out: tokens, kept beside the state for no eyes but ours and the task's: a file for each task,
//! 0600, so that another agent needs no new ones. When half of a token's life is over another one is asked for; what to tell the task then is
//! the planner's.
//!
//! Facts: `hashicorp/nomad:client/widmgr/widmgr.go`, `helper/backoff.go` (`ExpiryToRenewTime`).

use std::{collections::BTreeMap, fs, io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use herdlet_api_types::{AllocId, alloc::Allocation, job::Task, manifest::defaults::DEFAULT_IDENTITY};
use herdlet_nomad::wire::{
    Secret,
    queries::{IdentityRequest, SignResponse},
};
use herdlet_rpc::{error::CallError, pool::Chance};
use herdlet_runtime::off_thread;
use serde::{Deserialize, Serialize};

use super::{report, tokens};
use crate::{
    clock,
    drivers::{
        identity::{Given, Token},
        sight::Class,
    },
    executor::{Context, Refusal},
    paths::{self, Paths},
};

/// Asks servers for identities of an allocation that they have known since an index.
pub type ServersSign = Box<
    dyn Fn(Vec<IdentityRequest>, u64) -> BoxFuture<'static, Result<SignResponse, CallError>> + Send + Sync,
>;

/// So long servers may take: a little less than any operation may. After that they are asked again.
const WITHIN: Duration = Duration::from_secs(8);

/// Before that no other identity is asked for: clocks may differ by more than a token lives.
const RENEWED_AFTER: Duration = Duration::from_secs(10);

/// A workload that is a task, in Nomad's numbers.
const OF_TASK: i64 = 0;

/// A token as it is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    token: Secret,
    /// When another one is to be asked for, in nanoseconds since 1970; none: it doesn't expire.
    renew_at: Option<i64>,
}

type ByName = BTreeMap<String, Kept>;

/// Asks servers for what of a task's identities is missing or due. Nothing is asked where all is there.
///
/// # Errors
/// What keeps the task from getting them.
pub async fn sign(context: &Arc<Context>, alloc: &Arc<Allocation>, task: &Task) -> Result<(), Refusal> {
    let Some(server) = &alloc.server else { return Ok(()) };
    let names: Vec<&String> = named(task).collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut kept = read(&context.paths, alloc.id, &task.name).map_err(|error| keeping(&error))?;
    let now = clock::wall_now().0;
    let is_wanting = |name: &&&String| kept.get(**name).is_none_or(|kept| kept.is_due(now));
    let wanted: Vec<String> = names.iter().filter(is_wanting).map(|name| (*name).clone()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let request = |name: &String| IdentityRequest {
        alloc_id: report::id(alloc.id),
        identity_name: name.clone(),
        workload_identifier: task.name.clone(),
        workload_type: OF_TASK,
        interpolated_workload_identifier: String::new(),
    };
    let retry = |why: String| Refusal { class: Class::Retry, why };
    let sign = context
        .servers_sign
        .get()
        .ok_or_else(|| retry("ask servers for identities: none is known".to_owned()))?;
    let asked = sign(wanted.iter().map(request).collect(), server.create_index);
    let answer = tokio::time::timeout(WITHIN, asked).await;
    let answer = answer.map_err(|_| {
        retry(format!("ask servers for identities: none has answered within {} s", WITHIN.as_secs()))
    })?;
    let answer = answer.map_err(|error| retry(format!("ask servers for identities: {error}")))?;
    let is_ours = |id: &herdlet_nomad::wire::AllocId, workload: &str| {
        *id == report::id(alloc.id) && workload == task.name
    };
    let mut refused = answer.rejections.iter().filter(|it| is_ours(&it.alloc_id, &it.workload_identifier));
    if let Some(refused) = refused.find(|refused| wanted.contains(&refused.identity_name)) {
        let why = format!("get identity {:?} of servers: {}", refused.identity_name, refused.reason);
        return Err(Refusal { class: Class::Fatal, why });
    }
    let mut chance = Chance::new();
    for signed in answer.signed_identities {
        if is_ours(&signed.alloc_id, &signed.workload_identifier) && !signed.jwt.is_empty() {
            let expires = signed.expiration.unix_nanos().filter(|_| !signed.expiration.is_zero());
            let renew_at = expires.map(|expires| renew_at(now, expires, &mut chance));
            kept.insert(signed.identity_name, Kept { token: signed.jwt, renew_at });
        }
    }
    if let Some(missing) = wanted.iter().find(|name| kept.get(*name).is_none_or(|kept| kept.is_due(now))) {
        return Err(retry(format!(
            "get identity {missing:?} of servers: it is not among what they have signed"
        )));
    }
    // What the job doesn't name any more goes.
    kept.retain(|name, _| names.contains(&name));
    let (paths, id, task) = (context.paths.clone(), alloc.id, task.name.clone());
    let written = off_thread(move || keep(&paths, id, &task, &kept)).await;
    written.map_err(io::Error::other).flatten().map_err(|error| keeping(&error))
}

fn keeping(error: &io::Error) -> Refusal {
    Refusal { class: Class::Retry, why: format!("keep identities that servers have signed: {error}") }
}

/// All tokens of a task that servers have signed, by the identity's name.
///
/// # Errors
/// When they can't be read.
pub fn given(paths: &Paths, id: AllocId, task: &Task) -> io::Result<BTreeMap<String, Given>> {
    let mut given = BTreeMap::new();
    if let Some(token) = tokens::of_task(paths, id, &task.name)? {
        given.insert(DEFAULT_IDENTITY.to_owned(), Given { token, renew_in: None });
    }
    if named(task).next().is_none() {
        return Ok(given);
    }
    let now = clock::wall_now().0;
    for (name, kept) in read(paths, id, &task.name)? {
        let left = |at: i64| Duration::from_nanos(u64::try_from(at.saturating_sub(now)).unwrap_or_default());
        let token = Token::given(kept.token.reveal().to_owned());
        given.insert(name, Given { token, renew_in: kept.renew_at.map(left) });
    }
    Ok(given)
}

/// Forgets those of an allocation.
///
/// # Errors
/// When they can't be removed.
pub fn forget(paths: &Paths, id: AllocId) -> io::Result<()> {
    match fs::remove_dir_all(paths.server_identities(&id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Kept {
    fn is_due(&self, now: i64) -> bool {
        self.renew_at.is_some_and(|at| at <= now)
    }
}

fn named(task: &Task) -> impl Iterator<Item = &String> {
    task.identities.iter().map(|identity| &identity.name).filter(|name| *name != DEFAULT_IDENTITY)
}

/// When half of its life is over, and up to a tenth of that sooner, so that not all are asked for at once.
fn renew_at(now: i64, expires: i64, chance: &mut Chance) -> i64 {
    let left = Duration::from_nanos(u64::try_from(expires.saturating_sub(now)).unwrap_or_default());
    let half = left / 2;
    let wait = half.saturating_sub(chance.below(half / 10)).max(RENEWED_AFTER);
    now.saturating_add(i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX))
}

/// Without any that can't be read: servers sign others.
fn read(paths: &Paths, id: AllocId, task: &str) -> io::Result<ByName> {
    let text = match fs::read(file(paths, id, task)) {
        Ok(text) => zeroize::Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ByName::new()),
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_slice(&text).unwrap_or_default())
}

fn keep(paths: &Paths, id: AllocId, task: &str, kept: &ByName) -> io::Result<()> {
    let text = zeroize::Zeroizing::new(serde_json::to_string(kept)?);
    tokens::write(&file(paths, id, task), text.as_bytes())
}

fn file(paths: &Paths, id: AllocId, task: &str) -> std::path::PathBuf {
    paths.server_identities(&id).join(paths::encode(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn another_one_is_asked_for_when_half_of_a_life_is_over_but_not_again_and_again() {
        let after =
            |life: i64| (renew_at(5 * SECOND, (5 + life) * SECOND, &mut Chance::of(3)) - 5 * SECOND) / SECOND;
        assert!((1_620..=1_800).contains(&after(3_600)), "{}", after(3_600));
        assert_eq!((after(15), after(1), after(-3_600)), (10, 10, 10));
    }

    #[test]
    fn what_is_kept_can_be_read_by_nobody_else_and_is_forgotten() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let id = AllocId::from_hash([1; 16]);
        forget(&paths, id).unwrap();
        assert!(read(&paths, id, "a/b").unwrap().is_empty());
        let kept = Kept { token: "a.b.c".into(), renew_at: Some(7) };
        keep(&paths, id, "a/b", &[("aws".to_owned(), kept)].into()).unwrap();
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = file(&paths, id, "a/b");
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let read_again = &read(&paths, id, "a/b").unwrap()["aws"];
        assert_eq!((read_again.token.reveal(), read_again.renew_at), ("a.b.c", Some(7)));
        fs::write(&path, "half").unwrap();
        assert!(read(&paths, id, "a/b").unwrap().is_empty(), "it is asked for again");
        forget(&paths, id).unwrap();
        assert!(!path.exists());
    }
}
