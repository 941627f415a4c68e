//! CSI plugins of the tasks on this machine, as Nomad lists them.
//!
//! In: the tasks that are plugins and run. Out: one object for each id. Its instances count as expected, those that respond as
//! healthy.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::csi::{CsiPluginDescription, CsiPluginView};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Shared, allocs,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
};

/// Nomad's only type.
const CSI: &str = "csi";

/// A plugin's id with its instances; the one that was ready last is last.
struct Plugin {
    id: String,
    instances: Vec<CsiPluginView>,
}

impl Listed for Plugin {
    fn namespace(&self) -> Option<&str> {
        None
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    fn create_index(&self) -> u64 {
        1
    }
}

/// Each task that is a plugin.
pub(super) async fn views(State(shared): State<Arc<Shared>>) -> Json<Vec<CsiPluginView>> {
    Json((shared.plugins)())
}

/// Parameters of a list, as Nomad names them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Params(Kind { kind }): Params<Kind>,
) -> ApiResult<Response> {
    // As in Nomad: only one type has plugins.
    let is_meant = kind.as_deref() == Some(CSI);
    let found = |shared: &Shared| Ok(if is_meant { plugins(shared) } else { Vec::new() });
    shared.list(&read, found, |_, plugin| Value::Object(stub(plugin))).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let one = |shared: &Shared| {
        let found = plugins(shared).into_iter().find(|plugin| plugin.id == id);
        let plugin = found.ok_or_else(|| ApiError::NotFound("plugin not found".to_owned()))?;
        Ok(whole(shared, &plugin))
    };
    shared.answer(&read, one).await
}

fn plugins(shared: &Shared) -> Vec<Plugin> {
    let mut plugins: Vec<Plugin> = Vec::new();
    for view in (shared.plugins)() {
        match plugins.last_mut().filter(|last| last.id == view.id) {
            Some(last) => last.instances.push(view),
            None => plugins.push(Plugin { id: view.id.clone(), instances: Vec::from([view]) }),
        }
    }
    plugins
}

/// Nomad's `CSIPluginListStub` (`api/csi.go`).
fn stub(plugin: &Plugin) -> Map<String, Value> {
    let count = |is_counted: fn(&CsiPluginView) -> bool| {
        plugin.instances.iter().filter(|view| is_counted(view)).count()
    };
    let described = described(plugin);
    let stub = json!({
        "ID": plugin.id,
        "Provider": described.map_or("", |it| &it.provider),
        "ControllerRequired": described.is_some_and(|it| it.requires_controller),
        "ControllersHealthy": count(|view| view.serves_controller() && view.unhealthy.is_none()),
        "ControllersExpected": count(CsiPluginView::serves_controller),
        "NodesHealthy": count(|view| view.serves_node() && view.unhealthy.is_none()),
        "NodesExpected": count(CsiPluginView::serves_node),
        "CreateIndex": 1,
        "ModifyIndex": 1,
    });
    match stub {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

/// The last instance that has described itself.
fn described(plugin: &Plugin) -> Option<&CsiPluginDescription> {
    plugin.instances.iter().rev().find_map(|view| view.description.as_ref())
}

/// Nomad's `CSIPlugin`. There is one machine: the instance that calls use describes it.
fn whole(shared: &Shared, plugin: &Plugin) -> Value {
    let of_machine = |is_meant: fn(&CsiPluginView) -> bool, info: fn(&CsiPluginView) -> Value| {
        let meant = || plugin.instances.iter().rev().filter(|view| is_meant(view));
        let used = meant().find(|view| view.unhealthy.is_none()).or_else(|| meant().next());
        let entry = used.map(|view| (shared.facts.node.id.clone(), info(view)));
        Value::Object(entry.into_iter().collect())
    };
    let mut fields = stub(plugin);
    fields.insert("Version".to_owned(), json!(described(plugin).map_or("", |it| &it.version)));
    fields.insert("Controllers".to_owned(), of_machine(CsiPluginView::serves_controller, controller));
    fields.insert("Nodes".to_owned(), of_machine(CsiPluginView::serves_node, node));
    let views = plugin.instances.iter().filter_map(|view| shared.model.alloc(&view.alloc));
    fields.insert("Allocations".to_owned(), views.map(|view| allocs::stub(shared, &view)).collect());
    Value::Object(fields)
}

fn info(view: &CsiPluginView) -> Value {
    json!({
        "PluginID": view.id,
        "AllocID": view.alloc,
        "Healthy": view.unhealthy.is_none(),
        "HealthDescription": view.unhealthy.as_deref().unwrap_or("healthy"),
        "RequiresControllerPlugin": view.description.as_ref().is_some_and(|it| it.requires_controller),
    })
}

/// Nomad's command reads the object without a check, so it is there without a description too.
fn controller(view: &CsiPluginView) -> Value {
    let features = view.description.as_ref().and_then(|it| it.controller.as_ref());
    let has = |name: &str| features.is_some_and(|features| features.contains(name));
    let mut entry = info(view);
    entry["ControllerInfo"] = json!({
        "SupportsAttachDetach": has("PUBLISH_UNPUBLISH_VOLUME"),
        "SupportsClone": has("CLONE_VOLUME"),
        "SupportsCondition": has("VOLUME_CONDITION"),
        "SupportsCreateDelete": has("CREATE_DELETE_VOLUME"),
        "SupportsCreateDeleteSnapshot": has("CREATE_DELETE_SNAPSHOT"),
        "SupportsExpand": has("EXPAND_VOLUME"),
        "SupportsGet": has("GET_VOLUME"),
        "SupportsGetCapacity": has("GET_CAPACITY"),
        "SupportsListSnapshots": has("LIST_SNAPSHOTS"),
        "SupportsListVolumes": has("LIST_VOLUMES"),
        "SupportsListVolumesAttachedNodes": has("LIST_VOLUMES_PUBLISHED_NODES"),
        "SupportsReadOnlyAttach": has("PUBLISH_READONLY"),
    });
    entry
}

/// As [`controller`].
fn node(view: &CsiPluginView) -> Value {
    let node = view.description.as_ref().and_then(|it| it.node.as_ref());
    let has = |name: &str| node.is_some_and(|node| node.features.contains(name));
    let segments = node.and_then(|node| node.topology.as_ref());
    let mut entry = info(view);
    entry["NodeInfo"] = json!({
        "ID": node.map_or("", |node| &node.id),
        // Nomad's number for no limit.
        "MaxVolumes": node.and_then(|node| node.volumes_max).unwrap_or(i64::MAX.unsigned_abs()),
        "AccessibleTopology": segments.map(|segments| json!({ "Segments": segments })),
        "RequiresNodeStageVolume": has("STAGE_UNSTAGE_VOLUME"),
        "SupportsCondition": has("VOLUME_CONDITION"),
        "SupportsExpand": has("EXPAND_VOLUME"),
        "SupportsStats": has("GET_VOLUME_STATS"),
    });
    entry
}
