//! Outcomes of a deployment, by example.

use std_alloc::{borrow::ToOwned, vec};

use herdlet_api_types::{Duration, JobKey, alloc::AllocDeployment, fixture, job::Job};

use super::*;
use crate::{
    fixture::{at, failed, running as runs},
    job::Slot,
    state::{Durable, Health},
    time::Now,
};

/// A deployment of version 1 of a job with one group of two; version 0 was stable.
struct Bench {
    job: Job,
    old: Job,
    state: JobState,
    allocs: BTreeMap<AllocId, Member>,
}

struct Member {
    version: u64,
    desired: Desired,
    known: Durable,
}

fn id(number: u8) -> AllocId {
    AllocId::from_hash([number; 16])
}

fn known(healthy: Option<bool>) -> Durable {
    let health = healthy.map(|healthy| Health { healthy, at: at(0).wall });
    Durable { adopted: true, tasks: vec![runs()], health, ..Durable::default() }
}

impl Bench {
    fn new(change: impl FnOnce(&mut Update)) -> Self {
        let mut update = fixture::update();
        change(&mut update);
        let mut old =
            fixture::job("j", JobType::Service, vec![fixture::group("g", 2, vec![fixture::task("a")])]);
        old.groups[0].update = Some(update);
        let mut job = old.clone();
        job.groups[0].tasks[0].user = Some("www".to_owned());
        let state = JobState {
            key: JobKey { namespace: "default".into(), id: "j".into() },
            version: 1,
            versions: [0, 1].into(),
            submitted: [].into(),
            create_index: 1,
            modify_index: 2,
            submit_time: UnixNanos(0),
            deleting: false,
            slots: [("g".to_owned(), vec![slot(1), slot(2)])].into(),
            deployments: Vec::new(),
            launches: None,
            definition: None,
            scaled: std_alloc::sync::Arc::default(),
            stable: [0].into(),
            tags: [].into(),
        };
        let mut bench = Self { job, old, state, allocs: BTreeMap::new() };
        bench.put(1, 0, Some(true));
        bench.put(2, 0, Some(true));
        let begun = bench.read(0, |pass| begin(pass, "i"));
        bench.state.deployments.push(begun.expect("a deployment"));
        bench
    }

    fn put(&mut self, number: u8, version: u64, healthy: Option<bool>) {
        self.allocs.insert(id(number), Member { version, desired: Desired::Run, known: known(healthy) });
    }

    /// Puts an allocation of the new version into this slot.
    fn replace(&mut self, index: usize, number: u8, healthy: Option<bool>) {
        self.put(number, 1, healthy);
        let slots = self.state.slots.get_mut("g").expect("the slots of the group");
        slots[index].alloc = Some(id(number));
        self.state.deployments[0].place(at(0), "g", id(number), Role::Holder);
    }

    fn canary(&mut self, number: u8, healthy: Option<bool>) {
        self.put(number, 1, healthy);
        self.state.deployments[0].place(at(0), "g", id(number), Role::Canary);
    }

    fn ids(&self) -> Vec<AllocId> {
        self.allocs.keys().copied().collect()
    }

    fn find(&self, id: AllocId) -> Option<Placed<'_>> {
        let member = self.allocs.get(&id)?;
        let newest = self.state.deployments.first().map(|known| known.deployment.id);
        let deployment =
            newest.filter(|_| member.version == 1).map(|id| AllocDeployment { id, canary: false });
        Some(Placed {
            job: if member.version == 0 { &self.old } else { &self.job },
            version: member.version,
            group: "g",
            index: 0,
            deployment,
            desired: member.desired,
            previous: None,
            known: &member.known,
        })
    }

    /// Gives `read` what a plan reads at that second.
    fn read<T>(&self, second: u64, read: impl FnOnce(&JobPass<'_, '_>) -> T) -> T {
        let version = |version| (version == 0).then(|| Arc::new(self.old.clone()));
        read(&JobPass {
            now: at(second),
            job: &self.job,
            state: &self.state,
            allocs: &self.ids(),
            find: &|id| self.find(id),
            version: &version,
        })
    }

    /// Plans at that second; keeps the newest state.
    fn turn(&mut self, second: u64) -> Vec<Turnout> {
        let turnouts = self.read(second, plan);
        for turnout in &turnouts {
            if let Turnout::Is(next) = turnout {
                self.state.deployments[0] = next.clone();
            }
        }
        turnouts
    }

    fn deployment(&self) -> &Deployment {
        &self.state.deployments[0].deployment
    }

    fn group(&self) -> &DeploymentGroup {
        &self.deployment().groups["g"]
    }

    /// Its status, description, and the version that the job reverts to.
    fn end(&mut self, second: u64) -> (DeploymentStatus, &str, Option<u64>) {
        let turnouts = self.turn(second);
        let reverted = turnouts.iter().find_map(|turnout| match turnout {
            Turnout::Revert(version) => Some(*version),
            Turnout::Is(_) | Turnout::Promote(_) => None,
        });
        (self.deployment().status, &self.deployment().description, reverted)
    }
}

fn slot(number: u8) -> Slot {
    Slot { had: 1, alloc: Some(id(number)), canary: None, rescheduled: Vec::new() }
}

#[test]
fn it_is_successful_once_every_slot_is_new_and_healthy() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.turn(0), [], "nothing has happened yet");
    bench.replace(0, 3, None);
    bench.replace(1, 4, Some(true));
    bench.turn(1);
    let counted = |bench: &Bench| (bench.group().placed_allocs, bench.group().healthy_allocs);
    assert_eq!((counted(&bench), bench.deployment().status), ((2, 1), DeploymentStatus::Running));
    assert_eq!(bench.turn(1), [], "counted once");
    bench.put(3, 1, Some(true));
    assert_eq!(bench.end(2), (DeploymentStatus::Successful, "Deployment completed successfully", None));
    assert_eq!(counted(&bench), (2, 2));
    assert_eq!(bench.state.deployments[0].wake_ns(at(3)), None);
}

#[test]
fn healthy_allocation_extends_the_progress_deadline() {
    let mut bench = Bench::new(|_| {});
    bench.replace(0, 3, None);
    let due = |bench: &Bench, now| bench.state.deployments[0].wake_ns(at(now)).map(|due| due / 1_000_000_000);
    assert_eq!(due(&bench, 0), Some(60), "the first allocation starts the clock");
    bench.put(3, 1, Some(true));
    bench.turn(50);
    assert_eq!(due(&bench, 50), Some(110));
    bench.replace(1, 4, Some(false));
    assert_eq!(bench.end(109).0, DeploymentStatus::Running, "an unhealthy one has until then to be replaced");
    assert_eq!(bench.group().unhealthy_allocs, 1);
    assert_eq!(bench.end(110), (DeploymentStatus::Failed, "Failed due to progress deadline", None));
    assert_eq!(bench.turn(111), [], "an ended deployment does not change");
}

#[test]
fn no_deadline_fails_on_first_unhealthy_allocation() {
    let mut bench = Bench::new(|update| update.progress_deadline = Duration::ZERO);
    bench.replace(0, 3, None);
    assert_eq!(bench.end(1), (DeploymentStatus::Running, "Deployment is running", None));
    bench.allocs.get_mut(&id(3)).expect("the allocation").known = Durable {
        status: herdlet_api_types::alloc::ClientStatus::Failed,
        tasks: vec![failed()],
        ..known(None)
    };
    assert_eq!(bench.end(1), (DeploymentStatus::Failed, "Failed due to unhealthy allocations", None));
}

#[test]
fn auto_revert_picks_last_stable_different_version() {
    let failing = || {
        let mut bench = Bench::new(|update| update.auto_revert = true);
        bench.replace(0, 3, Some(false));
        bench
    };
    let status = DeploymentStatus::Failed;
    let mut bench = failing();
    let description = "Failed due to progress deadline - rolling back to job version 0";
    assert_eq!(bench.end(60), (status, description, Some(0)));

    let mut bench = failing();
    bench.state.stable.clear();
    let description = "Failed due to progress deadline - no stable job version to auto revert to";
    assert_eq!(bench.end(60), (status, description, None));

    let mut bench = failing();
    bench.old = bench.job.clone();
    let description = "Failed due to progress deadline - not rolling back to stable job version 0 as current job has \
                same specification";
    assert_eq!(bench.end(60), (status, description, None));

    let bench = failing();
    let turnouts = bench.read(0, |pass| fail_by_request(pass, &bench.state.deployments[0]));
    let [Turnout::Is(ended), Turnout::Revert(0)] = &turnouts[..] else { panic!("{turnouts:?}") };
    assert_eq!(ended.deployment.description, "Deployment marked as failed - rolling back to job version 0");
}

#[test]
fn healthy_canaries_wait_beyond_the_deadline() {
    let mut bench = Bench::new(|update| update.canary = 1);
    assert_eq!(bench.deployment().description, "Deployment is running but requires manual promotion");
    bench.canary(3, Some(true));
    bench.turn(1);
    assert_eq!(bench.end(500).0, DeploymentStatus::Running);
    assert_eq!(bench.state.deployments[0].wake_ns(at(500)), None, "no deadline remains");
    bench.state.deployments[0].promote(at(600), "g");
    assert_eq!((bench.group().promoted, &*bench.deployment().description), (true, "Deployment is running"));
    assert_eq!(bench.end(659).0, DeploymentStatus::Running);
    assert_eq!(bench.end(660).0, DeploymentStatus::Failed, "the second allocation was not healthy in time");
}

#[test]
fn healthy_allocations_taken_over_do_not_stand_in_for_a_canary() {
    let mut bench = Bench::new(|update| update.canary = 2);
    bench.canary(3, Some(true));
    bench.canary(4, Some(false));
    bench.replace(0, 5, Some(true));
    bench.replace(1, 6, Some(true));
    bench.turn(1);
    assert!(bench.state.deployments[0].deployment.is_running());
    bench.turn(62);
    assert_eq!(bench.state.deployments[0].deployment.status, DeploymentStatus::Failed);
}

#[test]
fn auto_promote_waits_for_all_canaries() {
    let mut bench = Bench::new(|update| (update.canary, update.auto_promote) = (2, true));
    assert_eq!(bench.deployment().description, "Deployment is running pending automatic promotion");
    bench.canary(3, Some(true));
    bench.canary(4, None);
    assert!(bench.turn(1).iter().all(|turnout| matches!(turnout, Turnout::Is(_))));
    bench.put(4, 1, Some(true));
    assert!(bench.turn(2).contains(&Turnout::Promote(vec!["g".to_owned()])));
}

#[test]
fn a_newer_version_a_stop_or_a_deletion_cancels_it() {
    let cancelled = |change: fn(&mut Bench)| {
        let mut bench = Bench::new(|_| {});
        change(&mut bench);
        let (status, description, _) = bench.end(1);
        (status, description.to_owned())
    };
    let status = DeploymentStatus::Cancelled;
    assert_eq!(
        cancelled(|bench| bench.state.version = 2),
        (status, "Cancelled due to newer version of job".to_owned())
    );
    let stopped = (status, "Cancelled because job is stopped".to_owned());
    assert_eq!(cancelled(|bench| bench.state.deleting = true), stopped);
    assert_eq!(cancelled(|bench| (bench.state.version, bench.job.stop) = (2, true)), stopped);
}

#[test]
fn one_is_begun_where_a_service_with_update_is_new_or_changes() {
    let begun = |change: fn(&mut Bench)| {
        let mut bench = Bench::new(|update| update.canary = 3);
        bench.state.deployments.clear();
        change(&mut bench);
        let begun = bench.read(0, |pass| begin(pass, "i"));
        begun.map(|known| known.deployment.groups["g"].desired_canaries)
    };
    assert_eq!(begun(|_| {}), Some(3), "its allocations are replaced");
    assert_eq!(begun(|bench| bench.allocs.clear()), Some(0), "a new job needs no canaries");
    assert_eq!(begun(|bench| bench.old = bench.job.clone()), Some(0), "adopted allocations need none");
    assert_eq!(begun(|bench| bench.state.version = 0), None, "all allocations already have this version");
    assert_eq!(begun(|bench| bench.job.kind = JobType::Batch), None);
    assert_eq!(begun(|bench| bench.job.groups[0].update = None), None);
    assert_eq!(begun(|bench| bench.job.groups[0].count = 0), None);
    assert_eq!(begun(|bench| bench.job.stop = true), None);
    assert_eq!(begun(|bench| bench.state.deleting = true), None);
}

#[test]
fn groups_with_count_zero_join_no_deployment() {
    let mut bench = Bench::new(|_| {});
    bench.state.deployments.clear();
    let none = Group { name: "none".to_owned(), count: 0, ..bench.job.groups[0].clone() };
    bench.job.groups.push(none);
    let begun = bench.read(0, |pass| begin(pass, "i"));
    let groups: Vec<String> = begun.expect("a deployment").deployment.groups.keys().cloned().collect();
    assert_eq!(groups, ["g"]);
}

/// Enough healthy allocations may have been counted: each slot has to hold one of them, of this version.
#[test]
fn it_goes_on_while_a_slot_holds_another_than_was_counted() {
    let mut bench = Bench::new(|_| {});
    bench.replace(0, 3, Some(true));
    bench.replace(1, 4, Some(true));
    bench.replace(1, 5, None);
    assert_eq!(bench.end(1).0, DeploymentStatus::Running, "5 is not judged");
    let mut bench = Bench::new(|_| {});
    bench.replace(0, 3, Some(true));
    bench.replace(1, 4, None);
    bench.turn(1);
    bench.put(4, 1, Some(true));
    bench.state.version = 2;
    let counted = bench.read(2, |pass| bench.state.deployments[0].counted(pass));
    assert!(!bench.read(2, |pass| is_complete(pass, &counted)), "both have an older version");
    bench.state.version = 1;
    assert!(bench.read(2, |pass| is_complete(pass, &counted)));
}

#[test]
fn bad_or_stopped_allocations_are_uncounted() {
    let mut bench = Bench::new(|update| update.progress_deadline = Duration::from_secs(600));
    bench.replace(0, 3, Some(true));
    bench.replace(1, 4, Some(false));
    bench.turn(1);
    let counted = |bench: &Bench| (bench.group().healthy_allocs, bench.group().unhealthy_allocs);
    assert_eq!(counted(&bench), (1, 1));
    bench.put(3, 1, Some(false));
    bench.turn(2);
    assert_eq!(counted(&bench), (0, 2));
    bench.put(3, 1, Some(true));
    bench.turn(3);
    assert_eq!(counted(&bench), (1, 2));
    bench.allocs.get_mut(&id(4)).expect("the allocation").desired = Desired::Stop;
    bench.turn(4);
    assert_eq!(counted(&bench).0, 1, "an unhealthy allocation does not count");
    bench.allocs.get_mut(&id(3)).expect("the allocation").desired = Desired::Stop;
    bench.turn(5);
    assert_eq!(counted(&bench).0, 0);
    bench.put(5, 1, Some(true));
    bench.turn(6);
    bench.allocs.clear();
    bench.turn(7);
    assert!(bench.state.deployments[0].judged.is_empty(), "verdicts of forgotten allocations are removed");
}

#[test]
fn its_deadline_is_bound_to_the_boot_that_it_is_read_in() {
    let mut bench = Bench::new(|_| {});
    bench.replace(0, 3, None);
    let known = &mut bench.state.deployments[0];
    let later = Now { boot: crate::time::BootId(2), boot_ns: 1, wall: at(30).wall };
    assert!(!known.is_due(later));
    known.rebase(later);
    let by = known.progress_by["g"];
    assert_eq!(known.wake_ns(later), Some(by.due_ns(later)));
    // From now on only this boot's clock counts, not the wall clock.
    let much_later = Now { boot_ns: 1 + 60_000_000_000, ..later };
    assert!(known.is_due(much_later));
}
