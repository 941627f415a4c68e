//! What tasks run that have to answer somebody: a page over HTTP that says hello.
//!
//! In: [`ARGUMENT`] and an address. Out: 200 to whoever asks, until it is ended.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// The first argument that makes this program such a task.
pub const ARGUMENT: &str = "answer";

/// Answers at the address in `arguments`, for ever. What can't be listened on ends it at once.
pub fn run(arguments: &[String]) {
    let Some(Ok(listener)) = arguments.first().map(TcpListener::bind) else { return };
    for mut stream in listener.incoming().flatten() {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n");
    }
}
