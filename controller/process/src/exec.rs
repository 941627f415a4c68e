//! The driver `exec`: runs a process in namespaces and a root of its own.
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
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use herdlet_api_types::{
    driver::{DriverInfo, EXEC, ExecOptions, machine_user},
    manifest::{
        Text,
        driver::{ExecConfig, NamespaceMode},
    },
};
use herdlet_base::user::{self, Credentials};
use herdlet_driver::{DriverError, DriverResult, Fingerprint, Health, TaskConfig, read_config};
use herdlet_rootfs::{builder::build, root::RootError, seed::Seed};

use crate::{
    cgroup,
    engine::{Engine, RunningTask, Setup, Translate, Translated},
    login::{self, no_user},
    supervisor::{
        FirstProcess, Invocation, Isolation, JoinedNamespaces, MessageQueues, Namespaces, NewPrivileges,
        OwnMounts, OwnNamespaces, PidFd, Proc, User,
    },
};
use command::Lookup;
pub use policy::InvalidOptions;
use policy::Policy;
pub use probe::{Obstacle, obstacle};

/// Creates the driver. `hidden`: paths of the machine that no task may see, such as the agent's own. Must be called within a tokio
/// runtime.
///
/// # Errors
/// If an option is invalid.
pub fn driver(setup: Setup, options: &ExecOptions, hidden: Vec<PathBuf>) -> Result<Engine, InvalidOptions> {
    let attempts = setup.attempts.path();
    let scratch = attempts.parent().unwrap_or(attempts).to_owned();
    let translate = Exec {
        policy: Policy::new(options)?,
        hidden,
        scratch,
        seed: OnceLock::new(),
        obstacle: OnceLock::new(),
    };
    Ok(Engine::new(DriverInfo::exec(), translate, setup))
}

/// Translates tasks into processes.
#[derive(Debug)]
struct Exec {
    policy: Policy,
    hidden: Vec<PathBuf>,
    /// Where to try whether a root can be made.
    scratch: PathBuf,
    seed: OnceLock<Seed>,
    obstacle: OnceLock<Option<Obstacle>>,
}

/// Files below /proc with which a task could change the machine.
const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// Files below /proc that expose the machine's memory and other processes.
const MASKED_PROC: [&str; 10] = [
    "acpi",
    "asound",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
    "kpagecount",
];

impl Translate for Exec {
    fn fingerprint(&self, isolation: &cgroup::Isolation) -> Fingerprint {
        let found = self.obstacle.get_or_init(|| match isolation {
            cgroup::Isolation::Cgroups(_) => obstacle(&self.scratch, Ok(())),
            cgroup::Isolation::None { why } => obstacle(&self.scratch, Err(why)),
        });
        let (health, description) = match found {
            Some(obstacle) => (Health::Undetected, obstacle.to_string()),
            None => (Health::Healthy, "Healthy".to_owned()),
        };
        Fingerprint { health, description, attributes: BTreeMap::new() }
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        let config = read_config::<ExecConfig>(&task.config)?;
        let modes = self.policy.modes(&config)?;
        let capabilities = self.policy.capabilities(&config)?;
        let (name, user) = self.user(task)?;
        let root = root::describe(task, &self.policy, &self.hidden)?;
        let built = build(self.seed()?, &root).map_err(root_error)?;
        let program = command::find(&lookup(task, &config, built.root.as_fd()))?;
        let mut created = Namespaces::CGROUP;
        if modes.pid == NamespaceMode::Private {
            created = created | Namespaces::PID;
        }
        if modes.ipc == NamespaceMode::Private {
            created = created | Namespaces::IPC;
        }
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        let has_init = config.init && modes.pid == NamespaceMode::Private;
        let isolation = Isolation::Own(OwnNamespaces {
            created,
            mounts: Some(Arc::new(OwnMounts { namespace: built.mounts, null: built.null })),
            proc: Some(Proc { read_only: paths(&READ_ONLY_PROC), masked: paths(&MASKED_PROC) }),
            message_queues: MessageQueues::Mounted,
            hostname: None,
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
        let own = read_config::<ExecConfig>(&task.config)?;
        let mut words = command.iter().cloned();
        let command = words.next().unwrap_or_default();
        let config = ExecConfig { command, args: words.map(Text).collect(), ..own };
        let ended = || DriverError::fatal("execute a command: the task has ended");
        let main = PidFd::open(*main).map_err(DriverError::retry)?.ok_or_else(ended)?;
        let root = main.root().map_err(DriverError::retry)?.ok_or_else(ended)?;
        let program = command::find(&lookup(task, &config, root.as_fd()))?;
        let (_, user) = self.user(task)?;
        let kinds = Namespaces::PID | Namespaces::IPC | Namespaces::CGROUP | Namespaces::MOUNT;
        Ok(Invocation {
            isolation: Some(Isolation::Joined(JoinedNamespaces { kinds, of: Arc::new(main) })),
            capabilities: Some(self.policy.capabilities(&config)?.sets_for(user.uid)),
            ..invocation(task, &config, (program, &user))
        })
    }
}

impl Exec {
    /// The small mount namespace that is copied for each root. It has no state: one that could not be made is tried again.
    fn seed(&self) -> DriverResult<&Seed> {
        if let Some(seed) = self.seed.get() {
            return Ok(seed);
        }
        let made = Seed::new()
            .map_err(|error| DriverError::retry(format!("make a mount namespace for roots: {error}")))?;
        Ok(self.seed.get_or_init(|| made))
    }

    /// The name and the ids of a task's user.
    fn user(&self, task: &TaskConfig) -> DriverResult<(String, Credentials)> {
        let name = machine_user(EXEC, task.user.as_deref()).unwrap_or_default();
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

/// A root that can't be made is a matter of the machine, except for a place that no root can have.
fn root_error(error: RootError) -> DriverError {
    match &error {
        RootError::System { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
            DriverError::fatal(error)
        }
        RootError::Busy { .. } | RootError::System { .. } => DriverError::retry(error),
    }
}
