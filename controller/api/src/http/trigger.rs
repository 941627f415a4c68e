//! The causes of evaluations, as Nomad names them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// A version of the job was accepted, or a client requested an evaluation.
    JobRegister,
    /// The job was stopped or deleted.
    JobDeregister,
    /// The count of a group was changed.
    JobScaling,
    /// A client forced a launch of a periodic job.
    PeriodicJob,
    /// A client stopped an allocation, which is replaced.
    AllocStop,
    /// An allocation has failed, and will be replaced.
    AllocFailure,
    /// A client requested an evaluation of all jobs of the node.
    NodeUpdate,
    /// Allocations wait until the node can take them.
    QueuedAllocs,
}

impl Trigger {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::JobRegister => "job-register",
            Self::JobDeregister => "job-deregister",
            Self::JobScaling => "job-scaling",
            Self::PeriodicJob => "periodic-job",
            Self::AllocStop => "alloc-stop",
            Self::AllocFailure => "alloc-failure",
            Self::NodeUpdate => "node-update",
            Self::QueuedAllocs => "queued-allocs",
        }
    }
}
