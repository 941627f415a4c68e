//! Stops allocations that have run too long without servers: `disconnect.stop_on_client_after`, up to 1.9 also
//! `stop_after_client_disconnect`.
//!
//! In: the time of the servers' last answer, and the read model. Out: an event for the planner for each allocation over its limit. The time
//! counts across restarts of the agent and the machine, from the last answer to any agent, which is stored in a file while there are such
//! allocations. Without the file it counts from the agent's start.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use herdlet_agent::{planner::Input, publish::ReadModel};
use herdlet_api_types::{AllocId, alloc::Desired};
use herdlet_base::durable;
use herdlet_nomad::session::Contact;
use herdlet_plan::event::{DesiredChange, Event};
use herdlet_runtime::{Inbox, off_thread};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// The file, in the node's directory: nanoseconds since 1970.
const FILE: &str = "last-contact";

/// Upper bound for limits, so that deadlines do not overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Follows the contact and the allocations until the agent ends. `dir` is the node's directory.
pub async fn follow(
    mut contact: watch::Receiver<Contact>,
    model: Arc<ReadModel>,
    inbox: Inbox<Input>,
    dir: PathBuf,
) {
    let mut memory = Memory::read(&dir, SystemTime::now(), Instant::now());
    let mut handled = BTreeSet::new();
    loop {
        let version = model.version();
        {
            let contact = contact.borrow_and_update();
            if let Some(heard) = contact.last {
                memory.on_contact(heard.at, heard.wall, contact.silence_max());
            }
        }
        handled.retain(|id| model.alloc(id).is_some());
        let limits = limits(&model, &handled);
        if !limits.is_empty() {
            memory.keep().await;
        }
        let now = Instant::now();
        let due = |limit| memory.due(limit);
        for (id, limit) in limits.iter().filter(|(_, limit)| due(*limit) <= now) {
            tracing::warn!(alloc = %id, ?limit, "stopping an allocation: no server was reachable for stop_on_client_after");
            handled.insert(*id);
            let event = Event::Desired(DesiredChange::AllocOutOfContact(*id));
            if inbox.send(Input::Event(event)).await.is_err() {
                return;
            }
        }
        let next = limits.iter().map(|(_, limit)| due(*limit)).filter(|due| *due > now).min();
        tokio::select! {
            changed = contact.changed() => if changed.is_err() { return },
            () = model.changed(version) => {}
            () = sleep_until(next.unwrap_or(now + LONGEST)) => {}
        }
    }
}

/// Running allocations with a limit, except those already reported.
fn limits(model: &ReadModel, handled: &BTreeSet<AllocId>) -> Vec<(AllocId, Duration)> {
    let limit = |view: &herdlet_api_types::view::AllocView| {
        let limit = view.spec.server.as_ref()?.stop_on_client_after.filter(|limit| limit.0 > 0)?;
        let runs = view.spec.desired == Desired::Run && !view.status.is_terminal();
        (runs && !handled.contains(&view.spec.id))
            .then(|| (view.spec.id, Duration::from_nanos(limit.0.unsigned_abs())))
    };
    model.allocs().iter().filter_map(|view| limit(view)).collect()
}

/// The time of the servers' last answer.
struct Memory {
    path: PathBuf,
    /// On this process's clock: that time, or the process's start, which was `gone_before` later.
    since: Instant,
    gone_before: Duration,
    /// How long servers may be silent under normal conditions.
    silence: Duration,
    wall: SystemTime,
    is_kept: bool,
}

impl Memory {
    fn read(dir: &Path, wall: SystemTime, now: Instant) -> Self {
        let path = dir.join(FILE);
        let known = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        let known = known.map(|nanos| UNIX_EPOCH + Duration::from_nanos(nanos));
        // If the clock was set back, the stored time is unusable.
        let gone_before = known.and_then(|known| wall.duration_since(known).ok()).unwrap_or_default();
        Self {
            path,
            since: now,
            gone_before,
            silence: Duration::ZERO,
            wall: known.unwrap_or(wall),
            is_kept: known.is_some(),
        }
    }

    fn on_contact(&mut self, at: Instant, wall: SystemTime, silence: Duration) {
        self.silence = silence;
        if at > self.since {
            (self.since, self.wall, self.is_kept) = (at, wall, false);
            self.gone_before = Duration::ZERO;
        }
    }

    fn due(&self, limit: Duration) -> Instant {
        self.since + limit.min(LONGEST).saturating_sub(self.gone_before).max(self.silence)
    }

    async fn keep(&mut self) {
        if self.is_kept {
            return;
        }
        let nanos = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = self.path.clone();
        let kept = off_thread(move || durable::write(&path, nanos.to_string().as_bytes())).await;
        match kept.map_err(io::Error::other).flatten() {
            Ok(()) => self.is_kept = true,
            Err(error) => tracing::warn!(%error, "failed to store the time of the servers' last answer"),
        }
    }
}

#[cfg(test)]
mod tests;
