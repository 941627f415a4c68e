//! A client of plugins that speak the Container Storage Interface (`csi.proto` of container-storage-interface/spec, versions
//! 1.0 to 1.12) over a Unix socket.
//!
//! In: the socket of a plugin, and what to do with a volume. Out: the plugin's response, or an error with its class; volumes on
//! this machine. It is independent of jobs, tasks and the planner; it decides neither when to call nor whether to repeat a
//! call.
//!
//! | module | contents |
//! | --- | --- |
//! | [`client`] | one call: its deadline, the limit of its response, texts of errors without secrets |
//! | [`connection`] | gRPC over HTTP/2 on a Unix socket |
//! | [`error`] | why a call failed, and what helps |
//! | [`identity`] | calls about the plugin: name, services, readiness |
//! | [`controller`] | calls to the storage system: create, attach, expand, delete, list, snapshots |
//! | [`node`] | calls on this machine: stage, publish, statistics |
//! | [`directories`] | directories of sockets and volumes, shared with the plugins |
//! | [`description`] | what a plugin reports about itself |
//! | [`supervision`] | whether a plugin's task is ready in time, and stays so |
//! | [`registry`] | the plugins that run now |
//! | [`capability`] | how a volume is used: access and attachment modes, mount options |
//! | [`secrets`] | secrets of volumes |
//! | [`volumes`] | the volumes of a plugin on this machine: staged, published, and undone after any crash |
//! | [`wire`] | the messages, with the numbers of their fields |

pub mod capability;
pub mod client;
mod connection;
pub mod controller;
pub mod description;
pub mod directories;
pub mod error;
pub mod identity;
pub mod node;
pub mod registry;
pub mod secrets;
pub mod supervision;
pub mod volumes;
pub mod wire;
