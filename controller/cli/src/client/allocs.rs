//! Requests about one allocation: its files, logs and usage, and operations on it.

use std::collections::BTreeMap;

use futures_util::{Stream, TryStreamExt};
use herdlet_api_types::{AllocId, alloc::Allocation, nomad, view::Explanation};
use herdlet_base::paths::encode;
use reqwest::Method;
use serde_json::json;

use super::{Client, Effect, EndFlags, ExecSocket, Result, Usage, broken};

#[derive(Debug, Clone)]
pub struct LogRequest {
    pub task: String,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// Continue as the log grows.
    pub follow: bool,
    /// Number of last lines.
    pub tail: Option<u64>,
    /// Lines written after this time, in seconds since 1970.
    pub since: Option<u64>,
    /// A time before each line.
    pub timestamps: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tty {
    Yes,
    No,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartScope {
    Running,
    Task(String),
    /// All tasks, including dead ones.
    All,
}

impl Client {
    pub async fn explain(&self, alloc: AllocId) -> Result<Explanation> {
        self.get(&format!("/v1/herdlet/explain/{alloc}")).await
    }

    /// An allocation in Nomad's JSON.
    pub async fn allocation(&self, alloc: AllocId) -> Result<nomad::Allocation> {
        self.get(&format!("/v1/allocation/{alloc}")).await
    }

    /// Restarts one task, all tasks, or the running ones.
    pub async fn restart(&self, alloc: AllocId, scope: &RestartScope) -> Result<u64> {
        let body = match scope {
            RestartScope::Running => json!({}),
            RestartScope::Task(task) => json!({ "TaskName": task }),
            RestartScope::All => json!({ "AllTasks": true }),
        };
        let path = format!("/v1/client/allocation/{alloc}/restart");
        self.change(self.to(Method::PUT, &path).json(&body)).await
    }

    /// Sends a signal to one task, or to all running ones.
    pub async fn signal(&self, alloc: AllocId, task: Option<&str>, signal: &str) -> Result<()> {
        let body = json!({ "Task": task.unwrap_or_default(), "Signal": signal });
        self.put(&format!("/v1/client/allocation/{alloc}/signal"), &body).await
    }

    /// Streams a task's log.
    pub async fn logs(
        &self,
        alloc: AllocId,
        wanted: &LogRequest,
    ) -> Result<impl Stream<Item = Result<Vec<u8>>> + Unpin + use<>> {
        let mut request = self
            .to(Method::GET, &format!("/v1/client/fs/logs/{alloc}"))
            .query(&[("task", wanted.task.as_str()), ("type", wanted.stream), ("plain", "true")])
            .query(&[("follow", wanted.follow)]);
        if let Some(lines) = wanted.tail {
            request = request.query(&[("tail", lines)]);
        }
        if let Some(at_s) = wanted.since {
            request = request.query(&[("since", at_s)]);
        }
        if wanted.timestamps {
            request = request.query(&[("timestamps", true)]);
        }
        let answer = self.send(request).await?;
        let pieces = answer.bytes_stream().map_ok(|bytes| bytes.to_vec());
        Ok(Box::pin(pieces.map_err(|error| broken(&error, Effect::None))))
    }

    /// What templates of a task read with `env`, without secrets.
    pub async fn environment(&self, alloc: AllocId, task: &str) -> Result<BTreeMap<String, String>> {
        let request = self.to(Method::GET, &format!("/v1/herdlet/environment/{alloc}"));
        self.ask(request.query(&[("task", task)])).await
    }

    pub async fn list_files(&self, alloc: AllocId, path: &str) -> Result<Vec<nomad::FileInfo>> {
        let request = self.to(Method::GET, &format!("/v1/client/fs/ls/{alloc}"));
        self.ask(request.query(&[("path", path)])).await
    }

    /// Information about a file or directory of an allocation.
    pub async fn stat_file(&self, alloc: AllocId, path: &str) -> Result<nomad::FileInfo> {
        let request = self.to(Method::GET, &format!("/v1/client/fs/stat/{alloc}"));
        self.ask(request.query(&[("path", path)])).await
    }

    /// The content of a file of an allocation.
    pub async fn read_file(
        &self,
        alloc: AllocId,
        path: &str,
    ) -> Result<impl Stream<Item = Result<Vec<u8>>> + Unpin + use<>> {
        let request = self.to(Method::GET, &format!("/v1/client/fs/cat/{alloc}"));
        let answer = self.send(request.query(&[("path", path)])).await?;
        let pieces = answer.bytes_stream().map_ok(|bytes| bytes.to_vec());
        Ok(Box::pin(pieces.map_err(|error| broken(&error, Effect::None))))
    }

    /// Stops an allocation; its job creates a replacement.
    pub async fn stop_alloc(&self, alloc: AllocId, ends: EndFlags) -> Result<u64> {
        let path = format!("/v1/allocation/{alloc}/stop");
        self.change(self.to(Method::PUT, &path).query(&ends.query()).json(&json!({}))).await
    }

    /// Executes a command in a running task.
    pub async fn exec(&self, alloc: AllocId, task: &str, command: &[String], tty: Tty) -> Result<ExecSocket> {
        let command = json!(command).to_string();
        let request = self
            .to(Method::GET, &format!("/v1/client/allocation/{alloc}/exec"))
            .query(&[("task", task), ("command", &command)])
            .query(&[("tty", tty == Tty::Yes)]);
        ExecSocket::open(self, request).await
    }

    /// Executes an action of a running task.
    pub async fn run_action(
        &self,
        alloc: &Allocation,
        task: &str,
        name: &str,
        tty: Tty,
    ) -> Result<ExecSocket> {
        let job = &alloc.job_key;
        let request = self
            .to(Method::GET, &format!("/v1/job/{}/action", encode(&job.id)))
            .query(&[("namespace", &*job.namespace), ("allocID", &alloc.id.to_string())])
            .query(&[("task", task), ("action", name)])
            .query(&[("tty", tty == Tty::Yes)]);
        ExecSocket::open(self, request).await
    }

    /// The resource usage of an allocation's running tasks.
    pub async fn usage(&self, alloc: AllocId) -> Result<Usage> {
        self.get(&format!("/v1/client/allocation/{alloc}/stats")).await
    }
}
