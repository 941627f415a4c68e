//! Nodes and their pools.

use super::{
    CallBody, FIELDS_OF_JOBS, FieldSource, Fields, Flag, Found, Ignored, List, NotBuilt, Nothing,
    OMIT_OF_JOBS, OmitEmpty, OmitIdentities, OneNamed, OneOf, Renamed, ResponseRule, Route, Servers, delete,
    get, put, read, remove, write,
};
use crate::http::{drain, nodes};

const POOLS: &str = "changes of node pools";

/// As [`FIELDS_OF_JOBS`].
const FIELDS_OF_NODES: &[(&str, FieldSource)] =
    &[("Fields.Resources", Flag("resources")), ("Fields.OS", Flag("os"))];
const OMIT_OF_NODES: ResponseRule = OmitEmpty(&["Attributes", "NodeResources", "ReservedResources"]);

/// Servers store the begin of a drain next to its specification.
const DRAIN: CallBody =
    Renamed(&[("DrainSpec", "DrainStrategy"), ("MarkEligible", "MarkEligible"), ("Meta", "Meta")]);

pub(super) const ROUTES: &[Route] = &[
    get(
        "nodes",
        served!(nodes::list),
        Servers(read("Node.List", List("Nodes")).with(FIELDS_OF_NODES).with_response(OMIT_OF_NODES)),
    ),
    get("node/pools", served!(nodes::list_pools), Servers(read("NodePool.List", List("NodePools")))),
    put(
        "node/pools",
        NotBuilt(POOLS),
        Servers(write("NodePool.UpsertNodePools", OneOf("NodePools")).shows(Nothing)),
    ),
    get(
        "node/pool/{Name}/nodes",
        served!(nodes::nodes_of_pool),
        Servers(read("NodePool.ListNodes", List("Nodes")).with(FIELDS_OF_NODES).with_response(OMIT_OF_NODES)),
    ),
    get(
        "node/pool/{Name}/jobs",
        served!(nodes::jobs_of_pool),
        Servers(read("NodePool.ListJobs", List("Jobs")).with(FIELDS_OF_JOBS).with_response(OMIT_OF_JOBS)),
    ),
    get(
        "node/pool/{Name}",
        served!(nodes::read_pool),
        Servers(read("NodePool.GetNodePool", Found("NodePool", "node pool not found"))),
    ),
    put(
        "node/pool/{Name}",
        NotBuilt(POOLS),
        Servers(
            write("NodePool.UpsertNodePools", OneNamed("NodePools", "Name", "Node pool name")).shows(Nothing),
        ),
    ),
    delete("node/pool/{Names[]}", NotBuilt(POOLS), Servers(remove("NodePool.DeleteNodePools"))),
    get(
        "node/{NodeID}",
        served!(nodes::read),
        Servers(read("Node.GetNode", Found("Node", "node not found")).with_response(ResponseRule::Node)),
    ),
    get(
        "node/{NodeID}/allocations",
        served!(nodes::allocations),
        Servers(read("Node.GetAllocs", List("Allocs")).with_response(OmitIdentities)),
    ),
    put("node/{NodeID}/evaluate", served!(nodes::evaluate), Servers(write("Node.Evaluate", Ignored))),
    put(
        "node/{NodeID}/eligibility",
        served!(drain::set_eligibility),
        Servers(write("Node.UpdateEligibility", Fields(&["Eligibility"]))),
    ),
    put("node/{NodeID}/drain", served!(drain::drain), Servers(write("Node.UpdateDrain", DRAIN))),
    put("node/{NodeID}/purge", NotBuilt("removing nodes"), Servers(write("Node.Deregister", Ignored))),
];
