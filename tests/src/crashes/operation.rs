//! What is asked of the agent between two deaths, and what is wanted from then on.
//!
//! In: dice, and what is wanted so far. Out: an operation, begun; and once its fate is known, what is wanted now. A request
//! that was answered has happened; one that was not has happened or not, which the next agent tells.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::job::{Work, word_of};
use crate::{
    e2e::{
        agent::Agent,
        http::{self, Asked, Peer},
        shown::{self, Alloc},
    },
    sim::Dice,
};

/// Jobs that requests are about, and jobs that lie in the folder of manifests.
pub const ASKED: [&str; 3] = ["a0", "a1", "a2"];
const LAID: [&str; 2] = ["f0", "f1"];

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A job that is not there is applied.
    Apply(Work),
    /// A job gets new work.
    Update(Work),
    /// A job gets more or fewer allocations of the same work.
    Scale(Work),
    /// A job is deleted.
    Delete(String),
    /// Tasks of a job are to be started anew.
    Restart(String),
    /// Directories of what has ended are given up.
    Collect,
    /// A file is laid into the folder, or changed.
    Lay(Work),
    /// A file is taken out of the folder.
    Take(String),
}

impl Operation {
    /// As the table says it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::Update(_) => "update",
            Self::Scale(_) => "scale",
            Self::Delete(_) => "delete",
            Self::Restart(_) => "restart",
            Self::Collect => "collect",
            Self::Lay(_) => "folder: lay",
            Self::Take(_) => "folder: take",
        }
    }

    /// As a request: none where it is about the folder, or about what does not run.
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
            Self::Collect => {
                let path = "/v1/client/gc".to_owned();
                Some(Request { method: "PUT", path, body: String::new(), restarts: None })
            }
            Self::Lay(_) | Self::Take(_) => None,
        }
    }

    /// All names that it may be about.
    pub fn names() -> [&'static str; 8] {
        ["apply", "update", "scale", "delete", "restart", "collect", "folder: lay", "folder: take"]
    }
}

/// What an agent is sent.
#[derive(Debug, Clone)]
pub struct Request {
    /// HTTP method.
    pub method: &'static str,
    /// Path.
    pub path: String,
    /// Body.
    pub body: String,
    /// The allocation whose tasks it restarts.
    pub restarts: Option<String>,
}

/// What is wanted, by name.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Through requests.
    pub asked: BTreeMap<String, Work>,
    /// Through the folder.
    pub laid: BTreeMap<String, Work>,
}

impl Wanted {
    /// All jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &Work> {
        self.asked.values().chain(self.laid.values())
    }

    /// What the dice want next.
    pub fn next(&self, dice: &mut Dice, word: String) -> Operation {
        if dice.one_in(4) {
            let name = pick(dice, &LAID);
            return if self.laid.contains_key(name) && dice.one_in(3) {
                Operation::Take(name.to_owned())
            } else {
                Operation::Lay(Work::random(dice, name, word))
            };
        }
        self.next_request(dice, word)
    }

    /// What the dice want next of those that are requests.
    pub fn next_request(&self, dice: &mut Dice, word: String) -> Operation {
        let name = pick(dice, &ASKED);
        let Some(known) = self.asked.get(name) else {
            return Operation::Apply(Work::random(dice, name, word));
        };
        match dice.below(9) {
            8 => Operation::Collect,
            0 | 1 => Operation::Delete(name.to_owned()),
            2 | 3 => Operation::Restart(name.to_owned()),
            4 => Operation::Scale(known.scaled(dice)),
            _ => Operation::Update(Work::random(dice, name, word)),
        }
    }
}

/// An operation that has begun.
#[derive(Debug)]
pub struct Begun {
    operation: Operation,
    asked: Option<Asked>,
    restarted: Vec<String>,
}

impl Begun {
    /// Begins it. `wanted` is what was wanted before.
    pub fn begin(
        operation: Operation,
        wanted: &Wanted,
        agent: &Agent,
        program: &Path,
        journal: &Path,
    ) -> Self {
        let mut restarted = Vec::new();
        if let Operation::Scale(work) = &operation {
            // Taken away now, they may come back later with the same work.
            let before = wanted.asked.get(&work.name).map_or(0, |before| before.count);
            restarted.extend((work.count..before).map(|index| format!("{}.g[{index}]", work.name)));
        }
        match &operation {
            Operation::Lay(work) => {
                let text = work.manifest(program, journal);
                let written = agent.home.write("laid.yaml", &text);
                fs::rename(written, file(agent, &work.name)).expect("a file is laid into the folder");
            }
            Operation::Take(name) => {
                fs::remove_file(file(agent, name)).expect("a file is taken out of the folder");
            }
            Operation::Apply(_)
            | Operation::Update(_)
            | Operation::Scale(_)
            | Operation::Delete(_)
            | Operation::Restart(_)
            | Operation::Collect => {}
        }
        let request = operation.request(&agent.peer(), program, journal);
        restarted.extend(request.as_ref().and_then(|request| request.restarts.clone()));
        let asked = request.and_then(|request| {
            http::ask(&agent.home.socket(), request.method, &request.path, &request.body)
        });
        Self { operation, asked, restarted }
    }

    /// Names of the allocations whose tasks may begin once more for it.
    pub fn restarted(&self) -> &[String] {
        &self.restarted
    }

    /// Whether its answer is there.
    pub fn is_answered(&self) -> bool {
        self.asked.as_ref().is_some_and(Asked::is_answered)
    }

    /// The fate of the request, once the agent that was asked is dead or has answered.
    pub fn end(self) -> (Operation, Fate) {
        let fate = match self.asked.and_then(Asked::answer) {
            Some(answer) if answer.status == 200 => Fate::Accepted,
            Some(answer) => Fate::Refused(format!("{} {}", answer.status, answer.body)),
            None => Fate::Open,
        };
        (self.operation, fate)
    }
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It was answered: it has happened.
    Accepted,
    /// It was refused, in these words.
    Refused(String),
    /// It was not answered.
    Open,
}

/// What is wanted after `operation`, as far as the agent has to tell it.
///
/// # Errors
/// In words: what it tells can't be.
pub fn settle(wanted: &mut Wanted, operation: &Operation, fate: &Fate, peer: &Peer) -> Result<(), String> {
    let (name, after) = match operation {
        Operation::Apply(work) | Operation::Update(work) | Operation::Scale(work) => {
            (work.name.clone(), Some(work.clone()))
        }
        Operation::Delete(name) => (name.clone(), None),
        Operation::Restart(_) | Operation::Collect => return Ok(()),
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
    let shown = shown(peer, &name)?;
    let is = |work: &Option<Work>| work.as_ref().map(|work| (work.word.clone(), work.count)) == shown;
    let found = match fate {
        Fate::Refused(why) => return Err(format!("{operation:?} was refused: {why}")),
        Fate::Accepted if is(&after) => after,
        Fate::Open if is(&after) => after,
        Fate::Open if is(&before) => before,
        Fate::Accepted | Fate::Open => {
            return Err(format!("{operation:?} was {fate:?}; before {before:?}; shown is {shown:?}"));
        }
    };
    match found {
        Some(work) => wanted.asked.insert(name, work),
        None => wanted.asked.remove(&name),
    };
    Ok(())
}

/// Word and count of a job; none where there is no such job or it is being deleted.
pub fn shown(peer: &Peer, name: &str) -> Result<Option<(String, u64)>, String> {
    let answer = http::get(peer, &format!("/v1/job/{name}"));
    let answer = answer.ok_or_else(|| format!("the agent tells nothing of {name}"))?;
    if answer.status == 404 {
        return Ok(None);
    }
    let job = answer.json();
    if job["Stop"] == true {
        return Ok(None);
    }
    let count = job["TaskGroups"][0]["Count"].as_u64();
    let found = word_of(&job).zip(count);
    found.map(Some).ok_or_else(|| format!("{name} has no word: {}", answer.body))
}

/// An allocation of the job that runs.
fn running(peer: &Peer, name: &str) -> Option<Alloc> {
    shown::allocs(peer)
        .into_iter()
        .find(|alloc| alloc.job() == *name && alloc.desired() == "run" && alloc.status() == "running")
}

/// A job's file in the folder of manifests.
pub fn file(agent: &Agent, name: &str) -> PathBuf {
    agent.home.manifests().join(format!("{name}.yaml"))
}

fn pick(dice: &mut Dice, names: &[&'static str]) -> &'static str {
    let at = usize::try_from(dice.below(names.len() as u64)).unwrap_or(0);
    names.get(at).or(names.first()).copied().unwrap_or_default()
}
