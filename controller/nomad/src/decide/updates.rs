//! Reports to servers: the newest of each allocation, in as few calls as possible.
//!
//! In: reports, at any time, and the results of calls. Out: when to call next, and with which reports.
//!
//! ```text
//!   report ──► same as servers have: dropped
//!          └─► pending, replaces an older one ──► due ──► in flight ──► done: remembered
//!                                                                   └──► failed: pending again, unless there is a newer one
//! ```
//!
//! - A report is urgent if it changes the status that servers know, or the health that a deployment waits for. It is sent at once, but at
//!   most one call begins per [`TICK`].
//! - Other reports (events, network) are sent along with urgent ones, or by themselves at most every fifth tick.
//! - Nothing is sent before the first list of allocations, and only one call is in flight at a time.
//!
//! Only a digest of each sent report is kept: a node has many allocations, and a machine may have many nodes. The next agent may receive
//! the acknowledged reports ([`Acknowledged`]).

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

/// How long a report that is not urgent waits for others.
pub const CALM: Duration = Duration::from_secs(1);

/// Wait after a failed call, plus up to the same at random.
const FAILED: Duration = Duration::from_secs(5);

/// Maximum number of reports per call.
pub const BATCH: usize = 1_000;

/// What servers know of allocations, and the reports to send.
#[derive(Debug, Default)]
pub struct Updates {
    is_open: bool,
    acked: BTreeMap<AllocId, AckedReport>,
    pending: BTreeMap<AllocId, Pending>,
    /// The urgent ones among `pending`.
    urgent: BTreeSet<AllocId>,
    flight: BTreeMap<AllocId, Flight>,
    /// The servers' index of the last successful call; 0 if unknown.
    acknowledged: u64,
    /// When `pending` became non-empty.
    since: Option<Instant>,
    last: Option<Instant>,
    held_until: Option<Instant>,
}

/// What servers know of an allocation.
#[derive(Debug, Default)]
struct AckedReport {
    status: ClientStatus,
    /// `None` if this agent has not reported it.
    healthy: Option<bool>,
    /// The digest of the whole report; `None` if it is unknown what servers have.
    digest: Option<Digest>,
}

#[derive(Debug)]
struct Pending {
    report: AllocReport,
    digest: Digest,
}

#[derive(Debug)]
struct Flight {
    /// What servers know once the call succeeds.
    report: AckedReport,
    /// Servers have changed the allocation in the meantime, perhaps after receiving the report.
    is_overtaken: bool,
}

/// Whether the status is final.
fn has_ended(status: &ClientStatus) -> bool {
    matches!(status, ClientStatus::Complete | ClientStatus::Failed)
}

impl Updates {
    /// Starts with what servers had acknowledged to the previous session.
    #[must_use]
    pub fn remembering(before: Acknowledged) -> Self {
        let acked = before.reports.into_iter();
        let acked = acked
            .map(|(id, (status, digest))| (id, AckedReport { status, healthy: None, digest: Some(digest) }))
            .collect();
        Self { acked, acknowledged: before.index, ..Self::default() }
    }

    /// What servers have acknowledged, for the next session.
    #[must_use]
    pub fn acknowledged(&self, node: &NodeId) -> Acknowledged {
        let known = |(id, report): (&AllocId, &AckedReport)| {
            Some((id.clone(), (report.status.clone(), report.digest?)))
        };
        let reports = self.acked.iter().filter_map(known).collect();
        Acknowledged { node: node.clone(), index: self.acknowledged, reports }
    }

    /// The index of the previous session's acknowledged reports, until the first list; `None` if there are none.
    #[must_use]
    pub fn remembered(&self) -> Option<u64> {
        (!self.is_open && !self.acked.is_empty()).then_some(self.acknowledged)
    }

    /// Drops the previous session's reports: servers may not know them.
    pub fn forget(&mut self) {
        (self.acked, self.acknowledged) = (BTreeMap::new(), 0);
    }

    /// Adds a report. Returns whether [`due`](Self::due) may have changed.
    pub fn report(&mut self, report: AllocReport, now: Instant) -> bool {
        if self.is_open && !self.acked.contains_key(&report.id) {
            tracing::debug!(alloc = %report.id, "dropping a report on an allocation that servers do not have");
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
            tracing::error!(alloc = %id, "an ended allocation is reported as {:?}; ignoring the report", report.client_status);
            return false;
        }
        let is_urgent = is_urgent(known, &report);
        self.since.get_or_insert(now);
        if is_urgent {
            self.urgent.insert(id.clone());
        } else {
            self.urgent.remove(&id);
        }
        self.pending.insert(id, Pending { report, digest });
        true
    }

    /// Processes a list: `ids` are the node's allocations, and `fetched` those that are new or changed. Others are forgotten.
    pub fn listed<'a>(&mut self, ids: impl Iterator<Item = &'a AllocId>, fetched: &[Allocation]) {
        let mut before = std::mem::take(&mut self.acked);
        self.acked = ids.map(|id| (id.clone(), before.remove(id).unwrap_or_default())).collect();
        for alloc in fetched {
            let Some(acked) = self.acked.get_mut(&alloc.id) else { continue };
            match alloc.client_status {
                // Servers have changed the status that we reported.
                ClientStatus::Unknown | ClientStatus::Lost => {
                    *acked = AckedReport { status: alloc.client_status.clone(), ..AckedReport::default() };
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
                    if acked.digest.is_none() {
                        acked.status = alloc.client_status.clone();
                        acked.healthy = alloc.deployment_status.as_ref().and_then(|status| status.healthy);
                    }
                }
            }
        }
        let gone: Vec<_> = self.pending.keys().filter(|id| !self.acked.contains_key(*id)).cloned().collect();
        gone.iter().for_each(|id| self.drop_pending(id));
        self.judge_again();
    }

    /// Whether servers know that the allocation has ended.
    #[must_use]
    pub fn has_ended(&self, id: &AllocId) -> bool {
        self.acked.get(id).is_some_and(|acked| acked.status.is_terminal())
    }

    /// Whether servers have received all reports.
    #[must_use]
    pub fn is_all_acknowledged(&self) -> bool {
        self.pending.is_empty() && self.flight.is_empty()
    }

    /// Whether servers have received some report on every allocation that has not ended.
    #[must_use]
    pub fn is_all_live_acknowledged(&self) -> bool {
        self.acked.values().all(|acked| acked.status.is_terminal() || acked.digest.is_some())
    }

    /// Whether all allocations have ended, as far as servers know.
    #[must_use]
    pub fn all_has_ended(&self) -> bool {
        self.acked.values().all(|acked| acked.status.is_terminal())
    }

    /// Allows calls, once the first list was delivered.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// The servers may have marked the node as down: report every allocation that has not ended once more.
    pub fn missed(&mut self) {
        for acked in self.acked.values_mut().filter(|acked| !acked.status.is_terminal()) {
            *acked = AckedReport { status: ClientStatus::Unknown, ..AckedReport::default() };
        }
        self.flight.values_mut().for_each(|flight| flight.is_overtaken = true);
        self.judge_again();
    }

    /// Servers were restored from an older state and have lost reports: report everything again.
    pub fn restart_from_snapshot(&mut self) {
        self.acked.values_mut().for_each(|acked| *acked = AckedReport::default());
        self.flight.values_mut().for_each(|flight| flight.is_overtaken = true);
        self.judge_again();
    }

    /// When to call next; `None` if there is nothing to report or a call is in flight.
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

    /// Starts a call with the returned reports, urgent ones first; [`done`](Self::done) or [`failed`](Self::failed) must follow. If there
    /// are none (the pending report became obsolete), no call starts: servers refuse an empty one.
    pub fn begin(&mut self, now: Instant) -> Vec<AllocReport> {
        let calm = self.pending.keys().filter(|id| !self.urgent.contains(*id));
        let ids: Vec<_> = self.urgent.iter().chain(calm).take(BATCH).cloned().collect();
        let mut reports = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(Pending { report, digest }) = self.pending.remove(&id) else { continue };
            self.urgent.remove(&id);
            let update = AckedReport {
                status: report.client_status.clone(),
                healthy: health(&report),
                digest: Some(digest),
            };
            self.flight.insert(id, Flight { report: update, is_overtaken: false });
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

    /// The call has succeeded, with this index of the servers; 0 if unknown.
    pub fn done(&mut self, index: u64) {
        self.acknowledged = index;
        let flight = std::mem::take(&mut self.flight);
        for (id, flight) in flight.into_iter().filter(|(_, flight)| !flight.is_overtaken) {
            if let Some(acked) = self.acked.get_mut(&id) {
                *acked = flight.report;
            }
        }
    }

    /// The call with these reports has failed: they are pending again, unless there are newer ones. The servers may have received them.
    pub fn failed(&mut self, reports: Vec<AllocReport>, now: Instant, chance: &mut Chance) {
        let flight = std::mem::take(&mut self.flight);
        for report in reports {
            let id = report.id.clone();
            let digest = flight.get(&id).and_then(|flight| flight.report.digest);
            let (Some(acked), Some(digest)) = (self.acked.get_mut(&id), digest) else { continue };
            acked.digest = None;
            self.pending.entry(id).or_insert(Pending { report, digest });
        }
        self.judge_again();
        self.since.get_or_insert(now);
        self.held_until = Some(now + jitter(FAILED, chance));
    }

    /// Servers have heard from the node again: stop waiting after a failure.
    pub fn release(&mut self) {
        self.held_until = None;
    }

    /// Whether a wait after a failure is in progress.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }

    fn drop_pending(&mut self, id: &AllocId) {
        self.urgent.remove(id);
        self.pending.remove(id);
        if self.pending.is_empty() {
            self.since = None;
        }
        self.give_back();
    }

    /// An empty map keeps its allocation, and these maps are empty most of the time.
    fn give_back(&mut self) {
        if self.pending.is_empty() {
            (self.pending, self.urgent) = (BTreeMap::new(), BTreeSet::new());
        }
    }

    /// What servers know of the allocation, assuming that the call in flight succeeds.
    fn known(&self, id: &AllocId) -> Option<&AckedReport> {
        let flight = self.flight.get(id).filter(|flight| !flight.is_overtaken);
        flight.map(|flight| &flight.report).or_else(|| self.acked.get(id))
    }

    /// Recomputes which reports are urgent, after the servers' state has changed.
    fn judge_again(&mut self) {
        let urgent = self.pending.iter().filter(|(id, pending)| is_urgent(self.known(id), &pending.report));
        self.urgent = urgent.map(|(id, _)| id.clone()).collect();
    }
}

/// Whether a report is urgent. If servers may already know the status, only a failure is.
fn is_urgent(known: Option<&AckedReport>, report: &AllocReport) -> bool {
    match known {
        None | Some(AckedReport { status: ClientStatus::Unsaid, .. }) => {
            report.client_status == ClientStatus::Failed
        }
        Some(AckedReport { status, healthy, .. }) => {
            *status != report.client_status || health(report).is_some_and(|news| *healthy != Some(news))
        }
    }
}

/// The reported health, which a deployment waits for.
fn health(report: &AllocReport) -> Option<bool> {
    report.deployment_status.as_ref()?.healthy
}

fn digest(report: &AllocReport) -> Option<Digest> {
    let bytes = codec::encode(report)
        .inspect_err(
            |error| tracing::error!(alloc = %report.id, %error, "a report cannot be encoded; it is not sent"),
        )
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
