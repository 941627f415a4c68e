//! `csi_plugin` of a task.

use herdlet_api_types::{
    driver::{FsIsolation, RAW_EXEC},
    job::{CsiPlugin, Task},
    manifest::TaskSpec,
};

use super::{Findings, GroupContext, mount};
use crate::yaml::Trail;

/// Validates the block of a task.
pub(super) fn of_task(
    context: &GroupContext<'_>,
    (spec, task): (&TaskSpec, &Task),
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let (Some(written), Some(plugin)) = (&spec.csi_plugin, &task.csi_plugin) else { return };
    let trail = &trail.field("csi_plugin");
    if let Some(complaint) = written.id.as_deref().and_then(mount::name_complaint) {
        findings.problem(&trail.field("id"), complaint);
    }
    let paths = [
        ("mount_dir", written.mount_dir.is_some(), &plugin.mount_dir),
        ("stage_publish_base_dir", written.stage_publish_base_dir.is_some(), &plugin.stage_publish_base_dir),
    ];
    match context.drivers.get(&task.driver).map(|rules| rules.capabilities.fs_isolation) {
        Some(FsIsolation::None) if task.driver == RAW_EXEC => {
            for (field, _, _) in paths.iter().filter(|(_, is_written, _)| *is_written) {
                let message = "has no effect with raw_exec, which mounts nothing; the plugin gets paths on this machine";
                findings.warning(&trail.field(field), message);
            }
        }
        Some(FsIsolation::None) => {
            let message = format!(
                "the driver {} can't run a CSI plugin; use docker, podman, exec, java or raw_exec",
                task.driver
            );
            findings.problem(trail, message);
        }
        Some(FsIsolation::Chroot | FsIsolation::Image) => {
            for (field, _, path) in paths {
                if let Some(complaint) = path_complaint(path, task, plugin, field) {
                    findings.problem(&trail.field(field), complaint);
                }
            }
        }
        // The driver is refused itself.
        None => {}
    }
}

/// Refuses the block in a job of servers: plugins are not reported to them yet.
pub(super) fn of_servers(task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if task.csi_plugin.is_some() {
        let message =
            "`csi_plugin` is not supported in jobs of servers; run the plugin on a stock Nomad client";
        findings.problem(&trail.field("csi_plugin"), message);
    }
}

fn path_complaint(path: &str, task: &Task, plugin: &CsiPlugin, field: &str) -> Option<String> {
    let steps = mount::normal(path);
    if !path.starts_with('/') || steps.is_empty() || steps.contains(&"..") {
        return Some("must be an absolute path in the task's root, without `..`, and not `/`".to_owned());
    }
    if let Some(taken) = task.volume_mounts.iter().find(|mount| mount::normal(&mount.destination) == steps) {
        return Some(format!("the volume `{}` is already mounted there", taken.volume));
    }
    let other = match field {
        "mount_dir" => return None,
        _ => &plugin.mount_dir,
    };
    (mount::normal(other) == steps).then(|| "must not be the same as `mount_dir`".to_owned())
}
