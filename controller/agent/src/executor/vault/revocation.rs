//! Revokes the tokens of all tasks on request, as after a break-in.
//!
//! In: allocations. Out: which tokens are revoked. Their leases end with them. A running task gets another token, and its
//! `change_mode` acts. Vault is changed first: if the agent is killed then, the next renewals find out.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{StreamExt as _, stream};
use herdlet_api_types::{alloc::Allocation, vault::RevokedToken};
use herdlet_plan::{
    event::Event,
    op::{Part, TaskPart},
};
use herdlet_runtime::Inbox;
use herdlet_vault::error::{FailureClass, VaultError};

use super::{access_of, read, revoke_token};
use crate::{
    executor::{Context, Workload},
    held_token::HeldToken,
    planner::Input,
};

/// Requests at once.
const CONCURRENT_MAX: usize = 20;

/// Revokes the tokens of these allocations. A server that does not answer is not asked for its other tokens.
pub async fn revoke_all(
    context: &Arc<Context>,
    allocs: Vec<Arc<Allocation>>,
    inbox: &Inbox<Input>,
) -> Vec<RevokedToken> {
    let away = Mutex::default();
    let tasks = allocs.iter().flat_map(|alloc| {
        let count = alloc.group().map_or(0, |group| group.tasks.len());
        (0..count).filter_map(|index| Workload::of(alloc, u16::try_from(index).ok()?))
    });
    let with_vault: Vec<Workload> =
        tasks.filter(|workload| workload.task().is_some_and(|task| task.vault.is_some())).collect();
    let revoking = with_vault.into_iter().map(|workload| revoke_one(context, workload, (&away, inbox)));
    let revoked: Vec<Option<RevokedToken>> = stream::iter(revoking).buffered(CONCURRENT_MAX).collect().await;
    revoked.into_iter().flatten().collect()
}

/// `None` if the task has no token.
async fn revoke_one(
    context: &Arc<Context>,
    workload: Workload,
    (away, inbox): (&Mutex<BTreeSet<String>>, &Inbox<Input>),
) -> Option<RevokedToken> {
    let access = access_of(&workload).ok()?;
    let report = |accessor: &str, error: Option<String>| RevokedToken {
        namespace: workload.alloc.job_key.namespace.to_string(),
        alloc: workload.alloc.name(),
        alloc_id: workload.alloc.id.to_string(),
        task: workload.task().map(|task| task.name.clone()).unwrap_or_default(),
        cluster: access.cluster.clone(),
        accessor: accessor.to_owned(),
        error,
    };
    let held: HeldToken = match read(context, &workload).await {
        Ok(held) => held?,
        Err(refusal) => return Some(report("", Some(refusal.why))),
    };
    let lock = || away.lock().unwrap_or_else(PoisonError::into_inner);
    if lock().contains(&access.cluster) {
        return Some(report(&held.accessor, Some("revoke the token: Vault does not answer".to_owned())));
    }
    let error = revoke_token(context, &workload, &held).await.err();
    let is_gone = match error.as_ref().map(VaultError::class) {
        None | Some(FailureClass::Token) => true,
        Some(FailureClass::Later { .. } | FailureClass::Absent | FailureClass::Request) => false,
    };
    if error.as_ref().is_some_and(VaultError::is_of_server) {
        lock().insert(access.cluster.clone());
    }
    if is_gone {
        context.vaults.note_revoked(held.id);
        let part = Part::Task(workload.position(), TaskPart::Vault);
        // An error means that the agent ends.
        let _ = inbox.send(Input::Event(Event::SourceChanged { alloc: workload.alloc.id, part })).await;
    }
    Some(report(&held.accessor, error.map(|error| error.to_string())))
}
