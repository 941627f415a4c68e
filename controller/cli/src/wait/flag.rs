//! `--wait` of commands that change jobs.
//!
//! In: what was accepted, and the command's report. Out: the report with the result of the wait, and the exit code.

use std::time::Duration;

use clap::Args;
use herdlet_api_types::JobKey;
use serde::Serialize;

use super::{Goal, Limit, WaitReport, WaitTarget, limit, wait_for_accepted};
use crate::{client::Client, failure::Failure, output::Output};

/// Flags of a command whose effect takes time.
#[derive(Debug, Clone, Args)]
pub(crate) struct WaitFlags {
    /// Wait until the change has taken effect
    #[arg(long)]
    wait: bool,
    /// With --wait: time limit of the whole command; 0 for none
    #[arg(long, default_value = "5m", value_parser = limit)]
    timeout: Duration,
}

/// A change that an agent has accepted.
pub(crate) struct Accepted<'a> {
    pub client: &'a Client,
    pub jobs: Vec<WaitTarget>,
    /// Index of the commit.
    pub index: u64,
    pub goal: Goal,
}

impl<'a> Accepted<'a> {
    /// A version of a job that should converge.
    pub(crate) fn version(client: &'a Client, job: JobKey, version: u64, index: u64) -> Self {
        let jobs = vec![WaitTarget::version(job, version)];
        Self { client, jobs, index, goal: Goal::Converged }
    }
}

#[derive(Serialize)]
struct Report<'a, R> {
    #[serde(flatten)]
    changed: &'a R,
    /// The result of `--wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitReport>,
}

impl WaitFlags {
    /// The limit for the whole command.
    pub(crate) fn limit(&self) -> Limit {
        Limit::from_now(if self.wait { self.timeout } else { Duration::ZERO })
    }

    /// Waits if `--wait` is given, and prints `changed` in the form of `-o`, even if waiting fails, because the change is in
    /// force.
    pub(crate) async fn finish<R: Serialize>(
        &self,
        limit: Limit,
        accepted: Accepted<'_>,
        changed: &R,
        output: Output,
    ) -> Result<u8, Failure> {
        if !self.wait {
            output.document(&Report { changed, waited: None })?;
            return Ok(0);
        }
        let Accepted { client, jobs, index, goal } = accepted;
        let waited = wait_for_accepted(client, jobs, index, goal, limit).await;
        let report = waited.as_ref().ok().map(|waited| waited.report(goal));
        output.document(&Report { changed, waited: report })?;
        Ok(waited?.code())
    }
}
