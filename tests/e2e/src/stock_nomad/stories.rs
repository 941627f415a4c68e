//! The stories, with their environments and releases.
//!
//! In: environments. Out: nothing, or a panic with the expected and the actual state.

mod batch;
mod client;
mod contact;
mod crashes;
mod guarded;
mod lifecycle;
mod node;
mod reach;
mod rollout;
mod service;
mod services;

use super::{
    campaign::{Chapter, since, story},
    cluster::StockCluster,
};

/// All stories. A new one needs a line here.
pub const CHAPTERS: &[Chapter] = &[
    Chapter {
        title: "one server",
        ground: |program| Some(StockCluster::plain(program)),
        stories: &[
            story("the node is ready within seconds, with its attributes and drivers", node::ready),
            story(
                "a service with three allocations is placed and healthy, its deployment successful",
                service::three,
            ),
            story("the node refuses an unsupported job, and its deployment fails", service::unbuilt),
            story("a system job runs on the node", service::system),
            story("logs: stdout, stderr, an empty one, the tail, followed", reach::logs),
            story("files are listed, shown and read, except secrets", reach::files),
            story("exec: output, exit code, standard input", reach::exec),
            story("exec with a terminal gets its size", reach::terminal),
            story("a task is restarted, signalled, and its allocation stopped and replaced", reach::verbs),
            story("batch work completes", batch::completes),
            story("batch work that fails is restarted and rescheduled", batch::fails),
            story("a missing command fails its task", batch::no_command),
            story("a dispatch gets its payload and its meta", batch::dispatch),
            story("a periodic job is forced", batch::periodic),
            story("prestart, sidecar, poststart and poststop run in order", lifecycle::order),
            story("the end of a leader ends the other tasks", lifecycle::leader),
            story("a canary is promoted", rollout::promoted),
            story("a bad version is reverted", rollout::reverted),
            since(1, 3, "a service joins and leaves the servers' catalogue", services::listed),
            since(1, 4, "checks are shown", services::checked),
            since(1, 5, "a task has an identity as a file", services::identity),
            since(1, 5, "metadata of the node is changed and read", node::metadata),
            story("the command line works with the node's own API", node::node_api),
            // Before any drain: a node keeps the eligibility that it last received, with a heartbeat's
            // answer.
            story("a purged node registers again", node::purged),
            story("a node is drained within a deadline, and becomes eligible again", node::drained),
            story("servers' garbage collection removes directories", node::collected),
            story("a killed agent finds the same processes again", crashes::agent),
            story("a killed server finds the same processes again", crashes::server),
            story(
                "an agent is silent for too long: its allocations are replaced and stopped",
                contact::silent,
            ),
            // Later servers silently ignore these settings (2.0.5).
            since(
                1,
                3,
                "max_client_disconnect: an agent is silent for too long; its allocations continue",
                contact::kept_by_max,
            )
            .until(1, 10),
            since(
                1,
                8,
                "disconnect: an agent is silent for too long; its allocations continue",
                contact::kept_by_disconnect,
            ),
            story(
                "stop_after_client_disconnect: allocations end while no server responds",
                contact::stopped_by_after,
            )
            .until(1, 10),
            since(
                1,
                8,
                "disconnect.stop_on_client_after: allocations end while no server responds",
                contact::stopped_by_disconnect,
            ),
        ],
    },
    Chapter {
        title: "three servers with certificates and tokens",
        ground: |program| Some(guarded::start_cluster(program)),
        stories: &[
            story("certificates and tokens: a job runs and is readable at both APIs", guarded::works),
            story("both APIs require a certificate", guarded::no_certificate),
            story("both APIs require a token", guarded::no_token),
            story("a token that may read jobs may do nothing else at either API", guarded::reads),
            story("alloc-exec alone is not enough if tasks are not isolated", guarded::executes),
            story("alloc-node-exec executes at both APIs", guarded::executes_on_nodes),
            story("the leader is killed, and allocations continue", guarded::leader),
        ],
    },
    Chapter {
        title: "a stock client beside the agent",
        ground: client::neighbours,
        stories: &[story("a disk moves to a stock client and back", client::migrates)],
    },
    Chapter {
        title: "a stock client that the agent replaces",
        ground: client::alone,
        stories: &[story(
            "take-over: refused while the client or its allocations run, then the node is the same",
            client::moves,
        )],
    },
];
