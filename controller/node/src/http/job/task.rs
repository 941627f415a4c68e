//! Tasks and their blocks.

use serde_json::{Value as Json, json};

use super::{
    Context, Fields, each, fill, fill_empty, inner, merge, network,
    policies::{self, mounts},
    text,
};

const SECOND: i64 = 1_000_000_000;

/// Fills in the defaults of a task. `restart` is its group's policy.
pub(super) fn complete(task: &mut Fields, group: &str, restart: &Json, context: &Context<'_>) {
    fill(task, json!({ "Resources": {}, "LogConfig": {}, "KillTimeout": 5 * SECOND }));
    if let Some(resources) = inner(task, "Resources") {
        policies::resources(resources);
    }
    if let Some(logs) = inner(task, "LogConfig") {
        policies::logs(logs);
    }
    each(task, "Artifacts", artifact);
    if let Some(vault) = inner(task, "Vault") {
        let namespace = text(context.job, "VaultNamespace");
        fill(
            vault,
            json!({
                "Env": true, "DisableFile": false, "ChangeMode": "restart", "ChangeSignal": "SIGHUP", "AllowTokenExpiration": false,
            }),
        );
        fill_empty(vault, &[("Namespace", &namespace), ("Cluster", "default")]);
    }
    if let Some(consul) = inner(task, "Consul") {
        fill_empty(consul, &[("Cluster", "default")]);
    }
    each(task, "Templates", template);
    let name = text(task, "Name");
    let of_service = format!("{}-{group}-{name}", context.name);
    each(task, "Services", |service| {
        network::service(service, &of_service);
        // Only the checks of group services name a task.
        each(service, "Checks", |check| drop(check.remove("TaskName")));
    });
    policies::weigh(task);
    mounts(task);
    if task.get("Schedule").is_some_and(|schedule| schedule.get("Cron").is_none_or(Json::is_null)) {
        task.insert("Schedule".to_owned(), Json::Null);
    }
    if let Some(plugin) = inner(task, "CSIPluginConfig") {
        fill_empty(plugin, &[("MountDir", "/csi"), ("StagePublishBaseDir", "/local/csi")]);
        if plugin.get("HealthTimeout").and_then(Json::as_i64).unwrap_or_default() == 0 {
            plugin.insert("HealthTimeout".to_owned(), (30 * SECOND).into());
        }
    }
    each(task, "ScalingPolicies", |policy| {
        policies::scaling(policy, &0.into(), json!({ "Task": name }), group, context);
    });
    let merged = merge(restart.clone(), task.get("RestartPolicy"));
    task.insert("RestartPolicy".to_owned(), merged);
}

fn artifact(artifact: &mut Fields) {
    fill(artifact, json!({ "GetterMode": "any", "GetterInsecure": false, "GetterSource": "" }));
    let source = text(artifact, "GetterSource");
    let dest = if text(artifact, "GetterMode") == "file" {
        let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        format!("local/{name}")
    } else {
        "local/".to_owned()
    };
    fill(artifact, json!({ "RelativeDest": dest }));
}

fn template(template: &mut Fields) {
    fill(
        template,
        json!({
            "SourcePath": "", "DestPath": "", "EmbeddedTmpl": "", "ChangeMode": "restart", "Once": false, "Splay": 5 * SECOND,
            "Perms": "0644", "LeftDelim": "{{", "RightDelim": "}}", "Envvars": false, "ErrMissingKey": false, "VaultGrace": 0,
        }),
    );
    let by_signal = text(template, "ChangeMode") == "signal";
    fill(template, json!({ "ChangeSignal": if by_signal { "SIGHUP" } else { "" } }));
    let signal = text(template, "ChangeSignal").to_uppercase();
    template.insert("ChangeSignal".to_owned(), signal.into());
    if let Some(script) = inner(template, "ChangeScript") {
        fill(
            script,
            json!({ "Command": "", "Args": [], "Timeout": 5 * SECOND, "FailOnError": false, "RunOnFirstRender": false }),
        );
    }
}
