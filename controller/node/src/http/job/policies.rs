//! Policies of a group for failures and changes, which its job may set for all groups.

use serde_json::{Value as Json, json};

use super::{Context, Fields, each, fill, inner, merge};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// The default update policy.
pub(super) fn update() -> Json {
    json!({
        "Stagger": 30 * SECOND, "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND,
        "HealthyDeadline": 5 * MINUTE, "ProgressDeadline": 10 * MINUTE, "AutoRevert": false, "Canary": 0, "AutoPromote": false,
    })
}

fn reschedule(kind: &str) -> Json {
    let (attempts, interval, delay, function, delay_max, unlimited) = match kind {
        "service" => (0, 0, 30 * SECOND, "exponential", HOUR, true),
        "batch" => (1, 24 * HOUR, 5 * SECOND, "constant", 0, false),
        _ => (0, 0, 0, "", 0, false),
    };
    json!({
        "Attempts": attempts, "Interval": interval, "Delay": delay, "DelayFunction": function, "MaxDelay": delay_max,
        "Unlimited": unlimited,
    })
}

fn restart(kind: &str) -> Json {
    let (attempts, interval) =
        if matches!(kind, "service" | "system") { (2, 30 * MINUTE) } else { (3, 24 * HOUR) };
    json!({
        "Delay": 15 * SECOND, "Attempts": attempts, "Interval": interval, "Mode": "fail", "RenderTemplates": false,
    })
}

/// Fills in the policies of a group.
pub(super) fn of_group(group: &mut Fields, Context { job, kind, .. }: &Context<'_>) {
    let job_policy = |name: &str| job.get(name).filter(|job_policy| job_policy.is_object());
    let is_service = &**kind == "service";
    let is_rescheduled = !matches!(&**kind, "system" | "sysbatch");
    let migrate = json!({
        "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND, "HealthyDeadline": 5 * MINUTE,
    });
    for (name, of_job, default, always) in [
        ("Update", "Update", update(), false),
        ("ReschedulePolicy", "Reschedule", reschedule(kind), is_rescheduled),
        ("Migrate", "Migrate", migrate, is_service),
        ("RestartPolicy", "", restart(kind), true),
    ] {
        let own = group.get(name).filter(|own| own.is_object());
        if always || own.is_some() || job_policy(of_job).is_some() {
            let merged = merge(merge(default, job_policy(of_job)), own);
            group.insert(name.to_owned(), merged);
        }
    }
}

/// Sets the default weight of affinities and spreads.
pub(super) fn weigh(fields: &mut Fields) {
    for name in ["Affinities", "Spreads"] {
        each(fields, name, |one| fill(one, json!({ "Weight": 50 })));
    }
}

/// Fills in a scaling policy. `count` is the default minimum; `target` names the target besides its group.
pub(super) fn scaling(
    policy: &mut Fields,
    count: &Json,
    mut target: Json,
    group: &str,
    context: &Context<'_>,
) {
    fill(policy, json!({ "Enabled": true, "Min": count, "Max": -1 }));
    super::fill_empty(policy, &[("Type", "horizontal")]);
    policy.retain(|name, _| matches!(&**name, "Enabled" | "Min" | "Max" | "Type" | "Policy"));
    if let Json::Object(target) = &mut target {
        let job = |name: &str| context.job.get(name).cloned().unwrap_or_default();
        target.extend([
            ("Namespace".to_owned(), job("Namespace")),
            ("Job".to_owned(), job("ID")),
            ("Group".to_owned(), group.into()),
        ]);
    }
    policy.insert("Target".to_owned(), target);
}

/// Fills in the resources of a task.
pub(super) fn resources(resources: &mut Fields) {
    let has_cores = resources.get("Cores").is_some_and(|cores| !cores.is_null());
    let cpu = if has_cores { 0 } else { 100 };
    fill(resources, json!({ "Cores": 0, "CPU": cpu, "MemoryMB": 300 }));
    each(resources, "Devices", |device| {
        fill(device, json!({ "Count": 1 }));
        weigh(device);
    });
    if let Some(numa) = inner(resources, "NUMA") {
        super::fill_empty(numa, &[("Affinity", "none")]);
    }
}

/// Fills in the limits of a log.
pub(super) fn logs(logs: &mut Fields) {
    fill(logs, json!({ "MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": false }));
}

/// Fills in volume mounts. Mounts without a volume are removed.
pub(super) fn mounts(task: &mut Fields) {
    if let Some(Json::Array(mounts)) = task.get_mut("VolumeMounts") {
        mounts.retain(|mount| mount.get("Volume").is_some_and(|volume| !volume.is_null()));
    }
    each(task, "VolumeMounts", |mount| {
        fill(
            mount,
            json!({ "Destination": "", "PropagationMode": "private", "ReadOnly": false, "SELinuxLabel": "" }),
        );
    });
}
