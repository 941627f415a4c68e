//! Notices damage of networks under running tasks: by reports of the kernel about links, addresses, rules and mounts, and by a
//! periodic inspection for what has no reports, such as settings of the kernel.
//!
//! In: reports, the read model. Out: events that ask the planner to inspect networks, which then has them repaired. Only the rules,
//! which all networks on the bridge share, are repaired here, with all ports in one step. Without running tasks in networks
//! of their own, nothing is open.

mod holds;
mod watched;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_api_types::{alloc::Allocation, task::TaskStatus, view::AllocView};
use herdlet_network::reports::{self, Reports, Sources};
use herdlet_plan::{
    event::{Event, Noticed},
    op::Part,
    turn::{Drifted, Note},
};
use herdlet_runtime::{Inbox, off_thread};
use tokio::{
    sync::broadcast::error::RecvError,
    task::JoinError,
    time::{MissedTickBehavior, sleep},
};

use self::watched::{Damage, NetworksInUse};
use super::drift::INSPECTION_PERIOD;
use crate::{
    networks::AllocNetworks,
    planner::{Input, NoteSink},
    publish::{Object, ObjectChange, ReadModel},
};

/// One inspection serves a burst of changes.
const BURST: Duration = Duration::from_millis(50);

/// Inspections take at most one part in this many of a core, however often others change their interfaces and rules.
const INSPECTION_SHARE: u32 = 20;

/// Watches networks until the agent ends.
pub async fn watch(
    networks: Arc<AllocNetworks>,
    model: Arc<ReadModel>,
    inbox: Inbox<Input>,
    notes: NoteSink,
) {
    NetworkWatch { networks, model, inbox, notes }.follow().await;
}

struct NetworkWatch {
    networks: Arc<AllocNetworks>,
    model: Arc<ReadModel>,
    inbox: Inbox<Input>,
    notes: NoteSink,
}

/// Why the watch wakes up.
enum Wake {
    /// The view of this allocation has changed.
    Shown(Object),
    /// Any view may have changed.
    Lagged,
    Noticed(Noticed),
    Closed,
}

impl NetworkWatch {
    async fn follow(self) {
        let mut changes = self.model.changes();
        let mut inspections = tokio::time::interval(INSPECTION_PERIOD);
        inspections.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The planner inspects all of them at first.
        inspections.tick().await;
        let (mut watched, mut sources) = (NetworksInUse::default(), None);
        let mut not_before = Instant::now();
        self.show_all(&mut watched);
        loop {
            let next = watched.next_due().map(|due| due.max(not_before));
            let wake = tokio::select! {
                change = changes.recv() => match change {
                    Ok(ObjectChange { object, .. }) => Wake::Shown(object),
                    Err(RecvError::Lagged(_)) => Wake::Lagged,
                    Err(RecvError::Closed) => Wake::Closed,
                },
                () = woken(sources.as_ref()) => {
                    sleep(BURST.max(not_before.saturating_duration_since(Instant::now()))).await;
                    Wake::Noticed(Noticed::Event)
                }
                () = at(next) => Wake::Noticed(Noticed::Event),
                _ = inspections.tick() => Wake::Noticed(Noticed::Periodic),
            };
            let by = match wake {
                Wake::Closed => return,
                Wake::Shown(Object::Alloc(id)) => {
                    watched.show(id, self.model.alloc(&id).and_then(|view| used(&view)));
                    continue;
                }
                Wake::Shown(Object::Job(_) | Object::Volume(_) | Object::Node) => continue,
                Wake::Lagged => {
                    self.show_all(&mut watched);
                    continue;
                }
                Wake::Noticed(by) => by,
            };
            if watched.is_empty() {
                (watched, sources) = (NetworksInUse::default(), None);
                continue;
            }
            let reports = reports::taken(&mut sources, self.networks.rule_port());
            let begun = Instant::now();
            let Some((next, damage)) = self.inspect(watched, reports, by).await else { return };
            watched = next;
            not_before = Instant::now() + begun.elapsed().saturating_mul(INSPECTION_SHARE);
            if self.report(&watched, damage, by).await.is_err() {
                return;
            }
        }
    }

    fn show_all(&self, watched: &mut NetworksInUse) {
        let views = self.model.allocs();
        watched.retain(|id| views.iter().any(|view| view.spec.id == *id));
        for view in views {
            watched.show(view.spec.id, used(&view));
        }
    }

    /// `None` if the async runtime is shutting down.
    async fn inspect(
        &self,
        mut watched: NetworksInUse,
        reports: Reports,
        by: Noticed,
    ) -> Option<(NetworksInUse, Damage)> {
        let networks = Arc::clone(&self.networks);
        let inspected = off_thread(move || {
            let damage = watched.inspect(&networks, &reports, by);
            (watched, damage)
        });
        match inspected.await.map_err(JoinError::try_into_panic) {
            Ok(inspected) => Some(inspected),
            // A panic in a watcher ends the agent.
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => None,
        }
    }

    /// # Errors
    /// If the agent ends.
    async fn report(&self, watched: &NetworksInUse, damage: Damage, by: Noticed) -> Result<(), ()> {
        if let Some(why) = damage.repaired_rules {
            tracing::warn!(why, "repaired the rules of the bridge");
            for alloc in watched.on_bridge() {
                let of = drifted(alloc);
                (self.notes)(&Note::DriftDetected { of: of.clone(), by, why: why.clone() });
                (self.notes)(&Note::DriftRepaired { of, took_ns: None });
            }
        }
        for alloc in damage.networks {
            let drift = Event::Drift { alloc, part: Part::Network, by };
            self.inbox.send(Input::Event(drift)).await.map_err(drop)?;
        }
        Ok(())
    }
}

fn drifted(alloc: &Allocation) -> Drifted {
    let (job, name) = (alloc.job_key.clone(), alloc.name());
    Drifted { alloc: alloc.id, job, name, task: None, kind: Part::Network.row().name }
}

async fn woken(sources: Option<&Sources>) {
    match sources {
        Some(sources) => sources.woken().await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep(time.saturating_duration_since(Instant::now())).await,
        None => std::future::pending().await,
    }
}

/// The allocation, if its tasks run in a network of its own, or with a file about the machine's.
fn used(view: &AllocView) -> Option<Arc<Allocation>> {
    let is_own = view.spec.group().is_some_and(|group| group.has_own_network() || group.has_own_dns());
    let runs = view.tasks.iter().any(|task| task.state == TaskStatus::Running);
    (is_own && runs).then(|| Arc::clone(&view.spec))
}
