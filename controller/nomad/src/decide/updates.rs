//! What servers are told of allocations: the newest report of each, in as few calls as do.
//!
//! In: reports, whenever they come, and how calls went. Out: when to call next, and with what.
//!
//! ```text
//!   report ──► as servers have it already: dropped
//!          └─► pending, in place of an older one ──► due ──► in flight ──► done: remembered as told
//!                                                                     └──► failed: pending again, unless there is a newer one
//! ```
//!
//! - Urgent is what changes the status that servers know, or the health that a deployment waits for. It goes at once, but at most one call
//!   begins in a [`TICK`].
//! - The rest (events, network) goes along, or by itself every fifth tick at most.
//! - Nothing goes before servers have said which allocations there are, and only one call at a time.
//!
//! Of what was told only a digest is kept: a node has many allocations, and a machine may have many nodes. The next agent may be given what
//! was acknowledged ([`Acknowledged`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use herdlet_rpc::{
    codec,
    pool::{Chance, jitter},
};
use tokio::time::Instant;

use super::acknowledged::{Acknowledged, Digest};
use crate::wire::{AllocId, AllocReport, Allocation, ClientStatus, NodeId};

/// At most one call begins in this time.
pub const TICK: Duration = Duration::from_millis(200);

/// What isn't urgent waits so long for company.
pub const CALM: Duration = Duration::from_secs(1);

/// After a failure nothing is sent for this long, and up to as much again.
const FAILED: Duration = Duration::from_secs(5);

/// As many go in one call.
pub const BATCH: usize = 1_000;

/// What servers know of allocations, and what they have to be told.
#[derive(Debug, Default)]
pub struct Updates {
    is_open: bool,
    told: BTreeMap<AllocId, Told>,
    pending: BTreeMap<AllocId, Pending>,
    /// Of those that are pending.
    urgent: BTreeSet<AllocId>,
    flight: BTreeMap<AllocId, Flight>,
    /// The servers' index of the last call that has succeeded; 0 where it isn't known.
    acknowledged: u64,
    /// When something became pending after nothing was.
    since: Option<Instant>,
    last: Option<Instant>,
    held_until: Option<Instant>,
}

/// What servers know of an allocation.
#[derive(Debug, Default)]
struct Told {
    status: ClientStatus,
    /// None: nothing was told of it by this agent.
    healthy: Option<bool>,
    /// Of the whole report. None: it is not known what they have.
    digest: Option<Digest>,
}

#[derive(Debug)]
struct Pending {
    report: AllocReport,
    digest: Digest,
}

#[derive(Debug)]
struct Flight {
    /// What they know once it has succeeded.
    told: Told,
    /// Servers have changed meanwhile what they know: it may have come to them before that.
    is_overtaken: bool,
}

/// Whether nothing else may be said of it any more.
fn has_ended(status: &ClientStatus) -> bool {
    matches!(status, ClientStatus::Complete | ClientStatus::Failed)
}

impl Updates {
    /// Those of a node which begins with what servers had acknowledged of it before.
    #[must_use]
    pub fn remembering(before: Acknowledged) -> Self {
        let told = before.reports.into_iter();
        let told = told
            .map(|(id, (status, digest))| (id, Told { status, healthy: None, digest: Some(digest) }))
            .collect();
        Self { told, acknowledged: before.index, ..Self::default() }
    }

    /// What servers have acknowledged, for the next one.
    #[must_use]
    pub fn acknowledged(&self, node: &NodeId) -> Acknowledged {
        let known = |(id, told): (&AllocId, &Told)| Some((id.clone(), (told.status.clone(), told.digest?)));
        let reports = self.told.iter().filter_map(known).collect();
        Acknowledged { node: node.clone(), index: self.acknowledged, reports }
    }

    /// The servers' index of what was acknowledged before the first list; none where there is nothing.
    #[must_use]
    pub fn remembered(&self) -> Option<u64> {
        (!self.is_open && !self.told.is_empty()).then_some(self.acknowledged)
    }

    /// Servers may not know what was acknowledged before.
    pub fn forget(&mut self) {
        (self.told, self.acknowledged) = (BTreeMap::new(), 0);
    }

    /// Takes a report. True: when to call next may have changed.
    pub fn report(&mut self, report: AllocReport, now: Instant) -> bool {
        if self.is_open && !self.told.contains_key(&report.id) {
            tracing::debug!(alloc = %report.id, "a report on what servers don't have");
            return false;
        }
        let Some(digest) = digest(&report) else { return false };
        let id = report.id.clone();
        let known = self.known(&id);
        if known.is_some_and(|known| known.digest == Some(digest)) {
            self.drop_pending(&id);
            return false;
        }
        let newest = self.pending.get(&id).map(|pending| &pending.report.client_status);
        if newest.or(known.map(|known| &known.status)).is_some_and(has_ended)
            && !has_ended(&report.client_status)
        {
            tracing::error!(alloc = %id, "what has ended is reported as {:?}; it stays ended", report.client_status);
            return false;
        }
        let is_urgent = is_urgent(known, &report);
        self.since.get_or_insert(now);
        self.mark(&id, is_urgent);
        self.pending.insert(id, Pending { report, digest });
        true
    }

    /// The servers have said which allocations there are, and `fetched` of them are new or changed. What they don't have is forgotten.
    pub fn listed<'a>(&mut self, ids: impl Iterator<Item = &'a AllocId>, fetched: &[Allocation]) {
        let mut before = std::mem::take(&mut self.told);
        self.told = ids.map(|id| (id.clone(), before.remove(id).unwrap_or_default())).collect();
        for alloc in fetched {
            let Some(told) = self.told.get_mut(&alloc.id) else { continue };
            match alloc.client_status {
                // They have changed what we told them.
                ClientStatus::Unknown | ClientStatus::Lost => {
                    *told = Told { status: alloc.client_status.clone(), ..Told::default() };
                    if let Some(flight) = self.flight.get_mut(&alloc.id) {
                        flight.is_overtaken = true;
                    }
                }
                ClientStatus::Unsaid
                | ClientStatus::Pending
                | ClientStatus::Running
                | ClientStatus::Complete
                | ClientStatus::Failed
                | ClientStatus::Other(_) => {
                    if told.digest.is_none() {
                        told.status = alloc.client_status.clone();
                        told.healthy = alloc.deployment_status.as_ref().and_then(|status| status.healthy);
                    }
                }
            }
        }
        let gone: Vec<_> = self.pending.keys().filter(|id| !self.told.contains_key(*id)).cloned().collect();
        gone.iter().for_each(|id| self.drop_pending(id));
        self.judge_again();
    }

    /// Whether servers know that it has ended.
    #[must_use]
    pub fn has_ended(&self, id: &AllocId) -> bool {
        self.told.get(id).is_some_and(|told| told.status.is_terminal())
    }

    /// Whether servers were told all that was reported.
    #[must_use]
    pub fn all_is_told(&self) -> bool {
        self.pending.is_empty() && self.flight.is_empty()
    }

    /// Whether servers know of all that goes on how it is, or was when it was last told.
    #[must_use]
    pub fn all_that_goes_on_is_told(&self) -> bool {
        self.told.values().all(|told| told.status.is_terminal() || told.digest.is_some())
    }

    /// Whether all has ended, as far as servers know.
    #[must_use]
    pub fn all_has_ended(&self) -> bool {
        self.told.values().all(|told| told.status.is_terminal())
    }

    /// What was listed was handed over: from now on there are calls.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// The servers may have taken the node for dead. What goes on is told again.
    pub fn missed(&mut self) {
        for told in self.told.values_mut().filter(|told| !told.status.is_terminal()) {
            *told = Told { status: ClientStatus::Unknown, ..Told::default() };
        }
        self.flight.values_mut().for_each(|flight| flight.is_overtaken = true);
        self.judge_again();
    }

    /// Servers have begun anew from an older state, and know nothing of what they were told since. All is told again.
    pub fn begin_anew(&mut self) {
        self.told.values_mut().for_each(|told| *told = Told::default());
        self.flight.values_mut().for_each(|flight| flight.is_overtaken = true);
        self.judge_again();
    }

    /// When to call next. None: there is nothing to tell, or a call is under way.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let since =
            self.since.filter(|_| self.is_open && self.flight.is_empty() && !self.pending.is_empty())?;
        let at = if self.urgent.is_empty() {
            self.last.map_or(since, |last| last.max(since)) + CALM
        } else {
            self.last.map_or(now, |last| last + TICK)
        };
        Some(self.held_until.map_or(at, |held| held.max(at)))
    }

    /// Begins a call with these reports, the urgent ones first. To be ended by [`done`](Self::done) or [`failed`](Self::failed). Where there
    /// are none (what was due is no news any more) no call begins: servers refuse an empty one.
    pub fn begin(&mut self, now: Instant) -> Vec<AllocReport> {
        let calm = self.pending.keys().filter(|id| !self.urgent.contains(*id));
        let ids: Vec<_> = self.urgent.iter().chain(calm).take(BATCH).cloned().collect();
        let mut reports = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(Pending { report, digest }) = self.pending.remove(&id) else { continue };
            self.urgent.remove(&id);
            let told =
                Told { status: report.client_status.clone(), healthy: health(&report), digest: Some(digest) };
            self.flight.insert(id, Flight { told, is_overtaken: false });
            reports.push(report);
        }
        self.give_back();
        if reports.is_empty() {
            return reports;
        }
        self.last = Some(now);
        self.held_until = None;
        self.since = (!self.pending.is_empty()).then_some(now);
        reports
    }

    /// The call has succeeded, with this index of the servers; 0 where it isn't known.
    pub fn done(&mut self, index: u64) {
        self.acknowledged = index;
        let flight = std::mem::take(&mut self.flight);
        for (id, flight) in flight.into_iter().filter(|(_, flight)| !flight.is_overtaken) {
            if let Some(told) = self.told.get_mut(&id) {
                *told = flight.told;
            }
        }
    }

    /// The call with these reports has failed: they are pending again, unless there are newer ones. Whether servers have taken them is not
    /// known.
    pub fn failed(&mut self, reports: Vec<AllocReport>, now: Instant, chance: &mut Chance) {
        let flight = std::mem::take(&mut self.flight);
        for report in reports {
            let id = report.id.clone();
            let digest = flight.get(&id).and_then(|flight| flight.told.digest);
            let (Some(told), Some(digest)) = (self.told.get_mut(&id), digest) else { continue };
            told.digest = None;
            self.pending.entry(id).or_insert(Pending { report, digest });
        }
        self.judge_again();
        self.since.get_or_insert(now);
        self.held_until = Some(now + jitter(FAILED, chance));
    }

    /// Servers have heard of the node again: a failure need not be waited out.
    pub fn release(&mut self) {
        self.held_until = None;
    }

    /// Whether a failure is waited out.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }

    fn mark(&mut self, id: &AllocId, is_urgent: bool) {
        if is_urgent {
            self.urgent.insert(id.clone());
        } else {
            self.urgent.remove(id);
        }
    }

    fn drop_pending(&mut self, id: &AllocId) {
        self.urgent.remove(id);
        self.pending.remove(id);
        if self.pending.is_empty() {
            self.since = None;
        }
        self.give_back();
    }

    /// A map keeps room for what it has held, also when it is empty: that is most of the time.
    fn give_back(&mut self) {
        if self.pending.is_empty() {
            (self.pending, self.urgent) = (BTreeMap::new(), BTreeSet::new());
        }
    }

    /// What servers know of it, once what is under way has come to them.
    fn known(&self, id: &AllocId) -> Option<&Told> {
        let flight = self.flight.get(id).filter(|flight| !flight.is_overtaken);
        flight.map(|flight| &flight.told).or_else(|| self.told.get(id))
    }

    /// What servers know has changed: so may what is urgent.
    fn judge_again(&mut self) {
        let urgent = self.pending.iter().filter(|(id, pending)| is_urgent(self.known(id), &pending.report));
        self.urgent = urgent.map(|(id, _)| id.clone()).collect();
    }
}

/// Whether a report has to be told soon. Where servers may know its status already, only a failure has to be.
fn is_urgent(known: Option<&Told>, report: &AllocReport) -> bool {
    match known {
        None | Some(Told { status: ClientStatus::Unsaid, .. }) => {
            report.client_status == ClientStatus::Failed
        }
        Some(Told { status, healthy, .. }) => {
            *status != report.client_status || health(report).is_some_and(|news| *healthy != Some(news))
        }
    }
}

/// A deployment goes on, or back, with it.
fn health(report: &AllocReport) -> Option<bool> {
    report.deployment_status.as_ref()?.healthy
}

fn digest(report: &AllocReport) -> Option<Digest> {
    let bytes = codec::encode(report)
        .inspect_err(|error| tracing::error!(alloc = %report.id, %error, "a report can't be sent"))
        .ok()?;
    let half = |salt| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(&bytes);
        hasher.finish()
    };
    Some([half(0), half(1)])
}

#[cfg(test)]
mod tests;
