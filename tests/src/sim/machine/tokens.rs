//! Tokens on the simulated machine: identities, and tokens of Vault and Consul with what processes know of them.
//!
//! In: operations on the parts, starts and signals, outages. Out: facts. A token is renewed, or verified, at the half of its
//! lease; each third time there is another token instead. While Vault and Consul are down, no token is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, Duration,
    alloc::Allocation,
    job::{ChangeMode, Task},
};
use herdlet_plan::{
    action::{FailureClass, Outcome},
    facts::{Facts, Revision},
    op::{Part, TaskPart},
    time::{Deadline, Now},
};

use super::{Machine, Thing, spec_of};

/// Half of a lease: long enough for a task that restarts to settle in between.
const HALF: Duration = Duration::from_secs(3_600);
/// The next try while Vault or Consul is down.
const RETRY: Duration = Duration::from_secs(20);
/// Renewals until there is another token.
const RENEWALS: u64 = 3;

/// A task of an allocation.
type Key = (AllocId, u16);

#[derive(Debug, Clone, Copy)]
struct TaskToken {
    token: u64,
    renewals: u64,
    renew_at: Deadline,
}

/// The tokens of Vault, or of Consul, of all tasks.
#[derive(Debug, Default)]
pub struct LoginTokens {
    held: BTreeMap<Key, TaskToken>,
    /// The token that the newest process of a task knows.
    known: BTreeMap<Key, u64>,
    issued: u64,
}

impl LoginTokens {
    /// Gets a token, or renews it if that is due.
    pub(super) fn ensure(&mut self, now: Now, key: Key, is_down: bool) -> Outcome {
        let held = self.held.get(&key).copied();
        if let Some(held) = held.filter(|held| now.boot_ns < held.renew_at.due_ns(now)) {
            return Outcome::Done(Some(facts(held)));
        }
        match held {
            Some(_) if is_down => {
                let on = "the server, which has not renewed it".to_owned();
                Outcome::Outdated { on, ask_in: RETRY, since_ns: now.boot_ns }
            }
            None if is_down => {
                let why = "log in: the server is down".to_owned();
                Outcome::Failed { class: FailureClass::Retry, why }
            }
            Some(TaskToken { token, renewals, .. }) if renewals + 1 < RENEWALS => {
                Outcome::Done(Some(self.hold(now, key, (token, renewals + 1))))
            }
            Some(_) | None => {
                self.issued += 1;
                Outcome::Done(Some(self.hold(now, key, (self.issued, 0))))
            }
        }
    }

    fn hold(&mut self, now: Now, key: Key, (token, renewals): (u64, u64)) -> Arc<Facts> {
        let held = TaskToken { token, renewals, renew_at: Deadline::after(now, HALF) };
        self.held.insert(key, held);
        facts(held)
    }

    pub(super) fn inspect(&self, alloc: AllocId, part: Part) -> Option<Arc<Facts>> {
        self.held.get(&(alloc, part.task()?)).copied().map(facts)
    }

    /// The token is revoked, or its file has vanished.
    fn forget(&mut self, key: Key) {
        self.held.remove(&key);
    }

    /// Tokens are in memory.
    pub(super) fn reboot(&mut self) {
        self.held.clear();
    }

    /// A process starts or gets a signal, and reads its token.
    pub(super) fn read(&mut self, key: Key) {
        if let Some(held) = self.held.get(&key) {
            self.known.insert(key, held.token);
        }
    }

    /// Whether a process knows the newest token, as every process must in the end that is notified.
    pub fn is_known(&self, key: Key, task: &Task) -> bool {
        let is_notified = task.vault.as_ref().is_some_and(|access| access.change_mode != ChangeMode::Noop);
        let newest = self.held.get(&key).map(|held| held.token);
        !is_notified || newest.is_none() || self.known.get(&key).copied() == newest
    }
}

impl Machine {
    /// Files with tokens have vanished.
    pub(super) fn lose_tokens(&mut self, lost: &BTreeSet<Thing>) {
        for thing in lost {
            if let Thing::Part(alloc, part) = thing {
                self.forget_token(*alloc, *part);
            }
        }
    }

    /// The facts of a token of Vault or Consul.
    pub(super) fn inspect_token(&self, alloc: AllocId, part: Part) -> Option<Arc<Facts>> {
        let is_consul = matches!(part, Part::Task(_, TaskPart::Consul));
        if is_consul { self.consul.inspect(alloc, part) } else { self.vault.inspect(alloc, part) }
    }

    /// A token is revoked, or its file has vanished.
    pub(super) fn forget_token(&mut self, alloc: AllocId, part: Part) {
        match part {
            Part::Task(index, TaskPart::Vault) => self.vault.forget((alloc, index)),
            Part::Task(index, TaskPart::Consul) => self.consul.forget((alloc, index)),
            Part::Dir | Part::Network | Part::Services | Part::Checks | Part::Task(..) => {}
        }
    }

    /// Gets a token of Vault or Consul, which are down when the catalogue is.
    pub(super) fn get_token(&mut self, now: Now, alloc: AllocId, part: Part) -> Outcome {
        let key = (alloc, part.task().unwrap_or_default());
        let is_down = now.boot_ns < self.catalogue_down_until;
        let is_consul = matches!(part, Part::Task(_, TaskPart::Consul));
        let tokens = if is_consul { &mut self.consul } else { &mut self.vault };
        let outcome = tokens.ensure(now, key, is_down);
        if matches!(outcome, Outcome::Done(_)) {
            let thing = Thing::Part(alloc, part);
            self.vanished.remove(&thing);
            self.things.insert(thing);
        }
        outcome
    }
}

/// Whether this is a token of Vault or Consul. It is in memory.
pub(super) fn is_of_login(thing: &Thing) -> bool {
    matches!(thing, Thing::Part(_, Part::Task(_, TaskPart::Vault | TaskPart::Consul)))
}

fn facts(held: TaskToken) -> Arc<Facts> {
    Arc::new(Facts { revision: Revision(held.token), renew_at: Some(held.renew_at), ..Facts::none() })
}

/// Whether a task is notified of new tokens, by a signal or a restart.
pub(super) fn is_told(alloc: &Allocation, index: u16) -> bool {
    let identities = spec_of(alloc, index).map(|(_, task)| task.identities.as_slice()).unwrap_or_default();
    identities.iter().any(|identity| identity.change_mode != ChangeMode::Noop)
}

/// When the tokens of a task are renewed after they were issued.
pub(super) fn renew_in(alloc: &Allocation, index: u16) -> Option<Duration> {
    let (_, task) = spec_of(alloc, index).ok()?;
    let ttl = task.identities.iter().filter_map(|identity| identity.ttl).min()?;
    Some(Duration(ttl.as_nanos() / 2))
}
