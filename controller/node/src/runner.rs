//! Runs a session's allocations by means of the agent: desired state goes to the planner, the read model goes to servers.
//!
//! In: lists of changed allocations. Out: events for the loop, and a report on every change of a server's allocation. It keeps no state:
//! the known allocations are those in the read model.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use herdlet_agent::{
    planner::Input,
    publish::{Object, ReadModel},
    server_tokens::ServerTokens,
};
use herdlet_api_types::{
    AllocId,
    alloc::{Allocation, Desired, DiskMigration},
    view::AllocView,
};
use herdlet_base::clock;
use herdlet_nomad::{
    reports::Reports,
    seam::{self, DesiredAlloc, Factory, Runner},
    wire::{self, ClientStatus},
};
use herdlet_plan::event::{DesiredChange, Event};
use herdlet_runtime::{Inbox, off_thread};
use tokio::{
    sync::{Notify, broadcast::error::RecvError, mpsc, watch},
    task::JoinSet,
    time::sleep,
};

use super::{
    predecessor::Awaited,
    report,
    server_alloc::{Reader, Reading},
};

/// The runner's dependencies.
pub struct Parts {
    /// The planner's inbox.
    pub inbox: Inbox<Input>,
    /// The read model. It must have been filled once.
    pub model: Arc<ReadModel>,
    /// Stores tokens; `None` to store nothing.
    pub tokens: Option<Arc<ServerTokens>>,
    /// How jobs are read.
    pub reading: Reading,
    /// Receives allocations of other nodes whose end is awaited.
    pub previous: mpsc::Sender<Awaited>,
    /// Counts how often everything is reported again: after the first list, and whenever servers may have lost reports.
    pub told_again: watch::Sender<u64>,
}

impl Factory for Parts {
    type Runner = AgentRunner;

    fn start(self, reports: Reports) -> AgentRunner {
        let mut follower = JoinSet::new();
        follower.spawn(follow(Arc::clone(&self.model), reports.clone()));
        let are_held = Arc::new(Notify::new());
        if let Some(tokens) = &self.tokens {
            follower.spawn(keep_held(Arc::clone(tokens), Arc::clone(&are_held)));
        }
        AgentRunner { parts: self, reports, are_held, _follower: follower }
    }
}

/// Runs a session's allocations by means of the agent's loop.
pub struct AgentRunner {
    parts: Parts,
    reports: Reports,
    /// Notified when tokens could not be written.
    are_held: Arc<Notify>,
    _follower: JoinSet<()>,
}

impl Runner for AgentRunner {
    fn known(&self) -> Vec<(wire::AllocId, u64)> {
        let known = |view: Arc<AllocView>| {
            let server = view.spec.server.as_ref()?;
            let tokens = self.parts.tokens.as_ref().filter(|_| !view.status.is_terminal());
            let is_successor = is_unbegun(&view)
                && elsewhere(&view.spec, &self.parts.model).iter().any(|awaited| awaited.successor.is_some());
            // If a crash lost tokens, lower the index so that servers send them again with the allocation; servers before 1.4 have none.
            let is_whole = tokens.is_none_or(|tokens| tokens.are_kept(view.spec.id, is_successor));
            let index = server.modify_index;
            Some((report::id(view.spec.id), if is_whole { index } else { index.saturating_sub(1) }))
        };
        self.parts.model.allocs().into_iter().filter_map(known).collect()
    }

    async fn apply(&self, desired: seam::Desired) {
        let seam::Desired { index: _, is_first, changed, removed, unreadable } = desired;
        let mut events = Vec::with_capacity(changed.len() + removed.len() + 1);
        self.keep_tokens(&changed).await;
        let mut reader = Reader::new(&self.parts.reading);
        // Allocations that the previous agent had not started are still waiting. The token for the disk may have arrived only now.
        let mut awaited = if is_first { still_awaited(&self.parts.model) } else { Vec::new() };
        for changed in &changed {
            awaited.extend(self.place(&mut reader, &changed.alloc, &mut events));
        }
        for (id, why) in unreadable {
            self.fail_unreadable(id, &why);
        }
        let removed: Vec<AllocId> = removed.iter().filter_map(parse).collect();
        events.extend(removed.iter().copied().map(DesiredChange::AllocGone));
        events.extend(is_first.then_some(DesiredChange::Contact));
        for event in events {
            if self.parts.inbox.send(Input::Event(Event::Desired(event))).await.is_err() {
                return;
            }
        }
        // Send these after the events: the end of an allocation that nothing waits for is dropped.
        send_awaited(self.parts.previous.clone(), awaited).await;
        let listed =
            is_first.then(|| changed.iter().filter_map(|changed| parse(&changed.alloc.id)).collect());
        self.forget_tokens(removed, listed).await;
    }

    fn report_again(&self) {
        self.parts.told_again.send_modify(|times| *times += 1);
        report_all(&self.parts.model, &self.reports);
    }
}

/// How often to retry storing tokens.
const KEPT_AGAIN: Duration = Duration::from_secs(5);

/// Retries whenever tokens are held in memory, until they are stored.
async fn keep_held(tokens: Arc<ServerTokens>, are_held: Arc<Notify>) {
    loop {
        are_held.notified().await;
        loop {
            sleep(KEPT_AGAIN).await;
            let tokens = Arc::clone(&tokens);
            if let Ok(true) = off_thread(move || tokens.keep_held()).await {
                tracing::info!("tokens from servers are stored and removed again as required");
                break;
            }
        }
    }
}

impl AgentRunner {
    /// Stores the tokens before any task that needs them starts.
    async fn keep_tokens(&self, changed: &[DesiredAlloc]) {
        let given = |changed: &DesiredAlloc| {
            let (signed, disk) = (&changed.alloc.signed_identities, &changed.migrate_token);
            let is_given = !signed.is_empty() || disk.is_some();
            is_given.then(|| Some((parse(&changed.alloc.id)?, signed.clone(), disk.clone())))?
        };
        let given: Vec<_> = changed.iter().filter_map(given).collect();
        let Some(tokens) = self.parts.tokens.clone().filter(|_| !given.is_empty()) else { return };
        let kept = off_thread(move || {
            let signed = given.iter().filter(|(_, signed, _)| !signed.is_empty());
            let signed = signed.map(|(id, signed, _)| tokens.keep(*id, signed));
            let disks = given.iter().filter_map(|(id, _, disk)| Some((id, disk.as_ref()?)));
            let disks = disks.map(|(id, token)| tokens.keep_for_disk(*id, token));
            // Try all, even if some fail.
            signed.chain(disks).fold(Ok(()), Result::and)
        });
        if let Ok(Err(error)) = kept.await {
            tracing::error!(%error, "failed to store tokens from servers; keeping them in memory and retrying");
            self.are_held.notify_one();
        }
    }

    /// Removes the tokens of removed allocations. After the first list, also those of allocations that are neither listed nor known: left
    /// by an agent that was killed.
    async fn forget_tokens(&self, mut removed: Vec<AllocId>, listed: Option<BTreeSet<AllocId>>) {
        let Some(tokens) = self.parts.tokens.clone().filter(|_| !removed.is_empty() || listed.is_some())
        else {
            return;
        };
        let model = Arc::clone(&self.parts.model);
        let forgotten = off_thread(move || {
            if let Some(listed) = listed {
                let is_left = |id: &AllocId| !listed.contains(id) && model.alloc(id).is_none();
                removed.extend(tokens.all().into_iter().filter(is_left));
            }
            // Try all, even if some fail.
            let forget = |forget: fn(&ServerTokens, AllocId) -> io::Result<()>| {
                removed.iter().map(|id| forget(&tokens, *id)).fold(Ok(()), Result::and)
            };
            (forget(ServerTokens::forget), forget(ServerTokens::forget_identities))
        });
        let Ok((tokens, identities)) = forgotten.await else { return };
        if let Err(error) = tokens {
            tracing::warn!(%error, "failed to remove tokens of deleted allocations; retrying");
            self.are_held.notify_one();
        }
        if let Err(error) = identities {
            tracing::warn!(%error, "failed to remove identities of deleted allocations; the next agent retries");
        }
    }

    /// Adds the events for an allocation. Returns its predecessors on other nodes whose ends to wait for.
    fn place(
        &self,
        reader: &mut Reader<'_>,
        alloc: &wire::Allocation,
        events: &mut Vec<DesiredChange>,
    ) -> Vec<Awaited> {
        let known = parse(&alloc.id).and_then(|id| self.parts.model.alloc(&id));
        if known.is_none() && alloc.client_status.is_terminal() {
            return Vec::new();
        }
        let mut spec = match reader.allocation(alloc) {
            Ok(spec) => spec,
            Err(why) if known.is_none() => {
                tracing::warn!(alloc = %alloc.id, why, "an allocation cannot be run");
                self.reports.report(report::of_failed(alloc, &why, clock::wall_now()));
                return Vec::new();
            }
            Err(why) => {
                tracing::warn!(alloc = %alloc.id, why, "a newer copy of an allocation cannot be used; it continues unchanged");
                return Vec::new();
            }
        };
        self.share_job(&mut spec);
        let (id, awaited) = (spec.id, elsewhere(&spec, &self.parts.model));
        let is_unknown = alloc.client_status == ClientStatus::Unknown;
        events.push(DesiredChange::Alloc(Box::new(spec)));
        match known {
            Some(known) if is_unknown && !known.status.is_terminal() => {
                events.push(DesiredChange::AllocReconnected(id));
            }
            Some(_) => {}
            None => return awaited,
        }
        Vec::new()
    }

    /// Reports a new allocation as failed; a known one keeps running.
    fn fail_unreadable(&self, id: wire::AllocId, why: &str) {
        let is_known = parse(&id).is_some_and(|id| self.parts.model.alloc(&id).is_some());
        tracing::warn!(alloc = %id, why, is_known, "an allocation from the servers cannot be decoded");
        if !is_known {
            let alloc = wire::Allocation { id, ..wire::Allocation::default() };
            self.reports.report(report::of_failed(&alloc, why, clock::wall_now()));
        }
    }

    /// Makes allocations of the same version share one job, even if they arrived at different times.
    fn share_job(&self, spec: &mut Allocation) {
        let siblings = self.parts.model.allocs_of(&spec.job_key);
        let is_same =
            |view: &&Arc<AllocView>| view.spec.job_version == spec.job_version && view.spec.job == spec.job;
        let Some(sibling) = siblings.iter().find(is_same) else { return };
        spec.job = Arc::clone(&sibling.spec.job);
        if let Some(server) = &mut spec.server {
            Arc::make_mut(server).job = Arc::clone(&sibling.spec.job);
        }
    }
}

/// Predecessors on other nodes that allocations which never started wait for.
fn still_awaited(model: &ReadModel) -> Vec<Awaited> {
    model
        .allocs()
        .iter()
        .filter(|view| is_unbegun(view))
        .flat_map(|view| elsewhere(&view.spec, model))
        .collect()
}

fn is_unbegun(view: &AllocView) -> bool {
    let has_begun = view.tasks.iter().any(|task| task.attempt > 0);
    !view.status.is_terminal() && !has_begun
}

/// An allocation's predecessors that are not on this node.
fn elsewhere(spec: &Allocation, model: &ReadModel) -> Vec<Awaited> {
    let moves = spec.server.as_ref().is_some_and(|server| server.heritage == DiskMigration::AnyNode);
    let successor = |id| (moves && spec.previous == Some(id)).then_some(spec.id);
    let begins = spec.desired == Desired::Run;
    let absent = spec.awaited().filter(|id| begins && model.alloc(id).is_none());
    absent.map(|id| Awaited { id, successor: successor(id) }).collect()
}

async fn send_awaited(to: mpsc::Sender<Awaited>, awaited: Vec<Awaited>) {
    for one in awaited {
        // The receiver is gone: the agent ends.
        let _ = to.send(one).await;
    }
}

/// Reports changes until the model is dropped.
async fn follow(model: Arc<ReadModel>, reports: Reports) {
    let mut changes = model.changes();
    report_all(&model, &reports);
    loop {
        match changes.recv().await {
            Ok(changed) => {
                let Object::Alloc(id) = changed.object else { continue };
                if let Some(report) = model.alloc(&id).and_then(|view| report::of(&view)) {
                    reports.report(report);
                }
            }
            Err(RecvError::Lagged(_)) => report_all(&model, &reports),
            Err(RecvError::Closed) => return,
        }
    }
}

fn report_all(model: &ReadModel, reports: &Reports) {
    for report in model.allocs().iter().filter_map(|view| report::of(view)) {
        reports.report(report);
    }
}

pub(super) fn parse(id: &wire::AllocId) -> Option<AllocId> {
    id.as_str().parse().ok().map(AllocId)
}
