//! Node pools, as in `GET /v1/node/pools`.

use serde_json::{Value, json};

use crate::manifest::defaults::NODE_POOL;

/// The pool that contains every node.
pub const ALL_POOLS: &str = "all";

/// Converts a pool.
pub fn node_pool(name: &str) -> Value {
    let description = match name {
        ALL_POOLS => "Node pool with all nodes in the cluster.",
        NODE_POOL => "Default node pool.",
        _ => "",
    };
    json!({
        "Name": name, "Description": description, "Meta": null, "NodeIdentityTTL": 0, "SchedulerConfiguration": null,
        "CreateIndex": 1, "ModifyIndex": 1,
    })
}
