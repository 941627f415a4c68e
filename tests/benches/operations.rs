//! THE TABLE of single operations, for benchmarks of time ([`micro`](../micro.rs)) and of instructions
//! ([`instructions`](../instructions.rs)).
//!
//! To add an operation, add a line to [`ALL`].

mod codec;
mod planner;
mod runtime;
mod template;

use std::fmt;

/// An operation that can be repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    /// A short description.
    pub(crate) name: &'static str,
    /// Prepares the operation; the returned function runs it once.
    pub(crate) ready: fn() -> Box<dyn FnMut()>,
}

/// All operations.
pub(crate) const ALL: [Operation; 17] = [
    Operation { name: "plan a converged allocation", ready: planner::converged },
    Operation { name: "plan 1000 running tasks, nothing changed", ready: planner::inspect },
    Operation { name: "apply and plan one job until its task runs", ready: planner::start_one },
    Operation { name: "apply and plan one job until its 200 tasks run", ready: planner::start_many },
    Operation { name: "adopt 1000 running tasks after a restart", ready: planner::adopt },
    Operation { name: "wake and cancel, 1000 keys waiting", ready: runtime::wake_and_cancel },
    Operation { name: "wake and fall due, 1000 keys waiting", ready: runtime::wake_and_pop },
    Operation { name: "one turn of 1000 events for 1000 keys", ready: runtime::turn },
    Operation { name: "encode an allocation's state", ready: codec::encode_state },
    Operation { name: "decode an allocation's state", ready: codec::decode_state },
    Operation { name: "encode an allocation", ready: codec::encode_spec },
    Operation { name: "decode an allocation", ready: codec::decode_spec },
    Operation { name: "decode a job", ready: codec::decode_job },
    Operation { name: "write a supervisor's record", ready: codec::encode_attempt },
    Operation { name: "read a supervisor's record", ready: codec::decode_attempt },
    Operation { name: "parse and render a template of 100 lines", ready: template::parse_and_render },
    Operation { name: "render a template of 100 lines again", ready: template::render },
];

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
