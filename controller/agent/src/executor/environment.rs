//! The environment of tasks: what the planner derives from a job, with the variables of this task and this machine.

use std::{collections::BTreeMap, path::PathBuf};

use herdlet_api_types::{AllocId, alloc::Allocation};
use herdlet_base::paths::Paths;
use herdlet_driver::FsIsolation;
use herdlet_plan::{
    env::{self, Inputs, TaskDirs, TaskEnv, Variables},
    network::AllocNetwork,
};
use herdlet_storage::api_socket::{SOCKET, address};

use super::{Context, Workload, csi_plugin};

/// Variables that only one task gets. Has no `Debug`: they are secrets.
#[derive(Clone, Default)]
pub struct TaskVariables {
    /// Tokens by name of their identity.
    pub tokens: Variables,
    /// Tokens of Vault and Consul, such as `VAULT_TOKEN`.
    pub logins: Variables,
    /// Those of its templates.
    pub templates: Variables,
    /// Values of its `secret` blocks, for `${…}`.
    pub secrets: Variables,
}

/// Where a task finds what the agent has made for it.
struct Places<'p> {
    dirs: &'p TaskDirs,
    /// Its socket of the Task API.
    api_socket: &'p str,
    /// The socket that it serves as a CSI plugin.
    csi_endpoint: Option<&'p str>,
}

/// The directories of a task on the machine.
pub fn dirs_on_host(paths: &Paths, alloc: &AllocId, task: &str) -> TaskDirs {
    let dir = paths.task(alloc, task);
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    TaskDirs {
        alloc: text(paths.shared(alloc)),
        task: text(dir.join("local")),
        secrets: text(dir.join("secrets")),
    }
}

impl Context {
    /// The task's environment as its program sees it, with these variables.
    pub fn task_env(&self, workload: &Workload, own: &TaskVariables) -> TaskEnv {
        let isolation = workload.task().and_then(|task| {
            let entries = self.drivers.entries();
            entries.get(&task.driver).map(|entry| entry.info.capabilities.fs_isolation)
        });
        match isolation {
            Some(FsIsolation::Image) => self.task_env_in_root(workload, own, &Variables::new()),
            // It shows parts of the machine, as the agent's variables describe them.
            Some(FsIsolation::Chroot) => self.task_env_in_root(workload, own, &self.host_env),
            Some(FsIsolation::None) | None => self.task_env_on_host(workload, own),
        }
    }

    /// With the directories of a task that has a root of its own.
    fn task_env_in_root(&self, workload: &Workload, own: &TaskVariables, host_env: &Variables) -> TaskEnv {
        let dirs = TaskDirs::in_image();
        let (api_socket, csi_endpoint) =
            (format!("/secrets/{SOCKET}"), csi_plugin::endpoint_in_root(workload));
        let places = Places { dirs: &dirs, api_socket: &api_socket, csi_endpoint: csi_endpoint.as_deref() };
        self.env_with(workload, own, places, host_env)
    }

    /// The same with the directories on the machine, for paths that the agent uses itself.
    pub fn task_env_on_host(&self, workload: &Workload, own: &TaskVariables) -> TaskEnv {
        let name = workload.task().map_or("", |task| task.name.as_str());
        let dirs = dirs_on_host(&self.paths, &workload.alloc.id, name);
        let socket = address(&self.paths, &workload.alloc.id, name);
        let (api_socket, csi_endpoint) =
            (socket.to_string_lossy(), csi_plugin::endpoint_on_host(self, workload));
        let places = Places { dirs: &dirs, api_socket: &api_socket, csi_endpoint: csi_endpoint.as_deref() };
        self.env_with(workload, own, places, &self.host_env)
    }

    fn env_with(
        &self,
        workload: &Workload,
        own: &TaskVariables,
        places: Places<'_>,
        host_env: &Variables,
    ) -> TaskEnv {
        env::build(&Inputs {
            task: workload.task(),
            dirs: Some(places.dirs),
            network: workload.network(),
            api_socket: Some(places.api_socket),
            csi_endpoint: places.csi_endpoint,
            host_env,
            tokens: &own.tokens,
            logins: &own.logins,
            template_env: &own.templates,
            secrets: &own.secrets,
            cgroup_parent: self.cgroup_parent.as_deref(),
            ..Inputs::new(&workload.alloc, &self.node.get())
        })
    }

    /// The environment for resolving group services.
    pub fn group_env(&self, alloc: &Allocation, network: Option<&AllocNetwork>) -> TaskEnv {
        env::build(&Inputs { network, ..Inputs::new(alloc, &self.node.get()) })
    }
}

/// The agent's environment variables that a task may inherit: all but those about the agent itself.
pub fn inheritable(vars: impl Iterator<Item = (String, String)>) -> Variables {
    const OWN: [&str; 7] = [
        "HERDLET_",
        "NOMAD_",
        "NOTIFY_SOCKET",
        "WATCHDOG_",
        "LISTEN_",
        "INVOCATION_ID",
        "CREDENTIALS_DIRECTORY",
    ];
    vars.filter(|(name, _)| !OWN.iter().any(|own| name.starts_with(own))).collect::<BTreeMap<_, _>>()
}
