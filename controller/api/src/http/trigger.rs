//! What leads to an evaluation, in Nomad's words.

/// What led to an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// A version of the job was accepted, or somebody asked for an evaluation.
    JobRegister,
    /// The job is to stop.
    JobDeregister,
    /// A group has another count.
    JobScaling,
    /// A periodic job was launched by request.
    PeriodicJob,
    /// An allocation is to be stopped and replaced.
    AllocStop,
    /// An allocation has failed, and another will take its place.
    AllocFailure,
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
        }
    }
}
