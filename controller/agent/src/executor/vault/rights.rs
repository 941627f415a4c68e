//! What the templates and `secret` blocks of a task may do at Vault: with the task's own token.

use std::sync::Arc;

use herdlet_render::{VaultReader, VaultRights};
use tokio_util::sync::CancellationToken;

use super::{Refusal, read};
use crate::executor::{Context, Workload};

/// The rights of a task. A Vault that is not in the config, or can't be used, takes no value from a task.
///
/// # Errors
/// If the token can't be read.
pub async fn rights(
    context: &Arc<Context>,
    workload: &Workload,
    cancelled: &CancellationToken,
) -> Result<VaultRights, Refusal> {
    let Some(access) = workload.task().and_then(|task| task.vault.as_ref()) else {
        return Ok(VaultRights::Absent);
    };
    let Some(server) = context.vaults.server(&access.cluster) else {
        let why = format!("set vault.{}.address in the agent's config", access.cluster);
        return Ok(VaultRights::Unready(why));
    };
    let Some(held) = read(context, workload).await?.filter(|held| held.place == super::place_of(access))
    else {
        return Ok(VaultRights::Unready("the task has no token of Vault yet".to_owned()));
    };
    let client = match server.client(access.namespace.as_deref()).await {
        Ok(client) => client,
        Err(why) => return Ok(VaultRights::Unready(why)),
    };
    Ok(VaultRights::Ready(VaultReader {
        client,
        token: held.token(),
        token_id: held.id,
        cluster: access.cluster.clone(),
        cancelled: cancelled.clone(),
    }))
}
