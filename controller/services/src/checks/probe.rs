//! One run of a check: an HTTP request, a TCP connection, a gRPC health call, or a command in a task.
//!
//! In: the check. Out: whether it passed and its output, at most 3 KiB. The texts are Nomad's, for tools that parse
//! them, except that the body of a response follows its status. This module does not schedule runs; the caller enforces
//! the timeout.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use herdlet_api_types::{
    AllocId,
    job::{CheckKind, InitialStatus},
    service::{CheckStatus, RegisteredCheck},
};
use herdlet_base::authority::host_port;
use herdlet_driver::ExecOutcome;
use reqwest::{
    Method, StatusCode,
    header::{HOST, HeaderMap, HeaderName, HeaderValue},
};

use super::{
    grpc,
    request::{Answer, Request, Requests, Speaks},
    shortage::NoResult,
};

/// Runs commands in running tasks.
pub trait Scripts: std::fmt::Debug + Send + Sync {
    /// Runs a command until it exits, or kills it after `timeout`.
    fn run<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, NoResult>>;
}

/// State shared by all runs.
#[derive(Debug)]
pub(super) struct Probe {
    scripts: Arc<dyn Scripts>,
    requests: Requests,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeResult {
    pub(super) status: CheckStatus,
    pub(super) output: String,
    /// The status of an HTTP response.
    pub(super) code: Option<StatusCode>,
    /// The exit code of a command.
    pub(super) exit: Option<i32>,
    /// The run used its whole timeout.
    pub(super) timed_out: bool,
}

impl ProbeResult {
    fn new(status: CheckStatus, output: String) -> Self {
        Self { status, output, code: None, exit: None, timed_out: false }
    }

    pub(super) fn failure(output: String) -> Self {
        Self::new(CheckStatus::Failure, output)
    }

    /// Whether it is a different failure, regardless of its text.
    pub(super) fn is_other_than(&self, last: &Self) -> bool {
        (self.code, self.exit, self.timed_out) != (last.code, last.exit, last.timed_out)
    }

    fn success(output: String) -> Self {
        Self::new(CheckStatus::Success, output)
    }

    pub(super) fn timed_out(timeout: Duration) -> Self {
        Self { timed_out: true, ..Self::failure(format!("nomad: no answer within {timeout:?}")) }
    }

    /// The result before the first run.
    pub(super) fn initial(status: InitialStatus) -> Self {
        let status = match status {
            InitialStatus::Passing => CheckStatus::Success,
            InitialStatus::Warning => CheckStatus::Warning,
            InitialStatus::Critical => CheckStatus::Failure,
        };
        Self::new(status, "nomad: waiting to run".to_owned())
    }
}

impl Probe {
    pub(super) fn new(scripts: Arc<dyn Scripts>) -> Self {
        Self { scripts, requests: Requests::default() }
    }

    /// Runs the check. Fails with a sentence if the agent lacked resources: that is no result.
    pub(super) async fn run(
        &self,
        alloc: AllocId,
        check: &RegisteredCheck,
        timeout: Duration,
    ) -> Result<ProbeResult, String> {
        match self.ask(alloc, check, timeout).await {
            Ok(result) => Ok(result),
            Err(NoResult::Failure(why)) => Ok(ProbeResult::failure(format!("nomad: {why}"))),
            Err(NoResult::Shortage(why)) => Err(why),
        }
    }

    async fn ask(
        &self,
        alloc: AllocId,
        check: &RegisteredCheck,
        timeout: Duration,
    ) -> Result<ProbeResult, NoResult> {
        let target = host_port(&check.address, check.port);
        match &check.kind {
            CheckKind::Tcp => match tokio::net::TcpStream::connect(&target).await {
                Ok(_) => Ok(ProbeResult::success("nomad: tcp ok".to_owned())),
                Err(error) => Err(NoResult::of(&error, format!("connect to {target}: {error}"))),
            },
            CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
                let request = Request {
                    speaks: Speaks::Http,
                    url: format!("{protocol}://{target}{path}"),
                    tls_skip_verify: *tls_skip_verify,
                    tls_server_name,
                    method: Method::from_bytes(method.as_bytes())
                        .map_err(|error| NoResult::Failure(format!("method {method:?}: {error}")))?,
                    headers: headers(header).map_err(NoResult::Failure)?,
                    body: body.clone().into_bytes(),
                    answer_bytes_max: OUTPUT_BYTES_MAX,
                };
                Ok(judge(&self.requests.send(request).await?))
            }
            CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
                let scheme = if *tls { "https" } else { "http" };
                let request = Request {
                    speaks: Speaks::Grpc,
                    url: format!("{scheme}://{target}{}", grpc::PATH),
                    tls_skip_verify: *tls_skip_verify,
                    tls_server_name,
                    method: Method::POST,
                    headers: grpc::headers(),
                    body: grpc::question(service),
                    answer_bytes_max: grpc::ANSWER_BYTES_MAX,
                };
                judge_grpc(&self.requests.send(request).await?).map_err(NoResult::Failure)?;
                Ok(ProbeResult::success("nomad: grpc ok".to_owned()))
            }
            CheckKind::Script { command, args, task } => {
                let command = [command].into_iter().chain(args).cloned().collect();
                Ok(judge_script(&self.scripts.run(alloc, task, command, timeout).await?))
            }
        }
    }
}

/// The maximum output of a check in the API.
const OUTPUT_BYTES_MAX: usize = 3 * 1024;

/// Cuts output to the maximum length.
fn cut(mut output: String) -> String {
    output.truncate(output.floor_char_boundary(OUTPUT_BYTES_MAX));
    output.truncate(output.trim_end().len());
    output
}

fn judge_grpc(answer: &Answer) -> Result<(), String> {
    if answer.status != StatusCode::OK {
        return Err(format!("http {} where gRPC was expected", answer.status));
    }
    grpc::verdict(&answer.headers, &answer.body)
}

/// Uses the rules of Consul's script checks.
fn judge_script(outcome: &ExecOutcome) -> ProbeResult {
    let streams = [&outcome.stdout, &outcome.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let output = cut(streams.concat());
    let exit = &outcome.exit;
    let status = match (exit.code, exit.signal) {
        (0, 0) => CheckStatus::Success,
        (1, 0) => CheckStatus::Warning,
        _ => CheckStatus::Failure,
    };
    let how = match (status, exit.signal) {
        (CheckStatus::Success | CheckStatus::Pending, _) => return ProbeResult::new(status, output),
        // Authors of scripts expect a failure.
        (CheckStatus::Warning, _) => "exit code 1, which means warning".to_owned(),
        (CheckStatus::Failure, 0) => format!("exit code {}", exit.code),
        (CheckStatus::Failure, signal) => format!("ended by signal {signal}"),
    };
    let colon = if output.is_empty() { "" } else { ": " };
    let result = ProbeResult::new(status, cut(format!("{how}{colon}{output}")));
    ProbeResult { exit: Some(exit.code), ..result }
}

fn judge(answer: &Answer) -> ProbeResult {
    let status = answer.status;
    if status == StatusCode::OK {
        return ProbeResult { code: Some(status), ..ProbeResult::success("nomad: http ok".to_owned()) };
    }
    let output = cut(format!("nomad: http {status}\n{}", String::from_utf8_lossy(&answer.body)));
    let result =
        if status.as_u16() < 400 { ProbeResult::success(output) } else { ProbeResult::failure(output) };
    ProbeResult { code: Some(status), ..result }
}

fn headers(fields: &BTreeMap<String, Vec<String>>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, values) in fields {
        let name: HeaderName = name.parse().map_err(|_| format!("header {name:?} is not a valid name"))?;
        for value in values {
            let value: HeaderValue =
                value.parse().map_err(|_| format!("header {name:?} has an invalid value"))?;
            // There can be only one Host.
            if name == HOST {
                headers.insert(name.clone(), value);
            } else {
                headers.append(name.clone(), value);
            }
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::task::ExitResult;

    use super::*;

    /// A different failure is reported at once; a different text of the same failure waits.
    #[test]
    fn another_exit_code_is_another_failure() {
        let ended = |code, stdout: &str| {
            let exit = ExitResult { code, ..ExitResult::default() };
            judge_script(&ExecOutcome { stdout: stdout.into(), stderr: Vec::new(), exit })
        };
        let late = ProbeResult::timed_out(Duration::from_secs(1));
        for (now, before, expected) in [
            (ended(7, "a"), ended(6, "a"), true),
            (ended(7, "a"), ended(7, "b"), false),
            (late.clone(), ended(7, "a"), true),
            (late.clone(), late, false),
        ] {
            assert_eq!(now.is_other_than(&before), expected, "{now:?} after {before:?}");
        }
    }
}
