//! Which changes of a job keep its allocations running.
//!
//! In: the version that an allocation was made from, and a newer one. Out: the fields that require a new allocation, as
//! paths in a manifest: relative to the group, or `spec.…` for fields of the job. If there are none the allocation
//! continues under the newer version: its services are registered again, and its new policies apply.
//!
//! The fields are Nomad's (`scheduler/util.go`, `tasksUpdated`), plus our own fields that a process is started with. A
//! change of `lifecycle` or of the order of tasks also requires a new allocation; Nomad's client reads `lifecycle` only
//! when it creates one. A change of `constraints`, `datacenters` or `node_pool` does not; where they no longer hold,
//! the roll-out keeps the allocation under its version.

use std_alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::job::{Group, Job, Logs, Task};

/// The fields that require a new allocation.
pub fn replacing(old: &Job, new: &Job, group: &str) -> Vec<String> {
    let (Some(old_group), Some(new_group)) = (old.group(group), new.group(group)) else {
        return Vec::from(["name".to_owned()]);
    };
    // The usual case: allocations of one version share it.
    if core::ptr::eq(old, new) {
        return Vec::new();
    }
    let Job {
        namespace: _,
        id: _,
        name: _,
        labels: _,
        stop: _,
        kind,
        priority: _,
        region,
        datacenters: _,
        node_pool: _,
        constraints: _,
        affinities,
        spreads,
        ui: _,
        // Compared as tasks see it, merged.
        meta: _,
        // A job that makes children has no allocation; a child remains one.
        parameterized: _,
        periodic: _,
        child: _,
        groups: _,
    } = old;
    let mut found = differing(&[
        ("spec.type", *kind != new.kind),
        ("spec.region", *region != new.region),
        ("spec.affinities", *affinities != new.affinities),
        ("spec.spreads", *spreads != new.spreads),
    ]);
    let Group {
        name: _,
        count: _,
        scaling: _,
        reschedule: _,
        update: _,
        network,
        volumes,
        // Except for published ports, which are resources like other ports.
        services: _,
        tasks,
        shutdown_delay: _,
        max_run_duration: _,
        meta: _,
        disk_mib,
        kept_disk,
        constraints: _,
        affinities,
        spreads,
        depends_on: _,
    } = old_group;
    found.extend(differing(&[
        ("network", *network != new_group.network),
        ("volumes", *volumes != new_group.volumes),
        ("ephemeral_disk", *disk_mib != new_group.disk_mib || *kept_disk != new_group.kept_disk),
        ("services.publish", !old_group.published_ports().eq(new_group.published_ports())),
        ("affinities", *affinities != new_group.affinities),
        ("spreads", *spreads != new_group.spreads),
    ]));
    let names = |group: &Group| group.tasks.iter().map(|task| task.name.clone()).collect::<Vec<_>>();
    if !tasks.iter().map(|task| &task.name).eq(new_group.tasks.iter().map(|task| &task.name)) {
        found.extend(other_tasks(&names(old_group), &names(new_group)));
        return found;
    }
    for (old_task, new_task) in tasks.iter().zip(&new_group.tasks) {
        of_task(old_task, new_task, &mut found);
        let (before, after) = (merged_meta(old, old_group, old_task), merged_meta(new, new_group, new_task));
        for key in before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)) {
            let at = [
                format!("spec.meta.{key}"),
                format!("meta.{key}"),
                format!("tasks[{}].meta.{key}", old_task.name),
            ];
            found.extend(at);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Whether an allocation made from `old` continues under `new`.
pub fn same_work(old: &Job, new: &Job, group: &str) -> bool {
    replacing(old, new, group).is_empty()
}

fn of_task(old: &Task, new: &Task, found: &mut Vec<String>) {
    let Task {
        name,
        driver,
        user,
        config,
        env,
        meta: _,
        leader: _,
        lifecycle,
        depends_on: _,
        prestop: _,
        actions: _,
        restart: _,
        services: _,
        volume_mounts,
        artifacts,
        templates,
        secrets,
        vault,
        consul,
        csi_plugin,
        dispatch_payload,
        identities,
        resources,
        ports,
        logs: Logs { max_files: _, max_file_size_mib: _, disabled, mode: _ },
        kill_signal: _,
        kill_timeout: _,
        shutdown_delay: _,
        constraints: _,
        affinities,
    } = old;
    let fields = differing(&[
        ("driver", *driver != new.driver),
        ("user", *user != new.user),
        ("config", *config != new.config),
        ("env", *env != new.env),
        ("lifecycle", *lifecycle != new.lifecycle),
        ("volume_mounts", *volume_mounts != new.volume_mounts),
        ("artifacts", *artifacts != new.artifacts),
        ("templates", *templates != new.templates),
        ("secrets", *secrets != new.secrets),
        ("vault", *vault != new.vault),
        ("consul", *consul != new.consul),
        ("csi_plugin", *csi_plugin != new.csi_plugin),
        ("dispatch_payload", *dispatch_payload != new.dispatch_payload),
        ("identities", *identities != new.identities),
        ("resources", *resources != new.resources),
        ("resources.network", *ports != new.ports),
        ("logs.disabled", *disabled != new.logs.disabled),
        ("affinities", *affinities != new.affinities),
    ]);
    found.extend(fields.iter().map(|field| format!("tasks[{name}].{field}")));
}

fn differing(fields: &[(&str, bool)]) -> Vec<String> {
    fields.iter().filter(|(_, differs)| *differs).map(|(field, _)| field.to_string()).collect()
}

/// Tasks that only one version has; if there are none, their order differs.
fn other_tasks(old: &[String], new: &[String]) -> Vec<String> {
    let gone = old.iter().filter(|name| !new.contains(name));
    let added = new.iter().filter(|name| !old.contains(name));
    let found: Vec<String> = gone.chain(added).map(|name| format!("tasks[{name}]")).collect();
    if found.is_empty() { Vec::from(["tasks".to_owned()]) } else { found }
}

/// `NOMAD_META_…` as the task sees it.
fn merged_meta<'j>(job: &'j Job, group: &'j Group, task: &'j Task) -> BTreeMap<&'j str, &'j str> {
    let layers = [&job.meta, &group.meta, &task.meta];
    layers.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[cfg(test)]
mod tests;
