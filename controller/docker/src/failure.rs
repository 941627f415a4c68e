//! Errors of an engine as errors of the driver's contract.
//!
//! In: bollard's errors. Out: the class that decides what happens next, and a sentence.

use std::{io, time::Duration};

use bollard::errors::Error;
use herdlet_driver::DriverError;

/// How often an answer is asked for again that is about a container between two states.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// What an error of the engine means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The engine does not answer: nothing is known.
    Unreachable,
    /// The object does not exist.
    Missing,
    /// The state of the object does not allow it, or the name is taken.
    Conflict,
    /// The state is already as wanted.
    Unchanged,
    /// The request can't be carried out.
    Refused,
    /// The engine failed.
    Failed,
}

/// What an error means.
pub(crate) fn meaning(error: &Error) -> Meaning {
    let Error::DockerResponseServerError { status_code, message } = error else {
        let failed = matches!(error, Error::DockerStreamError { .. });
        return if failed { Meaning::Failed } else { Meaning::Unreachable };
    };
    match status_code {
        304 => Meaning::Unchanged,
        404 => Meaning::Missing,
        409 => Meaning::Conflict,
        400..=499 => Meaning::Refused,
        // Podman's status of a conflict.
        500 if message.contains("name is already in use") => Meaning::Conflict,
        _ => Meaning::Failed,
    }
}

/// The engine's own sentence.
pub(crate) fn sentence(error: &Error) -> String {
    if let Error::DockerResponseServerError { message, .. } = error {
        return message.trim().to_owned();
    }
    if let Error::DockerStreamError { error } = error {
        return error.trim().to_owned();
    }
    if let Error::RequestTimeoutError = error {
        return "it did not answer in time".to_owned();
    }
    let kind = io_error(error);
    if kind == Some(io::ErrorKind::ConnectionRefused) {
        return "connection refused; is it running?".to_owned();
    }
    if kind == Some(io::ErrorKind::NotFound) {
        return "its socket does not exist; is it running?".to_owned();
    }
    if kind == Some(io::ErrorKind::PermissionDenied) {
        return "permission denied: the agent may not use its socket".to_owned();
    }
    herdlet_base::error::in_full(error)
}

/// The kind of the system's error that is the cause, if it is one.
fn io_error(error: &Error) -> Option<io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// The error of a call that can be repeated.
pub(crate) fn retry(what: &str, error: &Error) -> DriverError {
    DriverError::retry(format!("{what}: {}", sentence(error)))
}

/// The error of creating or starting a container.
pub(crate) fn start(what: &str, error: &Error) -> DriverError {
    let text = format!("{what}: {}", sentence(error));
    match meaning(error) {
        Meaning::Unreachable => DriverError::retry(text),
        Meaning::Missing | Meaning::Conflict | Meaning::Unchanged | Meaning::Failed | Meaning::Refused => {
            match lacks_program(&text) {
                true => DriverError::no_program(text),
                false if meaning(error) == Meaning::Refused && !text.contains("OCI runtime") => {
                    DriverError::fatal(text)
                }
                false => DriverError::recoverable(text),
            }
        }
    }
}

/// Whether the program of a container can't be executed. runc says of a missing mount, and of a missing working directory, too, that
/// there is no such file.
fn lacks_program(text: &str) -> bool {
    let always = [
        "executable file not found",
        "exec format error",
        "attempted to invoke a command that was not found",
    ];
    let of_exec = || {
        let (_, step) = text.split_once("unable to start container process: ")?;
        let step = step.strip_prefix("error during container init: ").unwrap_or(step);
        let is_exec = step.starts_with("exec: ") || step.starts_with("exec ");
        Some(is_exec && step.contains("no such file or directory"))
    };
    always.iter().any(|part| text.contains(part)) || of_exec() == Some(true)
}

/// Whether an error reports that the disk of the engine is full.
pub(crate) fn says_full(why: &str) -> bool {
    why.contains("no space left on device")
}

/// The answer to a question about containers, once it is about states that Docker's API has. Podman calls a container that has ended and
/// is not cleaned up yet `stopped`, which no client of that API can read.
pub(crate) async fn settled<T, F>(ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 0..TRIES {
        match ask().await {
            Err(Error::JsonDataError { message, .. }) if message.contains("unknown variant") => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_engine_without_a_socket_is_called_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let name = path.display().to_string();
        let client = bollard::Docker::connect_with_unix(&name, 5, bollard::API_DEFAULT_VERSION).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = client.ping().await.unwrap_err();
        assert_eq!(sentence(&error), "its socket does not exist; is it running?");
        assert_eq!(meaning(&error), Meaning::Unreachable);
    }

    /// A task whose volume did not exist was reported to lack its program, with advice about `command`.
    #[test]
    fn a_missing_mount_is_no_missing_program() {
        let runc = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: ";
        for (text, is_program) in [
            ("exec: \"/bin/none\": stat /bin/none: no such file or directory: unknown", true),
            (
                "error during container init: exec: \"/bin/none\": stat /bin/none: no such file or directory: unknown",
                true,
            ),
            ("exec: \"none\": executable file not found in $PATH: unknown", true),
            ("exec /bin/app: exec format error: unknown", true),
            (
                "error mounting \"/data\" to rootfs at \"/data\": stat /data: no such file or directory: unknown",
                false,
            ),
            (
                "error during container init: error mounting \"/exec: x\" to rootfs at \"/d\": no such file or directory: unknown",
                false,
            ),
            ("chdir to cwd (\"/work\") set in config.json failed: no such file or directory: unknown", false),
        ] {
            assert_eq!(lacks_program(&format!("start container x: {runc}{text}")), is_program, "{text}");
        }
        let podman = "crun: executable file `none` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found";
        assert!(lacks_program(podman));
        // A source of a bind mount; it is not the container's runtime that misses it.
        assert!(!lacks_program(
            "invalid mount config for type \"bind\": bind source path does not exist: /x"
        ));
        assert!(!lacks_program("statfs /x: no such file or directory"));
    }
}
