//! Jobs as text, and the servers' view of them and of their allocations.
//!
//! In: names and commands. Out: job files in Nomad's own language; ids, states and processes.

use serde_json::Value;

use super::cluster::{StockCluster, is, text};

/// The default `update` block.
pub const UPDATE: &str = "update {\n  max_parallel = 3\n  min_healthy_time = \"1s\"\n  healthy_deadline = \"20s\"\n  progress_deadline = \"40s\"\n}\n";

/// Blocks that disable restarts and rescheduling.
pub const ONCE: &str =
    "restart {\n  attempts = 0\n  mode = \"fail\"\n}\nreschedule {\n  attempts = 0\n  unlimited = false\n}\n";

pub fn job(name: &str, kind: &str, body: &str) -> String {
    format!("job \"{name}\" {{\n  datacenters = [\"dc1\"]\n  type = \"{kind}\"\n{body}}}\n")
}

pub fn group(name: &str, body: &str) -> String {
    format!("group \"{name}\" {{\n{body}}}\n")
}

/// Returns a task that runs a shell script.
pub fn shell(name: &str, script: &str, more: &str) -> String {
    command(name, &["/bin/sh", "-c", script], more)
}

/// Returns a task that runs a command.
pub fn command(name: &str, words: &[&str], more: &str) -> String {
    let (first, rest) = words.split_first().unwrap_or((&"", &[]));
    let (first, rest) = (Value::from(*first), Value::from(rest.to_vec()));
    format!(
        "task \"{name}\" {{\n  driver = \"raw_exec\"\n  kill_timeout = \"2s\"\n  config {{\n    command = {first}\n    args = {rest}\n  }}\n  \
         resources {{\n    cpu = 20\n    memory = 32\n  }}\n{more}}}\n"
    )
}

/// Returns a service with one group `g` and `count` allocations of a task `t` that sleeps.
pub fn sleeper(name: &str, count: u32) -> String {
    let body = format!("count = {count}\n{}", shell("t", "exec sleep 100000", ""));
    job(name, "service", &format!("{UPDATE}{}", group("g", &body)))
}

impl StockCluster {
    /// Returns all allocations of a job.
    pub fn allocs(&self, job: &str) -> Vec<Value> {
        // Version 1.1 has no `job allocs`.
        let all = self.json(&["alloc", "status", "-json"]);
        all.as_array().into_iter().flatten().filter(|alloc| is(alloc, "JobID", job)).cloned().collect()
    }

    /// Returns one allocation.
    pub fn alloc(&self, id: &str) -> Value {
        self.json(&["alloc", "status", "-json", id])
    }

    /// Waits until `count` allocations of a group that are wanted to run are running; returns their ids.
    #[track_caller]
    pub fn running(&self, job: &str, group: &str, count: usize) -> Vec<String> {
        self.until_seen(&format!("{count} of {job}.{group} run"), |seen| {
            let allocs = self.allocs(job);
            *seen = states(&allocs);
            let mut ids = of(&allocs, group, |alloc| {
                is(alloc, "DesiredStatus", "run") && is(alloc, "ClientStatus", "running")
            });
            ids.sort();
            (ids.len() == count).then_some(ids)
        })
    }

    /// Waits for the only running allocation of a group.
    #[track_caller]
    pub fn single(&self, job: &str, group: &str) -> String {
        self.running(job, group, 1).pop().unwrap_or_default()
    }

    /// Waits until an allocation has a status.
    #[track_caller]
    pub fn becomes(&self, id: &str, status: &str) -> Value {
        self.until_seen(&format!("allocation {id} is {status}"), |seen| {
            let alloc = self.alloc(id);
            *seen = text(&alloc, "ClientStatus");
            (seen == status).then_some(alloc)
        })
    }

    /// Waits until an allocation of a group has a status.
    #[track_caller]
    pub fn one_is(&self, job: &str, group: &str, status: &str) -> Value {
        self.until_seen(&format!("one of {job}.{group} is {status}"), |seen| {
            let allocs = self.allocs(job);
            *seen = states(&allocs);
            allocs
                .into_iter()
                .find(|alloc| is(alloc, "TaskGroup", group) && is(alloc, "ClientStatus", status))
        })
    }

    /// Waits until a job's newest deployment is of this version and has a status; returns the deployment.
    #[track_caller]
    pub fn deployment(&self, job: &str, version: u64, status: &str) -> Value {
        self.until_seen(&format!("the deployment of {job}'s version {version} is {status}"), |seen| {
            let all = self.json(&["job", "deployments", "-json", job]);
            *seen = all.to_string();
            let wanted = |found: &&Value| found["JobVersion"] == version && is(found, "Status", status);
            all.as_array()?.iter().find(wanted).cloned()
        })
    }

    /// Returns the processes of a task, sorted.
    pub fn pids(&self, alloc: &str, task: &str) -> Vec<u32> {
        let members = self.agent.members().into_iter();
        let mut pids: Vec<u32> = members
            .filter(|member| member.alloc == alloc && member.task == task)
            .map(|member| member.pid)
            .collect();
        pids.sort_unstable();
        pids
    }

    /// Returns the only process of a task.
    ///
    /// # Panics
    /// If there is not exactly one.
    #[track_caller]
    pub fn pid(&self, alloc: &str, task: &str) -> u32 {
        match self.pids(alloc, task).as_slice() {
            [pid] => *pid,
            others => panic!("expected one process of {task} in {alloc}, found {others:?}"),
        }
    }

    /// Waits until a task's log on the node contains `wanted`.
    #[track_caller]
    pub fn logged(&self, alloc: &str, task: &str, wanted: &str) {
        self.until_true(&format!("the log of {task} contains {wanted:?}"), || {
            self.agent.task_log(alloc, task, "stdout").contains(wanted)
        });
    }
}

/// Returns the ids of a group's allocations that satisfy a predicate.
pub fn of(allocs: &[Value], group: &str, is_so: impl Fn(&Value) -> bool) -> Vec<String> {
    allocs
        .iter()
        .filter(|alloc| is(alloc, "TaskGroup", group) && is_so(alloc))
        .map(|alloc| text(alloc, "ID"))
        .collect()
}

/// Formats allocations for messages.
pub fn states(allocs: &[Value]) -> String {
    let shown = |alloc: &Value| {
        format!(
            "{} {} {}",
            text(alloc, "TaskGroup"),
            text(alloc, "DesiredStatus"),
            text(alloc, "ClientStatus")
        )
    };
    allocs.iter().map(shown).collect::<Vec<_>>().join(", ")
}
