//! The invariants once the agent had time to converge: exactly the wanted tasks run, once each; undisturbed
//! tasks are the same processes; deleted jobs leave no traces.
//!
//! In: an agent, and what should run. Out: descriptions of the violations. What a life has seen before is its own matter: see
//! [`super::life`].

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_shim::record::{Record, State};

use super::{
    job::{ADDRESS, TOKEN, WORD},
    operation::{ExpectedState, TemplatedTask, templated, unrendered},
    work::{JobType, Journal},
};
use crate::{
    agent::Agent,
    home, host,
    http::{self, Peer},
    wait,
};

/// Deadline for convergence: a state that is not reached by then is considered never reached.
const LIMIT: Duration = wait::PATIENCE;

/// Lifetime of a tombstone after its attempt, plus a margin.
pub const TOMBSTONE_TIME: Duration = Duration::from_secs(66);

/// A process of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// `job.group[index]/task`.
    pub place: String,
    /// The word of its version.
    pub word: String,
    /// Pid and start time.
    pub who: (u32, u64),
    /// Its parent.
    pub parent: Option<u32>,
}

/// Returns all processes in cgroups of attempts.
pub fn running(instance: &str) -> Vec<Task> {
    let found = host::members(instance).into_iter().filter_map(|member| {
        let start = host::start_time(member.pid)?;
        let mut arguments = host::arguments(member.pid)?;
        let (_kind, word, place) = (arguments.pop(), arguments.pop(), arguments.pop());
        Some(Task {
            place: place.unwrap_or_default(),
            word: word.unwrap_or_default(),
            who: (member.pid, start),
            parent: host::parent(member.pid),
        })
    });
    let mut found: Vec<Task> = found.collect();
    found.sort();
    found
}

/// Deletes all volumes once no job is left. Returns what can't be deleted.
pub(super) fn delete_volumes(agent: &Agent) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    let volumes = loop {
        if is_empty(agent) || Instant::now() > deadline {
            break get_list(agent, "/v1/herdlet/volumes");
        }
        wait::pause(Duration::from_millis(5));
    };
    let mut broken = Vec::new();
    for volume in volumes {
        let Some(name) = volume["spec"]["name"].as_str() else { continue };
        let path = format!("/v1/herdlet/volume/{name}?purge=true");
        let answer = http::request(&agent.peer(), "DELETE", &path, &[], "");
        if answer.as_ref().is_none_or(|answer| answer.status != 200) {
            broken.push(format!("cannot delete the volume {name}: {answer:?}"));
        }
    }
    broken
}

/// Waits until the state is as wanted; returns the differences at the deadline.
pub fn until_reached(
    agent: &Agent,
    instance: &str,
    wanted: &ExpectedState,
    journal: &Journal,
) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let open = unreached(agent, instance, wanted, journal);
        if open.is_empty() || Instant::now() > deadline {
            return open;
        }
        wait::pause(Duration::from_millis(3));
    }
}

/// Waits until the agent has no other paths than `bare`; returns those that remain at the deadline.
/// Tombstones may remain for their lifetime.
pub fn until_bare(agent: &Agent, instance: &str, bare: &BTreeSet<PathBuf>) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left: Vec<String> = traces(agent, instance)
            .difference(bare)
            .filter(|path| !is_tombstone(path) && !is_kept(path))
            .map(|path| format!("not removed: {}", path.display()))
            .collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        wait::pause(Duration::from_millis(5));
    }
}

/// Returns every path of an agent on this machine: directories, records, cgroups, mounts.
pub fn traces(agent: &Agent, instance: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let tops = [agent.home.state(), home::runtime(instance)].into_iter().chain(host::trees(instance));
    for top in tops {
        // The kernel owns the files in cgroups.
        let files = !top.starts_with("/sys");
        walk(&top, files, &mut found);
        found.extend(
            host::mounts_below(&top)
                .into_iter()
                .map(|point| PathBuf::from(format!("mount {}", point.display()))),
        );
    }
    found
}

/// Returns the remaining records, including tombstones.
pub fn records(instance: &str) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    walk(&home::runtime(instance).join("attempts"), true, &mut found);
    found.into_iter().filter(|path| !path.file_name().is_some_and(is_hidden)).collect()
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with('.'))
}

/// Returns whether a path is a tombstone.
pub fn is_tombstone(path: &Path) -> bool {
    let in_records = path.parent().is_some_and(|parent| parent.ends_with("attempts"));
    let record = fs::read(path).ok().and_then(|bytes| Record::from_bytes(&bytes).ok());
    in_records && record.is_some_and(|record| record.state == State::Tombstone)
}

/// Returns whether a path remains by design: the directories of volumes and of networks ([`super::networks`] checks their contents), versions of installed programs, variables and the
/// keys of tokens and variables, and files of commits that never happened.
fn is_kept(path: &Path) -> bool {
    let is_below = |name: &str| path.components().any(|part| part.as_os_str() == name);
    path.ends_with("state/volumes")
        || path.ends_with("state/cni")
        || path.ends_with("netns")
        || is_below("addresses")
        || is_below("settings")
        || is_below("variables")
        || is_below("keys")
        || is_below("versions")
        || path.components().any(|part| part.as_os_str() == "damaged")
}

/// Returns the differences to the wanted state.
fn unreached(agent: &Agent, instance: &str, all: &ExpectedState, journal: &Journal) -> Vec<String> {
    let tasks = running(instance);
    let is: Vec<(String, String)> =
        tasks.iter().map(|task| (task.place.clone(), task.word.clone())).collect();
    let services = all.jobs().filter(|work| work.kind == JobType::Service);
    let mut wanted: Vec<(String, String)> =
        services.flat_map(|work| work.places().into_iter().map(|place| (place, work.word.clone()))).collect();
    wanted.sort();
    let mut open = Vec::new();
    if is != wanted {
        open.push(format!("expected {wanted:?}, found {is:?}"));
    }
    let attempts = host::members(instance)
        .into_iter()
        .map(|member| format!("{}.{}.{}", member.alloc, member.task, member.attempt))
        .collect::<BTreeSet<_>>();
    let cgroups: BTreeSet<String> = host::attempts(instance).into_iter().collect();
    if cgroups != attempts {
        open.push(format!("found cgroups {cgroups:?}, expected {attempts:?}"));
    }
    let supervisors = host::supervisors(instance).len();
    if supervisors != wanted.len() {
        open.push(format!("{supervisors} supervisors for {} tasks", wanted.len()));
    }
    let begun: BTreeSet<(String, String)> =
        journal.begun().into_iter().map(|line| (line.place, line.word)).collect();
    for work in all.jobs().filter(|work| work.kind == JobType::Batch) {
        for place in work.places() {
            if !begun.contains(&(place.clone(), work.word.clone())) {
                open.push(format!("{place} of {} has not started", work.word));
            }
        }
    }
    for work in all.jobs() {
        let Some(service) = work.addressed_service() else { continue };
        let found = get_list(agent, &format!("/v1/service/{service}"));
        let addresses: Vec<&str> = found.iter().filter_map(|one| one["Address"].as_str()).collect();
        if addresses.len() as u64 != work.count || addresses.iter().any(|address| *address != ADDRESS) {
            open.push(format!(
                "service {service} of {} instances has the addresses {addresses:?}",
                work.count
            ));
        }
    }
    let templated = templated(all, &agent.peer());
    open.extend(unrendered(&templated, all, &agent.peer()));
    open.extend(without_secrets(&templated, agent));
    open.extend(unconverged(&agent.peer()));
    open
}

/// Describes what an agent calls unconverged. A task that runs, but counts only after it has lived longer than an attempt that was
/// killed, is as wanted: on a slow machine that takes longer than [`LIMIT`].
pub fn unconverged(agent: &Peer) -> Option<String> {
    let status = http::get(agent, "/v1/herdlet/status").map(|answer| answer.json());
    let Some(listed) = status.as_ref().and_then(|status| status["unconverged"].as_array()) else {
        return Some(format!("no list of what is not converged: {status:?}"));
    };
    let is_proof = |message: &str| message.contains("has failed before; counts as running after");
    let open: Vec<_> = listed
        .iter()
        .filter(|entry| !entry["convergence"]["message"].as_str().is_some_and(is_proof))
        .collect();
    (!open.is_empty()).then(|| format!("not converged: {open:?}"))
}

/// Returns the files in `secrets` that are not as wanted. No API shows them.
fn without_secrets(tasks: &[TemplatedTask<'_>], agent: &Agent) -> Vec<String> {
    let mut open = Vec::new();
    for TemplatedTask { alloc, name, work } in tasks {
        let dir = agent.home.state().join("alloc").join(alloc).join(name);
        let word = fs::read_to_string(dir.join(WORD)).unwrap_or_default();
        if word != format!("{} {name}", work.word) {
            open.push(format!("{}: {alloc}/{name}: {WORD} has {word:?}", work.name));
        }
        if fs::metadata(dir.join(TOKEN)).map_or(0, |about| about.len()) == 0 {
            open.push(format!("{}: {alloc}/{name} has no {TOKEN}", work.name));
        }
    }
    open
}

/// What an agent's log must not contain in a life whose disk and memory are sound.
const UNEXPECTED: [&str; 5] = ["panicked", "set aside", "rebuilt", "damaged", "ERROR"];

/// Describes the lines of an agent's log that must not occur, and those with one of `others`.
pub fn unexpected_lines(log: &str, others: &[&str]) -> Vec<String> {
    let is_unexpected = |line: &&str| UNEXPECTED.iter().chain(others).any(|text| line.contains(text));
    log.lines().filter(is_unexpected).map(|line| format!("unexpected log line: {line}")).collect()
}

fn is_empty(agent: &Agent) -> bool {
    get_list(agent, "/v1/herdlet/jobs").is_empty() && get_list(agent, "/v1/herdlet/allocs").is_empty()
}

fn get_list(agent: &Agent, path: &str) -> Vec<serde_json::Value> {
    let peer: Peer = agent.peer();
    let answer = http::get(&peer, path).filter(|answer| answer.status == 200);
    answer.and_then(|answer| answer.json().as_array().cloned()).unwrap_or_default()
}

fn walk(dir: &Path, files: bool, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir {
            walk(&entry.path(), files, found);
        }
        if is_dir || files {
            found.insert(entry.path());
        }
    }
}
