//! A node and a server at both ends of a connection: the server calls, with allocations, files and processes that are really there.

mod ground;
mod hands;
mod permissions;
mod plain;
mod recorded;
mod streams;
