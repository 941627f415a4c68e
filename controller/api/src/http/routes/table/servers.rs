//! The servers themselves: events, members, operation, keys.

use axum::routing;

use super::{
    Discovery, Events, FORCE, FieldSource, Ignored, In, List, NotBuilt, Nothing, Number, Presence,
    PublicKeys, Route, Served, ServerHealth, Servers, Stream, Text, Whole, below, delete, get, put, read,
    remove, write,
};
use crate::http::{event_stream, gc, identity_keys, keyring, nodes};

const OPERATION: &str = "operation of a cluster";
const SUMMARIES: &str = "repair of summaries";

/// With `cas`, the call fails if the configuration was changed since that index.
const CHECKED: &[(&str, FieldSource)] = &[("CAS", Presence("cas")), ("Config.ModifyIndex", Number("cas"))];

pub(super) const ROUTES: &[Route] = &[
    get("event/stream", served!(event_stream::follow), Stream(Events)),
    get("regions", served!(nodes::regions), Servers(read("Region.List", Whole))),
    get("status/leader", served!(nodes::leader), Servers(read("Status.Leader", Whole))),
    get("status/peers", served!(nodes::peers), Servers(read("Status.Peers", Whole))),
    get("agent/members", served!(nodes::members), Servers(read("Status.Members", Whole))),
    get(
        "operator/raft/configuration",
        NotBuilt(OPERATION),
        Servers(read("Operator.RaftGetConfiguration", Whole)),
    ),
    delete(
        "operator/raft/peer",
        NotBuilt(OPERATION),
        Servers(remove("Operator.RaftRemovePeerByID").with(&[("ID", Text("id"))])),
    ),
    put(
        "operator/raft/transfer-leadership",
        NotBuilt(OPERATION),
        Servers(
            write("Operator.TransferLeadershipToPeer", Ignored)
                .with(&[("ID", Text("id")), ("Address", Text("address"))]),
        ),
    ),
    get(
        "operator/autopilot/configuration",
        NotBuilt(OPERATION),
        Servers(read("Operator.AutopilotGetConfiguration", Whole)),
    ),
    put(
        "operator/autopilot/configuration",
        NotBuilt(OPERATION),
        Servers(write("Operator.AutopilotSetConfiguration", In("Config")).with(CHECKED)),
    ),
    get(
        "operator/autopilot/health",
        NotBuilt(OPERATION),
        Servers(read("Operator.ServerHealth", Whole).with_response(ServerHealth)),
    ),
    get(
        "operator/scheduler/configuration",
        NotBuilt(OPERATION),
        Servers(read("Operator.SchedulerGetConfiguration", Whole)),
    ),
    put(
        "operator/scheduler/configuration",
        NotBuilt(OPERATION),
        Servers(write("Operator.SchedulerSetConfiguration", In("Config")).with(CHECKED)),
    ),
    get("operator/keyring/keys", served!(keyring::list), Servers(read("Keyring.List", List("Keys")))),
    get(
        ".well-known/jwks.json",
        served!(identity_keys::jwks),
        Servers(read("Keyring.ListPublic", Whole).with_response(PublicKeys)),
    ),
    get(
        ".well-known/openid-configuration",
        served!(identity_keys::discovery),
        Servers(read("Keyring.GetConfig", Whole).with_response(Discovery)),
    ),
    put(
        "operator/keyring/rotate",
        served!(keyring::rotate),
        Servers(write("Keyring.Rotate", Ignored).with(&[
            ("Algorithm", Text("algo")),
            ("Full", Presence("full")),
            ("PublishTime", Number("publish_time")),
        ])),
    ),
    delete(
        "operator/keyring/key/{KeyID}",
        served!(keyring::remove),
        Servers(remove("Keyring.Delete").with(FORCE)),
    ),
    get(
        "operator/upgrade-check/vault-workload-identity",
        NotBuilt(OPERATION),
        Servers(read("Operator.UpgradeCheckVaultWorkloadIdentity", Whole)),
    ),
    put(
        "system/gc",
        Served(|_| routing::put(gc::system)),
        Servers(write("System.GarbageCollect", Ignored).shows(Nothing)),
    ),
    put(
        "system/reconcile/summaries",
        NotBuilt(SUMMARIES),
        Servers(write("System.ReconcileJobSummaries", Ignored).shows(Nothing)),
    ),
    below("operator", OPERATION),
    below("system/reconcile", SUMMARIES),
];
