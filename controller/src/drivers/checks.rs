//! Checks of services in the built-in catalogue: one observer for each check, in the agent itself.
//!
//! In: the registrations of a task or group. Out: [`CheckReport`]s on a bounded channel, only when a check's status changes or
//! (rarely) when a failing one says something new. The first run follows soon after the start, each further one an interval
//! after the end of the one before. A slow or hanging target holds up nobody but its own check.
//! It must not know what a result is good for. Checks of services in Consul are made by Consul, not here.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;
use herdlet_api_types::{
    AllocId, UnixNanos,
    job::Provider,
    service::{CheckResult, CheckStatus, RegisteredCheck, Registration},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

mod probe;

use crate::drivers::{catalog::ServiceOwner, sight::Sight};
pub(in crate::drivers) use probe::host_port;
use probe::{Probe, ProbeResult};

/// News of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The allocation it belongs to.
    pub alloc: AllocId,
    /// Its result.
    pub result: CheckResult,
}

/// All observers of this agent.
#[derive(Debug)]
pub struct Checks {
    shared: Arc<Shared>,
    running: Mutex<BTreeMap<ServiceOwner, BTreeMap<String, Observer>>>,
}

#[derive(Debug)]
struct Shared {
    probe: Probe,
    reports: mpsc::Sender<CheckReport>,
    places: Semaphore,
}

/// A running observer; it ends when this is dropped.
#[derive(Debug)]
struct Observer {
    check: RegisteredCheck,
    _end: DropGuard,
}

impl Checks {
    /// Observers that report to `reports`.
    pub fn new(reports: mpsc::Sender<CheckReport>) -> Self {
        let shared = Shared { probe: Probe::default(), reports, places: Semaphore::new(RUNNING_MAX) };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// Makes exactly the checks of these registrations run for `owner`: what runs already goes on undisturbed, what is no
    /// longer wanted ends. Registrations in other catalogues are left out. Must be called inside a tokio runtime.
    pub fn up(&self, owner: &ServiceOwner, registrations: &[Registration]) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = running.remove(owner).unwrap_or_default();
        let mut now = BTreeMap::new();
        for (registration, check) in built_in(registrations) {
            let observer = match before.remove(&check.id).filter(|observer| observer.check == *check) {
                Some(observer) => observer,
                None => self.observe(registration, check),
            };
            now.insert(check.id.clone(), observer);
        }
        if !now.is_empty() {
            running.insert(owner.clone(), now);
        }
    }

    /// Ends all checks of `owner`, also one that is under way. None there is fine.
    pub fn down(&self, owner: &ServiceOwner) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }

    /// Whether exactly these checks run for `owner`.
    pub fn look(&self, owner: &ServiceOwner, registrations: &[Registration]) -> Sight {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let none = BTreeMap::new();
        let observers = running.get(owner).unwrap_or(&none);
        let wanted: BTreeMap<_, _> = built_in(registrations).map(|(_, check)| (&check.id, check)).collect();
        let same = |(id, check): (&&String, &&RegisteredCheck)| {
            observers.get(*id).is_some_and(|observer| observer.check == **check)
        };
        if wanted.len() == observers.len() && wanted.iter().all(same) {
            Sight::Present
        } else if observers.is_empty() {
            Sight::Absent
        } else {
            Sight::foreign("other checks run than should")
        }
    }

    fn observe(&self, registration: &Registration, check: &RegisteredCheck) -> Observer {
        let token = CancellationToken::new();
        let observation = Observation {
            shared: Arc::clone(&self.shared),
            check: check.clone(),
            service: registration.name.clone(),
            alloc: registration.alloc,
            task: registration.task.clone(),
            last: None,
        };
        tokio::spawn(token.clone().run_until_cancelled_owned(observation.run()));
        Observer { check: check.clone(), _end: token.drop_guard() }
    }
}

/// Probes under way at a time: bounds open files, whatever the number of checks.
const RUNNING_MAX: usize = 256;

/// The first result should not be long in coming: a start waits for it. (Nomad: half an interval.)
const FIRST_AFTER_MAX: Duration = Duration::from_secs(1);

/// How often a check that goes on failing may tell that it says something else: its output may hold the time. Another status of HTTP
/// is told at once.
const NEW_OUTPUT_EVERY: Duration = Duration::from_secs(30);

/// Intervals and timeouts are at least a second by the manifest's rules; this is a bound for what comes another way.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Tokio's timers end after about two years.
const INTERVAL_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

struct Observation {
    shared: Arc<Shared>,
    check: RegisteredCheck,
    service: String,
    alloc: AllocId,
    task: Option<String>,
    last: Option<Last>,
}

/// What was reported last.
struct Last {
    result: ProbeResult,
    /// When the status last changed.
    changed_at: UnixNanos,
    reported: Instant,
}

impl Observation {
    async fn run(mut self) {
        let interval = self.check.interval.to_std().clamp(INTERVAL_MIN, INTERVAL_MAX);
        let timeout = self.check.timeout.to_std().clamp(INTERVAL_MIN, INTERVAL_MAX);
        tokio::time::sleep((interval / 2).min(FIRST_AFTER_MAX)).await;
        loop {
            let result = {
                // Waiting for a place is our slowness, not the target's: the timeout begins after it.
                let _place = self.shared.places.acquire().await;
                let probe = AssertUnwindSafe(self.shared.probe.run(&self.check)).catch_unwind();
                match tokio::time::timeout(timeout, probe).await {
                    Ok(Ok(result)) => result,
                    // Checked no more, it would be healthy or not for ever.
                    Ok(Err(_)) => {
                        ProbeResult::failure("nomad: the check panicked, a defect of the agent".to_owned())
                    }
                    Err(_) => ProbeResult::failure(format!("nomad: no answer within {timeout:?}")),
                }
            };
            if self.report(result).await.is_err() {
                return;
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// Fails when nobody listens any more.
    async fn report(&mut self, result: ProbeResult) -> Result<(), ()> {
        let changed_at = match &self.last {
            Some(last) if last.result.status == result.status => {
                let is_other = result.code != last.result.code || last.reported.elapsed() >= NEW_OUTPUT_EVERY;
                let news =
                    result.status == CheckStatus::Failure && result.output != last.result.output && is_other;
                if !news {
                    return Ok(());
                }
                last.changed_at
            }
            Some(_) | None => wall_now(),
        };
        let report = CheckReport {
            alloc: self.alloc,
            result: CheckResult {
                id: self.check.id.clone(),
                service: self.service.clone(),
                check: self.check.name.clone(),
                task: self.task.clone(),
                status: result.status,
                output: result.output.clone(),
                http_status: result.code.map(|code| code.as_u16()),
                at: changed_at,
            },
        };
        self.last = Some(Last { result, changed_at, reported: Instant::now() });
        self.shared.reports.send(report).await.map_err(|_| ())
    }
}

/// Checks that are ours to make.
fn built_in(registrations: &[Registration]) -> impl Iterator<Item = (&Registration, &RegisteredCheck)> {
    registrations
        .iter()
        .filter(|registration| registration.provider == Provider::Nomad)
        .flat_map(|registration| registration.checks.iter().map(move |check| (registration, check)))
}

pub(crate) fn wall_now() -> UnixNanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
