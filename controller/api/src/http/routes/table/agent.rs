//! The agent itself: identity, health, log, metrics, and its servers.

use super::{
    Agent, Either, Field, FieldSource, Health, Itself, KnownServers, Metrics, Monitor, MonitorExport,
    NotBuilt, Number, Route, ServersOnly, SetServers, Stream, Text, Verb, Whole, below, get, put, read,
};
use crate::http::{agent, monitor};

/// A local agent has no cluster.
const CLUSTER: &str = "a cluster of agents";
const PROFILES: &str = "profiles of the agent";

const PROFILE: &[(&str, FieldSource)] = &[
    ("ServerID", Text("server_id")),
    ("Debug", Number("debug")),
    ("GC", Number("gc")),
    ("Seconds", Number("seconds")),
];

pub(super) const ROUTES: &[Route] = &[
    get("metrics", served!(agent::metrics_of_nomad), Itself(Metrics)),
    get("agent/self", served!(agent::this), Itself(Agent)),
    get("agent/health", served!(agent::health), Itself(Health)),
    get("agent/servers", NotBuilt(CLUSTER), Itself(KnownServers)),
    put("agent/servers", NotBuilt(CLUSTER), Itself(SetServers)),
    get("agent/monitor", served!(monitor::follow), Stream(Monitor)),
    get("agent/monitor/export", NotBuilt("export of the journal"), Stream(MonitorExport)),
    put("agent/join", NotBuilt(CLUSTER), ServersOnly),
    put("agent/force-leave", NotBuilt(CLUSTER), ServersOnly),
    Route { verb: Verb::Any, path: "agent/keyring", local: NotBuilt(CLUSTER), node: ServersOnly },
    get(
        "agent/host",
        served!(agent::host),
        Either("Agent.Host", read("Agent.Host", Whole).with(&[("ServerID", Text("server_id"))])),
    ),
    get(
        "agent/pprof/{Profile}",
        NotBuilt(PROFILES),
        Either("Agent.Profile", read("Agent.Profile", Field("Payload")).with(PROFILE)),
    ),
    below("agent/pprof", PROFILES),
    below("agent/reload", "reloading the configuration by request"),
    below("agent/schedulers", "schedulers of a cluster"),
];
