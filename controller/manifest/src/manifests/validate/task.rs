//! One task: user, limits, hooks, and its lists.

use herdlet_api_types::driver::FsIsolation;
use herdlet_api_types::job::{Resources, Task};
use herdlet_api_types::manifest::TaskSpec;

use super::{
    Findings, GroupContext, artifact, children, constraint, consul, csi_plugin, driver, identity, mount,
    policy, secret, service, template, text, variables, vault,
};
use crate::yaml::Trail;

/// The minimum of `memory` and `memory_max` in MiB.
const MEMORY_MIN: i64 = 10;

/// Maximum length of an action's name, as in Nomad.
const ACTION_NAME_LEN_MAX: usize = 128;

pub(super) fn validate(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(user) = &spec.user {
        self::user(context, &user.0, task, &trail.field("user"), findings);
    }
    let level = (constraint::Level::Task, context.job.kind);
    constraint::of(spec.constraints.as_deref(), spec.affinities.as_deref(), level, trail, findings);
    text::meta(spec.meta.as_ref(), &trail.field("meta"), findings);
    resources(spec, task, &trail.field("resources"), findings);
    if let Some(restart) = &spec.restart {
        policy::restart_word(restart, context.job.kind, &trail.field("restart"), findings);
        policy::restart(&task.restart, &trail.field("restart"), findings);
    }
    if let Some(signal) = &spec.kill_signal {
        text::signal(&signal.0, &trail.field("kill_signal"), findings);
    }
    if let (Some(spec), Some(prestop)) = (&spec.prestop, &task.prestop) {
        let trail = trail.field("prestop");
        if spec.command.as_ref().is_some_and(String::is_empty) {
            findings.problem(&trail.field("command"), "must not be empty");
        }
        if prestop.timeout.is_zero() {
            findings.problem(&trail.field("timeout"), "must be longer than 0");
        }
    }
    actions(spec, &trail.field("actions"), findings);
    let own = &GroupContext { task: Some(task), ..*context };
    service::list(own, spec.services.as_deref(), &task.services, &trail.field("services"), findings);
    children::of_task(context, spec, &trail.field("dispatch_payload"), findings);
    artifact::of_task(spec, trail, findings);
    secret::of_task(spec, task, trail, findings);
    vault::of_task(spec, trail, findings);
    consul::of_task(spec, task, trail, findings);
    csi_plugin::of_task(context, (spec, task), trail, findings);
    template::of_task(own, spec, trail, findings);
    mount::of_task(context, spec, task, trail, findings);
    identity::of_task(spec, trail, findings);
    variables::of_task(context, task, trail, findings);
    driver::of_task(context, task, trail, findings);
}

/// Validates `actions`: their names by Nomad's rule.
fn actions(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let actions = spec.actions.iter().flatten();
    text::unique(actions.clone().map(|action| action.name.as_deref()), "action", trail, findings);
    for (index, action) in actions.enumerate() {
        let trail = trail.item(index);
        let fits = |name: &String| {
            (1..=ACTION_NAME_LEN_MAX).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if action.name.as_ref().is_some_and(|name| !fits(name)) {
            findings.problem(&trail.field("name"), "must be 1 to 128 letters, digits and `-`");
        }
        if action.command.as_ref().is_some_and(String::is_empty) {
            findings.problem(&trail.field("command"), "must not be empty");
        }
    }
}

/// Validates a task of a job that servers have validated.
pub(super) fn of_servers(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(signal) = &spec.kill_signal {
        text::signal(&signal.0, &trail.field("kill_signal"), findings);
    }
    artifact::of_task(spec, trail, findings);
    secret::of_servers(spec, task, trail, findings);
    vault::block(spec.vault.as_ref(), trail, findings);
    template::of_servers(&GroupContext { task: Some(task), ..*context }, spec, trail, findings);
    mount::of_task(context, spec, task, trail, findings);
    csi_plugin::of_servers(task, trail, findings);
    identity::files(spec, trail, findings);
}

/// The format allows every notation (`1000:1000`, `name:group`); a driver that runs tasks as users of this machine takes
/// one user.
fn user(context: &GroupContext<'_>, user: &str, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let is_spaced = user.contains(|char: char| char.is_control() || char.is_whitespace());
    if user.is_empty() || user.len() > 256 || is_spaced {
        return findings.problem(trail, "must be 1 to 256 characters without spaces and control characters");
    }
    let of_machine = context
        .drivers
        .get(&task.driver)
        .is_some_and(|rules| rules.capabilities.fs_isolation == FsIsolation::None);
    if of_machine && let Some((name, _)) = user.split_once([':', '/']) {
        let message = format!(
            "{} runs a task with the groups that the user has on this machine: write the name or number of the user only, `{name}`",
            task.driver
        );
        findings.problem(trail, message);
    }
}

fn resources(spec: &TaskSpec, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if let (Some(memory), Some(secrets)) = (task.resources.memory_mib, task.resources.secrets_mib)
        && secrets > memory
    {
        // As in Nomad (`nomad/structs/structs.go`, `Resources.Validate`).
        findings.problem(
            &trail.field("secrets"),
            format!("must not be larger than `memory` ({memory}), found {secrets}"),
        );
    }
    if task.resources.cores.is_some() && task.resources.cpu_mhz.is_some() {
        // As in Nomad (`nomad/structs/structs.go`, `Resources.Validate`).
        findings.problem(
            &trail.field("cores"),
            "a task has either `cpu` or `cores`, which come with their clock rate: remove one",
        );
    }
    let most = spec.resources.as_ref().and_then(|resources| resources.memory_max);
    if let Some(most @ 1..MEMORY_MIN) = most {
        let message = format!("must be at least {MEMORY_MIN}, or −1 for no limit, found {most}");
        return findings.problem(&trail.field("memory_max"), message);
    }
    let resources = &task.resources;
    match (resources.memory_mib, resources.memory_max_mib) {
        (_, Some(Resources::ALL_MEMORY)) => {}
        (Some(memory), Some(most)) if most < memory => {
            let message = format!("must be at least `memory` ({memory}), found {most}");
            findings.problem(&trail.field("memory_max"), message);
        }
        (None, Some(_)) => {
            findings.absent(trail, &trail.field("memory_max"), "extends `memory`, which is not set");
        }
        (Some(_) | None, Some(_) | None) => {}
    }
}
