//! The allocation's claims on volumes. A claim is the fact that a wanted allocation names the volume: nothing is
//! stored, and this step only waits until every claimed volume is ready. A server places an allocation here because the
//! node reported the volume. If the volume no longer exists, such an allocation fails, as in Nomad's client, unless
//! something of it has begun.

use std_alloc::{format, vec::Vec};

use herdlet_api_types::job::Task;

use crate::{
    parts::Progress,
    pass::Pass,
    plan::{Change, Waiting},
    policy::MissingVolume,
    shared::volume::volume_name,
    state::{Run, TaskState},
};

/// Waits for the group's volumes, even if no task mounts them: as in Nomad, the group requires a machine that has them.
pub fn up(pass: &mut Pass<'_>) -> Progress {
    let (mut ready, mut missing) = (Progress::Arrived, Vec::new());
    for (volume, request) in &pass.group.volumes {
        let name = volume_name(pass.spec, request);
        if pass.ctx.volume_path(&name).is_some() {
            continue;
        }
        ready = Progress::Pending;
        if !pass.ctx.has_volume(&name) {
            missing.push(name.clone());
        }
        let mounts = |task: &Task| task.volume_mounts.iter().any(|mount| mount.volume == *volume);
        let mut users = (0..).zip(&pass.group.tasks).filter(|(_, task)| mounts(task)).peekable();
        let why = pass.ctx.volume_problem(&name);
        if users.peek().is_none() {
            pass.wait(Waiting::Volume(None, name.into_owned(), why));
            continue;
        }
        for (index, _) in users {
            pass.wait(Waiting::Volume(Some(index), name.clone().into_owned(), why.clone()));
        }
    }
    let fails = pass.spec.policy().missing_volume == MissingVolume::Fail;
    if fails && pass.ctx.complete && !missing.is_empty() && nothing_lives(pass) {
        let missing: Vec<_> = missing.iter().map(|name| format!("missing {name}")).collect();
        let why = format!("host volume validation error: {}", missing.join("; "));
        pass.plan.changes.push(Change::Fail(why));
    }
    ready
}

/// Whether no task lives, and some task would start if it could. If one lived, the failure of another would report the
/// allocation as failed while it runs, or stop it: a poststop task waits all along, and a sibling may be between two
/// attempts.
fn nothing_lives(pass: &Pass<'_>) -> bool {
    let tasks = &pass.state.durable.tasks;
    let waits = |task: &TaskState| {
        task.permanent_failure.is_none() && matches!(task.run, Run::Waiting | Run::BackingOff { .. })
    };
    tasks.iter().all(|task| task.live_attempt().is_none())
        && !pass.state.first_is_open()
        && tasks.iter().any(waits)
}
