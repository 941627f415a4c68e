//! Standard output of commands. Records write errors.
//!
//! In: the output of commands. Out: the first write error, checked at the end of a command, or at once by commands that print
//! continuously. A reader that closes the pipe (`| head`) is not an error, but ends the output.

use std::{
    io::{self, ErrorKind, Write},
    os::fd::AsFd as _,
    sync::OnceLock,
};

use tokio::{io::Interest, net::unix::pipe, sync::Notify};

use super::failure::Failure;

/// The first write error.
static FAULT: OnceLock<io::Error> = OnceLock::new();
/// Notified when `FAULT` is set.
static FAILED: Notify = Notify::const_new();

/// Prints text, with colours if enabled.
pub(super) fn text(text: &[u8]) {
    write(anstream::stdout(), text);
}

/// Prints a task's standard error to ours, unchanged. Errors are recorded, because it is requested output, as in [`text`].
pub(super) fn bytes_of_stderr(bytes: &[u8]) {
    write(io::stderr(), bytes);
}

/// Prints bytes unchanged: a task's output, data for programs.
pub(super) fn bytes(bytes: &[u8]) {
    write(io::stdout(), bytes);
}

fn write(mut to: impl Write, bytes: &[u8]) {
    if let Err(error) = to.write_all(bytes).and_then(|()| to.flush()) {
        let _ = FAULT.set(error);
        FAILED.notify_one();
    }
}

/// Resolves when the output has no reader: a write failed, or the reader has closed the pipe.
pub async fn unread() {
    tokio::select! {
        () = FAILED.notified() => {}
        () = reader_is_gone() => {}
    }
}

async fn reader_is_gone() {
    // Only pipes, sockets and terminals have a reader that can disappear.
    let pipe = io::stdout().as_fd().try_clone_to_owned().and_then(pipe::Sender::from_owned_fd_unchecked);
    let Ok(pipe) = pipe else { return std::future::pending().await };
    let _ = pipe.ready(Interest::ERROR).await;
}

/// The write error that the command must report.
pub fn failure() -> Option<Failure> {
    let error = FAULT.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)?;
    Some(Failure::new(format!("failed to write the output: {error}")))
}
