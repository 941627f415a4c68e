//! The attacks listed in `SECURITY.md`: by another user of the machine, by a task, by a web page, by anyone
//! who can connect, by a peer.

mod connections;
mod directories;
mod escapes;
mod hardening;
mod isolation;
mod kernel;
mod ownership;
mod pages;
mod peers;
mod programs;
mod published;
mod strangers;
mod supervisors;
mod task_api;
mod tasks;
mod templates;
mod tokens;
