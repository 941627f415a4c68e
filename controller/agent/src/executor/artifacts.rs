//! Fetches the artifacts of a task through [`herdlet_storage::artifact`].

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::job::Artifact;
use herdlet_base::{artifact::destination::Dirs, error::in_full, privileges::Ownership, user};
use herdlet_plan::{
    action::{FailureClass, Outcome},
    env::TaskEnv,
};
use herdlet_storage::artifact::{self, ArtifactError, Recipient, Resolved, Verdict};
use tokio_util::sync::CancellationToken;

use crate::executor::{Context, PlaceVerb, Refusal, TaskVariables, Workload, logins, places, retry, secrets};

/// Fetches a task's artifacts, or inspects whether they are fetched. They are removed with the task's directory.
pub async fn artifacts(
    context: &Arc<Context>,
    workload: &Workload,
    verb: PlaceVerb,
    cancelled: &CancellationToken,
) -> Outcome {
    let name = workload.task().map_or("", |task| task.name.as_str());
    let id = &workload.alloc.id;
    let dirs = Dirs { task: context.paths.task(id, name), shared: context.paths.shared(id) };
    match verb {
        PlaceVerb::Down => Outcome::Done(None),
        PlaceVerb::Inspect => {
            let own = match secrets::values(context, workload).await {
                Ok(secrets) => TaskVariables { secrets, ..TaskVariables::default() },
                Err(refusal) => return refusal.into(),
            };
            let wanted = resolved(workload, &context.task_env_on_host(workload, &own));
            let looking = herdlet_runtime::off_thread(move || artifact::is_fetched(&wanted, &dirs));
            match looking.await {
                Ok(Ok(true)) => Outcome::Present(None),
                // A fetch will report the error.
                Ok(Ok(false) | Err(ArtifactError::Outside(_))) => Outcome::Absent,
                Ok(Err(error)) => retry(in_full(&error)),
                Err(error) => retry(format!("inspect artifacts: {error}")),
            }
        }
        PlaceVerb::Up => {
            let recipient = match recipient(context, workload, dirs).await {
                Ok(recipient) => recipient,
                Err(refusal) => return refusal.into(),
            };
            let own = match variables(context, workload).await {
                Ok(own) => own,
                Err(refusal) => return refusal.into(),
            };
            let wanted = resolved(workload, &context.task_env_on_host(workload, &own));
            match context.artifacts.up(wanted, recipient, cancelled).await {
                Ok(()) => Outcome::Done(None),
                Err(error) => {
                    let class = match error.verdict() {
                        Verdict::TryAgain => FailureClass::Retry,
                        Verdict::Failed => FailureClass::Recoverable,
                        Verdict::Never => FailureClass::Fatal,
                    };
                    Outcome::Failed { class, why: in_full(&error) }
                }
            }
        }
    }
}

/// What addresses and headers may refer to: templates are rendered later.
async fn variables(context: &Arc<Context>, workload: &Workload) -> Result<TaskVariables, Refusal> {
    Ok(TaskVariables {
        tokens: places::env_tokens(context, workload).await?,
        logins: logins::variables(context, workload).await?,
        secrets: secrets::values(context, workload).await?,
        ..TaskVariables::default()
    })
}

async fn recipient(context: &Arc<Context>, workload: &Workload, dirs: Dirs) -> Result<Recipient, Refusal> {
    let name = workload.task().and_then(places::machine_user).map(str::to_owned);
    let found = herdlet_runtime::off_thread(move || user::credentials(name.as_deref())).await;
    let found = found.map_err(|error| Refusal {
        class: herdlet_base::observation::Class::Retry,
        why: format!("look up the user: {error}"),
    })?;
    let user = found.map_err(|error| Refusal::of(error.class(), &error))?;
    let user = match context.privileges.ownership {
        Ownership::Anybody => user,
        Ownership::OwnOnly => None,
    };
    Ok(Recipient { dirs, user })
}

/// A task's artifacts with variables interpolated.
fn resolved(workload: &Workload, env: &TaskEnv) -> Vec<Resolved> {
    let texts = |texts: &BTreeMap<String, String>| {
        texts.iter().map(|(key, value)| (key.clone(), env.interpolate(value))).collect()
    };
    let artifacts = workload.task().map_or(&[][..], |task| &task.artifacts);
    let resolved = artifacts.iter().map(|written| Resolved {
        digest: artifact::digest_of(written),
        artifact: Artifact {
            source: env.interpolate(&written.source),
            options: texts(&written.options),
            headers: texts(&written.headers),
            destination: env.interpolate(&written.destination),
            ..written.clone()
        },
    });
    resolved.collect()
}
