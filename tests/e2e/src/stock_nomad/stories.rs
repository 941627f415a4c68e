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
                "a service with a count of three is placed and healthy, its deployment successful",
                service::three,
            ),
            story(
                "a job that is not built is refused by the node, and its deployment hears of it",
                service::unbuilt,
            ),
            story("a system job runs on the node", service::system),
            story("logs: stdout, stderr, an empty one, the end, followed", reach::logs),
            story("files are listed, shown and read, secrets are not", reach::files),
            story("exec: output, exit code, standard input", reach::exec),
            story("exec with a terminal has its size", reach::terminal),
            story("a task is restarted, signalled, and its allocation stopped and replaced", reach::verbs),
            story("batch work completes", batch::completes),
            story("batch work that fails is restarted and rescheduled", batch::fails),
            story("a command that isn't there fails its task", batch::no_command),
            story("a dispatch gets its payload and its meta", batch::dispatch),
            story("a periodic job is forced", batch::periodic),
            story("prestart, sidecar, poststart and poststop run in their order", lifecycle::order),
            story("a leader's end ends the others", lifecycle::leader),
            story("a canary is promoted", rollout::promoted),
            story("a bad version is reverted", rollout::reverted),
            since(1, 3, "a service is in the servers' catalogue, and leaves it", services::listed),
            since(1, 4, "checks are shown", services::checked),
            since(1, 5, "a task has an identity as a file", services::identity),
            since(1, 5, "metadata of the node is changed and read", node::metadata),
            story("the node's own API answers the command line", node::node_api),
            // Before any drain: a node keeps the eligibility that it last received, with a heartbeat's
            // answer.
            story("a node that was purged registers again", node::purged),
            story("a node is drained by a deadline, and takes work again", node::drained),
            story("servers' garbage collection removes directories", node::collected),
            story("an agent that was killed comes back to the same processes", crashes::agent),
            story("a server that was killed comes back to the same processes", crashes::server),
            story("an agent is silent for too long: its work is replaced, and ended", contact::silent),
            // Later servers silently ignore these settings (2.0.5).
            since(
                1,
                3,
                "max_client_disconnect: an agent is silent for too long, and its work goes on",
                contact::kept_by_max,
            )
            .until(1, 10),
            since(
                1,
                8,
                "disconnect: an agent is silent for too long, and its work goes on",
                contact::kept_by_disconnect,
            ),
            story(
                "stop_after_client_disconnect: work ends while no server answers",
                contact::stopped_by_after,
            )
            .until(1, 10),
            since(
                1,
                8,
                "disconnect.stop_on_client_after: work ends while no server answers",
                contact::stopped_by_disconnect,
            ),
        ],
    },
    Chapter {
        title: "three servers with certificates and tokens",
        ground: |program| Some(guarded::start_cluster(program)),
        stories: &[
            story("certificates and tokens: a job runs and is read at both doors", guarded::works),
            story("nobody without a certificate is let in, at either door", guarded::no_certificate),
            story("nobody without a token is let in, at either door", guarded::no_token),
            story("a token that may read jobs does nothing else, at either door", guarded::reads),
            story("alloc-exec alone executes nothing where tasks are not isolated", guarded::executes),
            story("alloc-node-exec executes, at either door", guarded::executes_on_nodes),
            story("the leader is killed, and work goes on", guarded::leader),
        ],
    },
    Chapter {
        title: "a stock client beside the agent",
        ground: client::neighbours,
        stories: &[story("a disk goes to a stock client, and back", client::migrates)],
    },
    Chapter {
        title: "a stock client whose place is taken",
        ground: client::alone,
        stories: &[story(
            "moving in: refused beside a living client or live work, then the node is the same",
            client::moves,
        )],
    },
];
