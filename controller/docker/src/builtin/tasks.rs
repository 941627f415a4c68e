//! A task as a process in a root of its image's layers.
//!
//! In: a task whose image is there. Out: an [`Invocation`] for the process engine, which starts, follows and stops it as any other
//! isolated process. All calls block.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use bollard::models::{ContainerCreateBody, HostConfig};
use herdlet_base::network_texts::Connection;
use herdlet_driver::{
    AttemptId, DriverError, DriverResult, Fingerprint, Health, TaskConfig,
    limits::{CpuQuota, Limits},
};
use herdlet_process::{
    cgroup::Isolation as Cgroups,
    engine::{Effort, RunningTask, Translate, Translated},
    exec::root_error,
    supervisor::{
        FirstProcess, Invocation, Isolation, JoinedNamespaces, MessageQueues, Namespaces, OwnMounts,
        OwnNamespaces, PidFd, Proc, ShownCgroups, StandardInput, TaskTerminal, User,
    },
};
use herdlet_rootfs::builder::build_image;

use super::{
    dirs::ContainerRecord,
    files::{self, FileSource, Names},
    network_plan::NetworkPlan,
    process,
    program::{self, Lookup},
    root::{self, Parts},
    shared::BuiltinState,
    users::{self, ImageUser, UserRequest},
};
use crate::{config::ContainerConfig, pins};

/// How many digits of the allocation's id are its containers' host name.
const HOSTNAME_LEN: usize = 12;

/// Translates tasks of the driver `docker`.
#[derive(Debug)]
pub(super) struct ContainerTasks(pub(super) Arc<BuiltinState>);

/// A task with the defaults of its image.
struct Container<'t> {
    task: &'t TaskConfig,
    config: ContainerConfig,
    body: ContainerCreateBody,
    host: HostConfig,
    record: ContainerRecord,
}

impl Translate for ContainerTasks {
    fn fingerprint(&self, isolation: &Cgroups, _: Effort) -> Fingerprint {
        let BuiltinState { policy, roots, .. } = &*self.0;
        let (health, description) = match roots.obstacle(isolation) {
            Some(obstacle) => (
                Health::Undetected,
                format!("no engine is installed, and the built-in one can't run: {obstacle}"),
            ),
            None => (Health::Healthy, "Healthy".to_owned()),
        };
        let mut attributes = BTreeMap::new();
        if health == Health::Healthy {
            let own = [("engine", "builtin"), ("os_type", "linux"), ("version", env!("CARGO_PKG_VERSION"))];
            let volumes = policy.host_paths.then_some(("volumes.enabled", "true"));
            let privileged = policy.allow_privileged.then_some(("privileged.enabled", "true"));
            let all = own.into_iter().chain(volumes).chain(privileged);
            attributes.extend(all.map(|(key, value)| (format!("driver.docker.{key}"), value.to_owned())));
        }
        Fingerprint { health, description, attributes }
    }

    fn limits(&self, task: &TaskConfig) -> Limits {
        match self.0.read(task) {
            Ok((_, request)) => limits(task, &request.body.host_config.unwrap_or_default()),
            Err(_) => Limits::of_attempt(task),
        }
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        let shared = &*self.0;
        let (config, request) = shared.read(task)?;
        let record = shared.record(&task.id)?;
        let (body, host) = split(request.body);
        let mut container = Container { task, config, body, host, record };
        let hostname = container.hostname();
        let shown = hostname.clone().unwrap_or_else(machine_name);
        let failed =
            |what: &str, error: std::io::Error| DriverError::retry(format!("{what} of {}: {error}", task.id));
        let more_hosts = request.network.as_ref().map(|network| network.hosts.clone()).unwrap_or_default();
        let plan = &container.record.network;
        let addresses = shared.connect(&task.id, plan)?;
        let connection = match plan {
            NetworkPlan::Bridged { .. } => {
                let name_server = shared.name_server(plan);
                FileSource::Made(Connection::Addresses { ips: &addresses, name: &shown, name_server })
            }
            NetworkPlan::Lone => FileSource::Made(Connection::None { name: Some(&shown) }),
            NetworkPlan::Joined { attempt, .. } => FileSource::Container(attempt),
            NetworkPlan::Given => FileSource::Made(Connection::Machine),
        };
        files::name_machine(&mut container.host, shared.machine_address(plan)?)?;
        let names = Names { dirs: &shared.dirs, id: &task.id, hostname: &shown, more_hosts: &more_hosts };
        let files = files::write(&names, connection, &mut container.host)?;
        let parts = Parts {
            layers: shared.image(&container.record)?.layers,
            changes: shared
                .dirs
                .fresh_changes(&task.id)
                .map_err(|error| failed("make the directory of changes", error))?,
            files,
            working_dir: container.working_dir(),
            hidden: shared.roots.hidden().to_vec(),
            network: shared.namespace(task)?,
        };
        let root = root::describe(&container.host, parts)?;
        pins::mount(&request.pins)?;
        root::make_sources(&container.host)?;
        let built = build_image(shared.roots.seed()?, &root).map_err(root_error);
        shared.dirs.unpin(&task.id).map_err(|error| failed("unmount the volumes", error))?;
        let built = built?;
        let words = program::words(&container.body, &container.record)?;
        let (mut invocation, user) = container.invocation(shared, (built.root.as_fd(), &words, &shown))?;
        let created = process::namespaces(&container.host, hostname.as_deref());
        let has_init = container.config.docker.init && created.contains(Namespaces::PID);
        let shows_cgroups = created.contains(Namespaces::CGROUP);
        let is_privileged = process::is_privileged(&container.host);
        let proc = if is_privileged { Proc::default() } else { Proc::of_task() };
        invocation.input = container.input(built.root.as_fd(), user.uid)?;
        invocation.isolation = Some(Isolation::Own(OwnNamespaces {
            created,
            mounts: Some(Arc::new(OwnMounts { namespace: built.mounts, null: built.null })),
            proc: Some(Proc { settings: process::settings(&container.host)?, ..proc }),
            message_queues: MessageQueues::Mounted,
            cgroups: match (shows_cgroups, is_privileged) {
                (false, _) => ShownCgroups::None,
                (true, false) => ShownCgroups::Own,
                (true, true) => ShownCgroups::OwnWritable,
            },
            hostname,
            first: if has_init { FirstProcess::Init } else { FirstProcess::Task },
        }));
        let mut messages = request.notes;
        let ContainerRecord { name, image, .. } = &container.record;
        messages.push(format!("Created a container from {name}, which is {image}"));
        messages.extend(built.limited.first().map(|limited| {
            format!(
                "Changes of the container are lost when it ends, and limited to 64 MiB: the agent's state directory can't hold them ({})",
                limited.reason
            )
        }));
        let user = format!("user {} of the image", user.uid);
        Ok(Translated { invocation, processes: processes(&container.host), user, messages })
    }

    fn network(&self, task: &TaskConfig) -> DriverResult<Option<PathBuf>> {
        self.0.namespace(task)
    }

    fn command(&self, task: &RunningTask<'_>, command: &[String]) -> DriverResult<Invocation> {
        let RunningTask { config: task, main } = task;
        let shared = &*self.0;
        let (config, request) = shared.read(task)?;
        let (body, host) = split(request.body);
        let container = Container { task, config, body, host, record: shared.record(&task.id)? };
        let shown = container.hostname().unwrap_or_else(machine_name);
        let ended = || DriverError::fatal("execute a command: the task has ended");
        let main = PidFd::open(*main).map_err(DriverError::retry)?.ok_or_else(ended)?;
        let root = main.root().map_err(DriverError::retry)?.ok_or_else(ended)?;
        let (mut invocation, _) = container.invocation(shared, (root.as_fd(), command, &shown))?;
        let kinds =
            Namespaces::PID | Namespaces::IPC | Namespaces::UTS | Namespaces::CGROUP | Namespaces::MOUNT;
        invocation.isolation = Some(Isolation::Joined(JoinedNamespaces { kinds, of: Arc::new(main) }));
        Ok(invocation)
    }

    fn tear_down(&self, id: &AttemptId) -> DriverResult<()> {
        self.0.remove(id)?;
        self.0.removed.notify_one();
        Ok(())
    }
}

impl Container<'_> {
    /// Its own host name; none if it has the machine's.
    fn hostname(&self) -> Option<String> {
        let is_host = |mode: &Option<String>| mode.as_deref() == Some("host");
        if is_host(&self.host.uts_mode) {
            return None;
        }
        let own = self.body.hostname.clone().filter(|name| !name.is_empty());
        let of_alloc = || {
            let id = self.task.id.alloc.to_string().replace('-', "");
            id.chars().take(HOSTNAME_LEN).collect()
        };
        // In the machine's network it has the machine's name, as with Docker.
        own.or_else(|| (!is_host(&self.host.network_mode)).then(of_alloc))
    }

    fn input(&self, root: BorrowedFd<'_>, uid: u32) -> DriverResult<StandardInput> {
        match (self.body.tty, self.body.open_stdin) {
            (Some(true), _) => {
                let made = TaskTerminal::in_root(root, uid);
                let made = made.map_err(|errno| {
                    DriverError::retry(format!("make a terminal: {}", std::io::Error::from(errno)))
                })?;
                Ok(StandardInput::Terminal(Arc::new(made)))
            }
            (_, Some(true)) => Ok(StandardInput::Open),
            _ => Ok(StandardInput::Ended),
        }
    }

    fn working_dir(&self) -> PathBuf {
        let own = self.body.working_dir.as_deref().filter(|dir| !dir.is_empty());
        Path::new("/").join(own.unwrap_or(&self.record.working_dir))
    }

    /// How words are executed in the container, without its namespaces. `place`: its root, the words, its host name.
    fn invocation(
        &self,
        shared: &BuiltinState,
        (root, words, hostname): (BorrowedFd<'_>, &[String], &str),
    ) -> DriverResult<(Invocation, ImageUser)> {
        let Self { body, host, record, .. } = self;
        let more_groups = host.group_add.iter().flatten().map(String::as_str).collect();
        let wanted = UserRequest { user: body.user.as_deref().unwrap_or(&record.user), more_groups };
        let user = users::find(root, &wanted).map_err(DriverError::fatal)?;
        let environment = process::environment(body, record, (&user, hostname));
        let search_path = environment.iter().find(|(name, _)| name == "PATH");
        let dir = self.working_dir();
        let program = program::find(&Lookup {
            root,
            command: words.first().map_or("", String::as_str),
            dir: &dir,
            search_path: search_path.map_or("", |(_, path)| path),
        })?;
        let capabilities = process::capabilities(host)?;
        let call_filters = match process::is_confined(host) {
            true => shared.filters.for_capabilities(capabilities)?,
            false => Vec::new(),
        };
        let invocation = Invocation {
            program,
            arguments: words.iter().map(OsString::from).collect(),
            environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: Some(dir),
            user: Some(User { uid: user.uid, gid: user.gid, groups: user.groups.clone() }),
            // Never inherit the agent's own value, which may protect it from the OOM killer.
            oom_score_adj: Some(host.oom_score_adj.and_then(|score| i16::try_from(score).ok()).unwrap_or(0)),
            new_privileges: process::new_privileges(host),
            capabilities: Some(process::sets(capabilities, user.uid)),
            limits: process::limits(host),
            call_filters,
            ..Invocation::default()
        };
        Ok((invocation, user))
    }
}

fn split(mut body: ContainerCreateBody) -> (ContainerCreateBody, HostConfig) {
    let host = body.host_config.take().unwrap_or_default();
    (body, host)
}

fn limits(task: &TaskConfig, host: &HostConfig) -> Limits {
    let number = |limit: Option<i64>| limit.and_then(|limit| u64::try_from(limit).ok());
    Limits {
        memory_bytes: number(host.memory),
        memory_low_bytes: number(host.memory_reservation),
        cpu_shares: number(host.cpu_shares),
        cpu_quota: number(host.cpu_quota)
            .zip(number(host.cpu_period))
            .map(|(quota_us, period_us)| CpuQuota { quota_us, period_us }),
        processes: processes(host),
        cores: task.cores.clone(),
    }
}

fn processes(host: &HostConfig) -> Option<u64> {
    host.pids_limit.and_then(|limit| u64::try_from(limit).ok())
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
