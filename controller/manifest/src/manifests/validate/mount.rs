//! `volumes` of a group and the mounts of its tasks.

use herdlet_api_types::driver::FsIsolation;
use herdlet_api_types::job::{Group, Task};
use herdlet_api_types::manifest::{GroupSpec, TaskSpec};

use super::text::no_such;
use super::{Findings, GroupContext};
use crate::yaml::Trail;

/// Directories in a task's directory that the agent creates, and that may contain mounts.
const OPEN: [&str; 2] = ["local", "tmp"];

/// Directories in a task's directory in which nothing may be mounted, with their use.
const CLOSED: [(&str, &str); 3] = [
    ("secrets", "holds secrets"),
    ("private", "holds secrets"),
    ("alloc", "is the allocation's shared directory"),
];

/// The longest name of a directory, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Validates the volumes of a group.
pub(super) fn requests(spec: &GroupSpec, group: &Group, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let volumes = trail.field("volumes");
    for (name, volume) in spec.volumes.iter().flatten() {
        let trail = volumes.field(name);
        if let Some(complaint) = name_complaint(name) {
            findings.problem(&trail, format!("the name {complaint}"));
        }
        if let Some(complaint) = volume.source.as_deref().and_then(name_complaint) {
            findings.problem(&trail.field("source"), complaint);
        }
        let has_index = volume.source.as_ref().is_some_and(|source| source.ends_with(']'));
        if has_index && volume.per_alloc == Some(true) {
            let message = "with `per_alloc` the index is appended to the name; write the name without it";
            findings.problem(&trail.field("source"), message);
        }
        let canaries = group.update.as_ref().is_some_and(|update| update.canary > 0);
        if canaries && volume.per_alloc == Some(true) {
            let message =
                "a canary would share the volume of the allocation that it replaces; write 0 for `canary`";
            findings.problem(&trail.field("per_alloc"), message);
        }
    }
}

/// Returns the problem with a volume name, if any.
pub(super) fn name_complaint(name: &str) -> Option<&'static str> {
    let fits = (1..=128).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name
            .contains(|char: char| matches!(char, '/' | '\\') || char.is_control() || char.is_whitespace());
    (!fits).then_some("must be 1 to 128 characters without spaces, `/`, `\\` and control characters")
}

pub(super) fn of_task(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("volume_mounts");
    let filesystem = context.drivers.get(&task.driver).map(|rules| rules.capabilities.fs_isolation);
    for (index, (spec, mount)) in spec.volume_mounts.iter().flatten().zip(&task.volume_mounts).enumerate() {
        let trail = list.item(index);
        if spec.volume.is_some()
            && !context.group.volumes.contains_key(&mount.volume)
            && !mount.volume.contains("${")
        {
            let names = context.group.volumes.keys().map(String::as_str);
            let message = || match context.group.volumes.is_empty() {
                true => format!("there is no volume `{}`; list it in `volumes` of the group", mount.volume),
                false => no_such("volume", &mount.volume, names),
            };
            findings.absent_with(&context.trail.field("volumes"), &trail.field("volume"), message);
        }
        if spec.destination.is_none() {
            continue;
        }
        let destination = trail.field("destination");
        let complaint = match filesystem {
            Some(FsIsolation::None) => inside_complaint(&mount.destination),
            Some(FsIsolation::Chroot | FsIsolation::Image) if mount.destination.is_empty() => {
                Some("must not be empty".to_owned())
            }
            Some(FsIsolation::Chroot | FsIsolation::Image) | None => None,
        };
        if filesystem == Some(FsIsolation::None) && mount.destination.starts_with('/') && complaint.is_none()
        {
            let message = format!(
                "with {} a task sees the machine's own files, so the volume is in the task's directory, at `{}`",
                task.driver,
                mount.destination.trim_start_matches('/')
            );
            findings.warning(&destination, message);
        }
        if filesystem == Some(FsIsolation::None) && !mount.propagation.is_private() {
            let message =
                format!("has no effect with {}, whose tasks see the machine's own mounts", task.driver);
            findings.warning(&trail.field("propagation_mode"), message);
        }
        // A destination that is refused itself says nothing about the others.
        let is_sound =
            |path: &&str| filesystem != Some(FsIsolation::None) || inside_complaint(path).is_none();
        let earlier = task.volume_mounts.iter().take(index).map(|other| other.destination.as_str());
        let earlier = earlier.filter(is_sound);
        let overlap = match filesystem {
            Some(FsIsolation::None) => Overlap::Refused,
            Some(FsIsolation::Chroot | FsIsolation::Image) | None => Overlap::Possible,
        };
        let complaint = complaint.or_else(|| overlap_complaint(&mount.destination, earlier, overlap));
        if let Some(complaint) = complaint {
            findings.problem(&destination, complaint);
        }
    }
}

/// Whether a volume can be mounted inside another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    Possible,
    /// The mount point would be created in the outer volume.
    Refused,
}

/// Returns which earlier mount is at the same place, around this one or inside it.
fn overlap_complaint<'e>(
    path: &str,
    mut earlier: impl Iterator<Item = &'e str>,
    overlap: Overlap,
) -> Option<String> {
    let own = normal(path);
    earlier.find_map(|other| {
        let known = normal(other);
        if known == own {
            return Some(format!("another volume is already mounted at `{path}`"));
        }
        let nested = overlap == Overlap::Refused && !known.is_empty() && !own.is_empty() && (known.starts_with(&own) || own.starts_with(&known));
        nested.then(|| {
            format!(
                "another volume is mounted at `{other}`, and one volume can't be mounted inside another; write a path beside it"
            )
        })
    })
}

/// Returns why a path is not inside the task's directory, if so. A leading `/` is that directory.
fn inside_complaint(path: &str) -> Option<String> {
    let steps = normal(path);
    if steps.contains(&"..") {
        return Some("must not leave the task's directory: remove `..`".to_owned());
    }
    if let Some((name, purpose)) = CLOSED.iter().find(|(name, _)| steps.first() == Some(name)) {
        return Some(format!(
            "nothing can be mounted in `{name}`, which {purpose}; write another path, for instance local/data"
        ));
    }
    match steps.as_slice() {
        [] => Some("must name a path inside the task's directory, for instance local/data".to_owned()),
        [only] if OPEN.contains(only) => Some(format!(
            "`{only}` is created by the agent; write a path in it or beside it, for instance local/data"
        )),
        steps if steps.iter().any(|step| step.len() > NAME_LEN_MAX) => {
            Some(format!("a name in it is longer than {NAME_LEN_MAX} bytes; write a shorter one"))
        }
        _ if path.contains('\0') || path.len() > 1_024 => {
            Some("must have at most 1024 bytes, and no NUL".to_owned())
        }
        _ => None,
    }
}

/// Splits a path into steps without empty ones and `.`.
pub(super) fn normal(path: &str) -> Vec<&str> {
    path.split('/').filter(|step| !matches!(*step, "" | ".")).collect()
}
