//! Validates the meaning of a manifest; names and types of its fields are already checked.
//!
//! In: a typed manifest (with what is written, and where) and its canonical form (with defaults), which have
//! the same indexes. Out: findings. Unless otherwise noted, rules are those of Nomad's servers. This module
//! does not know what runs on this machine: whether a volume exists or a port is free is decided at
//! placement.

use std::collections::BTreeMap;

use herdlet_api_types::job::{Group, Job, Task};
use herdlet_api_types::manifest::defaults::default_reschedule;
use herdlet_api_types::manifest::{GroupSpec, JobManifest, Text};

use super::drivers::Drivers;
use super::findings::Findings;
use crate::yaml::Trail;

mod artifact;
mod attributes;
mod bounds;
mod children;
mod constraint;
mod consul;
mod csi_plugin;
mod depends;
mod driver;
mod identity;
mod lifecycle;
mod mount;
mod network;
mod policy;
mod secret;
mod service;
mod task;
mod template;
mod text;
mod variables;
mod vault;
mod volume;

pub(super) use volume::volume;

/// The context shared by all tasks of a group.
#[derive(Clone, Copy)]
struct GroupContext<'a> {
    spec: &'a GroupSpec,
    group: &'a Group,
    trail: &'a Trail<'a>,
    job: &'a Job,
    drivers: &'a Drivers,
    /// The task whose ports count beside the group's; `None` for what belongs to the group.
    task: Option<&'a Task>,
}

pub(super) fn job(manifest: &JobManifest, job: &Job, drivers: &Drivers, findings: &mut Findings<'_>) {
    let root = Trail::begin("");
    let (metadata, spec) = (root.field("metadata"), root.field("spec"));
    let groups = spec.field("groups");
    labels(manifest.metadata.labels.as_ref(), &metadata.field("labels"), findings);
    labels(manifest.metadata.annotations.as_ref(), &metadata.field("annotations"), findings);
    text::meta(manifest.spec.meta.as_ref(), &spec.field("meta"), findings);
    for (written, name) in [(&manifest.spec.name, "name"), (&manifest.spec.region, "region")] {
        if let Some(value) = written {
            text::plain(value, &spec.field(name), findings);
        }
    }
    if manifest.spec.datacenters.as_ref().is_some_and(Vec::is_empty) {
        findings.problem(&spec.field("datacenters"), "needs at least one; remove it to allow all");
    }
    constraint::of(
        manifest.spec.constraints.as_deref(),
        manifest.spec.affinities.as_deref(),
        (constraint::Level::Job, job.kind),
        &spec,
        findings,
    );
    constraint::spreads(manifest.spec.spreads.as_deref(), job.kind, &spec, findings);
    if let Some(update) = &manifest.spec.update {
        policy::update(update, None, job.kind, &spec.field("update"), findings);
    }
    if let Some(written) = &manifest.spec.reschedule {
        let policy = written.over(&default_reschedule(job.kind));
        policy::reschedule(&policy, job.kind, &spec.field("reschedule"), findings);
    }
    children::of_job(manifest, job, &spec, findings);
    vault::block(manifest.spec.vault.as_ref(), &spec, findings);
    if let Some(ui) = &manifest.spec.ui {
        text::ui(ui, &spec.field("ui"), findings);
    }
    if manifest.spec.groups.as_ref().is_some_and(Vec::is_empty) {
        findings.problem(&groups, "a job needs at least one group");
    }
    if !bounds::hold(manifest, job, &spec, findings) {
        return;
    }
    text::unique(
        manifest.spec.groups.iter().flatten().map(|group| group.name.as_deref()),
        "group",
        &groups,
        findings,
    );
    for (index, (spec, group)) in manifest.spec.groups.iter().flatten().zip(&job.groups).enumerate() {
        let trail = &groups.item(index);
        one_group(manifest, &GroupContext { spec, group, trail, job, drivers, task: None }, findings);
    }
    service::published_ports(job, &groups, findings);
    depends::between_groups(job, findings);
}

/// Validates the part of a server's job that servers don't check for this machine: bounds, and how tasks use
/// files.
pub(super) fn job_of_servers(
    manifest: &JobManifest,
    job: &Job,
    drivers: &Drivers,
    findings: &mut Findings<'_>,
) {
    let root = Trail::begin("");
    let spec = root.field("spec");
    let groups = spec.field("groups");
    if !bounds::hold(manifest, job, &spec, findings) {
        return;
    }
    for (index, (spec, group)) in manifest.spec.groups.iter().flatten().zip(&job.groups).enumerate() {
        let trail = &groups.item(index);
        let context = GroupContext { spec, group, trail, job, drivers, task: None };
        let tasks = trail.field("tasks");
        network::joined(&context, findings);
        consul::of_group(&context, findings);
        for (index, (spec, task)) in spec.tasks.iter().flatten().zip(&group.tasks).enumerate() {
            task::of_servers(&context, spec, task, &tasks.item(index), findings);
        }
    }
}

fn one_group(manifest: &JobManifest, context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, group, trail, job, .. } = *context;
    let tasks = trail.field("tasks");
    policy::scaling(group, trail, findings);
    vault::block(spec.vault.as_ref(), trail, findings);
    consul::of_group(context, findings);
    if spec.reschedule.is_some() {
        policy::reschedule(&group.reschedule, job.kind, &trail.field("reschedule"), findings);
    }
    if let Some(update) = &spec.update {
        policy::update(update, manifest.spec.update.as_ref(), job.kind, &trail.field("update"), findings);
    }
    if job.kind.is_on_each_machine() && group.count > 1 {
        let message = format!(
            "a {} job has one allocation of a group on each machine; remove `count`, or write 0 for none",
            job.kind.as_str()
        );
        findings.of_type(&trail.field("count"), message);
    }
    if let Some(restart) = &spec.restart {
        policy::restart_word(restart, job.kind, &trail.field("restart"), findings);
        policy::restart(&policy::of_group(&restart.fields, job.kind), &trail.field("restart"), findings);
    }
    if let Some(longest) = spec.max_run_duration {
        policy::max_run_duration(longest, job.kind, &trail.field("max_run_duration"), findings);
    }
    let level = (constraint::Level::Group, job.kind);
    constraint::of(spec.constraints.as_deref(), spec.affinities.as_deref(), level, trail, findings);
    constraint::spreads(spec.spreads.as_deref(), job.kind, trail, findings);
    text::meta(spec.meta.as_ref(), &trail.field("meta"), findings);
    network::of_group(context, findings);
    mount::requests(spec, group, trail, findings);
    service::of_group(context, findings);
    if spec.tasks.is_some() && group.tasks.is_empty() {
        findings.problem(&tasks, "a group needs at least one task");
    }
    text::unique(spec.tasks.iter().flatten().map(|task| task.name.as_deref()), "task", &tasks, findings);
    lifecycle::of_group(context, findings);
    depends::of_group(context, findings);
    for (index, (spec, task)) in spec.tasks.iter().flatten().zip(&group.tasks).enumerate() {
        task::validate(context, spec, task, &tasks.item(index), findings);
    }
}

/// Validates `metadata.labels` and `metadata.annotations`.
fn labels(labels: Option<&BTreeMap<String, Text>>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    for key in labels.into_iter().flatten().map(|(key, _)| key) {
        let fits = (1..=253).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        if !fits {
            findings.problem(
                &trail.field(key),
                "the name must be 1 to 253 letters, digits, `.`, `_`, `-` and `/`",
            );
        }
    }
}
