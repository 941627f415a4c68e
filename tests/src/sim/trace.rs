//! The readable log of a simulation: a line for each event. Allocations appear by their name and, from the second with a
//! name on, a number: `web.g[0]'2`.

use std::collections::BTreeMap;

use herdlet_api_types::{
    AllocId,
    alloc::Allocation,
    job::Job,
    task::ExitResult,
    view::{AllocView, JobView},
};
use herdlet_plan::{
    action::{Action, Outcome, Recovered, Verb},
    event::{Command, Ending, Event, Reply, RestartScope},
    op::{Part, Subject, TaskPart},
};

/// The log so far, if enabled.
#[derive(Debug, Default)]
pub struct Trace {
    kept: bool,
    lines: Vec<String>,
    names: BTreeMap<AllocId, String>,
    had: BTreeMap<String, u32>,
    /// The last line about each object, to avoid repetitions.
    shown: BTreeMap<String, String>,
}

impl Trace {
    /// An enabled log.
    pub fn kept() -> Self {
        Self { kept: true, ..Self::default() }
    }

    /// Its lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Starts a chapter.
    pub fn chapter(&mut self, title: &str) {
        self.lines.push(format!("\n{title}"));
    }

    /// Logs a line.
    pub fn note(&mut self, now_ns: u64, line: impl FnOnce() -> String) {
        if self.kept {
            self.lines.push(format!("{:>9.3}  {}", now_ns as f64 / 1e9, line()));
        }
    }

    /// Logs a request.
    pub fn request(&mut self, now_ns: u64, command: &Command) {
        if !self.kept {
            return;
        }
        let text = self.describe(command);
        self.note(now_ns, || format!("> {text}"));
    }

    fn describe(&self, command: &Command) -> String {
        match command {
            Command::Apply { jobs, volumes } => {
                let jobs = jobs.iter().map(job);
                let volumes = volumes.iter().map(|volume| format!("volume {}", volume.name));
                format!("apply {}", jobs.chain(volumes).collect::<Vec<_>>().join(", "))
            }
            Command::ApplyFolder { jobs, .. } => {
                let jobs: Vec<String> = jobs.iter().map(|(wanted, _)| job(wanted)).collect();
                format!("apply from a folder {}", jobs.join(", "))
            }
            Command::Register { job: wanted, counts, enforced_index } => {
                format!("register {}: counts {counts:?}, index {enforced_index:?}", job(wanted))
            }
            Command::Scale { job, group, count, .. } => format!("scale {}.{group} to {count:?}", job.id),
            Command::Stop { job } => format!("stop {}", job.id),
            Command::Start { job } => format!("start {}", job.id),
            Command::Delete { job } => format!("delete {}", job.id),
            Command::DeleteVersion { job, version } => format!("delete {} if at version {version}", job.id),
            Command::ForceLaunch { job } => format!("launch {}", job.id),
            Command::Dispatch { job, .. } => format!("dispatch {}", job.id),
            Command::Revert { job, to, .. } => format!("revert {} to version {to}", job.id),
            Command::PromoteDeployment { id, .. } => format!("promote deployment {}", id.short()),
            Command::FailDeployment { id } => format!("fail deployment {}", id.short()),
            Command::SetAllocHealth { healthy, unhealthy, .. } => {
                let names =
                    |ids: &[AllocId]| ids.iter().map(|id| self.name_of(*id)).collect::<Vec<_>>().join(", ");
                format!("say healthy: {}; unhealthy: {}", names(healthy), names(unhealthy))
            }
            Command::StopAlloc { alloc } => format!("stop {}", self.name_of(*alloc)),
            Command::SkipShutdownDelay { of: Ending::Job(job) } => format!("skip the delays of {}", job.id),
            Command::SkipShutdownDelay { of: Ending::Alloc(alloc) } => {
                format!("skip the delay of {}", self.name_of(*alloc))
            }
            Command::EndPoststop { of: Ending::Job(job) } => format!("end poststop tasks of {}", job.id),
            Command::EndPoststop { of: Ending::Alloc(alloc) } => {
                format!("end poststop tasks of {}", self.name_of(*alloc))
            }
            Command::StopFast { stop, skips } => {
                let all = std::iter::once(&**stop).chain(skips).map(|one| self.describe(one));
                all.collect::<Vec<_>>().join(" and ")
            }
            Command::Collect { jobs, allocs } => {
                let jobs = jobs.iter().map(|key| key.id.to_string());
                let all: Vec<String> = jobs.chain(allocs.iter().map(|id| self.name_of(*id))).collect();
                format!("collect {}", all.join(", "))
            }
            Command::DeleteVolume { name, data } => format!("delete volume {name} ({data:?})"),
            Command::Restart { alloc, scope } => {
                let scope = match scope {
                    RestartScope::Running => "running tasks".to_owned(),
                    RestartScope::All => "all tasks".to_owned(),
                    RestartScope::Task(task) => format!("task {task}"),
                };
                format!("restart {}: {scope}", self.name_of(*alloc))
            }
            Command::SetEligibility { eligible } => format!("set eligible: {eligible}"),
            Command::Drain { drain, mark_eligible, .. } => {
                format!("drain {drain:?}, eligible: {mark_eligible}")
            }
            Command::PauseDeployment { id, paused } => format!("pause {}: {paused}", id.short()),
            Command::TagVersion { job, version, tag } => format!("tag {} {version:?}: {}", job.id, tag.name),
            Command::UntagVersion { job, name } => format!("untag {}: {name}", job.id),
            Command::Signal { alloc, task, signal } => {
                format!("signal {} {task:?} {signal}", self.name_of(*alloc))
            }
            Command::Explain { alloc } => format!("explain {}", self.name_of(*alloc)),
        }
    }

    /// Logs the reply to a request.
    pub fn reply(&mut self, now_ns: u64, reply: &Reply) {
        if let Reply::Refused(why) = reply {
            self.note(now_ns, || format!("< refused: {why:?}"));
        }
    }

    /// Logs the start of an operation.
    pub fn action(&mut self, now_ns: u64, action: &Action) {
        if self.kept {
            let (subject, verb) = (self.subject(&action.subject), verb(&action.verb));
            self.note(now_ns, || format!("  {subject} {verb}"));
        }
    }

    /// Logs the outcome of an operation.
    pub fn outcome(&mut self, now_ns: u64, action: &Action, outcome: &Outcome) {
        if !self.kept {
            return;
        }
        let text = match outcome {
            Outcome::Done(_) | Outcome::Started(_) | Outcome::Checking(_) => "done".to_owned(),
            Outcome::Present(_) => "it is there".to_owned(),
            Outcome::Absent => "it is not there".to_owned(),
            Outcome::Foreign { why } => format!("foreign: {why}"),
            Outcome::Lost { why } => format!("lost: {why}"),
            Outcome::Failed { class, why } => format!("failed ({class:?}): {why}"),
            Outcome::Pending { on, .. } => format!("waits for {on}"),
            Outcome::Outdated { on, .. } => format!("outdated, waits for {on}"),
            Outcome::Overdue => "overdue".to_owned(),
            Outcome::Recovered(Recovered::NotStarted) => "it never began".to_owned(),
            Outcome::Recovered(Recovered::Running(_)) => "it lives".to_owned(),
            Outcome::Recovered(Recovered::Exited(result)) => format!("it ended: {}", ended(result)),
            Outcome::Recovered(Recovered::Lost { why }) => format!("it is lost: {why}"),
        };
        let (subject, verb) = (self.subject(&action.subject), verb(&action.verb));
        self.note(now_ns, || format!("    {subject} {verb}: {text}"));
    }

    /// Logs an event on the machine.
    pub fn event(&mut self, now_ns: u64, event: &Event) {
        if self.kept
            && let Event::Exited { alloc, task, attempt, result } = event
        {
            let name = self.name_of(*alloc);
            self.note(now_ns, || format!("* {name}/{task} attempt {attempt} ends: {}", ended(result)));
        }
    }

    /// Logs a published allocation.
    pub fn alloc(&mut self, now_ns: u64, view: &AllocView) {
        if !self.kept {
            return;
        }
        let name = self.name(&view.spec);
        let tasks: Vec<String> =
            view.tasks.iter().map(|task| format!("{} {}", task.name, task.phase)).collect();
        let (status, verdict) = (view.status.as_str(), view.convergence.state.as_str());
        let text =
            format!("{name} is {status}, {verdict} [{}] {}", tasks.join(", "), view.convergence.message);
        self.tell(now_ns, name, text);
    }

    /// Logs that an allocation was forgotten.
    pub fn alloc_gone(&mut self, now_ns: u64, id: AllocId) {
        if self.kept {
            let name = self.name_of(id);
            self.tell(now_ns, name.clone(), format!("{name} is gone"));
        }
    }

    /// Logs a published job.
    pub fn job(&mut self, now_ns: u64, view: &JobView) {
        if self.kept {
            let (id, convergence) = (&view.key.id, &view.convergence);
            let state = convergence.state.as_str();
            let text = format!("job {id} version {} is {state} {}", view.version, convergence.message);
            self.tell(now_ns, format!("job {id}"), text);
            if let Some(newest) = view.deployments.first() {
                let (version, status) = (newest.job_version, newest.status.as_str());
                let text =
                    format!("deployment of {id} version {version} is {status}: {}", newest.description);
                self.tell(now_ns, format!("deployment {id}"), text);
            }
        }
    }

    fn tell(&mut self, now_ns: u64, of: String, text: String) {
        let text = text.trim_end().to_owned();
        if self.shown.get(&of) != Some(&text) {
            self.shown.insert(of, text.clone());
            self.note(now_ns, || format!("= {text}"));
        }
    }

    fn subject(&mut self, subject: &Subject) -> String {
        match subject {
            Subject::Volume(volume) => format!("volume {}", volume.name),
            Subject::Alloc(alloc, part) => {
                let name = self.name(alloc);
                let task = |index: u16| {
                    let group = alloc.group();
                    group.and_then(|group| group.tasks.get(usize::from(index))).map_or("?", |task| &task.name)
                };
                match part {
                    Part::Dir => format!("{name} dir"),
                    Part::Network => format!("{name} network"),
                    Part::Services => format!("{name} services"),
                    Part::Checks => format!("{name} checks"),
                    Part::Task(index, TaskPart::Process) => format!("{name}/{}", task(*index)),
                    Part::Task(index, part) => {
                        format!("{name}/{} {}", task(*index), format!("{part:?}").to_lowercase())
                    }
                }
            }
        }
    }

    fn name(&mut self, alloc: &Allocation) -> String {
        if let Some(name) = self.names.get(&alloc.id) {
            return name.clone();
        }
        let name = alloc.name();
        let had = self.had.entry(name.clone()).or_default();
        *had += 1;
        let name = if *had == 1 { name } else { format!("{name}'{had}") };
        self.names.insert(alloc.id, name.clone());
        name
    }

    /// The name of an allocation in the log.
    pub fn name_of(&self, id: AllocId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

fn job(job: &Job) -> String {
    let groups: Vec<String> = job
        .groups
        .iter()
        .map(|group| {
            let tasks: Vec<&str> = group.tasks.iter().map(|task| task.name.as_str()).collect();
            let at_a_time = group
                .update
                .as_ref()
                .map_or_else(String::new, |update| format!(" by {}", update.max_parallel));
            format!("{} x {}{at_a_time} [{}]", group.name, group.count, tasks.join(" "))
        })
        .collect();
    format!("{:?} job {} ({})", job.kind, job.id, groups.join(", ")).to_lowercase()
}

fn verb(verb: &Verb) -> String {
    match verb {
        Verb::Up => "up".to_owned(),
        Verb::Down => "down".to_owned(),
        Verb::Inspect => "look".to_owned(),
        Verb::Ask => "ask".to_owned(),
        Verb::Start { attempt } => format!("start {attempt}"),
        Verb::Withdraw => "take the start back".to_owned(),
        Verb::Recover { attempt } => format!("recover {attempt}"),
        Verb::Stop { attempt, grace, .. } => format!("stop {attempt}, by force after {grace}"),
        Verb::Destroy { attempt } => format!("destroy {attempt}"),
        Verb::Prestop { attempt } => format!("run prestop in {attempt}"),
        Verb::Script { attempt, template } => format!("run script {template} in {attempt}"),
        Verb::Signal { attempt, signal } => format!("send {signal} to {attempt}"),
    }
}

fn ended(result: &ExitResult) -> String {
    match (result.signal, result.error.as_str()) {
        (0, "") => format!("code {}", result.code),
        (signal, "") => format!("signal {signal}"),
        (_, error) => error.to_owned(),
    }
}
