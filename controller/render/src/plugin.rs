//! Secrets plugins: programs that fetch the values of `secret` blocks.
//!
//! In: the directory of plugins, the name of one, a path, an environment. Out: values by key. A plugin runs as the agent:
//! it is started only if nobody else could have changed it. It gets no variable of the agent's own, its answer and its
//! time are bounded, and what it writes is shown to nobody: only an `error` of its answer is meant for people.
//!
//! | call | answer on standard output |
//! | --- | --- |
//! | `NAME fingerprint` | `{"type": "secrets", "version": "1.0.0"}` |
//! | `NAME fetch PATH` | `{"result": {"KEY": "VALUE"}, "error": null}` |
//!
//! Facts: `client/commonplugins/secrets_plugin.go` of Nomad.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use herdlet_base::{
    observation::Class,
    ownership::{self, OwnershipError},
};
use herdlet_runtime::off_thread;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    time,
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// How long a call may take before the plugin is asked to end, as in Nomad.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// The same for a version: many may be asked at the start of the agent.
const FINGERPRINT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long it then has, as in Nomad.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// The longest answer. Values beyond it fit into no environment.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Plugins that are asked for their version; a directory with more is not one of plugins.
const PLUGINS_MAX: usize = 64;

/// The longest text of a plugin in a message.
const ERROR_CHARS_MAX: usize = 200;

/// What a plugin of another type answers with is not ours.
const KIND: &str = "secrets";

/// One fetch.
pub struct PluginRequest<'r> {
    /// The plugin: the name of a file.
    pub name: &'r str,
    pub path: &'r str,
    pub env: &'r BTreeMap<String, String>,
    /// Ends the fetch.
    pub cancelled: &'r CancellationToken,
}

/// Why a plugin has not given values. Has no part of its output, except the `error` of an answer.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("start the secrets plugin {name}: there is no file {}; install it, or set `common_plugin_dir`", path.display())]
    Missing { name: String, path: PathBuf },
    #[error("start the secrets plugin {name}: {source}")]
    Untrusted { name: String, source: OwnershipError },
    #[error("start the secrets plugin {name}: {source}")]
    Start { name: String, source: std::io::Error },
    #[error("wait for the secrets plugin {name}: {source}")]
    Wait { name: String, source: std::io::Error },
    #[error("wait for the secrets plugin {name}: it did not end within {} s", CALL_TIME_MAX.as_secs())]
    Overdue { name: String },
    #[error("wait for the secrets plugin {name}: the task is to end")]
    Withdrawn { name: String },
    #[error("run the secrets plugin {name}: it ended with {status}")]
    Ended { name: String, status: ExitStatus },
    #[error("run the secrets plugin {name}: its error is: {error}")]
    Said { name: String, error: String },
    #[error("read the answer of the secrets plugin {name}: it has more than {ANSWER_BYTES_MAX} bytes")]
    TooLong { name: String },
    #[error(
        "read the answer of the secrets plugin {name}: it is not {{\"result\": {{\"KEY\": \"VALUE\"}}, \"error\": null}} (line {line}, column {column})"
    )]
    Malformed { name: String, line: usize, column: usize },
}

impl PluginError {
    /// Whether a retry can help. As in Nomad, a task fails if its plugin does; only the agent's own troubles are retried.
    pub fn class(&self) -> Class {
        match self {
            Self::Wait { .. } | Self::Withdrawn { .. } => Class::Retry,
            Self::Missing { .. }
            | Self::Untrusted { .. }
            | Self::Start { .. }
            | Self::Overdue { .. }
            | Self::Ended { .. }
            | Self::Said { .. }
            | Self::TooLong { .. }
            | Self::Malformed { .. } => Class::Fatal,
        }
    }
}

/// The answer to `fetch`. Has no `Debug`: values are secrets.
#[derive(Deserialize)]
struct Fetched {
    #[serde(default)]
    result: Option<BTreeMap<String, String>>,
    #[serde(default)]
    error: Option<String>,
}

/// The answer to `fingerprint`.
#[derive(Deserialize)]
struct Fingerprint {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    version: Option<String>,
}

/// Fetches values.
///
/// # Errors
/// [`PluginError`].
pub async fn fetch(
    plugins: &Path,
    request: PluginRequest<'_>,
) -> Result<BTreeMap<String, String>, PluginError> {
    let PluginRequest { name, path, env, cancelled } = request;
    let program = trusted(plugins, name).await?;
    let mut command = Command::new(program);
    command.args(["fetch", path]).env_clear().envs(env).env("CPI_OPERATION", "fetch");
    let bounds = Bounds { cancelled, longest: CALL_TIME_MAX };
    let (status, answer) = output(command, name, bounds).await?;
    let fetched: Result<Fetched, PluginError> = parsed(&answer, name);
    if let Ok(Fetched { error: Some(error), .. }) = &fetched {
        let error = error.lines().next().unwrap_or_default().chars().take(ERROR_CHARS_MAX).collect();
        return Err(PluginError::Said { name: name.to_owned(), error });
    }
    if !status.success() {
        return Err(PluginError::Ended { name: name.to_owned(), status });
    }
    Ok(fetched?.result.unwrap_or_default())
}

/// The versions of the plugins in a directory, by name. A plugin that can't be asked is logged and left out.
pub async fn versions(plugins: &Path) -> BTreeMap<String, String> {
    let dir = plugins.to_owned();
    let names = off_thread(move || names_in(&dir)).await.unwrap_or_default();
    let asked = names.iter().map(|name| async move {
        match version(plugins, name).await {
            Ok(version) => Some((name.clone(), version?)),
            Err(error) => {
                tracing::warn!(plugin = name, %error, "a secrets plugin cannot be used");
                None
            }
        }
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

async fn version(plugins: &Path, name: &str) -> Result<Option<String>, PluginError> {
    let program = trusted(plugins, name).await?;
    let mut command = Command::new(program);
    command.arg("fingerprint").env_clear().env("CPI_OPERATION", "fingerprint");
    let bounds = Bounds { cancelled: &CancellationToken::new(), longest: FINGERPRINT_TIME_MAX };
    let (status, answer) = output(command, name, bounds).await?;
    if !status.success() {
        return Err(PluginError::Ended { name: name.to_owned(), status });
    }
    let Fingerprint { kind, version } = parsed(&answer, name)?;
    Ok(version.filter(|_| kind.as_deref() == Some(KIND)))
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.truncate(PLUGINS_MAX);
    names
}

/// The path of a plugin that only trusted users can change.
async fn trusted(plugins: &Path, name: &str) -> Result<PathBuf, PluginError> {
    let program = plugins.join(name);
    let path = program.clone();
    let checked = off_thread(move || ownership::check(&path)).await;
    let failed = |source| PluginError::Start { name: name.to_owned(), source };
    match checked.map_err(|error| failed(std::io::Error::other(error)))? {
        Ok(()) => Ok(program),
        Err(error) if error.is_absent() => Err(PluginError::Missing { name: name.to_owned(), path: program }),
        Err(source) => Err(PluginError::Untrusted { name: name.to_owned(), source }),
    }
}

struct Bounds<'b> {
    cancelled: &'b CancellationToken,
    longest: Duration,
}

/// Runs a plugin to its end. Standard error is discarded: it may have secrets, and nobody is meant to read it.
#[expect(clippy::disallowed_methods, reason = "an agent that ends leaves no plugin behind")]
async fn output(
    mut command: Command,
    name: &str,
    Bounds { cancelled, longest }: Bounds<'_>,
) -> Result<(ExitStatus, Zeroizing<Vec<u8>>), PluginError> {
    let name = || name.to_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|source| PluginError::Start { name: name(), source })?;
    let ended = tokio::select! {
        ended = time::timeout(longest, answer_of(&mut child)) => Some(ended),
        () = cancelled.cancelled() => None,
    };
    let failure = match ended {
        Some(Ok(Ok((status, answer)))) => return Ok((status, answer)),
        Some(Ok(Err(Unread::TooLong))) => PluginError::TooLong { name: name() },
        Some(Ok(Err(Unread::Failed(source)))) => PluginError::Wait { name: name(), source },
        Some(Err(_)) => PluginError::Overdue { name: name() },
        None => PluginError::Withdrawn { name: name() },
    };
    end(&mut child).await;
    Err(failure)
}

/// Why an answer was not read.
enum Unread {
    TooLong,
    Failed(std::io::Error),
}

async fn answer_of(child: &mut Child) -> Result<(ExitStatus, Zeroizing<Vec<u8>>), Unread> {
    let mut answer = Zeroizing::new(Vec::new());
    if let Some(output) = &mut child.stdout {
        output.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer).await.map_err(Unread::Failed)?;
    }
    if u64::try_from(answer.len()).unwrap_or(u64::MAX) > ANSWER_BYTES_MAX {
        return Err(Unread::TooLong);
    }
    let status = child.wait().await.map_err(Unread::Failed)?;
    Ok((status, answer))
}

/// Asks the plugin to end, and forces it after a while.
async fn end(child: &mut Child) {
    // While the child is not reaped, its pid is its own.
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    if let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        let _ = pidfd_send_signal(&process, Signal::TERM);
    }
    if time::timeout(END_TIME_MAX, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// An error of the parser could quote a value, so only its place is reported.
fn parsed<T: DeserializeOwned>(answer: &[u8], name: &str) -> Result<T, PluginError> {
    serde_json::from_slice(answer).map_err(|error| PluginError::Malformed {
        name: name.to_owned(),
        line: error.line(),
        column: error.column(),
    })
}

#[cfg(test)]
mod tests;
