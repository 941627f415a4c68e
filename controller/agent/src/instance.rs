//! An instance on this machine: its directories, cgroups and drivers. Used by the agent, and by the guard that cleans up after a
//! private agent.
//!
//! In: the instance's state and runtime directories. Out: the objects the agent works with. Opening an instance starts nothing.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use futures_util::future::join_all;
use herdlet_api_types::{
    InstanceId,
    driver::{
        DOCKER, DockerOptions, EXEC, ExecOptions, JAVA, MOCK, PODMAN, QEMU, QemuOptions, RAW_EXEC,
        RawExecOptions,
    },
};
use herdlet_base::{
    clock::wall_now,
    durable,
    paths::{Paths, alloc_ids},
    privileges::Privileges,
};
use herdlet_config::{DriverSettings, network::Network};
use herdlet_csi::directories::Directories;
use herdlet_docker::{ContainerNetworks, ContainerSetup, Containers, DockerDriver, Setup};
use herdlet_driver::{Availability, Leftover, Registry, TaskDriver};
use herdlet_network::networks::{Bridge, LoneNetworks};
use herdlet_plan::job::cores::OfferedCores;
use herdlet_process::{
    attempts::Attempts,
    cgroup::{self, Isolation},
    engine, exec,
    installed::Programs,
    java,
    mock::Mock,
    qemu, raw_exec,
    supervisor::Program,
};
use herdlet_storage::alloc_dir::{self, AllocDir};
use serde::Deserialize as _;

use crate::{
    networks::{AllocNetworks, Machine, bridge_of},
    published,
};

pub use herdlet_docker::Mode;

/// How to open an instance.
#[derive(Debug)]
pub struct Options {
    pub instance: InstanceId,
    pub paths: Paths,
    pub cgroup_parent: String,
    /// Which drivers may start tasks, and their options.
    pub drivers: DriverSettings,
    pub host: Host,
    /// The bridge of networks.
    pub network: Network,
    /// For a private agent: read end of a pipe; when it hangs up, all tasks of the agent end.
    pub leash: Option<OwnedFd>,
}

/// What drivers have to know of the agent and its machine.
#[derive(Debug, Clone)]
pub struct Host {
    pub mode: Mode,
    /// The clock rate of all cores in MHz; 0 if unknown.
    pub cpu_mhz: u64,
    /// Files and directories of the agent that no isolated task may see, in addition to those of the instance.
    pub private_paths: Vec<PathBuf>,
}

impl Host {
    /// A machine that is no node of a cluster.
    pub fn standalone() -> Self {
        let cpu_mhz = herdlet_fingerprint::room(Path::new("/")).cpu_mhz;
        Self { mode: Mode::Standalone, cpu_mhz, private_paths: herdlet_config::default_private_paths() }
    }
}

/// An open instance.
pub struct Instance {
    pub id: InstanceId,
    pub paths: Paths,
    /// The agent's privileges on this machine.
    pub privileges: Privileges,
    /// Whether cgroups hold the tasks.
    pub isolation: Isolation,
    /// The parent cgroup of the tasks, if cgroups hold them.
    pub cgroup_parent: String,
    /// Task drivers by name.
    pub drivers: Registry,
    /// The bridge of its networks.
    pub bridge: Arc<Bridge>,
}

impl Instance {
    /// Prepares directories, cgroups and drivers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a directory can't be created or watched. Missing cgroups are not an error: see [`Isolation::None`].
    pub fn open(options: Options) -> anyhow::Result<Self> {
        let Options { instance, paths, cgroup_parent, drivers: settings, host, network, leash } = options;
        let bridge = bridge_of(&instance, &network, &paths);
        let made = |path: &Path| format!("failed to make directory {}", path.display());
        durable::make_passage(&paths.state).with_context(|| made(&paths.state))?;
        durable::make_passage(&paths.allocs()).with_context(|| made(&paths.allocs()))?;
        durable::make_dir_in_passages(&paths.runtime).with_context(|| made(&paths.runtime))?;
        let isolation = Isolation::detect(&cgroup::Setup {
            parent: cgroup_parent.clone(),
            instance: instance.0.clone(),
            runtime: paths.runtime.clone(),
        });
        let attempts = Attempts::open(&paths.attempts()).context("open the attempts directory")?;
        let mock = Mock::new(&paths.attempts().join(".mock"), Arc::new(wall_now))
            .context("prepare the driver mock")?;
        let drivers = Registry::new();
        drivers.insert(Arc::new(mock), settings.availability(MOCK));
        let processes = Processes { settings: &settings, paths: &paths, isolation: &isolation };
        let machine = processes.machine((attempts, leash), host.private_paths.clone())?;
        if let Some(machine) = &machine {
            processes.open(&drivers, machine)?;
        }
        for name in [DOCKER, PODMAN] {
            let dir = paths.state.join("containers").join(name);
            let starts = settings.availability(name);
            // Tasks of a driver that was enabled before may still run.
            if starts == Availability::Enabled || dir.exists() {
                let setup = container_setup(name, dir, (&settings, &instance, &host))?;
                let driver: Arc<dyn TaskDriver> = match machine.as_ref().filter(|_| name == DOCKER) {
                    Some(machine) => {
                        Arc::new(DockerDriver::open(setup, machine.containers(&paths, &bridge)?)?)
                    }
                    None => Arc::new(Containers::open(setup)?),
                };
                drivers.insert(driver, starts);
            }
        }
        let privileges = Privileges::probe();
        Ok(Self { id: instance, paths, privileges, isolation, cgroup_parent, drivers, bridge })
    }

    /// Ends and removes everything the instance has on this machine except its state directory: processes, mounts, cgroups,
    /// allocation directories, records. Continues after a failure, and names all failures in the error.
    ///
    /// # Errors
    /// If anything is left.
    pub async fn remove_all(&self) -> anyhow::Result<()> {
        let mut left = Vec::new();
        for (name, entry) in self.drivers.entries().iter() {
            let driver = &entry.driver;
            let found = match driver.list_attempts().await {
                Ok(found) => found,
                Err(error) => {
                    left.push(format!("attempts of driver {name}: {}", error.why()));
                    continue;
                }
            };
            // Concurrently: each waits for its own processes to exit.
            let destroyed = found.into_iter().map(|id| async move {
                driver.destroy(&id, Leftover::Kill).await.map_err(|error| (id, error))
            });
            let failures = join_all(destroyed).await.into_iter().filter_map(Result::err);
            left.extend(failures.map(|(id, error)| format!("attempt {id}: {}", error.why())));
        }
        if let Some(cgroups) = self.isolation.cgroups()
            && let Err(error) = cgroups.remove().await
        {
            left.push(format!("cgroups: {}", herdlet_base::error::in_full(&error)));
        }
        let networks = AllocNetworks::new(
            Arc::clone(&self.bridge),
            Network::default(),
            &self.paths,
            Machine::of_process(),
        );
        match herdlet_runtime::off_thread(move || networks.remove_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => left.push(format!("networks: {error}")),
            Err(error) => left.push(format!("networks: {error}")),
        }
        let (id, paths) = (self.id.clone(), self.paths.clone());
        match herdlet_runtime::off_thread(move || published::remove_all(&id.0, &paths)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => left.push(format!("published ports: {error}")),
            Err(error) => left.push(format!("published ports: {error}")),
        }
        let plugins = Directories::new(&self.paths);
        match herdlet_runtime::off_thread(move || plugins.remove_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => left.push(herdlet_base::error::in_full(&error)),
            Err(error) => left.push(format!("mounts of CSI plugins: {error}")),
        }
        for id in alloc_ids(&self.paths.allocs()) {
            let dir = AllocDir::new(&self.paths, id);
            if let Err(error) = dir.down() {
                left.push(herdlet_base::error::in_full(&error));
            }
        }
        if let Err(error) = alloc_dir::sweep(&self.paths) {
            left.push(herdlet_base::error::in_full(&error));
        }
        anyhow::ensure!(left.is_empty(), "could not remove: {}", left.join("; "));
        Ok(())
    }
}

/// The cores that tasks may use alone.
pub fn offered_cores(isolation: &Isolation) -> OfferedCores {
    let unsupported = |why: &str| OfferedCores::Unsupported {
        why: format!("the agent can't keep other tasks off a core: {why}"),
    };
    match isolation {
        Isolation::Cgroups(cgroups) => {
            cgroups.cores().map_or_else(unsupported, |cores| OfferedCores::Cores(cores.available().clone()))
        }
        Isolation::None { why } => unsupported(why),
    }
}

/// The drivers whose tasks are processes.
struct Processes<'i> {
    settings: &'i DriverSettings,
    paths: &'i Paths,
    isolation: &'i Isolation,
}

/// What the drivers of processes need of the machine.
struct ProcessMachine {
    attempts: Arc<Attempts>,
    program: Arc<Program>,
    isolation: Isolation,
    leash: Option<OwnedFd>,
    roots: Arc<exec::Roots>,
}

impl ProcessMachine {
    fn setup(&self) -> anyhow::Result<engine::Setup> {
        let leash = self.leash.as_ref().map(OwnedFd::try_clone).transpose().context("copy a descriptor")?;
        let (attempts, program) = (Arc::clone(&self.attempts), Arc::clone(&self.program));
        Ok(engine::Setup { attempts, program, isolation: self.isolation.clone(), leash })
    }

    /// For containers without an engine.
    fn containers(&self, paths: &Paths, bridge: &Arc<Bridge>) -> anyhow::Result<ContainerSetup> {
        let (images, lone) = (paths.state.join("images"), LoneNetworks::in_runtime(&paths.runtime));
        let networks = ContainerNetworks { bridge: Arc::clone(bridge), lone };
        Ok(ContainerSetup { setup: self.setup()?, roots: Arc::clone(&self.roots), images, networks })
    }
}

impl Processes<'_> {
    /// None if no driver of processes is or was enabled.
    fn machine(
        &self,
        (attempts, leash): (Arc<Attempts>, Option<OwnedFd>),
        mut private_paths: Vec<PathBuf>,
    ) -> anyhow::Result<Option<ProcessMachine>> {
        let Self { settings, paths, isolation } = *self;
        let programs = paths.state.join("bin");
        let own = [RAW_EXEC, EXEC, JAVA, QEMU, DOCKER];
        let is_enabled = own.iter().any(|name| settings.availability(name) == Availability::Enabled);
        if !is_enabled && !programs.exists() {
            return Ok(None);
        }
        durable::make_dir(&programs)
            .with_context(|| format!("failed to make directory {}", programs.display()))?;
        let program = Arc::new(Program::install(&programs).context("install the supervisor")?);
        private_paths.extend([paths.state.clone(), paths.runtime.clone()]);
        let roots = Arc::new(exec::Roots::new(private_paths, paths.runtime.clone()));
        Ok(Some(ProcessMachine { attempts, program, isolation: isolation.clone(), leash, roots }))
    }

    /// Adds those that are enabled. If one was enabled before, its tasks may still run, so they are supervised even if the config
    /// disables it now.
    fn open(&self, drivers: &Registry, machine: &ProcessMachine) -> anyhow::Result<()> {
        let Self { settings, paths, .. } = *self;
        let (setup, roots) = (|| machine.setup(), &machine.roots);
        let search_path = std::env::var_os("PATH").unwrap_or_default();
        let installed = Programs::new(search_path, paths.runtime.join("versions"));
        for name in [RAW_EXEC, EXEC, JAVA, QEMU] {
            let of = || format!("read the options of {name}");
            let options = serde_json::Value::Object(settings.options(name));
            let isolated = || ExecOptions::deserialize(&options).with_context(of);
            let driver = match name {
                EXEC => exec::driver(setup()?, &isolated()?, Arc::clone(roots)).with_context(of)?,
                JAVA => {
                    let machine = (Arc::clone(roots), installed.clone());
                    java::driver(setup()?, &isolated()?, machine).with_context(of)?
                }
                QEMU => {
                    let read = QemuOptions::deserialize(&options).with_context(of)?;
                    qemu::driver(setup()?, &read, installed.clone()).with_context(of)?
                }
                _raw => {
                    let read = RawExecOptions::deserialize(&options).with_context(of)?;
                    raw_exec::driver(setup()?, &read).with_context(of)?
                }
            };
            drivers.insert(Arc::new(driver), settings.availability(name));
        }
        Ok(())
    }
}

fn container_setup(
    name: &str,
    dir: PathBuf,
    (settings, instance, host): (&DriverSettings, &InstanceId, &Host),
) -> anyhow::Result<Setup> {
    let options = serde_json::Value::Object(settings.options(name));
    let options =
        DockerOptions::deserialize(options).with_context(|| format!("read the options of {name}"))?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    Ok(Setup {
        driver: name.to_owned(),
        dir,
        instance: instance.0.clone(),
        options,
        mode: host.mode,
        compute: (host.cpu_mhz, cores),
    })
}
