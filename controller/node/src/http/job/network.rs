//! Services, their checks, and Consul Connect.

use serde_json::{Value as Json, json};

use super::{Fields, each, fill, fill_empty, inner, merge, policies, supersede, text};

const SECOND: i64 = 1_000_000_000;

/// Fills in the defaults of a service. `name` is its default name.
pub(super) fn service(service: &mut Fields, name: &str) {
    fill_empty(
        service,
        &[
            ("Name", name),
            ("AddressMode", "auto"),
            ("OnUpdate", "require_healthy"),
            ("Provider", "consul"),
            ("Cluster", "default"),
        ],
    );
    if let Some(connect) = inner(service, "Connect") {
        self::connect(connect);
    }
    if let Some(weights) = inner(service, "Weights") {
        for name in ["Passing", "Warning"] {
            let weight = weights.get(name).and_then(Json::as_i64).unwrap_or_default();
            weights.insert(name.to_owned(), weight.max(1).into());
        }
    }
    let on_update = text(service, "OnUpdate");
    let of_service = service.remove("CheckRestart").filter(Json::is_object);
    each(service, "Checks", |check| {
        fill_empty(check, &[("OnUpdate", &on_update)]);
        for name in ["SuccessBeforePassing", "FailuresBeforeCritical", "FailuresBeforeWarning"] {
            if check.get(name).and_then(Json::as_i64).is_some_and(|count| count < 0) {
                check.insert(name.to_owned(), 0.into());
            }
        }
        if let Some(restart) = restart(of_service.as_ref(), check.remove("CheckRestart").as_ref()) {
            check.insert("CheckRestart".to_owned(), restart);
        }
    });
}

/// When a check restarts its task: the check's own settings, or else those of its service.
fn restart(wide: Option<&Json>, narrow: Option<&Json>) -> Option<Json> {
    let own = narrow.filter(|own| own.is_object());
    let mut restart = match (wide, own) {
        (None, None) => return None,
        (None, Some(only)) | (Some(only), None) => only.clone(),
        (Some(wide), Some(own)) => {
            // Zero counts as unset.
            let mut own = own.clone();
            if let Json::Object(own) = &mut own {
                own.retain(|_, value| *value != json!(false) && *value != json!(0) || value.is_null());
                if let Some(grace) = narrow.and_then(|own| own.get("Grace")).filter(|grace| !grace.is_null())
                {
                    own.insert("Grace".to_owned(), grace.clone());
                }
            }
            merge(wide.clone(), Some(&own))
        }
    };
    if let Json::Object(restart) = &mut restart {
        fill(restart, json!({ "Grace": SECOND }));
    }
    Some(restart)
}

fn connect(connect: &mut Fields) {
    if let Some(proxy) = inner(connect, "SidecarService").and_then(|sidecar| inner(sidecar, "Proxy")) {
        supersede(proxy, "ExposeConfig", "Expose");
        if let Some(expose) = inner(proxy, "Expose") {
            supersede(expose, "Path", "Paths");
        }
    }
    if let Some(sidecar) = inner(connect, "SidecarTask") {
        fill(
            sidecar,
            json!({ "Resources": {}, "LogConfig": {}, "KillTimeout": 5 * SECOND, "ShutdownDelay": 0 }),
        );
        if let Some(resources) = inner(sidecar, "Resources") {
            policies::resources(resources);
        }
        if let Some(logs) = inner(sidecar, "LogConfig") {
            policies::logs(logs);
        }
        policies::mounts(sidecar);
    }
    if let Some(gateway) = inner(connect, "Gateway") {
        if let Some(proxy) = inner(gateway, "Proxy") {
            fill(proxy, json!({ "ConnectTimeout": 5 * SECOND }));
        }
        if let Some(ingress) = inner(gateway, "Ingress") {
            each(ingress, "Listeners", |listener| fill_empty(listener, &[("Protocol", "tcp")]));
        }
    }
}
