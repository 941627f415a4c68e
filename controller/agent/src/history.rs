//! Recent history: the last changes of verdicts with their causes, how far the agent was behind, and repairs of
//! drift.
//!
//! In: views as they are published, and repairs as they are recorded. Out: lists for people. It is kept in memory,
//! bounded, and empty when the agent starts. Durations use the boot clock, which nobody can set.

mod cause;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::{
    AllocId, Duration, JobKey, UnixNanos,
    alloc::ClientStatus,
    overview::{Drift, DriftState, Transition, TransitionState},
    view::{AllocView, ConvergenceState, JobView, held_message},
};
use herdlet_plan::{event::Noticed, turn::Drifted};

pub use cause::Change;

/// The most changes of verdicts that are kept; each takes a few hundred bytes.
const TRANSITIONS_MAX: usize = 256;
/// The most drifts that are kept.
const DRIFTS_MAX: usize = 256;
/// The most periods of non-convergence that are kept.
const SPANS_MAX: usize = 1_024;

const MINUTE_NS: u64 = 60_000_000_000;
const HOURS_OF_DAY: u64 = 24;
const HOUR_NS: u64 = 60 * MINUTE_NS;
/// The lag is reported for each minute of the last hour.
pub const LAG_MINUTES: usize = 60;

/// The recent history of an agent.
#[derive(Debug)]
pub struct History(Mutex<Inner>);

impl Default for History {
    fn default() -> Self {
        Self::with_room_for(TRANSITIONS_MAX)
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// The most transitions that are kept, at most [`TRANSITIONS_MAX`].
    transitions_max: usize,
    /// When the agent started; nothing before is known.
    began_ns: u64,
    transitions: VecDeque<Transition>,
    /// Allocations of an earlier agent that have not been published yet.
    adopted: BTreeSet<AllocId>,
    /// Since when jobs have not been converged.
    open: BTreeMap<JobKey, u64>,
    closed: VecDeque<Span>,
    drifts: VecDeque<Drift>,
    /// Repairs by hour of the boot clock.
    repairs: BTreeMap<u64, u64>,
}

/// A period in which a job was not converged.
#[derive(Debug, Clone, Copy)]
struct Span {
    from_ns: u64,
    to_ns: u64,
}

impl History {
    /// Creates a history that keeps `transitions` changes of verdicts, at most [`TRANSITIONS_MAX`].
    pub fn with_room_for(transitions: usize) -> Self {
        let transitions_max = transitions.min(TRANSITIONS_MAX);
        Self(Mutex::new(Inner { transitions_max, ..Inner::default() }))
    }

    /// Records when the agent started, by the boot clock.
    pub fn begin(&self, now_ns: u64) {
        self.inner().began_ns = now_ns;
    }

    /// Registers allocations that an earlier agent created.
    pub fn adopt(&self, allocs: impl IntoIterator<Item = AllocId>) {
        self.inner().adopted.extend(allocs);
    }

    /// Records that the view of an allocation changed at `at`.
    pub fn alloc(&self, at: UnixNanos, change: Change<'_>) {
        let Change { before, after, .. } = change;
        let state = after.convergence.state;
        let is_told = before
            .is_none_or(|before| before.convergence.state != state || before.collected != after.collected);
        if !is_told {
            return;
        }
        let mut inner = self.inner();
        let is_adopted = inner.adopted.contains(&after.spec.id);
        // Nothing has happened to a complete allocation: the agent only inspects it.
        let is_old = is_adopted && after.status == ClientStatus::Complete;
        if !is_old || state == ConvergenceState::Converged {
            inner.adopted.remove(&after.spec.id);
        }
        let cause = match is_adopted {
            true if is_old => return,
            true => change.with_wait(cause::ADOPTED),
            false => change.cause(),
        };
        inner.record(at, after, state.into(), cause);
    }

    /// Records that an allocation, last published as `last`, is gone.
    pub fn alloc_gone(&self, at: UnixNanos, last: &AllocView) {
        self.inner().record(at, last, TransitionState::Gone, cause::gone(last));
    }

    /// Records the published view of a job at `at`; `before` is the previous one.
    pub fn job(&self, at: UnixNanos, before: Option<&JobView>, view: &JobView) {
        let since_ns = view.convergence.since.boot_ns;
        let mut inner = self.inner();
        let was_held = before.and_then(|before| before.held.as_deref());
        if was_held != view.held.as_deref() {
            let (state, cause) = match (&view.held, was_held) {
                (Some(file), _) => (TransitionState::Held, held_message(file)),
                (None, file) => (
                    view.convergence.state.into(),
                    format!("{} is in force again", file.unwrap_or("its file")),
                ),
            };
            let (job, name) = (view.key.clone(), view.key.to_string());
            inner.push(Transition { at, job, name, alloc: None, state, cause });
        }
        match view.convergence.state {
            // 0: the verdict comes from another source and has no time of this boot.
            ConvergenceState::Progressing | ConvergenceState::Waiting if since_ns > 0 => {
                inner.open.entry(view.key.clone()).or_insert(since_ns);
            }
            // A failed job makes no further progress.
            ConvergenceState::Converged
            | ConvergenceState::Failed
            | ConvergenceState::Progressing
            | ConvergenceState::Waiting => inner.close(&view.key, since_ns),
        }
    }

    /// Records that a job was forgotten.
    pub fn job_gone(&self, key: &JobKey, now_ns: u64) {
        self.inner().close(key, now_ns);
    }

    /// Records a drift. While it is open, finding it again changes nothing.
    pub fn drift_found(&self, at: UnixNanos, of: &Drifted, (by, why): (Noticed, &str)) {
        let mut inner = self.inner();
        if inner.open_drift(of).is_some() {
            return;
        }
        if inner.drifts.len() == DRIFTS_MAX {
            inner.drifts.pop_front();
        }
        inner.drifts.push_back(Drift {
            at,
            job: of.job.clone(),
            name: of.name.clone(),
            alloc: of.alloc,
            task: of.task.clone(),
            kind: of.kind.to_owned(),
            by: by.as_str().to_owned(),
            cause: Some(why.to_owned()),
            state: DriftState::Open,
            took: None,
        });
    }

    /// Records that the drifted object is no longer wanted.
    pub fn drift_dropped(&self, of: &Drifted) {
        self.inner().end_drift(of, DriftState::Dropped, None);
    }

    /// Records that a drift was repaired.
    pub fn drift_repaired(&self, now_ns: u64, of: &Drifted, took_ns: u64) {
        let hour = now_ns / HOUR_NS;
        let mut inner = self.inner();
        let took = Duration(i64::try_from(took_ns).unwrap_or(i64::MAX));
        inner.end_drift(of, DriftState::Repaired, Some(took));
        *inner.repairs.entry(hour).or_default() += 1;
        inner.repairs.retain(|known, _| known + HOURS_OF_DAY > hour);
    }

    /// The number of drifts repaired within the last 24 hours.
    pub fn repairs(&self, now_ns: u64) -> u64 {
        let first = (now_ns / HOUR_NS).saturating_sub(HOURS_OF_DAY - 1);
        self.inner().repairs.range(first..).map(|(_, count)| count).sum()
    }

    /// How much of the last 24 hours this history covers.
    pub fn known_of_day(&self, now_ns: u64) -> Duration {
        let known_ns = now_ns.saturating_sub(self.inner().began_ns).min(HOURS_OF_DAY * HOUR_NS);
        Duration(i64::try_from(known_ns).unwrap_or(i64::MAX))
    }

    /// The last drifts, newest first. An ending allocation is not repaired, so allocations that are not live have no
    /// open drifts.
    pub fn drifts(&self, lives: impl Fn(&AllocId) -> bool) -> Vec<Drift> {
        let mut drifts: Vec<Drift> = self.inner().drifts.iter().rev().cloned().collect();
        for drift in drifts.iter_mut().filter(|drift| drift.state == DriftState::Open && !lives(&drift.alloc))
        {
            drift.state = DriftState::Dropped;
        }
        drifts
    }

    /// The last changes of verdicts, newest first.
    pub fn transitions(&self) -> Vec<Transition> {
        self.inner().transitions.iter().rev().cloned().collect()
    }

    /// The age of the oldest unapplied change, in nanoseconds: its maximum in each minute of the last hour, the
    /// current minute last. `None` for minutes before the agent started.
    pub fn lag(&self, now_ns: u64) -> Vec<Option<u64>> {
        let inner = self.inner();
        let open = inner.open.values().map(|from_ns| Span { from_ns: *from_ns, to_ns: now_ns });
        let spans: Vec<Span> = inner.closed.iter().copied().chain(open).collect();
        let began_ns = inner.began_ns;
        drop(inner);
        let minute = |back: usize| {
            let until = now_ns.saturating_sub(MINUTE_NS * back as u64);
            let from = until.saturating_sub(MINUTE_NS);
            if until < began_ns {
                return None;
            }
            let lags = spans.iter().filter(|span| span.from_ns <= until && span.to_ns > from);
            Some(lags.map(|span| span.to_ns.min(until).saturating_sub(span.from_ns)).max().unwrap_or(0))
        };
        (0..LAG_MINUTES).rev().map(minute).collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn record(&mut self, at: UnixNanos, of: &AllocView, state: TransitionState, cause: String) {
        let (job, name) = (of.spec.job_key.clone(), of.spec.name());
        self.push(Transition { at, job, name, alloc: Some(of.spec.id), state, cause });
    }

    fn push(&mut self, transition: Transition) {
        if self.transitions.len() >= self.transitions_max {
            self.transitions.pop_front();
        }
        self.transitions.push_back(transition);
    }

    fn end_drift(&mut self, of: &Drifted, state: DriftState, took: Option<Duration>) {
        if let Some(drift) = self.open_drift(of) {
            (drift.state, drift.took) = (state, took);
        }
    }

    fn open_drift(&mut self, of: &Drifted) -> Option<&mut Drift> {
        let is_it = |drift: &&mut Drift| {
            drift.state == DriftState::Open
                && (drift.alloc, &drift.task, &*drift.kind) == (of.alloc, &of.task, of.kind)
        };
        self.drifts.iter_mut().rev().find(is_it)
    }

    fn close(&mut self, key: &JobKey, to_ns: u64) {
        let Some(from_ns) = self.open.remove(key) else { return };
        if self.closed.len() == SPANS_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(Span { from_ns, to_ns });
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{Moment, view::Convergence};

    use super::*;
    use herdlet_manifest::fixture::{alloc_view, ended, job, job_view, verdict};

    const SECOND_NS: u64 = 1_000_000_000;

    fn at(state: ConvergenceState, boot_ns: u64) -> Convergence {
        Convergence { since: Moment { wall: UnixNanos(1), boot_ns }, ..verdict(state, "") }
    }

    #[test]
    fn lag_of_a_minute_is_its_largest() {
        let history = History::default();
        let mut view = job_view(&job("web", "g", "t"), 1);
        let now_ns = 100 * MINUTE_NS;
        // Ten seconds, two minutes ago.
        let began = now_ns - 2 * MINUTE_NS - 20 * SECOND_NS;
        view.convergence = at(ConvergenceState::Progressing, began);
        history.job(UnixNanos(1), None, &view);
        view.convergence = at(ConvergenceState::Converged, began + 10 * SECOND_NS);
        history.job(UnixNanos(1), None, &view);
        // Open for 90 seconds.
        view.convergence = at(ConvergenceState::Waiting, now_ns - 90 * SECOND_NS);
        history.job(UnixNanos(1), None, &view);
        let lag = history.lag(now_ns);
        let last: Vec<_> = lag[LAG_MINUTES - 4..].iter().map(|lag| lag.map(|lag| lag / SECOND_NS)).collect();
        assert_eq!((lag.len(), last), (LAG_MINUTES, [0, 10, 30, 90].map(Some).to_vec()));
        history.job_gone(&view.key, now_ns);
        assert_eq!(history.lag(now_ns + MINUTE_NS)[LAG_MINUTES - 1], Some(0));
    }

    /// Such times were reported as having no lag, and the day as having no repairs.
    #[test]
    fn time_before_the_agent_is_unknown() {
        let history = History::default();
        let began = 100 * MINUTE_NS;
        history.begin(began);
        let lag = history.lag(began + 2 * MINUTE_NS);
        assert_eq!(lag[LAG_MINUTES - 4..], [None, Some(0), Some(0), Some(0)]);
        assert_eq!(history.known_of_day(began + 2 * MINUTE_NS), Duration::from_secs(120));
        assert_eq!(history.known_of_day(began + 2 * HOURS_OF_DAY * HOUR_NS), Duration::from_secs(24 * 3600));
    }

    #[test]
    fn repairs_are_forgotten_after_a_day() {
        let history = History::default();
        for hour in [0, 10, 10, 30] {
            history.drift_repaired(hour * HOUR_NS, &mount(), 0);
        }
        assert_eq!(history.repairs(30 * HOUR_NS), 3);
        assert_eq!(history.repairs(34 * HOUR_NS), 1);
    }

    fn mount() -> Drifted {
        Drifted {
            alloc: AllocId::from_hash([7; 16]),
            job: JobKey { namespace: "default".into(), id: "web".into() },
            name: "web.g[0]".to_owned(),
            task: Some("t".to_owned()),
            kind: "mount",
        }
    }

    #[test]
    fn drift_outcome_is_recorded() {
        let history = History::default();
        let dir = Drifted { task: None, kind: "alloc_dir", ..mount() };
        let service = Drifted { kind: "service", ..mount() };
        for of in [&mount(), &dir, &service, &mount()] {
            history.drift_found(UnixNanos(1), of, (Noticed::Periodic, "it is missing"));
        }
        history.drift_repaired(5, &mount(), 3);
        history.drift_dropped(&dir);
        let found = |lives: bool| -> Vec<_> {
            let drifts = history.drifts(|_| lives).into_iter();
            drifts.map(|one| (one.kind, one.state, one.took)).collect()
        };
        let repaired = ("mount".to_owned(), DriftState::Repaired, Some(Duration(3)));
        let dropped = |kind: &str| (kind.to_owned(), DriftState::Dropped, None);
        let open = ("service".to_owned(), DriftState::Open, None);
        assert_eq!(found(true), [open, dropped("alloc_dir"), repaired.clone()]);
        assert_eq!(found(false), [dropped("service"), dropped("alloc_dir"), repaired]);
        for _ in 0..DRIFTS_MAX {
            history.drift_found(UnixNanos(1), &dir, (Noticed::Event, "it is missing"));
            history.drift_dropped(&dir);
        }
        assert_eq!(found(true).len(), DRIFTS_MAX);
    }

    #[test]
    fn the_last_changes_of_verdicts_are_kept_newest_first() {
        let history = History::default();
        let mut view = alloc_view(&job("web", "g", "t"), 0, 7);
        let show = |at, before: Option<&AllocView>, after: &AllocView| {
            history.alloc(UnixNanos(at), Change { before, after, job: None, previous: None });
        };
        show(1, None, &view);
        show(2, Some(&view.clone()), &view);
        let before = view.clone();
        view.convergence = verdict(ConvergenceState::Waiting, "task t: waits");
        show(3, Some(&before), &view);
        history.alloc_gone(UnixNanos(4), &view);
        let recorded: Vec<_> =
            history.transitions().into_iter().map(|one| (one.state.as_str(), one.cause)).collect();
        let recorded: Vec<_> = recorded.iter().map(|(state, cause)| (*state, &**cause)).collect();
        assert_eq!(
            recorded,
            [("gone", "removed"), ("waiting", "task t: waits"), ("converged", "version 0 was applied")]
        );
        for _ in 0..TRANSITIONS_MAX {
            show(1, None, &view);
        }
        assert_eq!(history.transitions().len(), TRANSITIONS_MAX);
    }

    #[test]
    fn existing_allocation_is_recorded_as_adopted() {
        let history = History::default();
        let web = job("web", "g", "t");
        let (running, done) = (alloc_view(&web, 0, 1), ended(alloc_view(&web, 1, 2)));
        history.adopt([running.spec.id, done.spec.id]);
        for after in [&running, &done, &running] {
            let change = Change { before: None, after, job: None, previous: None };
            history.alloc(UnixNanos(1), change);
        }
        let causes: Vec<String> = history.transitions().into_iter().map(|one| one.cause).collect();
        assert_eq!(causes, ["version 0 was applied", "adopted by a new agent"]);
    }
}
