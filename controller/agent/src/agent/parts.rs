//! The components an agent is built from.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use herdlet_api_types::volume::Volume;
use herdlet_config::{artifact::Limits, network::Network, template::Template, vault::VaultServer};
use herdlet_plan::{context::Settings, env::NodeFacts, identity_claims::Issuer};
use herdlet_variables::Variables;

use crate::{consul::ConsulSettings, instance::Instance, planner::NoteSink, state_db::Opened};

/// The components an agent is built from.
pub struct Parts {
    pub instance: Instance,
    /// The open state database and its contents.
    pub state: Opened,
    /// Facts about this machine.
    pub node: NodeFacts,
    pub settings: Settings,
    /// Host volumes from the config.
    pub volumes: Vec<Volume>,
    /// The Consul agents by name, and how tasks and services log in there. One is `default`.
    pub consuls: ConsulSettings,
    /// Above this pressure in percent, starts of lower priority wait.
    pub start_pressure_limit: u8,
    /// Users who may enter the directories of every allocation.
    pub task_dir_users: Vec<String>,
    /// Limits of artifacts.
    pub artifacts: Limits,
    /// The variables that templates read.
    pub variables: Arc<Variables>,
    /// The directory of plugins that fetch secrets.
    pub secrets_plugins: PathBuf,
    /// Rules of templates.
    pub templates: Template,
    /// The bridge of networks in mode `bridge`.
    pub network: Network,
    /// Rules of identities that this agent signs.
    pub issuer: Issuer,
    /// Servers of Vault, by name.
    pub vault: BTreeMap<String, VaultServer>,
    /// Receives the planner's notes, to count them.
    pub notes: NoteSink,
}
