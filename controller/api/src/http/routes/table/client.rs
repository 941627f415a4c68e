//! Client endpoints: allocations, their files and tasks, and data about the node.

use axum::routing;

use super::{
    Cat, Either, Exec, Field, FieldSource, Fields, File, Ignored, Itself, Logs, NotBuilt, Nothing, ReadAt,
    Route, Served, Snapshot, Stream, Text, Whole, get, put, read, write,
};
use crate::http::{agent, allocs, exec, fs, gc, logs, stats};

const IDENTITIES: &str = "identities of nodes";
const METADATA: &str = "changes of the node's metadata by request";
const PAUSING: &str = "pausing tasks";

const PATH: &[(&str, FieldSource)] = &[("Path", Text("path"))];
const TASK: &[(&str, FieldSource)] = &[("Task", Text("task"))];

pub(super) const ROUTES: &[Route] = &[
    get(
        "client/stats",
        served!(stats::host),
        Either("ClientStats.Stats", read("ClientStats.Stats", Field("HostStats"))),
    ),
    get(
        "client/gc",
        served!(gc::client),
        Either("Allocations.GarbageCollectAll", read("ClientAllocations.GarbageCollectAll", Nothing)),
    ),
    put(
        "client/gc",
        Served(|_| routing::put(gc::client)),
        Either(
            "Allocations.GarbageCollectAll",
            write("ClientAllocations.GarbageCollectAll", Ignored).shows(Nothing),
        ),
    ),
    get("client/metadata", served!(agent::metadata), Either("NodeMeta.Read", read("NodeMeta.Read", Whole))),
    put(
        "client/metadata",
        NotBuilt(METADATA),
        Either("NodeMeta.Apply", write("NodeMeta.Apply", Fields(&["NodeID", "Meta"]))),
    ),
    get("client/identity", NotBuilt(IDENTITIES), Either("NodeIdentity.Get", read("NodeIdentity.Get", Whole))),
    put(
        "client/identity/renew",
        NotBuilt(IDENTITIES),
        Either("NodeIdentity.Renew", write("NodeIdentity.Renew", Fields(&["NodeID"]))),
    ),
    get("client/allocation/{AllocID}/exec", served!(exec::open), Stream(Exec)),
    get("client/allocation/{AllocID}/snapshot", NotBuilt("migration of ephemeral disks"), Itself(Snapshot)),
    get(
        "client/allocation/{AllocID}/stats",
        served!(stats::read),
        Either("Allocations.Stats", read("ClientAllocations.Stats", Field("Stats")).with(TASK)),
    ),
    get(
        "client/allocation/{AllocID}/checks",
        served!(allocs::checks),
        Either("Allocations.Checks", read("ClientAllocations.Checks", Field("Results"))),
    ),
    get(
        "client/allocation/{AllocID}/gc",
        served!(gc::alloc),
        Either("Allocations.GarbageCollect", read("ClientAllocations.GarbageCollect", Nothing)),
    ),
    put(
        "client/allocation/{AllocID}/gc",
        Served(|_| routing::put(gc::alloc)),
        Either(
            "Allocations.GarbageCollect",
            write("ClientAllocations.GarbageCollect", Ignored).shows(Nothing),
        ),
    ),
    put(
        "client/allocation/{AllocID}/restart",
        served!(allocs::restart),
        Either("Allocations.Restart", write("ClientAllocations.Restart", Fields(&["TaskName", "AllTasks"]))),
    ),
    put(
        "client/allocation/{AllocID}/signal",
        served!(allocs::signal),
        Either("Allocations.Signal", write("ClientAllocations.Signal", Fields(&["Task", "Signal"]))),
    ),
    get(
        "client/allocation/{AllocID}/pause",
        NotBuilt(PAUSING),
        Either("Allocations.GetPauseState", read("ClientAllocations.GetPauseState", Whole).with(TASK)),
    ),
    put(
        "client/allocation/{AllocID}/pause",
        NotBuilt(PAUSING),
        Either(
            "Allocations.SetPauseState",
            write("ClientAllocations.SetPauseState", Fields(&["Task", "ScheduleState"])),
        ),
    ),
    get("client/fs/logs/{AllocID}", served!(logs::read), Stream(Logs)),
    get(
        "client/fs/ls/{AllocID}",
        served!(fs::ls),
        Either("FileSystem.List", read("FileSystem.List", Field("Files")).with(PATH)),
    ),
    get(
        "client/fs/stat/{AllocID}",
        served!(fs::stat),
        Either("FileSystem.Stat", read("FileSystem.Stat", Field("Info")).with(PATH)),
    ),
    get("client/fs/cat/{AllocID}", served!(fs::cat), Stream(Cat)),
    get("client/fs/readat/{AllocID}", served!(fs::readat), Stream(ReadAt)),
    get("client/fs/stream/{AllocID}", served!(fs::stream), Stream(File)),
];
