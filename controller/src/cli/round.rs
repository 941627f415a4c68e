//! One allocation after the other is asked for something: each is told of, those that came before a failure too.
//!
//! In: allocations, and what to ask. Out: lines, a document for programs, and a wait where that is wanted.

use std::collections::BTreeSet;

use herdlet_api_types::{AllocId, JobKey, view::AllocView};
use serde::Serialize;

use super::{
    client::{Client, ClientError},
    failure::Failure,
    output::Output,
    wait::{Accepted, Goal, Limit, WaitFlags, Wanted},
};

/// Who was asked; what `-o json` prints.
#[derive(Default, Serialize)]
pub(super) struct Report<'r> {
    allocs: Vec<Touched<'r>>,
}

#[derive(Serialize)]
struct Touched<'r> {
    id: AllocId,
    name: String,
    /// The task, where one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'r str>,
}

/// What is asked of one allocation after the other.
pub(super) struct Round<'r> {
    pub(super) client: &'r Client,
    pub(super) limit: Limit,
    pub(super) wait: &'r WaitFlags,
    pub(super) output: Output,
    /// Reads after "failed to".
    pub(super) what: &'r str,
    /// What is told of each.
    pub(super) told: &'r str,
    pub(super) task: Option<&'r str>,
}

impl Round<'_> {
    /// Asks it of these, and waits for their jobs where that is wanted.
    pub(super) async fn of(
        self,
        allocs: &[&AllocView],
        ask: impl AsyncFn(AllocId) -> Result<u64, ClientError>,
    ) -> Result<u8, Failure> {
        let mut report = Report::default();
        let touched = self.limit.within(self.what, async {
            let mut index = 0;
            for view in allocs {
                index = ask(view.spec.id).await?;
                report.add(view, self.task, self.told, self.output);
            }
            Ok::<_, Failure>(index)
        });
        match touched.await {
            Ok(index) => {
                let jobs: BTreeSet<&JobKey> = allocs.iter().map(|view| &view.spec.job_key).collect();
                let jobs = jobs.into_iter().map(Wanted::any).collect();
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

    /// Prints it, also when it broke halfway.
    pub(super) fn end(&self, touched: Result<(), Failure>, output: Output) -> Result<u8, Failure> {
        if touched.is_ok() || !self.allocs.is_empty() {
            output.document(self)?;
        }
        touched.map(|()| 0)
    }
}
