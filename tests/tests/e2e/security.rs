//! Attacks, as `SECURITY.md` lists them: by another user of the machine, by a task, by whoever can connect, by a peer.

mod connections;
mod hardening;
mod kernel;
mod peers;
mod strangers;
mod tasks;
