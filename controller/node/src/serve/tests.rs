//! A node and a server at both ends of a connection. The server calls; allocations, files and processes are real.

mod permissions;
mod plain;
mod recorded;
mod streams;
mod stub_driver;
mod test_env;
