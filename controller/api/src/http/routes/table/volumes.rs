//! Volumes and their plugins. A query parameter selects the type of the listed volumes.

use super::{
    Claim, Constant, FORCE, FieldSource, Fields, Found, List, NotBuilt, Route, Secrets, Servers, Text, Whole,
    below, delete, get, put, read, remove, write,
};
use crate::http::plugins;

const PLUGINS: &str = "other calls about CSI plugins";
const VOLUMES: &str = "CSI volumes; host volumes are at /v1/herdlet/volumes";

const PLUGIN: &[(&str, FieldSource)] = &[("PluginID", Text("plugin_id"))];

pub(super) const ROUTES: &[Route] = &[
    get(
        "volumes?type=host",
        NotBuilt(VOLUMES),
        Servers(
            read("HostVolume.List", List("Volumes"))
                .with(&[("NodeID", Text("node_id")), ("NodePool", Text("node_pool"))]),
        ),
    ),
    get(
        "volumes",
        NotBuilt(VOLUMES),
        Servers(
            read("CSIVolume.List", List("Volumes"))
                .with(&[("NodeID", Text("node_id")), ("PluginID", Text("plugin_id"))])
                .with_request(Secrets),
        ),
    ),
    get(
        "volumes/external",
        NotBuilt(VOLUMES),
        Servers(read("CSIVolume.ListExternal", Whole).with(PLUGIN).with_request(Secrets)),
    ),
    get(
        "volumes/snapshot",
        NotBuilt(VOLUMES),
        Servers(read("CSIVolume.ListSnapshots", Whole).with(PLUGIN).with_request(Secrets)),
    ),
    put(
        "volumes/snapshot",
        NotBuilt(VOLUMES),
        Servers(write("CSIVolume.CreateSnapshot", Fields(&["Snapshots"])).with_request(Secrets)),
    ),
    get(
        "volume/csi/{ID}",
        NotBuilt(VOLUMES),
        Servers(read("CSIVolume.Get", Found("Volume", "volume not found")).with_request(Secrets)),
    ),
    put(
        "volume/csi/{ID}",
        NotBuilt(VOLUMES),
        Servers(write("CSIVolume.Register", Fields(&["Volumes", "PolicyOverride"])).with_request(Secrets)),
    ),
    delete(
        "volume/csi/{VolumeIDs[]}",
        NotBuilt(VOLUMES),
        Servers(remove("CSIVolume.Deregister").with(FORCE).with_request(Secrets)),
    ),
    put(
        "volume/csi/{ID}/create",
        NotBuilt(VOLUMES),
        Servers(write("CSIVolume.Create", Fields(&["Volumes", "PolicyOverride"])).with_request(Secrets)),
    ),
    delete(
        "volume/csi/{VolumeIDs[]}/delete",
        NotBuilt(VOLUMES),
        Servers(remove("CSIVolume.Delete").with_request(Secrets)),
    ),
    delete(
        "volume/csi/{VolumeID}/detach",
        NotBuilt(VOLUMES),
        Servers(
            remove("CSIVolume.Unpublish")
                .with(&[("Claim.NodeID", Text("node")), ("Claim.Mode", Constant(2))])
                .with_request(Claim),
        ),
    ),
    put(
        "volume/host/create",
        NotBuilt(VOLUMES),
        Servers(write("HostVolume.Create", Fields(&["Volume", "PolicyOverride"]))),
    ),
    put(
        "volume/host/register",
        NotBuilt(VOLUMES),
        Servers(write("HostVolume.Register", Fields(&["Volume", "PolicyOverride"]))),
    ),
    get(
        "volume/host/{ID}",
        NotBuilt(VOLUMES),
        Servers(read("HostVolume.Get", Found("Volume", "volume not found"))),
    ),
    delete(
        "volume/host/{VolumeID}",
        NotBuilt(VOLUMES),
        Servers(remove("HostVolume.Delete").with(FORCE).shows(Whole)),
    ),
    delete(
        "volume/host/{VolumeID}/delete",
        NotBuilt(VOLUMES),
        Servers(remove("HostVolume.Delete").with(FORCE).shows(Whole)),
    ),
    get("plugins", served!(plugins::list), Servers(read("CSIPlugin.List", List("Plugins")))),
    get(
        "plugin/csi/{ID}",
        served!(plugins::read),
        Servers(read("CSIPlugin.Get", Found("Plugin", "plugin not found"))),
    ),
    below("plugin", PLUGINS),
    below("volume", VOLUMES),
    below("volumes", VOLUMES),
];
