//! Resource limits of tasks, the cgroup controllers that enforce them, and warnings about limits this machine can't enforce.
//!
//! In: a task's resources and config, the missing controllers. Out: numbers, warnings for users. Nothing is enforced here.

use std::collections::BTreeSet;

use herdlet_api_types::{
    Duration,
    alloc::CoreSet,
    driver::{DriverInfo, Limiting, built_in},
    job::{Job, Resources, Task},
};

use crate::TaskConfig;

const MIB: u64 = 1024 * 1024;
/// The range the kernel accepts as v1 `cpu.shares`.
pub const CPU_SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// A v1 or v2 cgroup controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory limits and counters.
    Memory,
    /// Shares of processor time.
    Cpu,
    /// Number of processes.
    Pids,
}

impl Controller {
    /// All controllers.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    /// The kernel's name of the controller.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// Limits of one attempt. `None` means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The task is killed above this many bytes.
    pub memory_bytes: Option<u64>,
    /// Memory up to this many bytes is reclaimed last.
    pub memory_low_bytes: Option<u64>,
    /// Share of processor time, in v1 units (1024 is the kernel's default).
    pub cpu_shares: Option<u64>,
    /// The most processor time, also while other tasks need none.
    pub cpu_quota: Option<CpuQuota>,
    /// Maximum number of processes and threads.
    pub processes: Option<u64>,
    /// The cores that it alone uses; empty if it has none of its own.
    pub cores: CoreSet,
}

/// A hard limit of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// The time in each period, of all cores together, in microseconds.
    pub quota_us: u64,
    /// In microseconds.
    pub period_us: u64,
}

impl Limits {
    /// Interprets a task's resources as Nomad does: `memory_max` is the limit and `memory` the reservation; without `memory_max`,
    /// `memory` is the limit. MHz are shares.
    pub fn of(resources: &Resources) -> Self {
        let bytes = |mib: u64| mib.saturating_mul(MIB);
        let resources = resources.allocated();
        let limit =
            resources.memory_mib.max(resources.memory_max_mib).filter(|most| *most != Resources::ALL_MEMORY);
        let low = resources.memory_max_mib.and(resources.memory_mib);
        Self {
            memory_bytes: limit.map(bytes),
            memory_low_bytes: low.map(bytes),
            cpu_shares: resources.cpu_mhz.map(|mhz| mhz.clamp(*CPU_SHARES.start(), *CPU_SHARES.end())),
            cpu_quota: None,
            processes: None,
            cores: CoreSet::default(),
        }
    }

    /// The limits of an attempt.
    pub fn of_attempt(task: &TaskConfig) -> Self {
        let processes = task.config.get("pids_limit").and_then(serde_json::Value::as_u64);
        Self { processes, cores: task.cores.clone(), ..Self::of(&task.resources) }
    }

    /// Whether these limits need this controller.
    pub fn needs(&self, controller: Controller) -> bool {
        match controller {
            Controller::Memory => self.memory_bytes.is_some() || self.memory_low_bytes.is_some(),
            Controller::Cpu => self.cpu_shares.is_some() || self.cpu_quota.is_some(),
            Controller::Pids => self.processes.is_some(),
        }
    }
}

/// The missing controllers, and the agent's maximum `kill_timeout`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ineffective {
    missing: BTreeSet<Controller>,
    max_kill_timeout: Option<Duration>,
}

impl Ineffective {
    /// A machine that lacks these controllers.
    pub fn without(missing: BTreeSet<Controller>) -> Self {
        Self { missing, max_kill_timeout: None }
    }

    /// Sets the agent's maximum `kill_timeout`; `None` means no maximum.
    #[must_use]
    pub fn with_max_kill_timeout(self, max_kill_timeout: Option<Duration>) -> Self {
        Self { max_kill_timeout, ..self }
    }

    /// The agent's maximum `kill_timeout`.
    pub fn max_kill_timeout(&self) -> Option<Duration> {
        self.max_kill_timeout
    }

    /// The kernel's names of the missing controllers.
    pub fn names(&self) -> Vec<String> {
        self.missing.iter().map(|controller| controller.name().to_owned()).collect()
    }

    /// The inverse of [`names`](Self::names); unknown names are ignored.
    pub fn named(names: &[String]) -> Self {
        let is_named = |controller: &Controller| names.iter().any(|name| name == controller.name());
        Self::without(Controller::ALL.into_iter().filter(is_named).collect())
    }

    /// Warnings about settings of these jobs that have no effect here as written: limits without a controller, a `kill_timeout`
    /// above the agent's maximum.
    pub fn warnings<'j>(&self, jobs: impl IntoIterator<Item = &'j Job>) -> Vec<String> {
        let jobs: Vec<&Job> = jobs.into_iter().collect();
        let limits: Vec<String> = jobs.iter().filter_map(|job| self.of_job(job)).collect();
        let limits = (!limits.is_empty()).then(|| {
            format!(
                "{}: these limits have no effect here, because the agent has no cgroups for them; `herdlet doctor` shows what is missing",
                limits.join("; ")
            )
        });
        limits.into_iter().chain(self.kill_timeouts(&jobs)).collect()
    }

    fn kill_timeouts(&self, jobs: &[&Job]) -> Option<String> {
        let max = self.max_kill_timeout?;
        let of_job = |job: &&Job| {
            let tasks = job.groups.iter().flat_map(|group| &group.tasks);
            let longest = tasks.map(|task| task.kill_timeout).max().filter(|longest| *longest > max)?;
            Some(format!("job {} ({longest})", job.key()))
        };
        let longer: Vec<String> = jobs.iter().filter_map(of_job).collect();
        (!longer.is_empty()).then(|| {
            format!(
                "{}: kill_timeout is longer than this agent's max_kill_timeout, so tasks are killed {max} after the stop signal; \
                 to give them more time, raise max_kill_timeout in the agent's config",
                longer.join("; ")
            )
        })
    }

    /// The tasks of a job with such limits.
    fn of_job(&self, job: &Job) -> Option<String> {
        let drivers = built_in();
        let of_task = |task: &Task| {
            let is_set = |controller: &&Controller| limits(task, &drivers).needs(**controller);
            let keys: Vec<&str> =
                self.missing.iter().filter(is_set).map(|controller| key(*controller)).collect();
            (!keys.is_empty()).then(|| format!("task {} ({})", task.name, keys.join(", ")))
        };
        let tasks: Vec<String> =
            job.groups.iter().flat_map(|group| &group.tasks).filter_map(of_task).collect();
        (!tasks.is_empty()).then(|| format!("job {}, {}", job.key(), tasks.join(", ")))
    }
}

/// The key of the limit in job files.
fn key(controller: Controller) -> &'static str {
    match controller {
        Controller::Memory => "memory",
        Controller::Cpu => "cpu",
        Controller::Pids => "pids_limit",
    }
}

/// The limits that a driver enforces for a task.
fn limits(task: &Task, drivers: &[DriverInfo]) -> Limits {
    let known = drivers.iter().find(|driver| driver.name == task.driver);
    match known.map_or(Limiting::None, |driver| driver.capabilities.limits) {
        Limiting::None | Limiting::Engine => return Limits::default(),
        Limiting::Cgroups => {}
    }
    let processes = task.config.get("pids_limit").and_then(serde_json::Value::as_u64);
    Limits { processes, ..Limits::of(&task.resources) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::job;

    #[test]
    fn nothing_written_means_no_limit() {
        assert_eq!(Limits::of(&Resources::default()), Limits::default());
    }

    #[test]
    fn memory_max_is_the_limit_and_memory_the_reservation() {
        let of = |memory_mib, memory_max_mib| {
            let limits = Limits::of(&Resources { memory_mib, memory_max_mib, ..Resources::default() });
            (limits.memory_bytes.map(|b| b / MIB), limits.memory_low_bytes.map(|b| b / MIB))
        };
        assert_eq!(of(Some(64), None), (Some(64), None));
        assert_eq!(of(Some(64), Some(256)), (Some(256), Some(64)));
        assert_eq!(of(Some(64), Some(32)), (Some(64), Some(64)));
        assert_eq!(of(None, Some(32)), (Some(32), None));
        assert_eq!(of(Some(64), Some(Resources::ALL_MEMORY)), (None, Some(64)));
        assert_eq!(of(Some(u64::MAX - 1), None).0, Some(u64::MAX / MIB));
        let with_secrets = Resources {
            memory_mib: Some(64),
            memory_max_mib: Some(256),
            secrets_mib: Some(5),
            ..Resources::default()
        };
        let limits = Limits::of(&with_secrets);
        assert_eq!((limits.memory_bytes, limits.memory_low_bytes), (Some(261 * MIB), Some(69 * MIB)));
    }

    #[test]
    fn shares_are_clamped() {
        let shares = |mhz| Limits::of(&Resources { cpu_mhz: Some(mhz), ..Resources::default() }).cpu_shares;
        assert_eq!([0, 100, u64::MAX].map(shares), [Some(2), Some(100), Some(262_144)]);
    }

    #[test]
    fn a_limit_without_its_controller_is_warned_about() {
        let mut limited = Job::clone(&job("web", "front", "httpd"));
        let task = &mut limited.groups[0].tasks[0];
        task.driver = "raw_exec".to_owned();
        task.resources = Resources::default();
        let free = [limited.clone()];
        let task = &mut limited.groups[0].tasks[0];
        task.config = serde_json::json!({ "pids_limit": 10 });
        task.resources.memory_mib = Some(64);
        let none = Ineffective::without(Controller::ALL.into());
        assert!(none.warnings(&free).is_empty(), "nothing is limited");
        let warning = none.warnings([&limited]).remove(0);
        assert!(warning.starts_with("job web, task httpd (memory, pids_limit): these limits"), "{warning}");
        let pids = Ineffective::named(&["pids".to_owned(), "unknown".to_owned()]);
        assert_eq!(pids.names(), ["pids"]);
        assert!(pids.warnings([&limited])[0].contains("(pids_limit)"));
        assert!(Ineffective::default().warnings([&limited]).is_empty());
    }

    #[test]
    fn a_kill_timeout_above_the_maximum_is_warned_about() {
        let mut slow = Job::clone(&job("db", "g", "t"));
        slow.groups[0].tasks[0].kill_timeout = Duration::from_secs(120);
        let max = |seconds| Ineffective::default().with_max_kill_timeout(Some(Duration::from_secs(seconds)));
        let warnings = max(30).warnings([&slow]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("job db (2m"), "{}", warnings[0]);
        assert!(warnings[0].contains("killed 30s after"), "{}", warnings[0]);
        assert!(max(120).warnings([&slow]).is_empty());
        assert!(Ineffective::default().warnings([&slow]).is_empty());
    }
}
