//! A task that serves a page over HTTP.
//!
//! In: [`ARGUMENT`] and an address. Out: 200 for every request, until it is ended.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// The first argument of a program that acts as such a task.
pub const ARGUMENT: &str = "answer";

/// Serves the address in `arguments`. Returns if it can't listen.
pub fn run(arguments: &[String]) {
    let Some(Ok(listener)) = arguments.first().map(TcpListener::bind) else { return };
    for mut stream in listener.incoming().flatten() {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n");
    }
}
