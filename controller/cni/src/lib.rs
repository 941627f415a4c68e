//! Networks of allocations that CNI plugins set up (mode `cni/NAME`), as the Container Network Interface describes it
//! (`SPEC.md` of containernetworking/cni, versions 0.3.0 to 1.1.0).
//!
//! In: the name of a network, an allocation. Out: a namespace that the plugins of this network have connected; its interface
//! and addresses. It is independent of jobs, tasks and the planner. All functions block; callers use threads for them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`config`] | config files of networks: where they are, what they contain, who may change them |
//! | [`process`] | a program with bounds: time, output, and no process left behind |
//! | [`plugin`] | one call of a plugin, and why it failed |
//! | [`result`] | what a plugin reports about the network that it has made |
//! | [`chain`] | the calls of all plugins of a network |
//! | [`record`] | what was begun for an allocation: to undo it after a crash or a reboot |
//! | [`networks`] | whole networks of allocations |
//! | [`present`] | the plugins and networks of this machine |

pub mod chain;
pub mod config;
pub mod networks;
pub mod plugin;
pub mod present;
pub mod process;
pub mod record;
pub mod result;
#[cfg(test)]
mod test_plugin;
