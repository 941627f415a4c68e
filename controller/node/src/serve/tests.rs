//! A node and a server at both ends of a connection. The server calls; allocations, files and processes are real.

mod ground;
mod hands;
mod permissions;
mod plain;
mod recorded;
mod streams;
