//! The networks that running tasks use, and which of them may be damaged.
//!
//! In: views of allocations, reports. Out: damaged networks. All calls that inspect block.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use herdlet_api_types::{AllocId, alloc::Allocation, job::Group};
use herdlet_network::{
    namespace::NamespaceId,
    networks::Concern,
    reports::Reports,
    socket::{Protocol, Socket},
    watch::RuleChange,
};
use herdlet_plan::{action::Outcome, event::Noticed};

use super::holds::Holds;
use crate::networks::{AllocNetworks, RuleRepairFailure, is_on_bridge};

/// Networks with interfaces of their own are inspected in one of this many periods: it takes about a millisecond of processor time, and
/// the kernel reports most damage.
const PERIODS: u8 = 5;

/// What is inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The rules of the bridge.
    Rules,
    Network(AllocId),
}

/// A network that running tasks use.
#[derive(Debug)]
struct UsedNetwork {
    alloc: Arc<Allocation>,
    /// Its namespace, and the number by which the kernel reports its changes, once they are known.
    namespace: Option<(NamespaceId, Option<i32>)>,
}

/// What an inspection has found.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// The damaged networks.
    pub(super) networks: Vec<AllocId>,
    /// The cause, if the rules were damaged. They are repaired.
    pub(super) repaired_rules: Option<String>,
}

/// The networks.
#[derive(Debug, Default)]
pub(super) struct NetworksInUse {
    used: BTreeMap<AllocId, UsedNetwork>,
    due: BTreeSet<Subject>,
    /// The networks whose namespace was replaced or removed.
    moved: BTreeSet<AllocId>,
    holds: Holds<Subject>,
    /// Whether a network is new, and its changes are not reported yet.
    has_new: bool,
    /// Below [`PERIODS`].
    period: u8,
}

impl NetworksInUse {
    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    pub(super) fn retain(&mut self, is_there: impl Fn(&AllocId) -> bool) {
        self.used.retain(|id, _| is_there(id));
    }

    /// The view of an allocation has changed. `used`: if running tasks use its network.
    pub(super) fn show(&mut self, id: AllocId, used: Option<Arc<Allocation>>) {
        match (used, self.used.get_mut(&id)) {
            (Some(alloc), Some(known)) => known.alloc = alloc,
            (Some(alloc), None) => {
                self.used.insert(id, UsedNetwork { alloc, namespace: None });
                self.has_new = true;
            }
            (None, Some(_)) => {
                self.used.remove(&id);
                self.due.remove(&Subject::Network(id));
                self.moved.remove(&id);
                self.holds.forget(&Subject::Network(id));
            }
            (None, None) => {}
        }
    }

    pub(super) fn on_bridge(&self) -> impl Iterator<Item = &Allocation> {
        self.used.values().map(|used| &*used.alloc).filter(|alloc| is_on_bridge(alloc))
    }

    /// When the next inspection is due without a report.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        if self.has_new {
            return Some(now);
        }
        self.due.iter().map(|subject| self.holds.until(subject, now).unwrap_or(now)).min()
    }

    /// Inspects what may be damaged: after a report what the report is about, periodically a part of everything.
    pub(super) fn inspect(&mut self, networks: &AllocNetworks, reports: &Reports, by: Noticed) -> Damage {
        self.find_namespaces(networks);
        self.doubt(networks, reports, by);
        let now = Instant::now();
        let (later, due): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.due)
            .into_iter()
            .partition(|subject| by == Noticed::Event && self.holds.until(subject, now).is_some());
        self.due = later;
        let mut damage = Damage::default();
        for subject in due {
            let finding = match subject {
                Subject::Rules => match networks.repair_rules() {
                    Ok(repaired) => {
                        damage.repaired_rules = repaired;
                        if damage.repaired_rules.is_some() { Finding::Damaged } else { Finding::Sound }
                    }
                    Err(RuleRepairFailure) => Finding::Unknown,
                },
                // What is wrong with another namespace, only the planner knows: tasks may have to follow.
                Subject::Network(id) if self.moved.remove(&id) => Finding::Damaged,
                Subject::Network(id) => {
                    let used = self.used.get(&id);
                    used.map_or(Finding::Sound, |used| {
                        Finding::from_outcome(&networks.inspect_often(&used.alloc))
                    })
                }
            };
            if let (Finding::Damaged, Subject::Network(id)) = (finding, subject) {
                damage.networks.push(id);
            }
            if finding == Finding::Unknown {
                self.due.insert(subject);
            }
            if finding != Finding::Sound {
                self.holds.extend(subject, now);
            }
        }
        damage
    }

    /// Compares the namespaces with those that are known. Another one, or none any more, is damage; of a new network it is recorded.
    fn find_namespaces(&mut self, networks: &AllocNetworks) {
        self.has_new = false;
        let mut socket = None;
        for (id, used) in &mut self.used {
            let found = networks.namespace_of(*id);
            if found == used.namespace.map(|(namespace, _)| namespace) {
                continue;
            }
            if used.namespace.is_some() {
                self.due.insert(Subject::Network(*id));
                self.moved.insert(*id);
            }
            if socket.is_none() {
                socket = Socket::open(Protocol::Route).ok();
            }
            let number = socket.as_mut().and_then(|socket| networks.number_of(*id, socket));
            used.namespace = found.map(|namespace| (namespace, number));
        }
    }

    fn doubt(&mut self, networks: &AllocNetworks, reports: &Reports, by: Noticed) {
        let (is_periodic, everything) = (by == Noticed::Periodic, reports.are_incomplete());
        let has_bridge = self.on_bridge().next().is_some();
        if has_bridge && (is_periodic || everything || reports.rules != RuleChange::OwnOnly) {
            self.due.insert(Subject::Rules);
        }
        if everything {
            self.due.extend(self.used.keys().copied().map(Subject::Network));
            return;
        }
        if is_periodic {
            self.period = (self.period + 1) % PERIODS;
            let now = |(id, used): &(&AllocId, &UsedNetwork)| {
                !has_own_interfaces(&used.alloc) || period_of(id) == self.period
            };
            self.due.extend(self.used.iter().filter(now).map(|(id, _)| Subject::Network(*id)));
        }
        for change in &reports.links {
            if let Some(number) = change.namespace {
                let is_it =
                    |used: &UsedNetwork| used.namespace.is_some_and(|(_, known)| known == Some(number));
                let found = self.used.iter().filter(|(_, used)| is_it(used));
                self.due.extend(found.map(|(id, _)| Subject::Network(*id)));
                continue;
            }
            match networks.concern(change) {
                Concern::Nothing => {}
                Concern::Owner(owner) => {
                    let id = owner.parse().ok().map(AllocId).filter(|id| self.used.contains_key(id));
                    self.due.extend(id.map(Subject::Network));
                }
                Concern::All => {
                    let all: Vec<_> = self.on_bridge().map(|alloc| Subject::Network(alloc.id)).collect();
                    self.due.extend(all);
                }
            }
        }
    }
}

/// The period in which a network is inspected.
fn period_of(id: &AllocId) -> u8 {
    id.0.as_bytes().iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) % PERIODS
}

fn has_own_interfaces(alloc: &Allocation) -> bool {
    alloc.group().is_some_and(Group::has_own_network)
}

/// What an inspection has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Sound,
    Damaged,
    /// The inspection failed. It is repeated: the report that asked for it does not come again.
    Unknown,
}

impl Finding {
    fn from_outcome(seen: &Outcome) -> Self {
        match seen {
            Outcome::Absent | Outcome::Foreign { .. } => Self::Damaged,
            Outcome::Failed { .. } => Self::Unknown,
            Outcome::Done(_)
            | Outcome::Present(_)
            | Outcome::Started(_)
            | Outcome::Recovered(_)
            | Outcome::Lost { .. }
            | Outcome::Pending { .. }
            | Outcome::Outdated { .. }
            | Outcome::Checking(_)
            | Outcome::Overdue => Self::Sound,
        }
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        InstanceId,
        job::{Network, NetworkMode},
    };
    use herdlet_base::paths::Paths;
    use herdlet_network::watch::{Change, ChangeKind};
    use herdlet_plan::env::NodeFacts;

    use super::*;
    use crate::{
        current_node::CurrentNode,
        networks::{Machine, Permission, bridge_of},
    };

    fn alloc(network: Network) -> Arc<Allocation> {
        let mut job = herdlet_manifest::fixture::job("web", "g", "server");
        Arc::make_mut(&mut job).groups[0].network = Some(network);
        herdlet_manifest::fixture::alloc_view(&job, 0, 1).spec
    }

    fn reports(change: Option<ChangeKind>, rules: RuleChange) -> Reports {
        let links = change.into_iter().map(|what| Change { namespace: None, what }).collect();
        Reports { links, rules }
    }

    fn networks(dir: &std::path::Path) -> AllocNetworks {
        let paths = Paths { state: dir.to_owned(), runtime: dir.join("run") };
        let machine = Machine {
            permission: Permission::Missing,
            usual_addresses: Vec::new(),
            node: CurrentNode::new(NodeFacts::default()),
        };
        let instance = InstanceId("0123456789abcdef".to_owned());
        let settings = herdlet_config::network::Network::default();
        AllocNetworks::new(bridge_of(&instance, &settings, &paths), settings, &paths, machine)
    }

    #[test]
    fn a_failed_inspection_is_repeated_without_another_report() {
        let dir = tempfile::tempdir().unwrap();
        let networks = networks(dir.path());
        let hostname = "not a name".to_owned();
        let failing = alloc(Network { mode: NetworkMode::None, hostname, ..Network::default() });
        let mut watched = NetworksInUse::default();
        watched.show(failing.id, Some(Arc::clone(&failing)));
        let anything = reports(Some(ChangeKind::Anything), RuleChange::OwnOnly);
        let begun = Instant::now();
        assert!(watched.inspect(&networks, &anything, Noticed::Event).networks.is_empty());
        let due = watched.next_due().unwrap();
        assert!(due > begun, "not at once");
        assert_eq!(watched.next_due(), Some(due));
        watched.show(failing.id, None);
        assert_eq!(watched.next_due(), None);
    }

    /// Without privileges each network is absent, and so damaged.
    #[test]
    fn only_what_a_report_is_about_is_inspected() {
        let dir = tempfile::tempdir().unwrap();
        let networks = networks(dir.path());
        let [first, second] = [NetworkMode::Bridge, NetworkMode::None]
            .map(|mode| alloc(Network { mode, ..Network::default() }));
        let (first_id, second_id) = (first.id, AllocId::from_hash([9; 16]));
        let mut watched = NetworksInUse::default();
        assert!(watched.is_empty() && watched.next_due().is_none());
        watched.show(first_id, Some(first));
        let second = Arc::new(Allocation { id: second_id, ..(*second).clone() });
        watched.show(second_id, Some(second));
        assert!(watched.next_due().is_some(), "their namespaces are to be found");
        let found = |watched: &mut NetworksInUse, reports: &Reports, by| {
            let damage = watched.inspect(&networks, reports, by);
            damage.networks.into_iter().collect::<BTreeSet<_>>()
        };
        let nothing = reports(None, RuleChange::OwnOnly);
        assert_eq!(found(&mut watched, &nothing, Noticed::Event), BTreeSet::new());
        assert!(watched.next_due().is_none());
        let foreign =
            reports(Some(ChangeKind::LinkGone(herdlet_network::link::Link::default())), RuleChange::Foreign);
        assert_eq!(found(&mut watched, &foreign, Noticed::Event), BTreeSet::new());
        // Lost reports.
        let anything = reports(Some(ChangeKind::Anything), RuleChange::OwnOnly);
        let both = BTreeSet::from([first_id, second_id]);
        assert_eq!(found(&mut watched, &anything, Noticed::Event), both);
        let found: Vec<AllocId> =
            (0..PERIODS).flat_map(|_| found(&mut watched, &nothing, Noticed::Periodic)).collect();
        assert_eq!(found.len(), 2, "each once");
        assert_eq!(BTreeSet::from_iter(found), both);
        watched.show(second_id, None);
        watched.retain(|id| *id == second_id);
        assert!(watched.is_empty());
    }
}
