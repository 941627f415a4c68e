//! Sends one request for each of several allocations, and reports each, including those before a failure.
//!
//! In: allocations and a request. Out: lines, a document for programs, and optionally a wait.

use std::collections::BTreeMap;

use herdlet_api_types::{AllocId, JobKey, view::AllocView};
use serde::Serialize;

use super::{
    client::{Client, ClientError},
    failure::Failure,
    output::Output,
    wait::{Accepted, Goal, Limit, WaitFlags, WaitTarget},
};

/// What `-o json` prints.
#[derive(Default, Serialize)]
pub(super) struct Report<'r> {
    allocs: Vec<Touched<'r>>,
}

#[derive(Serialize)]
struct Touched<'r> {
    id: AllocId,
    name: String,
    /// The task, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'r str>,
}

/// A request for several allocations.
pub(super) struct Round<'r> {
    pub(super) client: &'r Client,
    pub(super) limit: Limit,
    pub(super) wait: &'r WaitFlags,
    pub(super) output: Output,
    /// Reads after "failed to".
    pub(super) what: &'r str,
    /// What to print for each allocation.
    pub(super) outcome: fn(&AllocView) -> &'static str,
    /// The allocations may be replaced: the wait is for their jobs, not for themselves.
    pub(super) replaced: bool,
}

impl Round<'_> {
    /// Sends the requests for allocations, or for a task of each, and waits for the jobs if `--wait` is given.
    pub(super) async fn of(
        self,
        allocs: &[(AllocView, Option<String>)],
        ask: impl AsyncFn(&AllocView, Option<&str>) -> Result<u64, ClientError>,
    ) -> Result<u8, Failure> {
        let mut report = Report::default();
        let touched = self.limit.within(self.what, async {
            let mut index = 0;
            for (view, task) in allocs {
                index = ask(view, task.as_deref()).await?;
                report.add(view, task.as_deref(), (self.outcome)(view), self.output);
            }
            Ok::<_, Failure>(index)
        });
        match touched.await {
            Ok(index) => {
                let mut jobs: BTreeMap<&JobKey, WaitTarget> = BTreeMap::new();
                for (AllocView { spec, .. }, _) in allocs {
                    let wanted = jobs.entry(&spec.job_key).or_insert_with(|| WaitTarget::any(&spec.job_key));
                    wanted.allocs.extend((!self.replaced).then_some(spec.id));
                }
                let jobs = jobs.into_values().collect();
                let accepted = Accepted { client: self.client, jobs, index, goal: Goal::Converged };
                self.wait.finish(self.limit, accepted, &report, self.output).await
            }
            Err(failure) => report.end(Err(failure), self.output),
        }
    }
}

impl<'r> Report<'r> {
    pub(super) fn add(&mut self, view: &AllocView, task: Option<&'r str>, what: &str, output: Output) {
        let name = view.spec.name();
        output.line(&match task {
            Some(task) => format!("{name}/{task} {what}"),
            None => format!("{name} {what}"),
        });
        self.allocs.push(Touched { id: view.spec.id, name, task });
    }

    /// Prints the report, after an error too.
    pub(super) fn end(&self, touched: Result<(), Failure>, output: Output) -> Result<u8, Failure> {
        if touched.is_ok() || !self.allocs.is_empty() {
            output.document(self)?;
        }
        touched.map(|()| 0)
    }
}
