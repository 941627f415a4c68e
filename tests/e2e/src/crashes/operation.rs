//! Operations between two kills, and the state that is wanted after them.
//!
//! In: a random number generator, and the wanted state. Out: a started operation; once its outcome is known,
//! the new wanted state. An answered request took effect. An unanswered one may or may not have, which the
//! next agent's state shows.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{
    job::{Networks, VALUE, Work, variable, word_of},
    work::JobType,
};
use crate::{
    agent::Agent,
    http::{self, Peer, PendingHttp},
    random::Rng,
    shown::{self, Alloc},
};

/// The jobs of requests, and the jobs in the folder of manifests.
pub const ASKED: [&str; 3] = ["a0", "a1", "a2"];
const LAID: [&str; 2] = ["f0", "f1"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Applies a job that does not exist.
    Apply(Work),
    /// Applies a new version of a job.
    Update(Work),
    /// Changes a job's number of allocations.
    Scale(Work),
    /// Deletes a job.
    Delete(String),
    /// Restarts the tasks of a job.
    Restart(String),
    /// Gives the variable of a job a value.
    Put(String, String),
    /// Collects the directories of ended allocations.
    Collect,
    /// Creates or changes a file in the folder.
    Lay(Work),
    /// Removes a file from the folder.
    Take(String),
}

impl Operation {
    /// The name in the table.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::Update(_) => "update",
            Self::Scale(_) => "scale",
            Self::Delete(_) => "delete",
            Self::Restart(_) => "restart",
            Self::Put(..) => "put variable",
            Self::Collect => "collect",
            Self::Lay(_) => "folder: write",
            Self::Take(_) => "folder: remove",
        }
    }

    /// Returns the request, or `None` if the operation changes the folder or its target does not run.
    pub fn request(&self, peer: &Peer, program: &Path, journal: &Path) -> Option<Request> {
        match self {
            Self::Apply(work) | Self::Update(work) | Self::Scale(work) => {
                let text = work.manifest(program, journal);
                let body = json!({ "files": [{ "name": "m.yaml", "text": text }] }).to_string();
                Some(Request { method: "POST", path: "/v1/herdlet/apply".to_owned(), body, restarts: None })
            }
            Self::Delete(name) => {
                let path = format!("/v1/job/{name}?purge=true");
                Some(Request { method: "DELETE", path, body: String::new(), restarts: None })
            }
            Self::Restart(name) => {
                let alloc = running(peer, name)?;
                let path = format!("/v1/client/allocation/{}/restart", alloc.id());
                Some(Request { method: "POST", path, body: "{}".to_owned(), restarts: Some(alloc.name()) })
            }
            Self::Put(name, value) => {
                let path = variable(name);
                let body = json!({ "Namespace": "default", "Path": path, "Items": { "value": value } });
                let path = format!("/v1/var/{path}");
                Some(Request { method: "PUT", path, body: body.to_string(), restarts: None })
            }
            Self::Collect => {
                let path = "/v1/client/gc".to_owned();
                Some(Request { method: "PUT", path, body: String::new(), restarts: None })
            }
            Self::Lay(_) | Self::Take(_) => None,
        }
    }

    /// Returns the names of all operations.
    pub fn names() -> [&'static str; 9] {
        [
            "apply",
            "update",
            "scale",
            "delete",
            "restart",
            "put variable",
            "collect",
            "folder: write",
            "folder: remove",
        ]
    }
}

/// A request to an agent.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub body: String,
    /// The allocation whose tasks it restarts.
    pub restarts: Option<String>,
}

/// The wanted jobs, by name.
#[derive(Debug, Clone, Default)]
pub struct ExpectedState {
    /// Those applied by requests.
    pub asked: BTreeMap<String, Work>,
    /// Those in the folder.
    pub laid: BTreeMap<String, Work>,
    /// The values of variables, by job.
    pub values: BTreeMap<String, String>,
    /// Which networks they may have.
    pub networks: Networks,
}

impl ExpectedState {
    pub fn jobs(&self) -> impl Iterator<Item = &Work> {
        self.asked.values().chain(self.laid.values())
    }

    /// Returns a random operation.
    pub fn next(&self, rng: &mut Rng, word: String) -> Operation {
        if rng.one_in(4) {
            let name = pick(rng, &LAID);
            return if self.laid.contains_key(name) && rng.one_in(3) {
                Operation::Take(name.to_owned())
            } else {
                Operation::Lay(Work::random(rng, name, word).connected(rng, self.networks))
            };
        }
        self.next_request(rng, word)
    }

    /// Returns a random operation that is a request.
    pub fn next_request(&self, rng: &mut Rng, word: String) -> Operation {
        let name = pick(rng, &ASKED);
        let Some(known) = self.asked.get(name) else {
            return Operation::Apply(Work::random(rng, name, word).connected(rng, self.networks));
        };
        match rng.below(10) {
            9 => Operation::Put(name.to_owned(), word),
            8 => Operation::Collect,
            0 | 1 => Operation::Delete(name.to_owned()),
            2 | 3 => Operation::Restart(name.to_owned()),
            4 => Operation::Scale(known.scaled(rng)),
            _ => Operation::Update(Work::random(rng, name, word).connected(rng, self.networks)),
        }
    }
}

/// An operation in progress.
#[derive(Debug)]
pub struct Begun {
    operation: Operation,
    asked: Option<PendingHttp>,
    restarted: Vec<String>,
}

impl Begun {
    /// Starts an operation. `wanted` is the state before it.
    pub fn begin(
        operation: Operation,
        wanted: &ExpectedState,
        agent: &Agent,
        program: &Path,
        journal: &Path,
    ) -> Self {
        let mut restarted = Vec::new();
        if let Operation::Scale(work) = &operation {
            // A later operation may bring the removed ones back with the same work.
            let before = wanted.asked.get(&work.name).map_or(0, |before| before.count);
            restarted.extend((work.count..before).map(|index| format!("{}.g[{index}]", work.name)));
        }
        match &operation {
            Operation::Lay(work) => {
                let text = work.manifest(program, journal);
                let written = agent.home.write("laid.yaml", &text);
                fs::rename(written, file(agent, &work.name)).expect("a new file in the folder");
            }
            Operation::Take(name) => {
                fs::remove_file(file(agent, name)).expect("removal of a file from the folder");
            }
            Operation::Apply(_)
            | Operation::Update(_)
            | Operation::Scale(_)
            | Operation::Delete(_)
            | Operation::Restart(_)
            | Operation::Put(..)
            | Operation::Collect => {}
        }
        let request = operation.request(&agent.peer(), program, journal);
        restarted.extend(request.as_ref().and_then(|request| request.restarts.clone()));
        let asked = request.and_then(|request| {
            http::ask(&agent.home.socket(), request.method, &request.path, &request.body)
        });
        Self { operation, asked, restarted }
    }

    /// Names of the allocations whose tasks the operation may start once more.
    pub fn restarted(&self) -> &[String] {
        &self.restarted
    }

    /// Returns whether the request was answered.
    pub fn is_answered(&self) -> bool {
        self.asked.as_ref().is_some_and(PendingHttp::is_answered)
    }

    /// Returns the outcome of the request, once the agent is dead or has answered.
    pub fn end(self) -> (Operation, RequestOutcome) {
        let fate = match self.asked.and_then(PendingHttp::answer) {
            Some(answer) if answer.status == 200 => RequestOutcome::Accepted,
            Some(answer) => RequestOutcome::Refused(format!("{} {}", answer.status, answer.body)),
            None => RequestOutcome::Open,
        };
        (self.operation, fate)
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was answered with 200, so it took effect.
    Accepted,
    /// It was refused with this message.
    Refused(String),
    /// It was not answered.
    Open,
}

/// Updates the wanted state after `operation`. If the outcome is open, the agent's state decides.
///
/// # Errors
/// A description, if the agent's state contradicts the outcome.
pub fn settle(
    wanted: &mut ExpectedState,
    operation: &Operation,
    fate: &RequestOutcome,
    peer: &Peer,
) -> Result<(), String> {
    let (name, after) = match operation {
        Operation::Apply(work) | Operation::Update(work) | Operation::Scale(work) => {
            (work.name.clone(), Some(work.clone()))
        }
        Operation::Delete(name) => (name.clone(), None),
        Operation::Restart(_) | Operation::Collect => return Ok(()),
        Operation::Put(name, value) => return settle_value(wanted, (name, value), fate, peer),
        Operation::Lay(work) => {
            wanted.laid.insert(work.name.clone(), work.clone());
            return Ok(());
        }
        Operation::Take(name) => {
            wanted.laid.remove(name);
            return Ok(());
        }
    };
    let before = wanted.asked.get(&name).cloned();
    let shown = current_version(peer, &name)?;
    let is = |work: &Option<Work>| work.as_ref().map(|work| (work.word.clone(), work.count)) == shown;
    let found = match fate {
        RequestOutcome::Refused(why) => return Err(format!("{operation:?} was refused: {why}")),
        RequestOutcome::Accepted if is(&after) => after,
        RequestOutcome::Open if is(&after) => after,
        RequestOutcome::Open if is(&before) => before,
        RequestOutcome::Accepted | RequestOutcome::Open => {
            return Err(format!(
                "{operation:?} was {fate:?}; the state before is {before:?}, the agent reports {shown:?}"
            ));
        }
    };
    match found {
        Some(work) => wanted.asked.insert(name, work),
        None => wanted.asked.remove(&name),
    };
    Ok(())
}

fn settle_value(
    wanted: &mut ExpectedState,
    (name, value): (&str, &str),
    fate: &RequestOutcome,
    peer: &Peer,
) -> Result<(), String> {
    let path = variable(name);
    let answer = http::get(peer, &format!("/v1/var/{path}"));
    let answer = answer.ok_or_else(|| format!("the agent reports nothing about {path}"))?;
    let shown = match answer.status {
        404 => None,
        _ => answer.json()["Items"]["value"].as_str().map(str::to_owned),
    };
    let before = wanted.values.get(name).cloned();
    let is_new = shown.as_deref() == Some(value);
    match fate {
        RequestOutcome::Accepted | RequestOutcome::Open if is_new => {
            wanted.values.insert(name.to_owned(), value.to_owned());
            Ok(())
        }
        RequestOutcome::Open if shown == before => Ok(()),
        RequestOutcome::Accepted | RequestOutcome::Open | RequestOutcome::Refused(_) => Err(format!(
            "{path} = {value} was {fate:?}; the value before is {before:?}, the agent reports {shown:?}"
        )),
    }
}

/// A task with templates that should run.
pub struct TemplatedTask<'w> {
    /// The id of its allocation.
    pub alloc: String,
    pub name: String,
    pub work: &'w Work,
}

/// Returns the tasks with templates of services that should run, as far as they have allocations.
pub fn templated<'w>(wanted: &'w ExpectedState, peer: &Peer) -> Vec<TemplatedTask<'w>> {
    let services = wanted.jobs().filter(|work| work.kind == JobType::Service && work.variable().is_some());
    let services: BTreeMap<&str, &Work> = services.map(|work| (&*work.name, work)).collect();
    if services.is_empty() {
        return Vec::new();
    }
    let allocs = shown::allocs(peer).into_iter().filter(|alloc| alloc.desired() == "run");
    let tasks = allocs.filter_map(|alloc| Some((services.get(&*alloc.job())?, alloc)));
    tasks
        .flat_map(|(work, alloc)| {
            let own = format!("{}/", alloc.name());
            let places = work.places().into_iter();
            let names = places.filter_map(move |place| place.strip_prefix(&own).map(str::to_owned));
            let id = alloc.id();
            names.map(|name| TemplatedTask { alloc: id.clone(), name, work }).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the files of templates that do not have the value of their variable.
pub fn unrendered(tasks: &[TemplatedTask<'_>], wanted: &ExpectedState, peer: &Peer) -> Vec<String> {
    let differing = tasks.iter().filter_map(|TemplatedTask { alloc, name, work }| {
        let value = wanted.values.get(&work.name).map_or("", String::as_str);
        let answer = http::get(peer, &format!("/v1/client/fs/cat/{alloc}?path={name}/{VALUE}"));
        let found = answer.filter(|answer| answer.status == 200).map(|answer| answer.body);
        let is_so = found.as_deref() == Some(value);
        (!is_so).then(|| format!("{}: {alloc}/{name}: {VALUE} has {found:?}, expected {value:?}", work.name))
    });
    differing.collect()
}

/// Returns word and count of a job, or `None` if it does not exist or is being deleted.
pub fn current_version(peer: &Peer, name: &str) -> Result<Option<(String, u64)>, String> {
    let answer = http::get(peer, &format!("/v1/job/{name}"));
    let answer = answer.ok_or_else(|| format!("the agent reports nothing about {name}"))?;
    if answer.status == 404 {
        return Ok(None);
    }
    let job = answer.json();
    if job["Stop"] == true {
        return Ok(None);
    }
    let count = job["TaskGroups"][0]["Count"].as_u64();
    let found = word_of(&job).zip(count);
    found.map(Some).ok_or_else(|| format!("{name} has no version word: {}", answer.body))
}

/// Returns a running allocation of the job.
fn running(peer: &Peer, name: &str) -> Option<Alloc> {
    shown::allocs(peer)
        .into_iter()
        .find(|alloc| alloc.job() == *name && alloc.desired() == "run" && alloc.status() == "running")
}

/// Returns the path of a job's file in the folder.
pub fn file(agent: &Agent, name: &str) -> PathBuf {
    agent.home.manifests().join(format!("{name}.yaml"))
}

fn pick(rng: &mut Rng, names: &[&'static str]) -> &'static str {
    let at = usize::try_from(rng.below(names.len() as u64)).unwrap_or(0);
    names.get(at).or(names.first()).copied().unwrap_or_default()
}
