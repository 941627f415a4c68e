//! A CSI plugin for tests, and the suite of calls that it and every other plugin must pass.
//!
//! Volumes are directories below the plugin's data directory, staged and published as bind mounts, or loop devices. All state is on disk or
//! in the kernel's mount table, so a plugin that was killed continues where it was.
//!
//! | module | contents |
//! | --- | --- |
//! | [`server`] | gRPC over HTTP/2 on a Unix socket, with responses that no correct plugin sends |
//! | [`faults`] | faults on demand, by files |
//! | [`plugin`] | the services, by the names of their calls |
//! | [`storage`] | volumes and snapshots on disk |
//! | [`mounted`] | bind mounts and loop devices |
//! | [`conformance`] | the suite: order and idempotence of calls |

pub mod conformance;
pub mod faults;
pub mod mounted;
pub mod plugin;
pub mod server;
pub mod storage;
