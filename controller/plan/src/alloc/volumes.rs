//! The allocation's claims on volumes. A claim is the fact that a wanted allocation names the volume: nothing is stored and
//! nothing is done here but to wait until every claimed volume is ready.

use std_alloc::{borrow::Cow, format};

use herdlet_api_types::{alloc::Allocation, job::VolumeRequest};

use crate::{pass::Pass, plan::Waiting};

/// Waits for the volumes that the tasks mount.
pub fn up(pass: &mut Pass<'_>, _ready: bool) -> bool {
    let mut ready = true;
    for (index, task) in (0..).zip(&pass.group.tasks) {
        for mount in &task.volume_mounts {
            let Some(request) = pass.group.volumes.get(&mount.volume) else { continue };
            let name = volume_name(pass.spec, request);
            if pass.ctx.volume_path(&name).is_none() {
                ready = false;
                pass.wait(Waiting::Volume(index, name.into_owned()));
            }
        }
    }
    ready
}

/// Nothing to do: the claim ends with the allocation.
pub fn down(_pass: &mut Pass<'_>, _above_gone: bool) -> bool {
    true
}

/// The volume a request is about: its source, with the allocation's index for `per_alloc`.
pub fn volume_name<'a>(spec: &Allocation, request: &'a VolumeRequest) -> Cow<'a, str> {
    if request.per_alloc {
        Cow::Owned(format!("{}[{}]", request.source, spec.index))
    } else {
        Cow::Borrowed(&request.source)
    }
}
