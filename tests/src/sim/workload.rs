//! The actions of users, and events behind the agent's back.

use std::sync::Arc;

use herdlet_api_types::{
    AllocId, Duration,
    deployment::DeploymentGroup,
    job::{HealthCheck, Job},
    view::{AllocView, JobView},
};
use herdlet_plan::{
    event::{Command, Ending, Event, Noticed, PluginHealth, PromoteScope, RestartScope, VolumeData},
    job::children::Dispatch,
    node::DrainRequest,
    op::{Part, TaskPart},
    parts::{Medium, WhileRunning},
};

use super::{
    coverage::Kind,
    jobs,
    life::{Life, job_key},
    machine::{Attempt, AttemptKey, Thing, runs_checks, spec_of},
};

const IDS: [&str; 3] = ["a", "b", "c"];

impl Life {
    /// A random action of a user.
    pub(super) fn act(&mut self) {
        let id = IDS[self.rng.below(IDS.len() as u64) as usize];
        match self.rng.below(10) {
            0..=3 => {
                let job = match self.wanted.get(id) {
                    Some(job) if self.rng.one_in(2) => jobs::next_release(&mut self.rng, job),
                    _ => jobs::random(&mut self.rng, id),
                };
                self.apply(vec![job]);
            }
            4 if self.rng.one_in(3) => {
                let past = self.jobs.get(&job_key(id)).map(|view| &view.past[..]).unwrap_or_default();
                if past.is_empty() {
                    return;
                }
                let to = past[self.rng.below(past.len() as u64) as usize].version;
                self.request(Command::Revert { job: job_key(id), to, prior: None });
            }
            4 if self.rng.one_in(3) => {
                let count = Some(self.rng.below(4) as u32);
                let (group, note) = ("g".to_owned(), Default::default());
                self.request(Command::Scale { job: job_key(id), group, count, note });
            }
            4 if self.rng.one_in(2) => {
                let job = job_key(id);
                let stops = self.rng.one_in(2);
                self.request(if stops { Command::Stop { job } } else { Command::Start { job } });
            }
            4 => self.delete(id),
            5 if self.rng.one_in(2) => self.decide(),
            5 if self.rng.one_in(3) => self.operate(),
            5 => self.want_volumes(),
            6 if self.rng.one_in(3) => {
                let data = if self.rng.one_in(2) { VolumeData::Keep } else { VolumeData::Purge };
                let name = jobs::VOLUMES[self.rng.below(jobs::VOLUMES.len() as u64) as usize];
                self.request(Command::DeleteVolume { name: name.to_owned(), data });
            }
            7 if self.rng.one_in(3) => {
                let Some(alloc) = self.some_alloc() else { return };
                self.request(Command::StopAlloc { alloc });
            }
            7 if self.rng.one_in(2) => {
                // Like the agent, collects by the published views, which may be outdated.
                let jobs = if self.rng.one_in(2) { self.jobs.keys().cloned().collect() } else { Vec::new() };
                let ended = self.allocs.iter().filter(|(_, view)| view.status.is_terminal());
                let allocs = ended.map(|(id, _)| *id).filter(|_| self.rng.one_in(2)).collect();
                self.request(Command::Collect { jobs, allocs });
            }
            8 if self.rng.one_in(4) => {
                let of = match self.some_alloc().filter(|_| self.rng.one_in(2)) {
                    Some(alloc) => Ending::Alloc(alloc),
                    None => Ending::Job(job_key(id)),
                };
                let stop = match &of {
                    Ending::Alloc(alloc) => Command::StopAlloc { alloc: *alloc },
                    Ending::Job(job) => Command::Stop { job: job.clone() },
                };
                let skip = if self.rng.one_in(3) {
                    Command::EndPoststop { of }
                } else {
                    Command::SkipShutdownDelay { of }
                };
                let is_separate = self.rng.one_in(2);
                self.request(if is_separate {
                    skip
                } else {
                    Command::StopFast { stop: Box::new(stop), skips: vec![skip] }
                });
            }
            8 if self.rng.one_in(2) => {
                // A client that does not know whether its request arrived repeats it.
                let token =
                    if self.rng.one_in(2) { format!("token{}", self.rng.below(3)) } else { String::new() };
                let asks = if token.is_empty() { 1 } else { 1 + self.rng.below(2) };
                for _ in 0..asks {
                    let dispatch = Dispatch { idempotency_token: token.clone(), ..Dispatch::default() };
                    self.request(Command::Dispatch { job: job_key(id), dispatch: Box::new(dispatch) });
                }
            }
            9 if self.rng.one_in(3) => self.request(Command::ForceLaunch { job: job_key(id) }),
            8 => {
                let children: Vec<String> = self
                    .jobs
                    .keys()
                    .filter(|key| key.id.contains('/'))
                    .map(|key| key.id.to_string())
                    .collect();
                if !children.is_empty() {
                    let at = self.rng.below(children.len() as u64) as usize;
                    self.delete(&children[at]);
                }
            }
            _ => {
                let Some(alloc) = self.some_alloc() else { return };
                let scope = match self.rng.below(3) {
                    0 => RestartScope::Running,
                    1 => RestartScope::All,
                    _ => RestartScope::Task("main".to_owned()),
                };
                self.request(Command::Restart { alloc, scope });
            }
        }
    }

    /// An operator drains the node, makes it ineligible or eligible, or pauses a deployment.
    fn operate(&mut self) {
        match self.rng.below(4) {
            0 => {
                let deadlines = [Duration(-1), Duration(0), Duration::from_secs(300)];
                let deadline = deadlines[self.rng.below(3) as usize];
                let drain = Some(DrainRequest { deadline, ignore_system: self.rng.one_in(2) });
                self.request(Command::Drain { drain, mark_eligible: false, meta: Default::default() });
            }
            1 => {
                let running = self.jobs.values().filter_map(|view| view.deployments.first());
                let Some(id) = running.filter(|one| one.is_running()).map(|one| one.id).next() else {
                    return;
                };
                self.request(Command::PauseDeployment { id, paused: true });
            }
            2 => {
                let eligible = self.rng.one_in(2);
                self.request(Command::SetEligibility { eligible });
            }
            _ => self.go_on(),
        }
    }

    /// The node takes new allocations, and no deployment is paused.
    pub(super) fn go_on(&mut self) {
        self.request(Command::Drain { drain: None, mark_eligible: true, meta: Default::default() });
        let all = self.jobs.values().flat_map(|view| &view.deployments);
        // One that is not shown as paused may be about to be.
        let running: Vec<_> = all.filter(|one| one.is_running()).map(|one| one.id).collect();
        for id in running {
            self.request(Command::PauseDeployment { id, paused: false });
        }
    }

    /// A user applies the next release of every job.
    pub(super) fn release_all(&mut self) {
        let jobs: Vec<Job> = self.wanted.values().cloned().collect();
        let next = jobs.iter().map(|job| jobs::next_release(&mut self.rng, job)).collect();
        self.apply(next);
    }

    /// A user decides on a deployment, preferably on one that waits for it.
    pub(super) fn decide(&mut self) {
        if self.rng.one_in(2) {
            return self.judge();
        }
        let newest = |view: &Arc<JobView>| {
            view.deployments.first().map(|it| (it.id, it.groups.values().any(DeploymentGroup::is_canarying)))
        };
        let all: Vec<_> = self.jobs.values().filter_map(newest).collect();
        let Some((id, _)) = all.iter().find(|(_, waits)| *waits).or(all.first()) else { return };
        let command = if self.rng.one_in(20) {
            Command::FailDeployment { id: *id }
        } else {
            Command::PromoteDeployment { id: *id, scope: PromoteScope::All }
        };
        self.request(command);
    }

    /// A user judges the health of an allocation that waits for it.
    fn judge(&mut self) {
        let waits = |view: &&Arc<AllocView>| {
            let group = view.spec.group();
            let update = group.and_then(|group| group.update.as_ref());
            view.verdict.is_none() && update.is_some_and(|update| update.health_check == HealthCheck::Manual)
        };
        let found =
            self.allocs.values().find(waits).and_then(|view| Some((view.spec.id, view.spec.deployment?.id)));
        let Some((alloc, id)) = found else { return };
        let (healthy, unhealthy) = match self.rng.one_in(20) {
            false => (vec![alloc], Vec::new()),
            true => (Vec::new(), vec![alloc]),
        };
        self.request(Command::SetAllocHealth { id, healthy, unhealthy });
    }

    /// Something changes behind the agent's back. The agent notices it by an event or by a periodic inspection.
    pub(super) fn drift(&mut self) {
        if self.rng.one_in(4) {
            return self.kill_something();
        }
        if self.rng.one_in(8) {
            return self.doubt_something();
        }
        if self.rng.one_in(8) {
            return self.report_plugin();
        }
        let things: Vec<&Thing> = self.machine.things.iter().collect();
        if things.is_empty() {
            return;
        }
        let thing = things[self.rng.below(things.len() as u64) as usize].clone();
        let Thing::Part(alloc, part) = thing else { return };
        let row = part.row();
        match row.medium {
            // A lost directory ends the task, so this is rare.
            Medium::Files if thing.is_dir() && !self.rng.one_in(8) => return,
            Medium::Agent if runs_checks(part) => return,
            // They are removed with the directory, and a task that has received them may do with them what it likes.
            Medium::Files if row.while_running == WhileRunning::Leave => return,
            Medium::Mounts if self.rng.one_in(3) => {
                self.met.note(Kind::Covered);
                self.trace.note(self.now().boot_ns, || format!("something else is mounted over {part:?}"));
                self.machine.covered.insert(thing);
            }
            Medium::Files | Medium::Mounts | Medium::Processes | Medium::Catalogue | Medium::Agent => {
                self.met.note(Kind::Vanished);
                self.trace.note(self.now().boot_ns, || format!("{part:?} vanishes"));
                self.machine.vanish(&thing);
            }
        }
        let by = if self.rng.one_in(2) { Noticed::Event } else { Noticed::Periodic };
        self.post(Event::Drift { alloc, part, by });
    }

    /// A driver reports that a process may have drifted, also while an operation runs on it.
    fn doubt_something(&mut self) {
        let live: Vec<AttemptKey> = self.machine.live().map(|(key, _)| *key).collect();
        if live.is_empty() {
            return;
        }
        self.met.note(Kind::DoubtedProcess);
        let (alloc, index, _) = live[self.rng.below(live.len() as u64) as usize];
        let part = Part::Task(index, TaskPart::Process);
        self.post(Event::Drift { alloc, part, by: Noticed::Event });
    }

    /// The supervision of a CSI plugin reports its health, which may arrive after the end of the attempt.
    fn report_plugin(&mut self) {
        let is_plugin = |(key, attempt): (&AttemptKey, &Attempt)| {
            let (_, task) = spec_of(&attempt.alloc, key.1).ok()?;
            task.csi_plugin.is_some().then(|| (*key, task.name.clone()))
        };
        let live: Vec<(AttemptKey, String)> = self.machine.live().filter_map(is_plugin).collect();
        if live.is_empty() {
            return;
        }
        let ((alloc, _, attempt), task) = live[self.rng.below(live.len() as u64) as usize].clone();
        let health = match self.rng.below(3) {
            0 => PluginHealth::Healthy { plugin: "disks".to_owned() },
            1 => PluginHealth::Unhealthy { why: "it does not respond".to_owned() },
            _ => PluginHealth::Overdue { why: "it was not ready in time".to_owned() },
        };
        self.met.note(Kind::PluginReport);
        self.post(Event::Plugin { alloc, task, attempt, health });
    }

    fn kill_something(&mut self) {
        let live: Vec<AttemptKey> = self.machine.live().map(|(key, _)| *key).collect();
        if live.is_empty() {
            return;
        }
        let key = live[self.rng.below(live.len() as u64) as usize];
        let seen = if self.rng.one_in(2) {
            self.met.note(Kind::Killed);
            self.machine.kill(key)
        } else {
            self.met.note(Kind::SupervisorLost);
            self.machine.lose(key)
        };
        if let Some(event) = seen {
            self.trace.event(self.now().boot_ns, &event);
            self.post(event);
        }
    }

    fn some_alloc(&mut self) -> Option<AllocId> {
        if self.allocs.is_empty() {
            return None;
        }
        let at = self.rng.below(self.allocs.len() as u64) as usize;
        self.allocs.keys().nth(at).copied()
    }
}
