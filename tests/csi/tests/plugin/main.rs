//! herdlet's client of CSI against the plugin as a program.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod campaign;
mod client;
mod machine;
mod running;
mod volumes;
