//! Commands that talk to an agent through its API, and those that need none.
//!
//! In: arguments, the environment. Out: data on stdout, progress and messages on stderr, an exit code. It must not know the
//! agent's internals: everything that it prints comes from the API.

pub mod action;
pub mod address;
pub mod apply;
pub mod checks;
pub mod children;
pub mod client;
pub mod config;
pub mod convert;
pub mod delete;
pub mod deployments;
pub mod diff;
pub mod dispatch;
pub mod drain;
pub mod environment;
pub mod eval;
pub mod exec;
pub mod explain;
mod failed_allocs;
pub mod failure;
pub mod fs;
pub mod gc;
pub mod get;
pub mod here;
pub mod identity;
pub mod images;
pub mod job;
mod job_files;
pub mod logs;
pub mod missing;
pub mod monitor;
pub mod offline;
pub mod one_off;
pub mod output;
pub mod restart;
pub mod rollback;
pub mod round;
pub mod scale;
pub mod schema;
pub mod screen;
pub mod selection;
mod session;
pub mod show;
pub mod status;
pub mod stdout;
pub mod stop;
pub mod style;
pub mod table;
pub mod target;
pub mod template;
mod terminal;
pub mod top;
pub mod var;
pub mod variables;
pub mod vault;
pub mod wait;
pub mod watch;

pub use address::{Address, AddressError, Connection};
pub use client::{Client, ClientError};
pub use variables::VariableArgs;
