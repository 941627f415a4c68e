//! The agent and the jobs of the benchmarks.

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

/// Far longer than any step should take.
const LIMIT: Duration = Duration::from_secs(300);

/// Interval between polls, each of which takes processor time.
const BETWEEN: Duration = Duration::from_millis(4);

/// An agent under test.
pub(super) struct Bench {
    pub(super) agent: Agent,
    instance: String,
}

impl Bench {
    /// Starts an agent and waits until it is idle.
    pub(super) fn new(ground: &BenchDirs) -> Self {
        Self::with(ground, |setup| setup)
    }

    /// Like [`Self::new`], with changed settings.
    pub(super) fn with(ground: &BenchDirs, change: impl FnOnce(Setup) -> Setup) -> Self {
        let setup = change(Setup { ground: ground.disk().to_owned(), ..Setup::default() });
        let agent =
            Agent::start_with(setup.env("HERDLET_RUNTIME_DIR", ground.runtime().display().to_string()));
        let instance = agent.home.instance().expect("an instance has a name");
        wait::pause(Duration::from_secs(1));
        Self { agent, instance }
    }

    /// Submits a job of `count` tasks; returns once the agent has stored it durably.
    pub(super) fn submit(&self, kind: &str, count: usize, config: &str) {
        self.submit_to("raw_exec", (kind, count), config);
    }

    /// Like [`Self::submit`], for this driver.
    pub(super) fn submit_to(&self, driver: &str, (kind, count): (&str, usize), config: &str) {
        self.apply(&manifest(driver, (kind, count), config));
    }

    /// Submits these documents.
    pub(super) fn apply(&self, text: &str) {
        let body = serde_json::json!({ "files": [{ "name": "bench.yaml", "text": text }] });
        self.call("POST", "/v1/herdlet/apply", &body.to_string());
    }

    /// Sends a request that must succeed.
    pub(super) fn call(&self, method: &str, path: &str, body: &str) {
        let answer = self.ask(method, path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Waits until the agent reports that all `count` tasks run.
    pub(super) fn until_running(&self, count: usize) {
        // Check the machine first: that is cheap, and costs the agent nothing.
        self.until(|bench| host::attempt_count(&bench.instance) >= count);
        self.until(|bench| bench.counted("running") == count);
    }

    /// Waits until the agent reports that all `count` tasks are complete.
    pub(super) fn until_complete(&self, count: usize) {
        self.until_counted("complete", count);
    }

    /// Waits until the agent reports that `count` tasks have this status.
    pub(super) fn until_counted(&self, status: &str, count: usize) {
        self.until(|bench| bench.counted(status) == count);
    }

    /// Deletes the job.
    pub(super) fn delete(&self) {
        self.call("DELETE", "/v1/job/bench?purge=true", "");
    }

    /// Waits until no process of a task is left.
    pub(super) fn until_gone(&self) {
        self.until(|bench| bench.tasks().is_empty());
    }

    /// Waits until the job has no supervisor, cgroup or directory.
    pub(super) fn until_removed(&self) {
        self.until_gone();
        self.until(|bench| {
            bench.supervisors().is_empty()
                && host::attempts(&bench.instance).is_empty()
                && std::fs::read_dir(bench.allocs()).map_or(0, Iterator::count) == 0
        });
    }

    /// The processes of tasks.
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

    /// The directory of all allocations.
    pub(super) fn allocs(&self) -> PathBuf {
        self.agent.home.state().join("alloc")
    }

    /// The value of a metric.
    pub(super) fn metric(&self, name: &str) -> f64 {
        self.agent.metric(name, "")
    }

    fn counted(&self, status: &str) -> usize {
        self.agent.allocs().iter().filter(|alloc| alloc.status() == status).count()
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let headers = [("Content-Type", "application/json")];
        http::request(&self.agent.peer(), method, path, &headers, body).expect("a response of the agent")
    }

    fn until(&self, reached: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !reached(self) {
            assert!(Instant::now() < deadline, "timed out after {LIMIT:?}:\n{}", self.agent.log());
            wait::pause(BETWEEN);
        }
    }
}

fn manifest(driver: &str, (kind, count): (&str, usize), config: &str) -> String {
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
          driver: {driver}
          config: {config}
"
    )
}
