//! The rows, by subject. The first matching pattern wins; sections share no paths.
//!
//! Each row has its verb and path, what answers on the local API, and what answers on a node.

/// A local handler.
macro_rules! served {
    ($handler:path) => {
        $crate::http::routes::Local::Served(|verb| verb.serve($handler))
    };
}

mod acl;
mod agent;
mod allocs;
mod client;
mod jobs;
mod namespaces;
mod nodes;
mod servers;
mod volumes;

use super::{
    AnswerPart::{Field, First, Found, List, Nothing, Whole},
    CallBody::{self, All, Fields, Ignored, In, Job, OneNamed, OneOf, Raw, Renamed},
    FieldSource::{self, Constant, Flag, Number, Presence, Text},
    JobUse,
    Local::{self, NotBuilt, Served},
    NodeAnswer::{Agent, Health, KnownServers, Metrics, ParsedJob, SetServers, Snapshot},
    OnNode::{self, Either, Itself, Servers, ServersOnly, Stream},
    RequestRule::{self, Claim, Secrets, VersionTag},
    ResponseRule::{
        self, Discovery, KnownAlloc, OmitEmpty, OmitIdentities, PublicKeys, ServerHealth, Submission,
        Versions,
    },
    Route,
    StreamKind::{Action, Cat, Events, Exec, File, Logs, Monitor, MonitorExport, ReadAt},
    Verb,
    call::{read, remove, write},
};

pub(super) const SECTIONS: &[&[Route]] = &[
    agent::ROUTES,
    client::ROUTES,
    jobs::ROUTES,
    nodes::ROUTES,
    allocs::ROUTES,
    namespaces::ROUTES,
    volumes::ROUTES,
    acl::ROUTES,
    servers::ROUTES,
];

const fn get(path: &'static str, local: Local, node: OnNode) -> Route {
    Route { verb: Verb::Get, path, local, node }
}

const fn put(path: &'static str, local: Local, node: OnNode) -> Route {
    Route { verb: Verb::Put, path, local, node }
}

const fn delete(path: &'static str, local: Local, node: OnNode) -> Route {
    Route { verb: Verb::Delete, path, local, node }
}

/// Every path at or below `path` without a row of its own is not built.
const fn below(path: &'static str, feature: &'static str) -> Route {
    Route { verb: Verb::Any, path, local: NotBuilt(feature), node: OnNode::Nobody }
}

/// Fields of lists that servers fill only on request. They are omitted otherwise.
const FIELDS_OF_JOBS: &[(&str, FieldSource)] = &[("Fields.Meta", Flag("meta"))];
const OMIT_OF_JOBS: ResponseRule = OmitEmpty(&["Meta"]);
const OMIT_OF_ALLOCS: ResponseRule = OmitEmpty(&["AllocatedResources"]);

const FORCE: &[(&str, FieldSource)] = &[("Force", Flag("force"))];
