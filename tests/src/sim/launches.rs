//! What launches of periodic jobs must keep, seen from outside: by the jobs that are published.
//!
//! In: jobs as they are shown, what the clock shows, which children were asked for. Out: the first broken promise. No moment is launched
//! twice or before its time, and none beside a child that lives where overlap is prohibited. That each moment is launched is looked
//! for once the faults have stopped ([`super::oracle`]).

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

use super::{Rng, coverage::Kind, life::SECOND};

/// Seconds between the moments of every periodic job.
pub const PERIOD: i64 = 60;

/// A clock that stood so far ahead of the present was wrong, and jobs begin anew.
const AHEAD_MAX: i64 = 24 * 3_600;

/// What was launched so far.
#[derive(Debug, Default)]
pub struct Launches {
    /// The newest moment of each job that was launched because it was due, and how often that was an older one than before.
    last: BTreeMap<JobKey, (i64, u32)>,
    /// Everything that was launched because it was due.
    moments: BTreeSet<(JobKey, i64)>,
    /// What the clock has shown at most.
    most: i64,
    /// The same since it was known to have been wrong.
    furthest: i64,
    /// How often it was known to have been wrong.
    wrong: u32,
    /// Children that this turn shows.
    new: Vec<Arc<JobView>>,
    /// Those that somebody asked for.
    forced: BTreeSet<JobKey>,
}

/// Some `periodic`: each minute.
pub fn each_minute(rng: &mut Rng) -> Periodic {
    Periodic {
        crons: vec!["* * * * *".to_owned()],
        time_zone: "UTC".to_owned(),
        prohibit_overlap: rng.one_in(2),
        enabled: true,
    }
}

/// The parent of a launched child, and the second it was launched for.
pub fn launched(job: &Job) -> Option<(JobKey, i64)> {
    let parent = job.parent_id()?;
    let moment = job.id.strip_prefix(parent)?.strip_prefix("/periodic-")?.parse().ok()?;
    Some((JobKey { namespace: job.namespace.as_str().into(), id: parent.into() }, moment))
}

/// Whether a child may be made now: none of the job's lives, or it does not mind.
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
        // A group of one that has failed may still wait for room.
        || jobs.values().filter(|view| of_parent(&view.job)).all(|view| is_settled(&view.convergence) && view.unplaced.is_empty())
            // What has failed may wait for another one to follow it.
            && allocs.values().filter(|view| of_parent(&view.spec.job)).all(|view| is_settled(&view.convergence))
            && living(&parent.key, allocs).next().is_none()
}

fn living<'a>(
    parent: &'a JobKey,
    allocs: &'a BTreeMap<AllocId, Arc<AllocView>>,
) -> impl Iterator<Item = &'a AllocView> {
    // What has failed may still tidy up.
    let lives = |view: &AllocView| {
        !view.status.is_terminal() || view.tasks.iter().any(|task| task.state != TaskStatus::Dead)
    };
    let live = allocs.values().filter(move |view| lives(view));
    live.map(|view| &**view).filter(|view| is_child(&view.spec.job, parent))
}

/// Whether it was made of that job, in whatever way.
fn is_child(job: &Job, parent: &JobKey) -> bool {
    job.parent_id() == Some(&*parent.id) && *job.namespace == *parent.namespace
}

fn seconds(at: UnixNanos) -> i64 {
    at.0.div_euclid(SECOND as i64)
}

impl Launches {
    /// What the clock shows as a turn begins.
    pub fn see_clock(&mut self, wall: UnixNanos) {
        self.most = self.most.max(seconds(wall));
        self.furthest = self.furthest.max(seconds(wall));
        if self.furthest - seconds(wall) > AHEAD_MAX {
            self.furthest = seconds(wall);
            self.wrong += 1;
        }
    }

    /// How far the clock is behind what it has shown, in seconds.
    pub fn behind(&self, wall: UnixNanos) -> i64 {
        self.most - seconds(wall)
    }

    /// A job is shown for the first time. Whether somebody launched it, or a moment.
    pub fn show_new(&mut self, view: &Arc<JobView>) -> bool {
        let is_child = launched(&view.job).is_some();
        if is_child {
            self.new.push(Arc::clone(view));
        }
        is_child
    }

    /// Somebody who asked for a launch is told of this child.
    pub fn force(&mut self, child: JobKey) {
        self.forced.insert(child);
    }

    /// Somebody has applied this job, whatever its name: it was not launched.
    pub fn apply(&mut self, job: &Job) {
        self.new.retain(|view| view.key != job.key());
    }

    /// A job is forgotten: another one of its name has launches of its own.
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

    /// The turn is over: everything that it shows is in `jobs` and `allocs`, everybody has his answer. What was launched in it.
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
                return Err(format!("{name} is launched at {made}, for no moment of its job"));
            }
            let (last, again) = self.last.get(&parent).copied().unwrap_or((i64::MIN, 0));
            let again = again + u32::from(moment <= last);
            if again > self.wrong {
                return Err(format!("{name} is launched after the moment {last}"));
            }
            self.last.insert(parent.clone(), (moment, again));
            self.moments.insert((parent, moment));
            launches.push(if named && made == moment { Kind::Launch } else { Kind::LateLaunch });
        }
        Ok(launches)
    }
}
