//! Invariants of periodic launches, checked on the published jobs.
//!
//! In: the published jobs, the displayed time, the requested launches. Out: the first violation. No moment is launched twice
//! or before its time, and no child is launched beside a live one if overlap is prohibited. [`super::oracle`] checks, after
//! the faults have stopped, that each moment is launched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey, UnixNanos,
    job::{Job, Periodic},
    task::TaskStatus,
    view::{AllocView, Convergence, ConvergenceState, JobView},
};

use super::{Rng, clock::SECOND, coverage::Kind};

/// Seconds between the launch moments of every periodic job.
pub const PERIOD: i64 = 60;

/// If the clock was ahead of the present by more than this, it was wrong, and jobs start over.
const AHEAD_MAX: i64 = 24 * 3_600;

/// The launches so far.
#[derive(Debug, Default)]
pub struct Launches {
    /// The newest moment of each job that was launched because it was due, and how many times an older one followed.
    last: BTreeMap<JobKey, (i64, u32)>,
    /// All moments that were launched because they were due.
    moments: BTreeSet<(JobKey, i64)>,
    /// The latest time the clock has displayed.
    most: i64,
    /// The latest time displayed since it was last known to be wrong.
    furthest: i64,
    /// How often it was known to be wrong.
    clock_errors: u32,
    /// Children published in this turn.
    new: Vec<Arc<JobView>>,
    /// Children launched on request.
    forced: BTreeSet<JobKey>,
}

/// A random `periodic` that launches every minute.
pub fn each_minute(rng: &mut Rng) -> Periodic {
    Periodic {
        crons: vec!["* * * * *".to_owned()],
        time_zone: "UTC".to_owned(),
        prohibit_overlap: rng.one_in(2),
        enabled: true,
    }
}

/// The parent of a launched child, and the second for which it was launched.
pub fn launched(job: &Job) -> Option<(JobKey, i64)> {
    let parent = job.parent_id()?;
    let moment = job.id.strip_prefix(parent)?.strip_prefix("/periodic-")?.parse().ok()?;
    Some((JobKey { namespace: job.namespace.as_str().into(), id: parent.into() }, moment))
}

/// Whether a child may be launched now: no child of the job lives, or overlap is allowed.
pub fn is_free(
    parent: &JobView,
    jobs: &BTreeMap<JobKey, Arc<JobView>>,
    allocs: &BTreeMap<AllocId, Arc<AllocView>>,
) -> bool {
    let is_settled = |convergence: &Convergence| {
        [ConvergenceState::Converged, ConvergenceState::Failed].contains(&convergence.state)
    };
    let of_parent = |job: &Job| is_child(job, &parent.key);
    !parent.job.periodic.as_ref().is_some_and(|periodic| periodic.prohibit_overlap)
        // A group of a failed job may still wait for room.
        || jobs.values().filter(|view| of_parent(&view.job)).all(|view| is_settled(&view.convergence) && view.unplaced.is_empty())
            // A failed allocation may still be rescheduled.
            && allocs.values().filter(|view| of_parent(&view.spec.job)).all(|view| is_settled(&view.convergence))
            && living(&parent.key, allocs).next().is_none()
}

fn living<'a>(
    parent: &'a JobKey,
    allocs: &'a BTreeMap<AllocId, Arc<AllocView>>,
) -> impl Iterator<Item = &'a AllocView> {
    // A failed allocation may still clean up.
    let lives = |view: &AllocView| {
        !view.status.is_terminal() || view.tasks.iter().any(|task| task.state != TaskStatus::Dead)
    };
    let live = allocs.values().filter(move |view| lives(view));
    live.map(|view| &**view).filter(|view| is_child(&view.spec.job, parent))
}

/// Whether the job is a child of that job, of any kind.
fn is_child(job: &Job, parent: &JobKey) -> bool {
    job.parent_id() == Some(&*parent.id) && *job.namespace == *parent.namespace
}

fn seconds(at: UnixNanos) -> i64 {
    at.0.div_euclid(SECOND as i64)
}

impl Launches {
    /// Records the displayed time at the start of a turn.
    pub fn see_clock(&mut self, wall: UnixNanos) {
        self.most = self.most.max(seconds(wall));
        self.furthest = self.furthest.max(seconds(wall));
        if self.furthest - seconds(wall) > AHEAD_MAX {
            self.furthest = seconds(wall);
            self.clock_errors += 1;
        }
    }

    /// How far the clock is behind the latest time it has displayed, in seconds.
    pub fn behind(&self, wall: UnixNanos) -> i64 {
        self.most - seconds(wall)
    }

    /// A job is published for the first time. Returns whether it is a launched child.
    pub fn show_new(&mut self, view: &Arc<JobView>) -> bool {
        let is_child = launched(&view.job).is_some();
        if is_child {
            self.new.push(Arc::clone(view));
        }
        is_child
    }

    /// A requested launch was answered with this child.
    pub fn force(&mut self, child: JobKey) {
        self.forced.insert(child);
    }

    /// A user applied this job: despite its name it was not launched.
    pub fn apply(&mut self, job: &Job) {
        self.new.retain(|view| view.key != job.key());
    }

    /// A job was forgotten: a later job with its name has launches of its own.
    pub fn forget(&mut self, job: &JobKey) {
        self.last.remove(job);
    }

    /// Whether this moment of the job was launched.
    pub fn has(&self, job: &JobKey, moment: i64) -> bool {
        self.moments.contains(&(job.clone(), moment))
    }

    /// How many moments of the job were launched.
    pub fn count(&self, job: &JobKey) -> usize {
        self.moments.iter().filter(|(of, _)| of == job).count()
    }

    /// Ends the turn: `jobs` and `allocs` contain all published views, and all requests are answered. Returns the turn's
    /// launches.
    pub fn end_turn(
        &mut self,
        jobs: &BTreeMap<JobKey, Arc<JobView>>,
        allocs: &BTreeMap<AllocId, Arc<AllocView>>,
    ) -> Result<Vec<Kind>, String> {
        let forced = std::mem::take(&mut self.forced);
        let mut launches = Vec::new();
        for view in std::mem::take(&mut self.new) {
            let Some((parent, moment)) = launched(&view.job) else { continue };
            let (name, made) = (&view.key, seconds(view.submit_time));
            if forced.contains(name) {
                launches.push(Kind::ForceLaunch);
                continue;
            }
            let prohibits = |view: &&Arc<JobView>| {
                view.job.periodic.as_ref().is_some_and(|periodic| periodic.prohibit_overlap)
            };
            if jobs.get(&parent).filter(prohibits).is_some()
                && let Some(other) = living(&parent, allocs).find(|other| other.spec.job_key != *name)
            {
                return Err(format!("{name} is launched beside {}", other.spec.name()));
            }
            if jobs.get(&parent).is_some_and(|parent| parent.job.stop) {
                return Err(format!("{name} is launched although {} is stopped", parent.id));
            }
            if made < moment {
                return Err(format!("{name} is launched {} s before its time", moment - made));
            }
            let named = moment % PERIOD == 0;
            if !named && moment != made {
                return Err(format!("{name} is launched at {made}, which is not a moment of its job"));
            }
            let (last, again) = self.last.get(&parent).copied().unwrap_or((i64::MIN, 0));
            let again = again + u32::from(moment <= last);
            if again > self.clock_errors {
                return Err(format!("{name} is launched after the moment {last}"));
            }
            self.last.insert(parent.clone(), (moment, again));
            self.moments.insert((parent, moment));
            launches.push(if named && made == moment { Kind::Launch } else { Kind::LateLaunch });
        }
        Ok(launches)
    }
}
