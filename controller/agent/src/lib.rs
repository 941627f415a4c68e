//! The agent: runs the planner, carries out its actions, stores its state, publishes the result.
//!
//! In: desired state, events. Out: actions on this machine, a read model, metrics. Front ends and clusters are built
//! on it; it knows none of them.

pub mod agent;
pub mod consul;
pub mod csi_plugins;
pub mod current_node;
pub mod executor;
pub mod gc;
pub mod held_token;
pub mod history;
pub mod identity_keys;
pub mod instance;
pub mod logs;
pub mod malloc;
pub mod networks;
pub mod overview;
pub mod planner;
pub mod present;
pub mod publish;
pub mod published;
pub mod requests;
pub mod runtime_file;
pub mod server_tokens;
pub mod service_health;
pub mod service_tokens;
pub mod state_db;
pub mod task_sockets;
pub mod telemetry;
pub(crate) mod token_audit;
pub mod vault;
pub mod watch;
