//! Operations, cuts, and checks after each boot.
//!
//! In: a seed and the number of cuts. Out: the result of each; the first violation ends the life. After a
//! boot, acknowledged operations must have taken effect, others may have; exactly the wanted tasks run, once,
//! and nothing reports damage.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    disk::Cut,
    guest,
    machine::{Boot, Components, Machine},
};
use crate::{
    crashes::{
        operation::{self, ExpectedState, Operation, Request, RequestOutcome},
        oracle::{unconverged, unexpected_lines},
        work::JobType,
    },
    http::{self, Peer},
    random::Rng,
    shown, wait,
};

/// Deadline for convergence after a boot, on a machine with ten other loads.
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum time between an operation and the cut: about as long as the operation's work takes in an emulated
/// machine.
const MOMENT_MS_MAX: u64 = 3_000;
/// Maximum number of writes and flushes before the cut, as a power of two: the number for an operation with
/// its work.
const CHANGES_BITS_MAX: u64 = 8;
/// Maximum wait for them; some operations need fewer.
const CHANGES_LIMIT: Duration = Duration::from_secs(10);

/// A place and a word: see [`crate::crashes::work`].
type Task = (String, String);

/// The life of one machine.
#[derive(Debug)]
pub struct Life {
    machine: Machine,
    rng: Rng,
    wanted: ExpectedState,
    words: u64,
    /// Batch tasks that were complete at the last check, and whose jobs were not changed since.
    complete: BTreeSet<Task>,
}

impl Life {
    /// Creates a machine with an empty disk.
    pub fn new(seed: u64, components: &Components) -> Self {
        Self {
            machine: Machine::new(components),
            rng: Rng::new(seed),
            wanted: ExpectedState::default(),
            words: 0,
            complete: BTreeSet::new(),
        }
    }

    /// Runs a number of cuts, and reports each on stdout.
    ///
    /// # Errors
    /// The violations, and where the machine's disk and logs are.
    pub fn live(mut self, cuts: u64) -> Result<(), String> {
        let mut interrupted = None;
        for number in 0..=cuts {
            let began = Instant::now();
            let mut boot = self.machine.boot();
            let ready = until_ready(&mut boot);
            let broken = match ready {
                Ok(()) => self.judge(&boot, interrupted.take()),
                Err(why) => vec![why],
            };
            if !broken.is_empty() {
                let log = boot.log();
                drop(boot);
                let kept = self.machine.keep();
                return Err(format!(
                    "after cut {number}: {}\n{log}\nfiles: {}",
                    broken.join("\n"),
                    kept.display()
                ));
            }
            let reached = began.elapsed().as_secs();
            if number == cuts {
                println!("after cut {number}: converged {reached} s after power on");
                break;
            }
            let (operation, fate) = self.operate(&boot)?;
            let (fate, cut) = match fate {
                Some(fate) => (fate, self.machine.cut(boot, &mut self.rng)),
                None => self.interrupt(boot, &operation),
            };
            println!(
                "after cut {number}: converged {reached} s after power on; cut {} in {} ({}): {} sectors kept, {} lost",
                number + 1,
                operation.as_str(),
                if fate == RequestOutcome::Open { "not answered" } else { "answered" },
                cut.kept,
                cut.lost
            );
            interrupted = Some((operation, fate));
        }
        Ok(())
    }

    /// Runs some operations to their answer; returns the one to interrupt, or one that was not answered in
    /// time.
    fn operate(&mut self, boot: &Boot) -> Result<(Operation, Option<RequestOutcome>), String> {
        for _ in 0..self.rng.below(3) {
            let operation = self.next();
            let answer = self.request(&boot.agent, &operation).map(|request| ask(&boot.agent, &request));
            let fate = match answer {
                None => continue,
                Some(answer) => fate(answer.as_ref()),
            };
            if fate == RequestOutcome::Open {
                return Ok((operation, Some(fate)));
            }
            self.settle(boot, &operation, &fate)?;
        }
        Ok((self.next(), None))
    }

    /// Cuts the power while the agent works on the operation: at one of its first writes and flushes, or at
    /// any moment.
    fn interrupt(&mut self, boot: Boot, operation: &Operation) -> (RequestOutcome, Cut) {
        let request = self.request(&boot.agent, operation);
        let at_change = self.rng.below(4) != 0;
        if at_change {
            let changes = 1 << self.rng.below(CHANGES_BITS_MAX);
            self.machine.fail_after(1 + self.rng.below(changes));
        }
        let peer = boot.agent.clone();
        let asked = std::thread::spawn(move || request.and_then(|request| ask(&peer, &request)));
        if at_change {
            let deadline = Instant::now() + CHANGES_LIMIT;
            while !self.machine.has_failed() && Instant::now() < deadline {
                wait::pause(Duration::from_millis(1));
            }
        } else {
            wait::pause(Duration::from_millis(self.rng.below(MOMENT_MS_MAX)));
        }
        let cut = self.machine.cut(boot, &mut self.rng);
        (fate(asked.join().ok().flatten().as_ref()), cut)
    }

    /// Like [`operation::settle`], but retries: an emulated machine on a busy host may not answer at once.
    fn settle(&mut self, boot: &Boot, operation: &Operation, fate: &RequestOutcome) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match operation::settle(&mut self.wanted, operation, fate, &boot.agent) {
                Err(why) if why.contains("reports nothing") && Instant::now() < deadline => {
                    wait::pause(Duration::from_millis(100));
                }
                settled => return settled,
            }
        }
    }

    fn next(&mut self) -> Operation {
        self.words += 1;
        let operation = self.wanted.next_request(&mut self.rng, format!("w{}", self.words));
        if let Operation::Apply(work) | Operation::Update(work) | Operation::Scale(work) = &operation {
            self.complete.retain(|(place, _)| !place.starts_with(&format!("{}.", work.name)));
        }
        operation
    }

    fn request(&self, peer: &Peer, operation: &Operation) -> Option<Request> {
        operation.request(peer, &PathBuf::from(guest::PROGRAM), &PathBuf::from(guest::JOURNAL))
    }

    /// Waits until the state is as wanted; returns the differences at the deadline, and all violations.
    fn judge(&mut self, boot: &Boot, interrupted: Option<(Operation, RequestOutcome)>) -> Vec<String> {
        if let Some((operation, fate)) = interrupted
            && let Err(why) = self.settle(boot, &operation, &fate)
        {
            return vec![why];
        }
        let deadline = Instant::now() + LIMIT;
        let facts = loop {
            let (facts, open) = self.unreached(boot);
            if open.is_empty() {
                break facts;
            }
            if Instant::now() > deadline {
                return open;
            }
            wait::pause(Duration::from_millis(100));
        };
        let mut broken: Vec<String> = ["twice", "damaged"]
            .iter()
            .filter(|name| facts[**name].as_array().is_none_or(|list| !list.is_empty()))
            .map(|name| format!("{name}: {}", facts[*name]))
            .collect();
        let mut begun: BTreeMap<Task, u64> = BTreeMap::new();
        tasks(&facts["begun"]).into_iter().for_each(|task| *begun.entry(task).or_default() += 1);
        for (task, times) in &begun {
            if *times > 1 {
                broken.push(format!("{task:?} has started {times} times in this boot"));
            }
            if self.complete.contains(task) {
                broken.push(format!("{task:?} was complete and has started again"));
            }
        }
        broken.extend(unexpected_lines(&boot.log(), &["EXT4-fs error", "the agent ended"]));
        let batches = self.wanted.jobs().filter(|work| work.kind == JobType::Batch);
        self.complete = batches
            .flat_map(|work| work.places().into_iter().map(|place| (place, work.word.clone())))
            .collect();
        broken
    }

    /// Returns the differences to the wanted state.
    fn unreached(&self, boot: &Boot) -> (Value, Vec<String>) {
        let Some(facts) = boot.facts() else {
            return (Value::Null, vec!["the guest does not report its processes".to_owned()]);
        };
        let mut open = Vec::new();
        let services = self.wanted.jobs().filter(|work| work.kind == JobType::Service);
        let mut wanted: Vec<Task> = services
            .flat_map(|work| work.places().into_iter().map(|place| (place, work.word.clone())))
            .collect();
        wanted.sort();
        let mut is = tasks(&facts["running"]);
        is.sort();
        if is != wanted {
            open.push(format!("expected {wanted:?}, found {is:?}"));
        }
        if facts["supervisors"].as_u64() != Some(wanted.len() as u64) {
            open.push(format!("{} supervisors for {} tasks", facts["supervisors"], wanted.len()));
        }
        if facts["strays"].as_array().is_none_or(|list| !list.is_empty()) {
            open.push(format!("cgroups without processes: {}", facts["strays"]));
        }
        for name in operation::ASKED {
            let wanted = self.wanted.asked.get(name).map(|work| (work.word.clone(), work.count));
            match operation::current_version(&boot.agent, name) {
                Ok(shown) if shown == wanted => {}
                shown => open.push(format!("{name}: expected {wanted:?}, the agent reports {shown:?}")),
            }
        }
        let templated = operation::templated(&self.wanted, &boot.agent);
        open.extend(operation::unrendered(&templated, &self.wanted, &boot.agent));
        let known = shown::allocs(&boot.agent);
        // A directory is not synced, so a cut can lose a new one, with its logs, even for an ended
        // allocation. Nothing creates it again.
        let has_ended = |alloc: &shown::Alloc| !matches!(alloc.status().as_str(), "pending" | "running");
        let needed: BTreeSet<String> =
            known.iter().filter(|alloc| !has_ended(alloc)).map(shown::Alloc::id).collect();
        let known: BTreeSet<String> = known.iter().map(shown::Alloc::id).collect();
        let kept: BTreeSet<String> = strings(&facts["allocs"]).collect();
        if !kept.is_subset(&known) || !needed.is_subset(&kept) {
            open.push(format!("allocations {known:?}, directories {kept:?}, needed {needed:?}"));
        }
        open.extend(unconverged(&boot.agent));
        (facts, open)
    }
}

fn until_ready(boot: &mut Boot) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    while http::get(&boot.agent, "/v1/herdlet/status").is_none_or(|answer| answer.status != 200) {
        if !boot.is_on() {
            return Err("the machine went off by itself".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("no agent responds within {LIMIT:?}"));
        }
        wait::pause(Duration::from_millis(100));
    }
    Ok(())
}

fn ask(peer: &Peer, request: &Request) -> Option<http::Answer> {
    let headers = [("Content-Type", "application/json")];
    http::request(peer, request.method, &request.path, &headers, &request.body)
}

/// 503 means that the request was not stored in time, and may or may not be stored later.
fn fate(answer: Option<&http::Answer>) -> RequestOutcome {
    match answer {
        Some(answer) if answer.status == 200 => RequestOutcome::Accepted,
        Some(answer) if answer.status != 503 => {
            RequestOutcome::Refused(format!("{} {}", answer.status, answer.body))
        }
        Some(_) | None => RequestOutcome::Open,
    }
}

fn tasks(list: &Value) -> Vec<Task> {
    let pair = |pair: &Value| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned()));
    list.as_array().into_iter().flatten().filter_map(pair).collect()
}

fn strings(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned))
}
