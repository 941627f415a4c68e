//! Fetches the values of a task's `secret` blocks: variables and secrets of Vault through [`herdlet_render`], others with
//! plugins.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::job::Secret;
use herdlet_base::error::in_full;
use herdlet_plan::{
    action::Outcome,
    env::{TaskEnv, Variables},
};
use herdlet_render::{
    Consumer, TaskTemplates,
    plugin::{self, PluginRequest},
    renderer::SecretVariables,
    secrets::SecretValues,
};
use tokio_util::sync::CancellationToken;

use super::{
    blocking::on_files,
    reading::{awaited, dirs, reading},
};
use crate::executor::{
    Context, PlaceVerb, Refusal, TaskVariables, Workload, failed, logins, places, retry, vault,
};

/// Fetches a task's secrets, or inspects whether they are there. They are removed with the task's directory.
pub async fn secrets(
    context: &Arc<Context>,
    workload: &Workload,
    verb: PlaceVerb,
    cancelled: &CancellationToken,
) -> Outcome {
    match verb {
        PlaceVerb::Down => Outcome::Done(None),
        PlaceVerb::Inspect => match stored(context, workload).await {
            Ok(Some(_)) => Outcome::Present(None),
            Ok(None) => Outcome::Absent,
            Err(refusal) => refusal.into(),
        },
        PlaceVerb::Up => fetch(context, workload, cancelled).await.unwrap_or_else(Outcome::from),
    }
}

/// The values of a task's secrets, by `secret.NAME.KEY`.
///
/// # Errors
/// If they have not been fetched, or can't be read.
pub async fn values(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    if workload.task().is_none_or(|task| task.secrets.is_empty()) {
        return Ok(Variables::new());
    }
    let missing = || Refusal::retry("read the values of secrets: they are not there".to_owned());
    stored(context, workload).await?.map(|stored| stored.values).ok_or_else(missing)
}

async fn stored(context: &Arc<Context>, workload: &Workload) -> Result<Option<SecretValues>, Refusal> {
    let dirs = dirs(context, workload);
    on_files("read the values of secrets", move || SecretValues::read(&dirs)).await
}

async fn fetch(
    context: &Arc<Context>,
    workload: &Workload,
    cancelled: &CancellationToken,
) -> Result<Outcome, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let reader = TaskTemplates {
        vault: vault::rights(context, workload, cancelled).await?,
        ..reading(context, workload, Consumer::Secrets).await?
    };
    let mut found = match context.renderer.secret_variables(reader, &task.secrets).await {
        Ok(SecretVariables::Read(found)) => found,
        Ok(SecretVariables::Missing { on, recheck, upkeep }) => {
            return Ok(Outcome::Pending { on, ask_in: awaited(recheck, &upkeep) });
        }
        Err(error) => return Ok(failed(error.class(), &error)),
    };
    if task.secrets.iter().any(Secret::is_of_plugin) {
        // A plugin may need the values of variables, but not those of other plugins.
        let tokens = places::env_tokens(context, workload).await?;
        let logins = logins::variables(context, workload).await?;
        let own = TaskVariables { tokens, logins, secrets: found.values.clone(), ..TaskVariables::default() };
        let env = context.task_env(workload, &own);
        for secret in task.secrets.iter().filter(|secret| secret.is_of_plugin()) {
            let request = PluginRequest {
                name: &secret.provider,
                path: &secret.path,
                env: &plugin_env(workload, secret, &env),
                cancelled,
            };
            match plugin::fetch(&context.secrets_plugins, request).await {
                Ok(values) => {
                    let named = values.into_iter().map(|(key, value)| (secret.value_name(&key), value));
                    found.values.extend(named);
                }
                Err(error) => {
                    let why = format!("fetch the secret \"{}\": {}", secret.name, in_full(&error));
                    return Err(Refusal { class: error.class(), why });
                }
            }
        }
    }
    let dirs = dirs(context, workload);
    match herdlet_runtime::off_thread(move || found.write(&dirs)).await {
        Ok(Ok(())) => Ok(Outcome::Done(None)),
        Ok(Err(error)) => Ok(failed(error.class(), &error)),
        Err(error) => Ok(retry(format!("keep the values of secrets: {error}"))),
    }
}

/// The environment of a plugin. The job's names can't be overridden.
fn plugin_env(workload: &Workload, secret: &Secret, env: &TaskEnv) -> BTreeMap<String, String> {
    let job = &workload.alloc.job_key;
    let given = secret.env.iter().map(|(name, value)| (name.clone(), env.interpolate(value)));
    let own = [("NOMAD_JOB_ID", job.id.to_string()), ("NOMAD_NAMESPACE", job.namespace.to_string())];
    given.chain(own.map(|(name, value)| (name.to_owned(), value))).collect()
}
