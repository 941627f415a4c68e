//! `--wait` of the commands that change jobs.
//!
//! In: what was accepted, and what its command prints. Out: the same with how waiting ended, and the exit code.

use std::time::Duration;

use clap::Args;
use herdlet_api_types::JobKey;
use serde::Serialize;

use super::{Goal, Limit, WaitReport, Wanted, limit, wait_for_accepted};
use crate::{client::Client, failure::Failure, output::Output};

/// Flags of a command whose effect takes time.
#[derive(Debug, Clone, Args)]
pub(crate) struct WaitFlags {
    /// Wait until it is done
    #[arg(long)]
    wait: bool,
    /// With --wait: how long all of it may take; 0 for ever
    #[arg(long, default_value = "5m", value_parser = limit)]
    timeout: Duration,
}

/// What an agent has accepted.
pub(crate) struct Accepted<'a> {
    pub client: &'a Client,
    pub jobs: Vec<Wanted>,
    /// Index of the commit.
    pub index: u64,
    /// What to wait for.
    pub goal: Goal,
}

impl<'a> Accepted<'a> {
    /// A version of a job, which is to converge.
    pub(crate) fn version(client: &'a Client, job: JobKey, version: u64, index: u64) -> Self {
        let jobs = vec![Wanted::version(job, version)];
        Self { client, jobs, index, goal: Goal::Converged }
    }
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report<'a, R> {
    #[serde(flatten)]
    changed: &'a R,
    /// How `--wait` ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitReport>,
}

impl WaitFlags {
    /// Up to when the whole command may take.
    pub(crate) fn limit(&self) -> Limit {
        Limit::from_now(if self.wait { self.timeout } else { Duration::ZERO })
    }

    /// Waits if that is wanted, and prints `changed` as `-o` says: also when waiting broke, since what was accepted is in force.
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
