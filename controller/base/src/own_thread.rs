//! Threads for changes of namespaces.

use std::{io, thread};

/// Runs something on a thread that ends then, so that nothing else runs in a namespace that it enters.
///
/// # Errors
/// That of the work, or why no thread could be made.
pub fn on_own_thread<T: Send, E: Send + From<io::Error>>(
    name: &str,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        let running = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work)?;
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
