//! Checks that the agent runs itself: those of services in the built-in catalogue, and commands, which Consul can't
//! run. Each has its own observer.
//!
//! In: the registrations of a task or group. Out: [`Heard`] on a bounded channel, when a check's status changes or
//! (rarely) when a failing check has new output; Consul gets the result of every run of a command. The first run
//! follows soon after the start, each further one an interval after the end of the previous. A slow or hanging target
//! delays only its own check. This module does not know the consequences of results. Consul runs all other checks of
//! its services.
//!
//! - `probe`: one run of a check: HTTP, TCP, gRPC or a command; `request`: its requests.
//! - `streak`: the number of consecutive results that change a status.
//! - `lanes`: limits concurrent runs.
//! - `shortage`: runs that failed for lack of the agent's own resources, which are no results.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use herdlet_api_types::{
    AllocId, UnixNanos,
    job::{CheckKind, InitialStatus, Provider},
    service::{CheckResult, CheckStatus, RegisteredCheck, Registration},
};
use herdlet_base::{clock::wall_now, observation::Observation};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

mod grpc;
mod lanes;
mod probe;
mod request;
mod shortage;
mod streak;

use crate::{
    catalog::{Consul, ConsulClusters, ServiceOwner},
    report::CheckReport,
};
use lanes::{Lane, Lanes};
pub use probe::Scripts;
use probe::{Probe, ProbeResult};
pub use shortage::NoResult;
use streak::Streak;

/// A report, and the token of its check.
#[derive(Debug)]
pub struct Heard {
    report: CheckReport,
    by: CancellationToken,
}

impl Heard {
    /// The report; `None` if the check has ended meanwhile.
    pub fn if_current(self) -> Option<CheckReport> {
        (!self.by.is_cancelled()).then_some(self.report)
    }
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
    reports: mpsc::Sender<Heard>,
    lanes: Lanes,
    consuls: Arc<ConsulClusters>,
    shortages: shortage::Reporter,
    /// The start of the first slot.
    began: Instant,
}

/// A running observer; dropping it ends the check.
#[derive(Debug)]
struct Observer {
    check: Arc<RegisteredCheck>,
    pending: Arc<Mutex<CheckResult>>,
    consul: Option<Arc<Consul>>,
    _end: DropGuard,
}

impl Checks {
    /// Observers that send to `reports`, run commands with `scripts`, and report results of services in Consul to
    /// `consuls`.
    pub fn new(
        reports: mpsc::Sender<Heard>,
        scripts: Arc<dyn Scripts>,
        consuls: Arc<ConsulClusters>,
    ) -> Self {
        let (probe, lanes, began) = (Probe::new(scripts), Lanes::default(), Instant::now());
        let shared = Shared { probe, reports, lanes, consuls, shortages: Default::default(), began };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// Runs exactly the checks of these registrations for `owner`: unchanged ones continue undisturbed, others end.
    /// Ignores checks that Consul runs. Must be called inside a tokio runtime.
    pub fn up(&self, owner: &ServiceOwner, registrations: &[Registration]) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = running.remove(owner).unwrap_or_default();
        let mut now = BTreeMap::new();
        for (registration, check) in ours(registrations) {
            let consul = self.consul_of(registration);
            let is_same = |observer: &Observer| observer.makes(check) && observer.reports_to(consul.as_ref());
            let observer = match before.remove(&check.id).filter(is_same) {
                Some(observer) => {
                    *lock(&observer.pending) = CheckResult::pending(registration, check);
                    observer
                }
                None => self.observe(registration, check, consul),
            };
            now.insert(check.id.clone(), observer);
        }
        if !now.is_empty() {
            running.insert(owner.clone(), now);
        }
    }

    /// Ends all checks of `owner`, including running ones. Succeeds if there are none.
    pub fn down(&self, owner: &ServiceOwner) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }

    /// Whether exactly these checks run for `owner`.
    pub fn inspect(&self, owner: &ServiceOwner, registrations: &[Registration]) -> Observation {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let none = BTreeMap::new();
        let observers = running.get(owner).unwrap_or(&none);
        let wanted: BTreeMap<_, _> = ours(registrations).map(|(_, check)| (&check.id, check)).collect();
        let same = |(id, check): (&&String, &&RegisteredCheck)| {
            observers.get(*id).is_some_and(|observer| observer.makes(check))
        };
        if wanted.len() == observers.len() && wanted.iter().all(same) {
            Observation::Present
        } else if observers.is_empty() {
            Observation::Absent
        } else {
            Observation::foreign("the running checks differ from the wanted ones")
        }
    }

    /// The Consul that has the service.
    fn consul_of(&self, registration: &Registration) -> Option<Arc<Consul>> {
        let is_in_consul = registration.provider == Provider::Consul;
        is_in_consul.then(|| self.shared.consuls.find(registration.consul.as_ref())).flatten()
    }

    fn observe(
        &self,
        registration: &Registration,
        check: &RegisteredCheck,
        consul: Option<Arc<Consul>>,
    ) -> Observer {
        let token = CancellationToken::new();
        let pending = Arc::new(Mutex::new(CheckResult::pending(registration, check)));
        let check = Arc::new(check.clone());
        let observation = CheckLoop {
            shared: Arc::clone(&self.shared),
            check: Arc::clone(&check),
            pending: Arc::clone(&pending),
            alloc: registration.alloc,
            consul: consul.clone(),
            streak: Streak::new(check.thresholds),
            lane: Lane::Fast,
            last: None,
            token: token.clone(),
        };
        // Nobody needs the result of the task.
        tokio::spawn(token.clone().run_until_cancelled_owned(Box::new(observation).observe()));
        Observer { check, pending, consul, _end: token.drop_guard() }
    }
}

impl Observer {
    fn reports_to(&self, consul: Option<&Arc<Consul>>) -> bool {
        self.consul.as_ref().map(Arc::as_ptr) == consul.map(Arc::as_ptr)
    }

    /// Whether it runs this check. The consequences of results may differ.
    fn makes(&self, check: &RegisteredCheck) -> bool {
        let RegisteredCheck { on_update, check_restart, task, .. } = check;
        let mine = RegisteredCheck {
            on_update: *on_update,
            check_restart: *check_restart,
            task: task.clone(),
            ..RegisteredCheck::clone(&self.check)
        };
        mine == *check
    }
}

fn lock(pending: &Mutex<CheckResult>) -> MutexGuard<'_, CheckResult> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first result should come soon, because a start waits for it. (Nomad: half an interval.)
const FIRST_AFTER_MAX: Duration = Duration::from_secs(1);

/// Checks due within the same slot run together, so the CPU wakes up once for them.
const SLOT: Duration = Duration::from_millis(100);

/// Minimum interval for reporting new output of a check that keeps failing the same way: its output may contain the
/// time.
const NEW_OUTPUT_EVERY: Duration = Duration::from_secs(30);

/// Manifests require intervals and timeouts of at least a second; this is a limit for other sources.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Tokio's timers end after about two years.
const INTERVAL_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Delay before repeating a result that Consul did not accept.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Delay before repeating a run that failed for lack of resources, if the interval is longer.
const MAKE_AGAIN_AFTER: Duration = Duration::from_secs(1);

struct CheckLoop {
    shared: Arc<Shared>,
    check: Arc<RegisteredCheck>,
    /// Template for results; includes their consequences, which may change.
    pending: Arc<Mutex<CheckResult>>,
    alloc: AllocId,
    /// Gets the results, if the service is in Consul.
    consul: Option<Arc<Consul>>,
    streak: Streak,
    /// Where the next run starts.
    lane: Lane,
    last: Option<Last>,
    /// Cancelled at the end: results not yet delivered no longer count.
    token: CancellationToken,
}

/// The last report.
struct Last {
    result: ProbeResult,
    /// When the status last changed.
    changed_at: UnixNanos,
    reported: Instant,
}

/// The receiver is dropped.
struct ListenerGone;

impl Drop for CheckLoop {
    fn drop(&mut self) {
        if let Some(consul) = &self.consul {
            consul.remove_check(&self.check.id);
        }
    }
}

impl CheckLoop {
    async fn observe(mut self: Box<Self>) -> Result<(), ListenerGone> {
        let interval = self.check.interval.to_std().clamp(INTERVAL_MIN, INTERVAL_MAX);
        if let Some(status) = self.check.initial_status {
            Box::pin(self.report_initial(status)).await?;
        }
        // Checks that start together drift apart: neither their first runs nor later ones coincide.
        let share = f64::from(self.seed()) / f64::from(u32::MAX);
        let first = (interval / 2).min(FIRST_AFTER_MAX).mul_f64(0.5 + share / 2.0);
        tokio::time::sleep_until(self.slot(first)).await;
        let mut pause = interval.mul_f64(0.5 + share / 2.0);
        loop {
            // On the heap: between two runs, which is most of the time, an observer uses little memory.
            let next = Box::pin(self.make(pause)).await?;
            tokio::time::sleep_until(next).await;
            pause = interval;
        }
    }

    /// Runs the check once and reports the result; returns the time of the next run.
    async fn make(&mut self, pause: Duration) -> Result<Instant, ListenerGone> {
        let result = match self.probe().await {
            Ok(result) => result,
            Err(why) => {
                self.shared.shortages.report(&self.check.name, &why);
                return Ok(self.slot(pause.min(MAKE_AGAIN_AFTER)));
            }
        };
        let next = self.slot(pause);
        self.lane = if result.timed_out { Lane::Slow } else { Lane::Fast };
        if let Some(result) = self.streak.take(result) {
            self.report(result.clone()).await?;
            self.report_to_consul(&result, next).await;
        }
        Ok(next)
    }

    /// The time after `pause`, slightly earlier if that is in the slot of other checks.
    fn slot(&self, pause: Duration) -> Instant {
        let due = Instant::now() + pause;
        if pause < 5 * SLOT {
            return due;
        }
        let since = due.saturating_duration_since(self.shared.began);
        let early = since.as_nanos() % SLOT.as_nanos();
        due - Duration::from_nanos(early.try_into().unwrap_or_default())
    }

    /// Runs the check. Waiting for a lane is our delay, not the target's, so the timeout begins afterwards. Fails with
    /// a sentence if the agent lacked resources.
    async fn probe(&self) -> Result<ProbeResult, String> {
        let timeout = self.check.timeout.to_std().clamp(INTERVAL_MIN, INTERVAL_MAX);
        let probe = self.shared.probe.run(self.alloc, &self.check, timeout);
        let probe = AssertUnwindSafe(probe).catch_unwind();
        match self.shared.lanes.run(self.lane, tokio::time::timeout(timeout, probe)).await {
            Ok(Ok(result)) => result,
            // Without further runs its status would never change.
            Ok(Err(_)) => {
                Ok(ProbeResult::failure("nomad: the check panicked; this is a bug in the agent".to_owned()))
            }
            Err(_) => Ok(ProbeResult::timed_out(timeout)),
        }
    }

    /// Repeats until Consul accepts the result, or the next run is due.
    async fn report_to_consul(&self, result: &ProbeResult, until: Instant) {
        let Some(consul) = &self.consul else { return };
        let update = async {
            let service = lock(&self.pending).service.clone();
            while let Err(failure) =
                consul.update_check(&service, &self.check.id, result.status, &result.output).await
            {
                tracing::debug!(why = %failure.why, "failed to report a check result to Consul");
                tokio::time::sleep(TELL_AGAIN_AFTER).await;
            }
        };
        // A result that is late by an interval is outdated.
        let _ = tokio::time::timeout_at(until, update).await;
    }

    async fn report(&mut self, result: ProbeResult) -> Result<(), ListenerGone> {
        let changed_at = match &self.last {
            Some(last) if last.result.status == result.status => {
                let is_other =
                    result.is_other_than(&last.result) || last.reported.elapsed() >= NEW_OUTPUT_EVERY;
                let has_new_output = result.output != last.result.output;
                if result.status == CheckStatus::Success || !has_new_output || !is_other {
                    return Ok(());
                }
                last.changed_at
            }
            Some(_) | None => wall_now(),
        };
        let report = CheckReport {
            alloc: self.alloc,
            result: CheckResult {
                status: result.status,
                output: result.output.clone(),
                http_status: result.code.map(|code| code.as_u16()),
                at: changed_at,
                ..lock(&self.pending).clone()
            },
        };
        self.last = Some(Last { result, changed_at, reported: Instant::now() });
        self.send(report).await
    }

    /// Reports the status before the first run. It is stale, so it restarts nothing, and earlier results take
    /// precedence.
    async fn report_initial(&mut self, status: InitialStatus) -> Result<(), ListenerGone> {
        let ProbeResult { status, output, .. } = ProbeResult::initial(status);
        let result =
            CheckResult { status, output, at: wall_now(), stale: true, ..lock(&self.pending).clone() };
        self.send(CheckReport { alloc: self.alloc, result }).await
    }

    async fn send(&self, report: CheckReport) -> Result<(), ListenerGone> {
        let heard = Heard { report, by: self.token.clone() };
        self.shared.reports.send(heard).await.map_err(|_| ListenerGone)
    }

    /// Depends only on the check's id.
    fn seed(&self) -> u32 {
        // FNV-1a.
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        self.check.id.bytes().fold(2_166_136_261, mix)
    }
}

/// The checks that the agent runs.
fn ours(registrations: &[Registration]) -> impl Iterator<Item = (&Registration, &RegisteredCheck)> {
    let all = registrations
        .iter()
        .flat_map(|registration| registration.checks.iter().map(move |check| (registration, check)));
    all.filter(|(registration, check)| {
        registration.provider == Provider::Nomad || matches!(check.kind, CheckKind::Script { .. })
    })
}

#[cfg(test)]
mod tests;
