//! The agent and the jobs that measures use.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host,
    http::{self, Answer},
    wait,
};

use super::ground::BenchDirs;

/// Far beyond what anything here may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Between two looks: each takes time from what is measured.
const BETWEEN: Duration = Duration::from_millis(4);

/// An agent whose tasks are started, followed and counted.
pub(super) struct Bench {
    pub(super) agent: Agent,
    instance: String,
}

impl Bench {
    /// A fresh agent that has come to rest.
    pub(super) fn new(ground: &BenchDirs) -> Self {
        Self::with(ground, |setup| setup)
    }

    /// The same, started differently.
    pub(super) fn with(ground: &BenchDirs, change: impl FnOnce(Setup) -> Setup) -> Self {
        let setup = change(Setup { ground: ground.disk().to_owned(), ..Setup::default() });
        let agent =
            Agent::start_with(setup.env("HERDLET_RUNTIME_DIR", ground.runtime().display().to_string()));
        let instance = agent.home.instance().expect("an instance has a name");
        wait::pause(Duration::from_secs(1));
        Self { agent, instance }
    }

    /// Submits a job of `count` tasks; the answer says that it is accepted and durable.
    pub(super) fn submit(&self, kind: &str, count: usize, config: &str) {
        self.apply(&manifest(kind, count, config));
    }

    /// Submits these documents.
    pub(super) fn apply(&self, text: &str) {
        let body = serde_json::json!({ "files": [{ "name": "bench.yaml", "text": text }] });
        let answer = self.ask("POST", "/v1/herdlet/apply", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Waits until the agent says that all `count` tasks run.
    pub(super) fn until_running(&self, count: usize) {
        // The machine is asked first: that costs the agent nothing, and little else.
        self.until(|bench| host::attempt_count(&bench.instance) >= count);
        self.until(|bench| bench.counted("running") == count);
    }

    /// Waits until the agent says that all `count` tasks have ended well.
    pub(super) fn until_complete(&self, count: usize) {
        self.until(|bench| bench.counted("complete") == count);
    }

    /// Takes the job away.
    pub(super) fn delete(&self) {
        let answer = self.ask("DELETE", "/v1/job/bench?purge=true", "");
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Waits until no process of a task is left.
    pub(super) fn until_gone(&self) {
        self.until(|bench| bench.tasks().is_empty());
    }

    /// Waits until nothing at all is left of the job: no supervisor, no cgroup, no directory.
    pub(super) fn until_removed(&self) {
        self.until_gone();
        self.until(|bench| {
            bench.supervisors().is_empty()
                && host::attempts(&bench.instance).is_empty()
                && std::fs::read_dir(bench.allocs()).map_or(0, Iterator::count) == 0
        });
    }

    /// Tasks' processes.
    pub(super) fn tasks(&self) -> Vec<u32> {
        host::members(&self.instance).into_iter().map(|member| member.pid).collect()
    }

    /// Their supervisors.
    pub(super) fn supervisors(&self) -> Vec<u32> {
        host::supervisors(&self.instance)
    }

    /// The agent, the supervisors and the tasks.
    pub(super) fn whole_tree(&self) -> Vec<u32> {
        let mut pids = vec![self.agent.pid()];
        pids.extend(self.supervisors());
        pids.extend(self.tasks());
        pids
    }

    /// Where allocations have their directories.
    pub(super) fn allocs(&self) -> PathBuf {
        self.agent.home.state().join("alloc")
    }

    /// The page of metrics says so.
    pub(super) fn metric(&self, name: &str) -> f64 {
        self.agent.metric(name, "")
    }

    fn counted(&self, status: &str) -> usize {
        self.agent.allocs().iter().filter(|alloc| alloc.status() == status).count()
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let headers = [("Content-Type", "application/json")];
        http::request(&self.agent.peer(), method, path, &headers, body).expect("the agent answers")
    }

    fn until(&self, reached: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !reached(self) {
            assert!(Instant::now() < deadline, "not reached in {LIMIT:?}:\n{}", self.agent.log());
            wait::pause(BETWEEN);
        }
    }
}

fn manifest(kind: &str, count: usize, config: &str) -> String {
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: bench}}
spec:
  type: {kind}
  groups:
    - name: main
      count: {count}
      tasks:
        - name: work
          driver: raw_exec
          config: {config}
"
    )
}
