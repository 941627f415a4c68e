//! A small model of a manifest with every keyword and every shape of type.

use std::collections::BTreeMap;

use herdlet_api_types::Duration;
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-misplaced" = {
    "replicas": "the number of copies of a group is its `count`",
    "containers": "a group's work is listed in `tasks`",
}))]
pub(super) struct Manifest {
    #[serde(rename = "apiVersion")]
    pub(super) api_version: Option<String>,
    pub(super) spec: Spec,
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Spec {
    #[serde(rename = "type")]
    pub(super) kind: Option<Kind>,
    pub(super) groups: Vec<Group>,
    pub(super) meta: Option<BTreeMap<String, Text>>,
}

/// One variant has a description, so `schemars` generates `oneOf`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Runs for ever.
    Service,
    /// Ends.
    Batch,
    System,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    #[schemars(extend("x-name" = "part"))]
    pub(super) name: String,
    pub(super) count: Option<u32>,
    pub(super) network: Option<Network>,
    pub(super) restart: Option<Restart>,
    #[serde(default)]
    pub(super) tasks: Vec<Task>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Network {
    #[serde(default)]
    pub(super) ports: BTreeMap<String, Port>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-port" = true))]
pub(super) struct Port {
    #[schemars(range(min = 1, max = 65535))]
    #[serde(rename = "static")]
    pub(super) reserved: Option<u32>,
    pub(super) to: Option<u16>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Restart {
    pub(super) attempts: Option<u8>,
    pub(super) interval: Option<Duration>,
    pub(super) mode: Option<Mode>,
    #[schemars(extend("x-name" = "part"))]
    pub(super) label: Option<Text>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    Delay,
    Fail,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    pub(super) name: String,
    #[schemars(length(min = 1))]
    pub(super) driver: Option<String>,
    pub(super) leader: Option<bool>,
    pub(super) config: Option<Config>,
    #[serde(default)]
    #[schemars(extend("x-text" = true))]
    pub(super) env: BTreeMap<String, String>,
    pub(super) resources: Option<Resources>,
    pub(super) hook: Option<Hook>,
    #[schemars(length(max = 2))]
    pub(super) weights: Option<Vec<f64>>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[schemars(extend("x-command" = true))]
    pub(super) command: Option<String>,
    #[schemars(extend("x-text" = true))]
    pub(super) args: Option<Vec<String>>,
    #[schemars(extend("x-hint" = "write user: {uid: 1000}"))]
    pub(super) user: Option<BTreeMap<String, u32>>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resources {
    #[schemars(extend("x-mhz" = true))]
    pub(super) cpu: Option<u32>,
    #[schemars(extend("x-mib" = true), range(min = 10))]
    pub(super) memory: Option<u64>,
}

/// An enum with content.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Hook {
    None,
    Exec { command: String },
    Http(Web),
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Web {
    pub(super) port: u16,
}

/// A string that is the source text of any scalar.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("x-text" = true))]
pub(super) struct Text(pub(super) String);
