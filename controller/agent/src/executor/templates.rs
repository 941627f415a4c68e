//! Renders the templates of a task through [`herdlet_render`], and runs their scripts.

use std::{path::PathBuf, sync::Arc, time::Duration};

use herdlet_api_types::{
    Duration as Span,
    driver::runs_images,
    job::{ChangeScript, Template, TemplateChange, TemplateSource},
};
use herdlet_base::{
    error::in_full,
    observation::Class,
    privileges::Ownership,
    safe_fs::{Dir, FileOwner, FsError},
    user,
};
use herdlet_driver::{AttemptId, DriverError, TaskDriver};
use herdlet_plan::{
    action::{FailureClass, Outcome},
    env::{TaskEnv, Variables},
    facts::{Facts, Input, Revision},
    op::{Part, TaskPart, TemplateIndex},
    time::Deadline,
};
use herdlet_render::{
    Consumer, OutdatedValues, RenderError, Rendering, TaskTemplates, Upkeep,
    renderer::{started_variables, template_variables},
    secrets::SecretValues,
};

use tokio_util::sync::CancellationToken;

use super::{
    blocking::on_files,
    reading::{awaited, dirs, reading},
};
use crate::{
    executor::{
        Context, PlaceVerb, Refusal, TaskVariables, Workload, duration, fatal, logins, places, retry,
        secrets, vault,
    },
    present,
};

/// A value of Vault that nothing is due for is looked at again in this period; its lease comes first.
const OUTDATED_PERIOD: Duration = Duration::from_secs(60);

/// Renders a task's templates, or inspects whether the files are there. They are removed with the task's directory.
pub async fn templates(
    context: &Arc<Context>,
    workload: &Workload,
    (verb, cancelled): (PlaceVerb, &CancellationToken),
    inputs: &[Input],
) -> Outcome {
    if verb == PlaceVerb::Down {
        return Outcome::Done(None);
    }
    let own = Part::Task(workload.position(), TaskPart::Templates);
    let before = inputs.iter().find(|input| input.part == own).map(|input| Arc::clone(&input.facts));
    let task = match prepared(context, workload, before.as_deref(), cancelled).await {
        Ok(task) => task,
        Err(refusal) => return refusal.into(),
    };
    if verb == PlaceVerb::Inspect {
        return match context.renderer.is_there(task).await {
            Ok(true) if before.is_some() => Outcome::Present(before),
            Ok(_) => Outcome::Absent,
            Err(error) => failed(&error),
        };
    }
    // A template may read the payload. A running task may have changed or removed it.
    if before.is_none()
        && let Err(refusal) = places::payload(context, workload).await
    {
        return refusal.into();
    }
    match context.renderer.render(task).await {
        Ok(Rendering::Done { outputs, upkeep }) => rendered(&outputs, upkeep, before.as_deref()),
        Ok(Rendering::Missing { on, outdated_since_ns, recheck, upkeep }) => {
            let ask_in = awaited(recheck, &upkeep);
            match outdated_since_ns {
                Some(since_ns) => Outcome::Outdated { on, ask_in, since_ns },
                None => Outcome::Pending { on, ask_in },
            }
        }
        Err(error) => failed(&error),
    }
}

/// The outcome of a complete render. The planner must get changed outputs before it gets the notice that some are outdated.
fn rendered(outputs: &[u64], upkeep: Upkeep, before: Option<&Facts>) -> Outcome {
    let Upkeep { mut due_in, outdated } = upkeep;
    if let Some(OutdatedValues { on, since_ns }) = outdated {
        let is_known =
            before.is_some_and(|facts| facts.outputs.iter().map(|one| one.0).eq(outputs.iter().copied()));
        if is_known {
            return Outcome::Outdated {
                on,
                ask_in: Span::from_std(due_in.unwrap_or(OUTDATED_PERIOD)),
                since_ns,
            };
        }
        due_in = Some(Duration::ZERO);
    }
    let renew_at = due_in.map(|due_in| Deadline::after(present::now(), Span::from_std(due_in)));
    Outcome::Done(Some(Arc::new(Facts { renew_at, ..facts(outputs) })))
}

/// Variables of a task from its templates with `env = true`.
pub async fn variables(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    if !has_variables(workload) {
        return Ok(Variables::new());
    }
    let dirs = dirs(context, workload);
    on_files("read the variables of templates", move || template_variables(&dirs)).await
}

/// Notes that an attempt starts with the present variables of templates, for its services.
///
/// # Errors
/// If that can't be written.
pub async fn note_start(context: &Arc<Context>, workload: &Workload) -> Result<(), Refusal> {
    if !has_variables(workload) {
        return Ok(());
    }
    let dirs = dirs(context, workload);
    on_files("keep the variables of templates", move || herdlet_render::renderer::note_start(&dirs)).await
}

/// The variables with which the services of a task are registered: those that its attempt has started with. Blocking.
///
/// # Errors
/// If they can't be read.
pub fn of_attempt(context: &Context, workload: &Workload) -> Result<TaskVariables, FsError> {
    let dirs = dirs(context, workload);
    let mut own = TaskVariables::default();
    if has_variables(workload) {
        own.templates = started_variables(&dirs)?;
    }
    if workload.task().is_some_and(|task| !task.secrets.is_empty()) {
        own.secrets = SecretValues::read(&dirs)?.unwrap_or_default().values;
    }
    Ok(own)
}

fn has_variables(workload: &Workload) -> bool {
    workload.task().is_some_and(|task| task.templates.iter().any(|template| template.env))
}

/// Runs the script of a template inside an attempt. Texts are Nomad's; they have the arguments as the job has them,
/// because variables in them may be secrets.
pub async fn script(
    context: &Arc<Context>,
    workload: &Workload,
    driver: &dyn TaskDriver,
    (id, index): (&AttemptId, TemplateIndex),
) -> Outcome {
    let template = workload.task().and_then(|task| task.templates.get(usize::from(index)));
    let Some(TemplateChange::Script(script)) = template.map(|template| &template.on_change) else {
        return Outcome::Done(None);
    };
    let ChangeScript { command, args, timeout, .. } = script;
    let env = match environment(context, workload).await {
        Ok(variables) => context.task_env(workload, &variables),
        Err(refusal) => return refusal.into(),
    };
    let line: Vec<String> = std::iter::once(command).chain(args).map(|text| env.interpolate(text)).collect();
    let args = args.join(" ");
    match driver.exec(id, &line, duration(*timeout)).await {
        Ok(outcome) if outcome.exit.code == 0 => Outcome::Done(None),
        Ok(outcome) => fatal(format!(
            "Template ran script {command} with arguments {args} on change but it exited with code: {}",
            outcome.exit.code
        )),
        Err(error) if error.is_gone() => Outcome::Absent,
        Err(error) => {
            let why =
                format!("Template failed to run script {command} with arguments {args}: {}", error.why());
            // Its engine may be away for a moment.
            if matches!(error, DriverError::Retry(_)) { retry(why) } else { fatal(why) }
        }
    }
}

/// All variables that only this task gets, as its present attempt has started with them. Its tokens are new: those that it has
/// started with may have expired.
///
/// # Errors
/// If they can't be read.
pub async fn environment_of_attempt(
    context: &Arc<Context>,
    workload: &Workload,
) -> Result<TaskVariables, Refusal> {
    let (shared, task) = (Arc::clone(context), workload.clone());
    let own = on_files("read the task's variables", move || of_attempt(&shared, &task)).await?;
    Ok(TaskVariables {
        tokens: places::env_tokens(context, workload).await?,
        logins: logins::variables(context, workload).await?,
        ..own
    })
}

/// All variables that only this task gets.
///
/// # Errors
/// If they can't be read.
pub async fn environment(context: &Arc<Context>, workload: &Workload) -> Result<TaskVariables, Refusal> {
    Ok(TaskVariables {
        tokens: places::env_tokens(context, workload).await?,
        logins: logins::variables(context, workload).await?,
        templates: variables(context, workload).await?,
        secrets: secrets::values(context, workload).await?,
    })
}

async fn prepared(
    context: &Arc<Context>,
    workload: &Workload,
    before: Option<&Facts>,
    cancelled: &CancellationToken,
) -> Result<TaskTemplates, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    // A template does not see the variables that templates make.
    let variables = TaskVariables {
        tokens: places::env_tokens(context, workload).await?,
        logins: logins::variables(context, workload).await?,
        templates: Variables::new(),
        secrets: secrets::values(context, workload).await?,
    };
    let on_host = context.task_env_on_host(workload, &variables);
    let env = context.task_env(workload, &variables).into_variables_and_facts();
    let owner = match context.privileges.ownership {
        Ownership::OwnOnly => None,
        Ownership::Anybody if runs_images(&task.driver) => None,
        Ownership::Anybody => {
            let user = places::machine_user(task).map(str::to_owned);
            let found = herdlet_runtime::off_thread(move || user::credentials(user.as_deref())).await;
            let found = found.map_err(|error| Refusal::retry(format!("find the user: {error}")))?;
            found.map_err(|error| Refusal::of(error.class(), &error))?.map(|found| FileOwner {
                uid: found.uid,
                gid: found.gid,
                groups: found.groups,
            })
        }
    };
    Ok(TaskTemplates {
        templates: task.templates.iter().map(|template| resolved(template, &on_host)).collect(),
        env,
        root: root(context, workload).await,
        owner,
        before: before
            .map(|facts| facts.outputs.iter().map(|revision| revision.0).collect())
            .unwrap_or_default(),
        vault: vault::rights(context, workload, cancelled).await?,
        ..reading(context, workload, Consumer::Templates).await?
    })
}

/// The task's root while it runs. Without it, the task sees what is written when it starts again.
async fn root(context: &Arc<Context>, workload: &Workload) -> Option<Arc<Dir>> {
    let task = workload.task().filter(|task| !task.templates.is_empty())?;
    let driver = context.drivers.get(&task.driver)?;
    let root = driver.root(workload.alloc.id, &task.name).await.unwrap_or_else(|error| {
        tracing::warn!(alloc = %workload.alloc.id, task = %task.name, error = error.why(), "failed to open the task's root; it sees changed templates below directories of the machine when it restarts");
        None
    });
    root.map(|root| Arc::new(Dir::from_fd(root, PathBuf::from("/"))))
}

fn resolved(template: &Template, env: &TaskEnv) -> Template {
    let source = match &template.source {
        TemplateSource::Inline(text) => TemplateSource::Inline(text.clone()),
        TemplateSource::File(path) => TemplateSource::File(env.interpolate(path)),
    };
    Template { source, destination: env.interpolate(&template.destination), ..template.clone() }
}

/// The revision of all outputs together. Never the one that the planner counts.
fn facts(outputs: &[u64]) -> Facts {
    let mixed = outputs.iter().fold(0xcbf2_9ce4_8422_2325_u64, |mixed, output| {
        (mixed ^ output).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
    });
    Facts {
        revision: Revision(mixed.max(1)),
        outputs: outputs.iter().copied().map(Revision).collect(),
        ..Facts::none()
    }
}

fn failed(error: &RenderError) -> Outcome {
    match error.class() {
        Class::Retry => retry(in_full(error)),
        Class::Fatal => Outcome::Failed { class: FailureClass::Fatal, why: in_full(error) },
    }
}
