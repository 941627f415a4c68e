//! `GET /v1/herdlet/variable/users`: the tasks whose templates use a variable, and what its change does to them.
//!
//! In: a path and a namespace. Out: names, no values. Which output a change makes different is not known before it is
//! rendered, so the effect of a task is that of all its templates that use the variable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{Json, extract::State};
use herdlet_api_types::{
    AllocId,
    alloc::Allocation,
    job::{Task, Template, TemplateChange},
    task::TaskPhase,
    variable::{DEFAULT_NAMESPACE, VariableEffect, VariableKey, VariableUser},
};
use herdlet_plan::env::{self, Inputs, NodeFacts, TaskDirs};
use serde::Deserialize;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::Params,
};

/// The templates that use a variable, by their index in each task.
pub type TemplateUsers = Box<dyn Fn(&VariableKey) -> BTreeMap<(AllocId, u16), BTreeSet<u16>> + Send + Sync>;

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    #[serde(default)]
    path: String,
    #[serde(default)]
    namespace: String,
}

pub(super) async fn users(
    State(shared): State<Arc<Shared>>,
    Params(named): Params<Named>,
) -> ApiResult<Json<Vec<VariableUser>>> {
    let Named { path, mut namespace } = named;
    if path.is_empty() {
        return Err(ApiError::bad("path is missing: name a variable, for instance ?path=nomad/jobs/web"));
    }
    if namespace.is_empty() {
        DEFAULT_NAMESPACE.clone_into(&mut namespace);
    }
    let found = (shared.template_users)(&VariableKey { namespace, path });
    let mut users: Vec<VariableUser> = found
        .into_iter()
        .filter_map(|((alloc, index), templates)| shared.variable_user((alloc, index), &templates))
        .collect();
    users.sort();
    Ok(Json(users))
}

impl Shared {
    /// Describes a task; none if it is gone meanwhile.
    fn variable_user(
        &self,
        (alloc, index): (AllocId, u16),
        templates: &BTreeSet<u16>,
    ) -> Option<VariableUser> {
        let view = self.model.alloc(&alloc)?;
        let task = view.spec.group()?.tasks.get(usize::from(index))?;
        let phase = view.tasks.iter().find(|shown| *shown.name == *task.name)?.phase;
        let used: Vec<&Template> =
            templates.iter().filter_map(|template| task.templates.get(usize::from(*template))).collect();
        let files = files(task, &used, &view.spec, &self.facts.node);
        Some(VariableUser { files, ..user(task, phase, &used, (view.spec.name(), alloc)) })
    }
}

/// The destinations, relative to the task's directory: `${NOMAD_SECRETS_DIR}/env` is `secrets/env`.
fn files(task: &Task, used: &[&Template], spec: &Allocation, node: &NodeFacts) -> Vec<String> {
    let dirs =
        TaskDirs { alloc: "alloc".to_owned(), task: "local".to_owned(), secrets: "secrets".to_owned() };
    let env = env::build(&Inputs { task: Some(task), dirs: Some(&dirs), ..Inputs::new(spec, node) });
    used.iter().map(|template| env.interpolate(&template.destination)).collect()
}

fn user(task: &Task, phase: TaskPhase, used: &[&Template], (name, alloc): (String, AllocId)) -> VariableUser {
    let runs = match phase {
        TaskPhase::Running | TaskPhase::Stopping => true,
        TaskPhase::Waiting | TaskPhase::BackingOff | TaskPhase::Starting | TaskPhase::Dead => false,
    };
    let (mut effect, mut signals, mut scripts) = (VariableEffect::Render, BTreeSet::new(), Vec::new());
    for template in used {
        match &template.on_change {
            TemplateChange::Noop => {}
            TemplateChange::Restart => effect = VariableEffect::Restart,
            TemplateChange::Signal(signal) => drop(signals.insert(signal.clone())),
            TemplateChange::Script(script) => scripts.push(script.command.clone()),
        }
    }
    if !runs {
        effect = VariableEffect::Start;
    } else if effect == VariableEffect::Render && !(signals.is_empty() && scripts.is_empty()) {
        effect = VariableEffect::Notify;
    }
    // A restart makes everything else unnecessary, and so does a start.
    if effect != VariableEffect::Notify {
        signals.clear();
        scripts.clear();
    }
    VariableUser {
        name,
        alloc,
        task: task.name.clone(),
        effect,
        signals: signals.into_iter().collect(),
        scripts,
        files: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::fixture;
    use herdlet_manifest::fixture::{alloc_view, job};

    use super::*;

    fn effect_of(changes: &[TemplateChange], phase: TaskPhase) -> (VariableEffect, usize, usize) {
        let job = job("web", "g", "t");
        let templates: Vec<Template> = changes.iter().cloned().map(fixture::template).collect();
        let used: Vec<&Template> = templates.iter().collect();
        let found = user(&job.groups[0].tasks[0], phase, &used, (String::new(), AllocId::from_hash([1; 16])));
        (found.effect, found.signals.len(), found.scripts.len())
    }

    #[test]
    fn destinations_are_interpolated() {
        let template = |destination: &str| Template {
            destination: destination.to_owned(),
            ..fixture::template(TemplateChange::Noop)
        };
        let all = [
            "${NOMAD_SECRETS_DIR}/env",
            "local/${NOMAD_TASK_NAME}.conf",
            "${NOMAD_ALLOC_DIR}/${node.datacenter}",
        ];
        let templates = all.map(template);
        let job = job("web", "front", "httpd");
        let node = NodeFacts { datacenter: "dc1".to_owned(), ..NodeFacts::default() };
        let spec = alloc_view(&job, 0, 1).spec;
        let found = files(&job.groups[0].tasks[0], &templates.iter().collect::<Vec<_>>(), &spec, &node);
        assert_eq!(found, ["secrets/env", "local/httpd.conf", "alloc/dc1"]);
    }

    #[test]
    fn the_strongest_effect_counts() {
        let hup = || TemplateChange::Signal("SIGHUP".to_owned());
        let script = || TemplateChange::Script(fixture::change_script("/bin/reload"));
        let running = TaskPhase::Running;
        for (changes, phase, expected) in [
            (vec![TemplateChange::Noop], running, (VariableEffect::Render, 0, 0)),
            (vec![hup(), hup(), script()], running, (VariableEffect::Notify, 1, 1)),
            (vec![hup(), TemplateChange::Restart, script()], running, (VariableEffect::Restart, 0, 0)),
            (vec![TemplateChange::Restart], TaskPhase::Waiting, (VariableEffect::Start, 0, 0)),
            (vec![], TaskPhase::Waiting, (VariableEffect::Start, 0, 0)),
        ] {
            assert_eq!(effect_of(&changes, phase), expected, "{changes:?} {phase:?}");
        }
    }
}
