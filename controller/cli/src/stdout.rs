//! Standard output of commands, where no failure to write is lost.
//!
//! In: what commands print. Out: the first failure, at the end of a command, and at once for one that would go on printing. That a
//! reader has had enough (`| head`) is no failure, only the end of what would be printed for it.

use std::{
    io::{self, ErrorKind, Write},
    os::fd::AsFd as _,
    sync::OnceLock,
};

use tokio::{io::Interest, net::unix::pipe, sync::Notify};

use super::failure::Failure;

/// Why the first thing was not written that wasn't.
static FAULT: OnceLock<io::Error> = OnceLock::new();
/// Told with it.
static FAILED: Notify = Notify::const_new();

/// Prints text, with colours where they are wanted.
pub(super) fn text(text: &[u8]) {
    write(anstream::stdout(), text);
}

/// Prints what a task wrote to its standard error to ours: it is what was asked for, as [`text`] is.
pub(super) fn of_stderr(text: &[u8]) {
    write(anstream::stderr(), text);
}

/// Prints bytes as they are.
pub(super) fn bytes(bytes: &[u8]) {
    write(io::stdout(), bytes);
}

fn write(mut to: impl Write, bytes: &[u8]) {
    if let Err(error) = to.write_all(bytes).and_then(|()| to.flush()) {
        let _ = FAULT.set(error);
        FAILED.notify_one();
    }
}

/// Resolves once nobody takes what is printed: it could not be written, or the reader of the pipe has gone.
pub async fn unread() {
    tokio::select! {
        () = FAILED.notified() => {}
        () = reader_is_gone() => {}
    }
}

async fn reader_is_gone() {
    // What is no pipe, socket or terminal has no reader that could go.
    let pipe = io::stdout().as_fd().try_clone_to_owned().and_then(pipe::Sender::from_owned_fd_unchecked);
    let Ok(pipe) = pipe else { return std::future::pending().await };
    let _ = pipe.ready(Interest::ERROR).await;
}

/// What kept something from being written.
pub fn failure() -> Option<Failure> {
    let error = FAULT.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)?;
    Some(Failure::new(format!("failed to write the output: {error}")))
}
