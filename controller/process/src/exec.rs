//! The driver `exec`: runs a process in namespaces and a root of its own. Other drivers of isolated processes are variants of it
//! ([`Variant`]).
//!
//! In: a task's `config`, the driver's options. Out: how to run its program: root, namespaces, user, capabilities. The engine does
//! the rest. A task's directory is its root, with parts of the machine as overlays ([`herdlet_rootfs`]). The mount namespace has no
//! name: it lives as long as the processes of the attempt, so a dead agent leaves nothing behind, and a command finds it through the
//! main process.

mod capabilities;
mod command;
mod policy;
mod probe;
mod root;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Debug,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use herdlet_api_types::{
    driver::{ConfigCheck, ConfigFinding, DriverInfo, EXEC, ExecOptions, Planned, machine_user},
    job::Task,
    manifest::{
        Text,
        driver::{ExecConfig, NamespaceMode},
    },
};
use herdlet_base::user::{self, Credentials};
use herdlet_driver::{DriverError, DriverResult, Fingerprint, Health, TaskConfig, read_config};
use herdlet_rootfs::{
    builder::build,
    root::{Entry, RootError},
    seed::Seed,
};

use crate::{
    cgroup,
    engine::{Constancy, Effort, Engine, RunningTask, Setup, Translate, Translated},
    login::{self, no_user},
    supervisor::{
        FirstProcess, Invocation, Isolation, JoinedNamespaces, MessageQueues, Namespaces, NewPrivileges,
        OwnMounts, OwnNamespaces, PidFd, Proc, ShownCgroups, User,
    },
};
pub use capabilities::bit_of as capability_bit;
use command::Lookup;
pub use policy::InvalidOptions;
pub(crate) use policy::Policy;
pub use probe::{Obstacle, missing_sources, obstacle};

/// Creates the driver. Must be called within a tokio runtime.
///
/// # Errors
/// If an option is invalid.
pub fn driver(setup: Setup, options: &ExecOptions, roots: Arc<Roots>) -> Result<Engine, InvalidOptions> {
    warn_of_missing_sources(EXEC, options);
    let translate = IsolatedDriver { policy: Policy::new(EXEC, options)?, roots, variant: Exec };
    Ok(Engine::new(DriverInfo { check: Some(ConfigCheck(findings)), ..DriverInfo::exec() }, translate, setup))
}

/// What every agent refuses in a task's `config`.
pub fn findings(planned: &Planned<'_>) -> Vec<ConfigFinding> {
    // Names and types are the schema's matter.
    read_config(planned.config).map(|config| unknown_in(&config)).unwrap_or_default()
}

/// What every agent refuses in the keys that all drivers of isolated processes have.
pub(crate) fn unknown_in(config: &ExecConfig) -> Vec<ConfigFinding> {
    capabilities::unknown(config)
}

/// Logs what tasks do not see although the options list it.
pub(crate) fn warn_of_missing_sources(driver: &str, options: &ExecOptions) {
    for path in missing_sources(options) {
        let path = path.display();
        tracing::warn!(driver, %path, "a path in chroot_env does not exist: tasks do not see it");
    }
}

/// What the drivers of isolated processes share: how roots are made on this machine.
#[derive(Debug)]
pub struct Roots {
    /// Paths of the machine that no task may see, such as the agent's own.
    hidden: Vec<PathBuf>,
    /// Where to try whether a root can be made.
    scratch: PathBuf,
    seed: OnceLock<Seed>,
    obstacle: OnceLock<Option<Obstacle>>,
}

impl Roots {
    /// `hidden`: paths of the machine that no task may see, such as the agent's own. `scratch`: a directory of the agent.
    pub fn new(hidden: Vec<PathBuf>, scratch: PathBuf) -> Self {
        Self { hidden, scratch, seed: OnceLock::new(), obstacle: OnceLock::new() }
    }

    /// Paths of the machine that no task may see.
    pub fn hidden(&self) -> &[PathBuf] {
        &self.hidden
    }

    /// The small mount namespace that is copied for each root. It has no state: one that could not be made is tried again.
    ///
    /// # Errors
    /// If it can't be made now.
    pub fn seed(&self) -> DriverResult<&Seed> {
        if let Some(seed) = self.seed.get() {
            return Ok(seed);
        }
        let made = Seed::new()
            .map_err(|error| DriverError::retry(format!("make a mount namespace for roots: {error}")))?;
        Ok(self.seed.get_or_init(|| made))
    }

    /// Why tasks can't be isolated on this machine.
    pub fn obstacle(&self, isolation: &cgroup::Isolation) -> Option<&Obstacle> {
        let found = self.obstacle.get_or_init(|| match isolation {
            cgroup::Isolation::Cgroups(_) => obstacle(&self.scratch, Ok(())),
            cgroup::Isolation::None { why } => obstacle(&self.scratch, Err(why)),
        });
        found.as_ref()
    }
}

/// What a driver of isolated processes has of its own.
pub(crate) trait Variant: Debug + Send + Sync + 'static {
    /// Its name.
    fn driver(&self) -> &'static str;

    /// A task's config, with the program that it is about.
    ///
    /// # Errors
    /// If the config is invalid, or what runs it is not there.
    fn program(&self, config: &serde_json::Value, seen: &[Entry]) -> DriverResult<ExecConfig>;

    /// The same config for a command in the task, which replaces the program.
    ///
    /// # Errors
    /// If the config is invalid.
    fn surroundings(&self, config: &serde_json::Value) -> DriverResult<ExecConfig>;

    /// What it needs beyond roots. `seen`: what its tasks see of the machine.
    fn fingerprint(&self, seen: &[Entry], effort: Effort) -> Fingerprint;

    /// Whether that changes while the agent runs.
    fn constancy(&self) -> Constancy;
}

/// The driver's own variant.
#[derive(Debug)]
struct Exec;

impl Variant for Exec {
    fn driver(&self) -> &'static str {
        EXEC
    }

    fn program(&self, config: &serde_json::Value, _: &[Entry]) -> DriverResult<ExecConfig> {
        read_config(config)
    }

    fn surroundings(&self, config: &serde_json::Value) -> DriverResult<ExecConfig> {
        read_config(config)
    }

    fn fingerprint(&self, _: &[Entry], _: Effort) -> Fingerprint {
        Fingerprint {
            health: Health::Healthy,
            description: "Healthy".to_owned(),
            attributes: BTreeMap::new(),
        }
    }

    fn constancy(&self) -> Constancy {
        Constancy::Fixed
    }
}

/// Translates tasks into isolated processes.
#[derive(Debug)]
pub(crate) struct IsolatedDriver<V> {
    pub(crate) policy: Policy,
    pub(crate) roots: Arc<Roots>,
    pub(crate) variant: V,
}

impl<V: Variant> Translate for IsolatedDriver<V> {
    fn fingerprint(&self, isolation: &cgroup::Isolation, effort: Effort) -> Fingerprint {
        match self.roots.obstacle(isolation) {
            Some(obstacle) => Fingerprint {
                health: Health::Undetected,
                description: obstacle.to_string(),
                attributes: BTreeMap::new(),
            },
            None => self.variant.fingerprint(&self.policy.entries, effort),
        }
    }

    fn constancy(&self) -> Constancy {
        self.variant.constancy()
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        let config = self.variant.surroundings(&task.config).ok()?;
        let modes = self.policy.modes(&config).map(drop);
        let capabilities = self.policy.capabilities(&config).map(drop);
        let user = login::known_user(self.variant.driver(), task);
        let user = user.map_or(Ok(()), |(name, user)| self.policy.check_user(&name, &user));
        modes.and(capabilities).and(user).err().map(|error| error.why())
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        let config = self.variant.program(&task.config, &self.policy.entries)?;
        let modes = self.policy.modes(&config)?;
        let capabilities = self.policy.capabilities(&config)?;
        let (name, user) = self.user(task)?;
        let root = root::describe(task, &self.policy, &self.roots.hidden)?;
        let built = build(self.roots.seed()?, &root).map_err(root_error)?;
        let program = command::find(&lookup(task, &config, built.root.as_fd()))?;
        let mut created = Namespaces::CGROUP;
        if modes.pid == NamespaceMode::Private {
            created = created | Namespaces::PID;
        }
        if modes.ipc == NamespaceMode::Private {
            created = created | Namespaces::IPC;
        }
        let hostname = task.network.as_ref().and_then(|network| network.hostname.clone());
        if hostname.is_some() {
            created = created | Namespaces::UTS;
        }
        let has_init = config.init && modes.pid == NamespaceMode::Private;
        let isolation = Isolation::Own(OwnNamespaces {
            created,
            mounts: Some(Arc::new(OwnMounts { namespace: built.mounts, null: built.null })),
            proc: Some(Proc::of_task()),
            message_queues: MessageQueues::Mounted,
            cgroups: ShownCgroups::None,
            hostname,
            first: if has_init { FirstProcess::Init } else { FirstProcess::Task },
        });
        let invocation = Invocation {
            isolation: Some(isolation),
            capabilities: Some(capabilities.sets_for(user.uid)),
            ..invocation(task, &config, (program, &user))
        };
        Ok(Translated {
            invocation,
            processes: config.pids_limit.map(u64::from),
            user: format!("user {name}"),
            messages: root::messages(&built.limited),
        })
    }

    fn command(&self, task: &RunningTask<'_>, command: &[String]) -> DriverResult<Invocation> {
        let RunningTask { config: task, main } = task;
        let own = self.variant.surroundings(&task.config)?;
        let mut words = command.iter().cloned();
        let command = words.next().unwrap_or_default();
        let config = ExecConfig { command, args: words.map(Text).collect(), ..own };
        let ended = || DriverError::fatal("execute a command: the task has ended");
        let main = PidFd::open(*main).map_err(DriverError::retry)?.ok_or_else(ended)?;
        let root = main.root().map_err(DriverError::retry)?.ok_or_else(ended)?;
        let program = command::find(&lookup(task, &config, root.as_fd()))?;
        let (_, user) = self.user(task)?;
        let kinds =
            Namespaces::PID | Namespaces::IPC | Namespaces::UTS | Namespaces::CGROUP | Namespaces::MOUNT;
        Ok(Invocation {
            isolation: Some(Isolation::Joined(JoinedNamespaces { kinds, of: Arc::new(main) })),
            capabilities: Some(self.policy.capabilities(&config)?.sets_for(user.uid)),
            ..invocation(task, &config, (program, &user))
        })
    }
}

impl<V: Variant> IsolatedDriver<V> {
    /// The name and the ids of a task's user.
    fn user(&self, task: &TaskConfig) -> DriverResult<(String, Credentials)> {
        let name = machine_user(self.variant.driver(), task.user.as_deref()).unwrap_or_default();
        let user = user::find(name).map_err(no_user)?;
        self.policy.check_user(name, &user)?;
        Ok((name.to_owned(), user))
    }
}

fn lookup<'t>(task: &'t TaskConfig, config: &'t ExecConfig, root: std::os::fd::BorrowedFd<'t>) -> Lookup<'t> {
    let search_path = task.env.iter().rev().find(|(name, _)| name == "PATH");
    Lookup {
        command: &config.command,
        root,
        volumes: task.mounts.iter().map(|mount| mount.task_path.as_path()).collect(),
        search_path: search_path.map_or("", |(_, path)| path),
    }
}

/// How to run a program as the task, without its namespaces.
fn invocation(
    task: &TaskConfig,
    config: &ExecConfig,
    (program, user): (PathBuf, &Credentials),
) -> Invocation {
    let mut variables = task.env.clone();
    login::add_to(&mut variables, &user.login);
    let mut arguments = vec![OsString::from(&config.command)];
    arguments.extend(config.args.iter().map(|arg| OsString::from(&arg.0)));
    Invocation {
        program,
        arguments,
        environment: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        directory: Some(Path::new("/").join(config.work_dir.as_deref().unwrap_or_default())),
        user: Some(User { uid: user.uid, gid: user.gid, groups: user.groups.clone() }),
        // Never inherit the agent's own value, which may protect it from the OOM killer.
        oom_score_adj: Some(0),
        new_privileges: if config.no_new_privs { NewPrivileges::Refused } else { NewPrivileges::Allowed },
        ..Invocation::default()
    }
}

/// A root that can't be made is a matter of the machine, except for places and volumes that no root can have.
pub fn root_error(error: RootError) -> DriverError {
    match &error {
        RootError::System { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
            DriverError::fatal(error)
        }
        RootError::Exposed { .. } | RootError::Layers { .. } => DriverError::fatal(error),
        RootError::Busy { .. } | RootError::System { .. } => DriverError::retry(error),
    }
}
