//! CSI plugins of the tasks on this machine, as Nomad lists them.
//!
//! In: the plugins that have been ready and whose tasks run. Out: one object for each id. Its instances count as expected, those
//! that respond as healthy.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::csi::CsiPluginView;
use serde_json::{Map, Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
};

/// A plugin's id with its instances, the newest last.
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

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let found = |shared: &Shared| Ok(plugins(shared));
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
    let newest = plugin.instances.last();
    let stub = json!({
        "ID": plugin.id,
        "Provider": newest.map(|view| &view.provider),
        "ControllerRequired": newest.is_some_and(|view| view.has_controller),
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

/// Nomad's `CSIPlugin`. There is one machine, so the newest instance with a service stands for it.
fn whole(shared: &Shared, plugin: &Plugin) -> Value {
    let instances = |is_meant: fn(&CsiPluginView) -> bool| {
        let newest = plugin.instances.iter().rfind(|view| is_meant(view));
        let of_node = newest.map(|view| (shared.facts.node.id.clone(), info(view)));
        of_node.into_iter().collect::<Map<String, Value>>()
    };
    let mut fields = stub(plugin);
    fields.insert("Version".to_owned(), json!(plugin.instances.last().map(|view| &view.version)));
    fields.insert("Controllers".to_owned(), instances(CsiPluginView::serves_controller).into());
    fields.insert("Nodes".to_owned(), instances(CsiPluginView::serves_node).into());
    let allocs = plugin.instances.iter().filter_map(|view| shared.model.alloc(&view.alloc));
    let allocs = allocs.map(|view| json!({ "ID": view.spec.id, "Name": view.spec.name() }));
    fields.insert("Allocations".to_owned(), allocs.collect::<Vec<_>>().into());
    Value::Object(fields)
}

fn info(view: &CsiPluginView) -> Value {
    json!({
        "PluginID": view.id,
        "AllocID": view.alloc,
        "Healthy": view.unhealthy.is_none(),
        "HealthDescription": view.unhealthy.as_deref().unwrap_or("healthy"),
        "RequiresControllerPlugin": view.has_controller,
    })
}
