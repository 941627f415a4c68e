//! The environment of a task: Nomad's `NOMAD_*` variables, the job's own variables, and the facts of the node for
//! `${…}`.
//!
//! In: [`Inputs`], all of it values. Out: a [`TaskEnv`], the same for the same inputs. It does not read its own
//! process: the host's variables are an input too. Values may be secret (tokens), so nothing here prints one.
//!
//! Later layers override earlier ones:
//!
//! | layer | interpolated | source |
//! | --- | --- | --- |
//! | built-ins: directories, limits, names | no | [`Inputs`] |
//! | ports, then upstreams | no | allocation, [`Inputs::network`], [`Inputs::upstreams`] |
//! | tokens, the socket of a CSI plugin | no | [`Inputs::tokens`], [`Inputs::logins`], [`Inputs::csi_endpoint`] |
//! | `NOMAD_META_*` | yes | job, group, task |
//! | the host's variables, where not yet set; those of its login only for tasks without a `user` | yes | [`Inputs::host_env`] |
//! | `env` of the task | yes, also with [`Inputs::secrets`] | task |
//! | variables of the task's parts, in their order | yes | [`Inputs::hook_env`] |
//! | templates | no | [`Inputs::template_env`] |
//!
//! Within a layer values may refer to each other: they are resolved in the order of their dependencies
//! (`env/layer.rs`). Variables of Consul and devices come as [`Inputs::hook_env`].

mod builtin;
mod key;
mod layer;

use core::fmt;
use std_alloc::{
    borrow::Cow,
    collections::BTreeMap,
    string::{String, ToString},
};

use herdlet_api_types::{alloc::Allocation, driver::machine_user, job::Task};

use crate::{
    interpolate::{OUTPUT_BYTES_MAX, Values, replace},
    network::AllocNetwork,
};

/// Host variables that no task gets, unless the agent's config sets another list.
pub const DENIED_DEFAULT: [&str; 8] = [
    "CONSUL_TOKEN",
    "CONSUL_HTTP_TOKEN",
    "VAULT_TOKEN",
    "NOMAD_LICENSE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Host variables that describe a login. A task with a `user` gets those of that user from its driver.
const OF_LOGIN: [&str; 5] = ["HOME", "LOGNAME", "MAIL", "SHELL", "USER"];

/// Limit of all values of one environment, in bytes: the kernel's own limit for arguments and variables of a process is
/// below 6 MiB. Beyond it values are no longer interpolated, so that values that refer to each other can't exhaust the
/// memory.
pub const VALUES_BYTES_MAX: usize = 4 << 20;

/// The facts behind `${node.…}`, `${attr.…}` and `${meta.…}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Unique id, `${node.unique.id}`.
    pub id: String,
    /// Name, `${node.unique.name}`.
    pub name: String,
    /// `${node.datacenter}` and `NOMAD_DC`.
    pub datacenter: String,
    /// `${node.region}` and `NOMAD_REGION`.
    pub region: String,
    /// `${node.class}`.
    pub class: String,
    /// `${node.pool}`.
    pub pool: String,
    /// Fingerprints, `${attr.<key>}`.
    pub attributes: BTreeMap<String, String>,
    /// The node's own meta, `${meta.<key>}`. A job's meta is `NOMAD_META_*`.
    pub meta: BTreeMap<String, String>,
}

/// The three directories of a task, as its program sees them: host paths without filesystem isolation, else paths in
/// the task's own root. For paths that the agent uses itself (template and artifact destinations), call [`build`] again
/// with host paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskDirs {
    /// Shared by the tasks of the allocation, `NOMAD_ALLOC_DIR`.
    pub alloc: String,
    /// `NOMAD_TASK_DIR`: the task's `local`.
    pub task: String,
    /// `NOMAD_SECRETS_DIR`.
    pub secrets: String,
}

impl TaskDirs {
    /// Those of a task whose root is an image.
    pub fn in_image() -> Self {
        Self { alloc: "/alloc".into(), task: "/local".into(), secrets: "/secrets".into() }
    }
}

/// A service that is reachable through a local proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Name of the service.
    pub destination: String,
    /// Port on 127.0.0.1.
    pub bind_port: u16,
}

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// All inputs of an environment. Has no `Debug`, as it contains tokens.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// The task; `None` for the environment of group services.
    pub task: Option<&'a Task>,
    /// The node.
    pub node: &'a NodeFacts,
    /// Directories; `None` without a task.
    pub dirs: Option<&'a TaskDirs>,
    /// The network namespace of the allocation; `None` if it uses the host's.
    pub network: Option<&'a AllocNetwork>,
    /// Upstreams of the group.
    pub upstreams: &'a [Upstream],
    /// Variables of the agent's own process; empty for drivers that run images.
    pub host_env: &'a Variables,
    /// Names in `host_env` that are not passed on.
    pub denied: &'a [&'a str],
    /// Signed tokens by name of the identity; exported if the task's identity sets `env`.
    pub tokens: &'a Variables,
    /// Tokens of Vault and Consul, such as `VAULT_TOKEN`; the task's `env` overrides them.
    pub logins: &'a Variables,
    /// The task API's socket, as the task sees it, if there is one.
    pub api_socket: Option<&'a str>,
    /// The address of the socket that the task serves as a CSI plugin, as it sees it, if it is one.
    pub csi_endpoint: Option<&'a str>,
    /// Values of the task's `secret` blocks, by `secret.NAME.KEY`.
    pub secrets: &'a Variables,
    /// Variables of the task's parts, in their order.
    pub hook_env: &'a [Variables],
    /// Variables of templates with `env`.
    pub template_env: &'a Variables,
    /// The cgroup that contains the tasks of this node.
    pub cgroup_parent: Option<&'a str>,
}

impl<'a> Inputs<'a> {
    /// Inputs with only the allocation and the node; the other fields are empty, with the default deny list.
    pub fn new(alloc: &'a Allocation, node: &'a NodeFacts) -> Self {
        static EMPTY: Variables = BTreeMap::new();
        Self {
            alloc,
            task: None,
            node,
            dirs: None,
            network: None,
            upstreams: &[],
            host_env: &EMPTY,
            denied: &DENIED_DEFAULT,
            tokens: &EMPTY,
            logins: &EMPTY,
            api_socket: None,
            csi_endpoint: None,
            secrets: &EMPTY,
            hook_env: &[],
            template_env: &EMPTY,
            cgroup_parent: None,
        }
    }
}

/// A complete environment: the variables of the process; the facts of the node and the task's secrets for `${…}`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TaskEnv {
    variables: Variables,
    node: Variables,
    secrets: Variables,
    /// Bytes of all values ever set, including overwritten ones.
    bytes: usize,
}

impl TaskEnv {
    /// The variables of the process, sorted by name.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// What templates read with `env`, as in Nomad: the variables of the process, and the facts of the node, such as
    /// `node.unique.name` and `attr.kernel.name`.
    pub fn into_variables_and_facts(self) -> Variables {
        let mut all = self.node;
        all.extend(self.variables);
        all
    }

    /// One variable. Names that Nomad cleans (`NOMAD_META_a.b`) are found as written and as cleaned.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.variables.get(key::cleaned(name).as_ref()).map(String::as_str)
    }

    /// The value of `${name}`: a variable, else a fact of the node, else a value of a secret.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.var(name).or_else(|| self.node.get(name).or_else(|| self.secrets.get(name)).map(String::as_str))
    }

    /// Replaces every known `${name}`; unknown ones stay. A text that would exceed [`OUTPUT_BYTES_MAX`] is returned as
    /// written.
    pub fn interpolate(&self, text: &str) -> String {
        replace(text, OUTPUT_BYTES_MAX, |name| self.get(name))
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.insert(key::cleaned(name).into_owned(), value.to_string());
    }

    fn insert(&mut self, cleaned: String, value: String) {
        self.bytes = self.bytes.saturating_add(value.len());
        self.variables.insert(cleaned, value);
    }
}

impl Values for TaskEnv {
    fn var(&self, name: &str) -> Option<&str> {
        Self::var(self, name)
    }

    fn get(&self, name: &str) -> Option<&str> {
        Self::get(self, name)
    }
}

/// Prints names only: values may be secret.
impl fmt::Debug for TaskEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskEnv")
            .field("variables", &self.variables.keys())
            .field("node", &self.node.keys())
            .field("secrets", &self.secrets.keys())
            .finish()
    }
}

/// Builds the environment. Total and deterministic.
pub fn build(inputs: &Inputs<'_>) -> TaskEnv {
    let node = builtin::node_keys(inputs.node);
    let mut env = TaskEnv { variables: Variables::new(), node, secrets: Variables::new(), bytes: 0 };
    builtin::set_places(&mut env, inputs);
    builtin::set_limits(&mut env, inputs);
    builtin::set_names(&mut env, inputs);
    builtin::set_task_ports(&mut env, inputs);
    builtin::set_ports(&mut env, inputs);
    builtin::set_upstreams(&mut env, inputs);
    builtin::set_tokens(&mut env, inputs);
    inputs.logins.iter().for_each(|(name, value)| env.set(name, value));
    if let Some(endpoint) = inputs.csi_endpoint {
        env.set("CSI_ENDPOINT", endpoint);
    }
    layer::add(&mut env, builtin::meta(inputs));
    let passed = host_variables(&env, inputs);
    layer::add(&mut env, passed);
    // As in Nomad, layers before this one see no secrets.
    env.secrets.clone_from(inputs.secrets);
    if let Some(task) = inputs.task {
        layer::add(&mut env, layer::borrowed(&task.env));
    }
    for hook in inputs.hook_env {
        layer::add(&mut env, layer::borrowed(hook));
    }
    for (name, value) in inputs.template_env {
        env.set(name, value);
    }
    env
}

/// The host's variables that are not denied, not set yet, and not about another login than the task's.
fn host_variables<'a>(env: &TaskEnv, inputs: &Inputs<'a>) -> layer::Layer<'a> {
    let user = inputs.task.and_then(|task| machine_user(&task.driver, task.user.as_deref()));
    let is_denied = |name: &str| inputs.denied.contains(&name) || user.is_some() && OF_LOGIN.contains(&name);
    inputs
        .host_env
        .iter()
        .filter(|(name, _)| !is_denied(name) && env.var(name).is_none())
        .map(|(name, value)| (Cow::Borrowed(name.as_str()), value.as_str()))
        .collect()
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
