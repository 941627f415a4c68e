//! `herdlet job …`: commands under the names that Nomad has for them.

use clap::{Args, Subcommand};

use super::{
    Connection,
    dispatch::{self, DispatchArgs},
    failure::Failure,
};

/// Arguments of `herdlet job`.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    pub(super) verb: JobVerb,
}

/// What to do with a job.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum JobVerb {
    /// Run a child of a parameterized job: herdlet dispatch
    Dispatch(DispatchArgs),
}

impl JobVerb {
    pub(super) fn connection(&mut self) -> &mut Connection {
        match self {
            Self::Dispatch(args) => &mut args.connection,
        }
    }
}

pub(super) async fn run(args: JobArgs) -> Result<u8, Failure> {
    match args.verb {
        JobVerb::Dispatch(args) => dispatch::run(args).await,
    }
}
