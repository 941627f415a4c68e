//! What drivers report, for the planner; and the tables that follow which drivers there are.
//!
//! In: the registry, ends and events of attempts. Out: events for the loop; the node's attributes; the rules that manifests obey.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all};
use herdlet_api_types::{driver::built_in, task::TaskStatus};
use herdlet_base::paths::Paths;
use herdlet_config::Config;
use herdlet_driver::{
    AttemptId, Availability, DriverNews, Entries, Entry, Exited, Health, Recorded, Registry, TaskEvent,
};
use herdlet_manifest::manifests::Drivers;
use herdlet_plan::{
    env::NodeFacts,
    event::{Event, Noticed},
    op::{Part, TaskPart},
    time::Now,
    turn::{Drifted, Note, Turn},
    world::World,
};
use herdlet_runtime::Inbox;
use tokio::sync::{mpsc, watch};

use super::{
    consul::Attributes,
    orphans::{Extent, Found, Leaks, Memory},
};
use crate::{
    current_node::CurrentNode,
    executor::services::task_index,
    planner::{Input, NoteSink},
    publish::ReadModel,
};

/// How long a driver may take to say whether it works. Nomad's bound for all of them is 50 s; ours look at this process only.
const FINGERPRINT_MAX: Duration = Duration::from_secs(5);

/// The node, with the attributes that its drivers give it. A driver that does not answer in time doesn't hold up the agent: what it says
/// later is followed.
pub(super) async fn described(mut node: NodeFacts, drivers: &Registry) -> NodeFacts {
    let entries = drivers.entries();
    join_all(entries.iter().map(|(name, entry)| first_fingerprint(drivers, name, entry))).await;
    node.attributes.extend(drivers.entries().attributes());
    node
}

async fn first_fingerprint(drivers: &Registry, name: &str, Entry { driver, .. }: &Entry) {
    let first = async { driver.fingerprint().next().await };
    let Ok(Some(fingerprint)) = tokio::time::timeout(FINGERPRINT_MAX, first).await else {
        tracing::warn!(
            driver = name,
            "the driver has not reported its state; it stays unusable until it does"
        );
        return;
    };
    let why = fingerprint.description.as_str();
    match fingerprint.health {
        Health::Healthy => {}
        Health::Undetected => tracing::info!(driver = name, why, "the driver is not offered"),
        Health::Unhealthy => tracing::warn!(driver = name, why, "the driver does not work here"),
    }
    drivers.set_fingerprint(driver, fingerprint);
}

/// The node without the attributes of its drivers, of Consul and of Vault, and its current facts.
pub(super) struct Described {
    pub(super) bare: NodeFacts,
    pub(super) current: CurrentNode,
    /// What each Consul adds to it.
    pub(super) consul: watch::Receiver<BTreeMap<String, Attributes>>,
    /// What Vault adds to it.
    pub(super) vault: watch::Receiver<Attributes>,
}

/// What the planner knows of drivers and of Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reported {
    /// Those that tasks have to wait for, and why.
    away: BTreeMap<String, String>,
    /// Those that the config disables.
    disabled: BTreeSet<String>,
    /// What they and Consul add to the node.
    attributes: Attributes,
}

impl Reported {
    pub(super) fn of(drivers: &Registry) -> Self {
        Self::at(&drivers.entries(), [Attributes::new(), Attributes::new()])
    }

    fn at(entries: &Entries, others: [Attributes; 2]) -> Self {
        let mut attributes = entries.attributes();
        attributes.extend(others.into_iter().flatten());
        Self { away: entries.away(), disabled: entries.disabled(), attributes }
    }

    /// The node with its drivers; `bare` is without them.
    fn node(&self, bare: &NodeFacts) -> NodeFacts {
        let mut facts = bare.clone();
        facts.attributes.extend(self.attributes.clone());
        facts
    }

    /// The node as the planner is to know it.
    fn event(&self, bare: &NodeFacts) -> Event {
        let facts = Box::new(self.node(bare));
        Event::Node { facts, away: self.away.clone(), disabled: self.disabled.clone() }
    }

    /// Before the first plan, so that nothing is started by a driver that is away.
    pub(super) fn apply(&self, now: Now, bare: &NodeFacts, world: &mut World) {
        world.apply(now, self.event(bare), &mut BTreeSet::new(), &mut Turn::default());
    }

    /// Reports what has changed of drivers and of Consul to the planner and to the environments of tasks, until the agent ends.
    pub(super) async fn follow_changes(self, drivers: Registry, mut node: Described, inbox: Inbox<Input>) {
        let mut entries = drivers.watch();
        let mut reported = self;
        loop {
            let of_consuls = node.consul.borrow_and_update().clone().into_values().flatten().collect();
            let others = [of_consuls, node.vault.borrow_and_update().clone()];
            let now = Self::at(&entries.borrow_and_update(), others);
            if now != reported {
                report(&reported.away, &now.away);
                node.current.set(now.node(&node.bare));
                if inbox.send(Input::Event(now.event(&node.bare))).await.is_err() {
                    return;
                }
                reported = now;
            }
            let goes_on = tokio::select! {
                changed = entries.changed() => changed.is_ok(),
                Ok(()) = node.consul.changed() => true,
                Ok(()) = node.vault.changed() => true,
            };
            if !goes_on {
                return;
            }
        }
    }
}

fn report(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) {
    for (driver, why) in now.iter().filter(|(driver, why)| before.get(*driver) != Some(why)) {
        tracing::warn!(
            driver,
            why,
            "tasks of this driver are not started until it is back; running ones are left alone"
        );
    }
    for driver in before.keys().filter(|driver| !now.contains_key(*driver)) {
        tracing::info!(driver, "the driver is back");
    }
}

/// The recorded attempts of a driver: those that the agent has found in its database, and those that it shows.
pub(super) fn recorded(earlier: Earlier, model: &Arc<ReadModel>) -> Recorded {
    let model = Arc::clone(model);
    Arc::new(move |driver| {
        let mut all = earlier.get(driver).cloned().unwrap_or_default();
        for view in model.allocs() {
            let started = view.tasks.iter().filter(|task| task.attempt > 0 && task.state != TaskStatus::Dead);
            let of_driver =
                started.filter(|task| view.spec.task(&task.name).is_some_and(|spec| spec.driver == driver));
            all.extend(of_driver.map(|task| AttemptId {
                alloc: view.spec.id,
                task: task.name.to_string(),
                attempt: task.attempt,
            }));
        }
        all
    })
}

/// The attempts that an earlier agent may have started, by driver.
pub(super) type Earlier = BTreeMap<String, BTreeSet<AttemptId>>;

/// Hands its recorded attempts to each driver. Returns the attempts that each finds on the machine; a driver that can't list
/// them is tried again later. So is one that has not reported its health: its list would delay the agent a second time.
pub(super) async fn attach_all(drivers: &Registry, earlier: &Earlier) -> Vec<Found> {
    let mut all = Vec::new();
    for (name, entry) in drivers.entries().iter() {
        if !entry.has_reported() {
            all.push(Found { driver: Arc::clone(&entry.driver), attempts: None });
            continue;
        }
        let recorded = earlier.get(name).cloned().unwrap_or_default();
        let listed = drivers.attach(&entry.driver, &recorded).await;
        let attempts = listed.inspect_err(|error| {
            tracing::warn!(driver = name, error = error.why(), "failed to list the tasks of the driver");
        });
        all.push(Found { driver: Arc::clone(&entry.driver), attempts: attempts.ok() });
    }
    all
}

/// Passes the reports of drivers on to the planner.
pub(super) struct Reports {
    pub(super) drivers: Registry,
    pub(super) model: Arc<ReadModel>,
    pub(super) inbox: Inbox<Input>,
    pub(super) notes: NoteSink,
    pub(super) paths: Paths,
    pub(super) extent: Extent,
}

impl Reports {
    /// Converts exits and drift of attempts to events, and counts repairs.
    pub(super) async fn pass_on(self, mut news: mpsc::Receiver<DriverNews>) {
        while let Some(news) = news.recv().await {
            let events = match news {
                DriverNews::Attached { driver, found } => self.attached(&driver, found).await,
                DriverNews::Exited(Exited { id, result }) => {
                    vec![Event::Exited { alloc: id.alloc, task: id.task, attempt: id.attempt, result }]
                }
                DriverNews::Event(event) => self.event(event).into_iter().collect(),
            };
            for event in events {
                if self.inbox.send(Input::Event(event)).await.is_err() {
                    return;
                }
            }
        }
    }

    fn event(&self, event: TaskEvent) -> Option<Event> {
        match event {
            TaskEvent::Repaired { id, kind, what } => {
                tracing::info!(attempt = %id, what, "repaired without touching the task");
                let view = self.model.alloc(&id.alloc)?;
                let (job, name) = (view.spec.job_key.clone(), view.spec.name());
                let drifted = Drifted { alloc: id.alloc, job, name, task: Some(id.task), kind };
                (self.notes)(&Note::DriftDetected { of: drifted.clone(), by: Noticed::Event, why: what });
                (self.notes)(&Note::DriftRepaired { of: drifted, took_ns: None });
                None
            }
            TaskEvent::Drift { id } => {
                let index = task_index(&self.model, id.alloc, &id.task)?;
                let part = Part::Task(index, TaskPart::Process);
                Some(Event::Drift { alloc: id.alloc, part, by: Noticed::Event })
            }
            TaskEvent::Progress { id, what } => {
                Some(Event::Progress { alloc: id.alloc, task: id.task, what })
            }
            TaskEvent::Message { id, message } => {
                Some(Event::Driver { alloc: id.alloc, task: id.task, message })
            }
        }
    }

    /// A driver came while the agent runs: its attempts are treated like those found at the agent's start.
    async fn attached(&self, name: &str, found: Vec<AttemptId>) -> Vec<Event> {
        let Some(driver) = self.drivers.get(name) else { return Vec::new() };
        tracing::info!(driver = name, attempts = found.len(), "the driver was attached");
        let known = self.model.allocs().iter().map(|view| view.spec.id).collect();
        let memory = Memory { known, extent: self.extent, ..Memory::default() };
        let found = Found { driver, attempts: Some(found) };
        Leaks::new(&self.paths, &memory).sort(found).await
    }
}

/// Which drivers a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Those that are offered.
    Offered,
    /// All of them: what servers have placed is read also where its driver was turned off.
    All,
}

/// The rules for manifests, now and whenever they change: the current drivers, and the settings of the config. Templates may not use the denied functions.
pub fn rules(drivers: &Registry, named: Named, config: &Config) -> watch::Receiver<Drivers> {
    let mut entries = drivers.watch();
    let now = Arc::clone(&entries.borrow_and_update());
    let denied: Arc<[String]> = config.template.function_denylist.clone().into();
    let consuls: Vec<String> = config.consul.by_name().into_keys().collect();
    let rules_of = move |entries: &Entries| {
        let rules = rules_of(entries, named).denying(&denied);
        match named {
            Named::Offered => rules.with_consuls(&consuls),
            // A task whose Consul was removed from the config runs on.
            Named::All => rules,
        }
    };
    let (sender, rules) = watch::channel(rules_of(&now));
    tokio::spawn(async move {
        let changed = async {
            while entries.changed().await.is_ok() {
                let now = Arc::clone(&entries.borrow_and_update());
                let rules = rules_of(&now);
                sender.send_if_modified(|known| {
                    let is_news = *known != rules;
                    if is_news {
                        *known = rules;
                    }
                    is_news
                });
            }
        };
        tokio::select! {
            () = changed => {}
            () = sender.closed() => {}
        }
    });
    rules
}

fn rules_of(entries: &Entries, named: Named) -> Drivers {
    let is_named = |entry: &Entry| match named {
        Named::Offered => entry.availability == Availability::Enabled,
        Named::All => true,
    };
    let offered =
        entries.iter().map(|(_, entry)| entry).filter(|entry| is_named(entry)).map(|entry| &*entry.info);
    match named {
        Named::Offered => offered.collect(),
        // One that was never offered here is not opened either.
        Named::All => built_in().iter().chain(offered).collect(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use herdlet_driver::{Fingerprint, TaskDriver, fixture::StandIn};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// An agent waited for the health of a driver whose daemon hangs, and then for its list.
    #[tokio::test(start_paused = true)]
    async fn a_silent_driver_delays_the_agent_for_the_wait_for_its_health_only() {
        let slow = || sleep(FINGERPRINT_MAX * 10).map(Ok).boxed();
        let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::default().with_lists_after(slow));
        let drivers = Registry::new();
        drivers.insert(Arc::clone(&driver), Availability::Enabled);
        let began = Instant::now();
        described(NodeFacts::default(), &drivers).await;
        let [found] = attach_all(&drivers, &Earlier::new()).await.try_into().ok().unwrap();
        assert_eq!(began.elapsed(), FINGERPRINT_MAX);
        assert!(found.attempts.is_none() && drivers.get("stand_in").is_none(), "it is attached later");
    }

    /// Tasks had the driver attributes of the agent's start for ever.
    #[tokio::test]
    async fn new_attributes_of_a_driver_reach_the_environment_of_tasks() {
        let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::default());
        let drivers = Registry::new().with(Arc::clone(&driver));
        let current = CurrentNode::new(NodeFacts::default());
        let (inbox, mut arrivals) = Inbox::with_capacity(4);
        let (consul, of_consul) = watch::channel(BTreeMap::new());
        let (vault, of_vault) = watch::channel(Attributes::new());
        let bare = NodeFacts::default();
        let node = Described { bare, current: current.clone(), consul: of_consul, vault: of_vault };
        let following = Reported::of(&drivers).follow_changes(drivers.clone(), node, inbox);
        let _following = tokio::spawn(following);
        let attributes = BTreeMap::from([("driver.stand_in.version".to_owned(), "7".to_owned())]);
        let health = Health::Healthy;
        drivers
            .set_fingerprint(&driver, Fingerprint { health, description: "Healthy".to_owned(), attributes });
        let mut next = async || loop {
            match arrivals.take() {
                Some(event) => break event,
                None => tokio::task::yield_now().await,
            }
        };
        let event = next().await;
        let Input::Event(Event::Node { facts, away, .. }) = event else { panic!("another event") };
        assert!(away.is_empty());
        assert_eq!(facts.attributes["driver.stand_in.version"], "7");
        assert_eq!(current.get().attributes, facts.attributes);
        let of_default = BTreeMap::from([("consul.version".to_owned(), "1.8.7".to_owned())]);
        consul.send_modify(|known| _ = known.insert("default".to_owned(), of_default));
        let Input::Event(Event::Node { facts, .. }) = next().await else { panic!("another event") };
        assert_eq!(facts.attributes["consul.version"], "1.8.7");
        assert_eq!(facts.attributes["driver.stand_in.version"], "7");
        vault.send_modify(|known| _ = known.insert("vault.version".to_owned(), "2.1.0".to_owned()));
        let Input::Event(Event::Node { facts, .. }) = next().await else { panic!("another event") };
        assert_eq!(
            (&*facts.attributes["vault.version"], &*facts.attributes["consul.version"]),
            ("2.1.0", "1.8.7")
        );
    }
}
