//! How a task reads data for its templates and secrets: with which rights, in which directories, and when it asks again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdlet_api_types::Duration as Span;
use herdlet_base::artifact::destination::Dirs;
use herdlet_render::{Access, AccessToken, Consumer, Reader, Recheck, TaskTemplates, Upkeep, VaultRights};

use super::blocking::on_files;
use crate::executor::{Context, Refusal, Workload, consul};

/// Data that appears without an event, such as a file, is looked for in this period.
const MISSING_FILE_PERIOD: Duration = Duration::from_secs(2);

/// Data that servers do not give: they are asked again by the watch too, but what one task may read, another may not.
const MISSING_SERVERS_PERIOD: Duration = Duration::from_secs(60);

/// Other data: its sources report changes, and this only limits the effect of a lost report.
const MISSING_PERIOD: Duration = Duration::from_secs(300);

/// A task that reads data with its own rights, without templates, and without its rights at Vault.
pub(super) async fn reading(
    context: &Arc<Context>,
    workload: &Workload,
    consumer: Consumer,
) -> Result<TaskTemplates, Refusal> {
    let alloc = &workload.alloc;
    let task = workload.task().ok_or("find the task")?;
    Ok(TaskTemplates {
        key: (alloc.id, workload.position(), consumer),
        reader: Reader {
            namespace: alloc.job_key.namespace.to_string(),
            job: alloc.job.identity_owner().unwrap_or(&alloc.job_key.id).to_owned(),
            group: alloc.group.clone(),
            task: task.name.clone(),
            alloc: alloc.id.to_string(),
            access: access(context, workload).await?,
            consul: consul::rights(context, workload).await?,
        },
        vault: VaultRights::Absent,
        templates: Vec::new(),
        env: BTreeMap::new(),
        dirs: dirs(context, workload),
        root: None,
        owner: None,
        secrets_mib: task.resources.secrets_mib(),
        before: Vec::new(),
    })
}

/// A task of a local job reads this agent's data, one of servers their data with its default identity.
async fn access(context: &Arc<Context>, workload: &Workload) -> Result<Access, Refusal> {
    let alloc = &workload.alloc;
    if alloc.server.is_none() {
        return Ok(Access::Agent);
    }
    let (tokens, id) = (Arc::clone(&context.server_tokens), alloc.id);
    let task = workload.task().map(|task| task.name.clone()).unwrap_or_default();
    let token = on_files("read the identity signed by servers", move || tokens.of_task(id, &task)).await?;
    let token = token.map(|token| AccessToken::new(token.reveal())).unwrap_or_default();
    Ok(Access::Servers { token })
}

/// The directories of a task.
pub(super) fn dirs(context: &Context, workload: &Workload) -> Dirs {
    let name = workload.task().map_or("", |task| task.name.as_str());
    let id = &workload.alloc.id;
    Dirs { task: context.paths.task(id, name), shared: context.paths.shared(id) }
}

/// When data that is missing is looked for without an event.
pub(super) fn awaited(recheck: Recheck, upkeep: &Upkeep) -> Span {
    let period = match recheck {
        Recheck::Files => MISSING_FILE_PERIOD,
        Recheck::Servers => MISSING_SERVERS_PERIOD,
        Recheck::Reported => MISSING_PERIOD,
    };
    Span::from_std(upkeep.due_in.map_or(period, |due_in| due_in.min(period)))
}
