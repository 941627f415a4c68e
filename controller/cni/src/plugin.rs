//! One call of a CNI plugin.
//!
//! In: the plugin's name and settings, a command, an allocation. Out: its result, or why the call failed, with the plugin, the command
//! and what it printed. A plugin runs as the agent: it is started only if nobody else could have changed it. It gets no variable of
//! the agent's own except `PATH`, since plugins call programs such as `iptables`.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::{Command as Program, ExitStatus},
    time::Duration,
};

use herdlet_base::{
    error::in_full,
    ownership::{self, OwnershipError},
};
use serde::Deserialize;
use serde_json::Value;

use crate::process::{self, Output, RunError};

/// The longest text of a plugin in a message.
const TEXT_CHARS_MAX: usize = 300;

/// Where plugins find programs if the agent has no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Numbers of errors by which a plugin reports that it is not ready (`SPEC.md`, STATUS).
const NOT_READY: [u64; 2] = [50, 51];

/// What a plugin is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Add,
    Check,
    Del,
    Status,
}

impl Command {
    fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Status => "STATUS",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'c> {
    /// The directories of plugins.
    pub dirs: &'c [PathBuf],
    /// The plugin: the name of a file.
    pub name: &'c str,
    pub command: Command,
    pub attachment: Attachment<'c>,
    /// How long it may take.
    pub time: Duration,
}

/// What a network is attached to.
#[derive(Debug, Clone, Copy)]
pub struct Attachment<'a> {
    /// The allocation.
    pub owner: &'a str,
    /// Marks the processes of the call.
    pub mark: &'a str,
    /// The path of its namespace; `None` if it is gone.
    pub namespace: Option<&'a Path>,
    /// The name of the interface in it.
    pub interface: &'a str,
    /// Further arguments (`CNI_ARGS`).
    pub args: &'a str,
}

/// Why a call failed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(
        "find the CNI plugin {plugin}: there is no such program in {dirs}; install it, or set `network.cni_path`"
    )]
    Missing { plugin: String, dirs: String },
    #[error("run the CNI plugin {plugin}: {source}")]
    Untrusted { plugin: String, source: OwnershipError },
    #[error("run the CNI plugin {plugin} with {command}: {}", in_full(source))]
    Run { plugin: String, command: Command, source: RunError },
    #[error("run the CNI plugin {plugin} with {command}: it reported: {text}")]
    Refused { plugin: String, command: Command, code: u64, text: String },
    #[error("run the CNI plugin {plugin} with {command}: it ended with {status}, and printed {printed:?}")]
    Ended { plugin: String, command: Command, status: ExitStatus, printed: String },
    #[error("read the result of the CNI plugin {plugin} for {command}: it is no JSON object: {printed:?}")]
    Garbled { plugin: String, command: Command, printed: String },
}

impl CallError {
    /// Whether the plugin is missing, or reports that it is not ready: waiting can help.
    pub fn is_wait(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Refused { code, .. } => NOT_READY.contains(code),
            Self::Untrusted { .. } | Self::Run { .. } | Self::Ended { .. } | Self::Garbled { .. } => false,
        }
    }

    /// Whether the plugin itself reports a fault.
    pub fn is_verdict(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Ended { .. } => true,
            Self::Missing { .. } | Self::Untrusted { .. } | Self::Run { .. } | Self::Garbled { .. } => false,
        }
    }
}

/// The error that a plugin prints.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: u64,
    msg: String,
    #[serde(default)]
    details: Option<String>,
}

/// Calls a plugin with its settings. Returns what it printed; null if nothing.
///
/// # Errors
/// [`CallError`].
pub fn call(call: &Call<'_>, settings: &Value) -> Result<Value, CallError> {
    let Call { dirs, name, command, attachment, time } = *call;
    let plugin = || name.to_owned();
    let path = find(dirs, name)?;
    ownership::check(&path).map_err(|source| CallError::Untrusted { plugin: plugin(), source })?;
    let Attachment { owner, mark, namespace, interface, args } = attachment;
    let mut program = Program::new(path);
    program.env_clear().env("PATH", search_path()).env("CNI_COMMAND", command.as_str());
    program.env("CNI_PATH", env::join_paths(dirs).unwrap_or_default()).current_dir("/");
    if command != Command::Status {
        program.env("CNI_CONTAINERID", owner).env("CNI_NETNS", namespace.unwrap_or(Path::new("")));
        program.env("CNI_IFNAME", interface).env("CNI_ARGS", args);
    }
    let ended = process::run(program, settings.to_string().as_bytes(), mark, time);
    let output = ended.map_err(|source| CallError::Run { plugin: plugin(), command, source })?;
    tracing::debug!(plugin = name, %command, owner, status = %output.status, "called a CNI plugin");
    read(name, command, output)
}

/// The first program of this name.
///
/// # Errors
/// [`CallError::Missing`].
pub fn find(dirs: &[PathBuf], name: &str) -> Result<PathBuf, CallError> {
    let paths = dirs.iter().map(|dir| dir.join(name));
    paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        CallError::Missing { plugin: name.to_owned(), dirs: dirs.join(", ") }
    })
}

/// The agent's own `PATH`.
pub(crate) fn search_path() -> OsString {
    env::var_os("PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| PATH.into())
}

fn read(name: &str, command: Command, output: Output) -> Result<Value, CallError> {
    let plugin = name.to_owned();
    let Output { status, result, messages } = output;
    if status.success() {
        let is_empty = result.iter().all(u8::is_ascii_whitespace);
        return match serde_json::from_slice(&result) {
            Ok(object @ Value::Object(_)) => Ok(object),
            // Only ADD has a result.
            Ok(_) | Err(_) if command != Command::Add => Ok(Value::Null),
            Ok(_) | Err(_) if is_empty => Ok(Value::Null),
            Ok(_) | Err(_) => Err(CallError::Garbled { plugin, command, printed: shown(&result) }),
        };
    }
    match serde_json::from_slice(&result) {
        Ok(Refusal { code, msg, details }) => {
            let details = details.filter(|details| !details.is_empty());
            let details = details.map(|details| format!("; {details}")).unwrap_or_default();
            let text = shown(format!("{msg}{details} (code {code})").as_bytes());
            Err(CallError::Refused { plugin, command, code, text })
        }
        Err(_) => {
            let printed = if result.is_empty() { &messages } else { &result };
            Err(CallError::Ended { plugin, command, status, printed: shown(printed) })
        }
    }
}

/// What a plugin printed, on one line of bounded length.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words =
        text.split(|char: char| char.is_whitespace() || char.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().take(TEXT_CHARS_MAX).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn read_as(command: Command, code: i32, result: &str, messages: &str) -> Result<Value, String> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            result: result.as_bytes().to_vec(),
            messages: messages.as_bytes().to_vec(),
        };
        read("bridge", command, output).map_err(|error| error.to_string())
    }

    #[test]
    fn failures_name_plugin_command_and_what_it_printed() {
        let refusal = r#"{"cniVersion": "1.0.0", "code": 11, "msg": "try again", "details": "no\naddress"}"#;
        for (command, code, (result, messages), expected) in [
            (
                Command::Add,
                1,
                (refusal, ""),
                "run the CNI plugin bridge with ADD: it reported: try again; no address (code 11)",
            ),
            (
                Command::Del,
                3,
                ("", "panic: \u{1b}[31moh\nno"),
                "run the CNI plugin bridge with DEL: it ended with exit status: 3, and printed \"panic: [31moh no\"",
            ),
            (
                Command::Add,
                0,
                ("not json", ""),
                "read the result of the CNI plugin bridge for ADD: it is no JSON object: \"not json\"",
            ),
            (
                Command::Add,
                0,
                ("[1]", ""),
                "read the result of the CNI plugin bridge for ADD: it is no JSON object: \"[1]\"",
            ),
        ] {
            assert_eq!(read_as(command, code, result, messages), Err(expected.to_owned()));
        }
        let long = read_as(Command::Add, 1, &"x".repeat(10_000), "").unwrap_err();
        assert!(long.len() < 500 && long.contains('…'), "{long}");
        let deep = read_as(Command::Add, 0, &"[".repeat(100_000), "").unwrap_err();
        assert!(deep.contains("no JSON object"), "{deep}");
    }

    #[test]
    fn only_an_addition_has_a_result() {
        let result = r#"{"cniVersion": "1.0.0", "ips": []}"#;
        assert!(read_as(Command::Add, 0, result, "").unwrap().is_object());
        assert_eq!(read_as(Command::Add, 0, " \n", ""), Ok(Value::Null));
        assert_eq!(read_as(Command::Del, 0, "anything", ""), Ok(Value::Null));
    }

    #[test]
    fn plugin_that_is_missing_or_not_ready_is_waited_for() {
        let dirs = [PathBuf::from("/nonexistent/a"), PathBuf::from("/nonexistent/b")];
        let missing = find(&dirs, "bridge").unwrap_err();
        assert!(missing.is_wait());
        let expected = "find the CNI plugin bridge: there is no such program in /nonexistent/a, /nonexistent/b; install it";
        assert!(missing.to_string().starts_with(expected), "{missing}");
        for (code, expected) in [(50, true), (51, true), (7, false)] {
            let refused = CallError::Refused {
                plugin: String::new(),
                command: Command::Status,
                code,
                text: String::new(),
            };
            assert_eq!(refused.is_wait(), expected);
        }
    }
}
