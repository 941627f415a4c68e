//! A world of numbers, a store with a script, and one log with a line for each event.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use herdlet_runtime::{
    Action, Clock, CommitIndex, Dirty, Executor, FinishedRuntime, Handle, Inbox, Now, Publisher, Release,
    Reply, Report, Runtime, Settings, Shell, Store, TokioClock, Turn, World,
};
use tokio::sync::{mpsc as async_mpsc, oneshot};
use tokio::task::JoinHandle;

/// The log, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// Takes the lines so far.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub(crate) enum Event {
    /// Reconcile a key, which then yields its plan.
    Mark(u32),
    /// From now on each reconcile of the key yields this.
    Plan(u32, Planned),
    /// Store a record with a reply.
    Ask(oneshot::Sender<CommitIndex>),
    /// Reply without a record and without waiting for a commit.
    Wonder(oneshot::Sender<CommitIndex>),
    /// Panic in apply, with a key or without one.
    Panic(Option<u32>),
    /// Take a key out of quarantine.
    Release(u32),
    /// The result of an operation.
    Report(Report<u32, &'static str>),
}

impl From<Report<u32, &'static str>> for Event {
    fn from(report: Report<u32, &'static str>) -> Self {
        Self::Report(report)
    }
}

/// The results of reconciling a key.
#[derive(Clone, Default)]
pub(crate) struct Planned {
    pub(crate) look: bool,
    pub(crate) stop: bool,
    pub(crate) start: bool,
    pub(crate) record: bool,
    pub(crate) status: bool,
    pub(crate) wakes: Vec<u64>,
    pub(crate) dirty: Vec<u32>,
    pub(crate) panic: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deed(pub(crate) Release, pub(crate) u32);

impl Action for Deed {
    fn release(&self) -> Release {
        self.0
    }
}

/// An answer, and when it may be released.
pub(crate) struct Replied(Release, oneshot::Sender<CommitIndex>);

impl Reply for Replied {
    fn release(self, index: CommitIndex) {
        let _ = self.1.send(index);
    }

    fn release_when(&self) -> Release {
        self.0
    }
}

#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) log: Log,
    pub(crate) restored: Vec<u32>,
    pub(crate) held: Vec<u32>,
    pub(crate) planned: BTreeMap<u32, Planned>,
}

impl World for Numbers {
    type Key = u32;
    type Event = Event;
    type Action = Deed;
    type Record = String;
    type Status = String;
    type Reply = Replied;

    fn begin(&mut self, _: Now, dirty: &mut Dirty<u32>) {
        self.restored.iter().for_each(|key| dirty.mark(*key));
        self.held.iter().for_each(|key| dirty.quarantine(*key));
    }

    fn key_of(&self, event: &Event) -> Option<u32> {
        match event {
            Event::Mark(key) | Event::Plan(key, _) | Event::Release(key) => Some(*key),
            Event::Panic(key) => *key,
            Event::Report(report) => Some(report.key),
            Event::Ask(_) | Event::Wonder(_) => None,
        }
    }

    fn apply(&mut self, _: Now, event: Event, dirty: &mut Dirty<u32>, turn: &mut Turn<Self>) {
        match event {
            Event::Mark(key) => dirty.mark(key),
            Event::Plan(key, planned) => {
                self.planned.insert(key, planned);
                dirty.mark(key);
            }
            Event::Ask(reply) => {
                turn.records.push("asked".to_owned());
                turn.replies.push(Replied(Release::AfterCommit, reply));
            }
            Event::Wonder(reply) => turn.replies.push(Replied(Release::AtOnce, reply)),
            Event::Panic(key) => {
                turn.records.push("half".to_owned());
                panic!("cannot apply to {key:?}");
            }
            Event::Release(key) => {
                self.planned.entry(key).or_default().panic = false;
                dirty.release(key);
            }
            Event::Report(report) => self.log.add(format!(
                "{} g{} {:?} after {} s",
                report.key,
                report.generation,
                report.outcome,
                report.ran.as_secs()
            )),
        }
    }

    fn reconcile(&mut self, _: Now, key: &u32, turn: &mut Turn<Self>) {
        self.log.add(format!("reconcile {key}"));
        let planned = self.planned.get(key).cloned().unwrap_or_default();
        for (wanted, release) in [
            (planned.look, Release::AtOnce),
            (planned.start, Release::AfterCommit),
            (planned.stop, Release::Stop),
        ] {
            if wanted {
                turn.actions.push(Deed(release, *key));
            }
        }
        if planned.record {
            turn.records.push(key.to_string());
        }
        if planned.status {
            turn.statuses.push(key.to_string());
        }
        planned.wakes.iter().for_each(|at_boot_ns| turn.wake(*key, *at_boot_ns, "planned"));
        turn.dirty.extend(&planned.dirty);
        assert!(!planned.panic, "cannot plan {key}");
    }

    fn quarantined(&mut self, _: Now, key: &u32, message: &str, turn: &mut Turn<Self>) {
        self.log.add(format!("quarantined {key}: {message}"));
        turn.records.push(format!("quarantine {key}"));
    }
}

/// How the store behaves next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Work,
    Fail,
    Panic,
    /// Waits for [`StoreControl::go`] in each commit.
    Hang,
}

#[derive(Debug, thiserror::Error)]
#[error("write: disk full")]
pub(crate) struct DiskFull;

pub(crate) struct ScriptedStore {
    log: Log,
    mode: Arc<Mutex<Mode>>,
    index: u64,
    began: async_mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
}

pub(crate) struct StoreControl {
    mode: Arc<Mutex<Mode>>,
    began: async_mpsc::Receiver<()>,
    go: mpsc::SyncSender<()>,
}

impl StoreControl {
    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// Waits until a hanging commit has begun.
    pub(crate) async fn began(&mut self) {
        self.began.recv().await.unwrap();
    }

    /// Lets one hanging commit continue.
    pub(crate) fn go(&self) {
        self.go.send(()).unwrap();
    }
}

pub(crate) fn store(log: &Log) -> (ScriptedStore, StoreControl) {
    let mode = Arc::new(Mutex::new(Mode::Work));
    let (began, began_seen) = async_mpsc::channel(16);
    let (go, go_seen) = mpsc::sync_channel(16);
    let store = ScriptedStore { log: log.clone(), mode: Arc::clone(&mode), index: 100, began, go: go_seen };
    (store, StoreControl { mode, began: began_seen, go })
}

impl Store for ScriptedStore {
    type Record = String;
    type Error = DiskFull;

    fn commit(&mut self, batch: &[String]) -> Result<CommitIndex, DiskFull> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            Mode::Work => {}
            Mode::Fail => {
                self.log.add(format!("fail {}", batch.join(" ")));
                return Err(DiskFull);
            }
            Mode::Panic => panic!("corrupt page"),
            Mode::Hang => {
                let _ = self.began.try_send(());
                // An error means that the test is over.
                let _ = self.go.recv();
            }
        }
        self.index += 1;
        self.log.add(format!("commit {} {}", self.index, batch.join(" ")));
        Ok(self.index())
    }

    fn index(&self) -> CommitIndex {
        CommitIndex(self.index)
    }

    fn compact(records: &mut Vec<String>) {
        assert!(!records.iter().any(|record| record == "13013"), "cannot compact 13013");
        records.dedup();
    }
}

pub(crate) struct LoggingShell(pub(crate) Log);

impl Executor<Deed> for LoggingShell {
    fn start(&mut self, actions: Vec<Deed>) {
        for Deed(release, key) in actions {
            self.0.add(match release {
                Release::AtOnce => format!("look {key}"),
                Release::Stop => format!("stop {key}"),
                Release::AfterCommit => format!("start {key}"),
            });
            assert!(key != 666, "cannot start {key}");
        }
    }
}

impl Publisher<String> for LoggingShell {
    fn offer(&mut self, index: CommitIndex, statuses: Vec<String>) {
        self.0.add(format!("offer {index} {}", statuses.join(" ")));
    }

    fn compact(statuses: &mut Vec<String>) {
        statuses.dedup();
    }
}

/// A running runtime.
pub(crate) struct Running {
    pub(crate) inbox: Inbox<Event>,
    pub(crate) handle: Handle,
    pub(crate) log: Log,
    pub(crate) store: StoreControl,
    pub(crate) ended: JoinHandle<FinishedRuntime<Numbers, ScriptedStore>>,
}

/// Starts a runtime around `world`, at boot time 0 of tokio's time.
pub(crate) fn run(world: Numbers) -> Running {
    run_on(world, TokioClock::starting_at(Now::default()))
}

/// Starts a runtime around `world` on `clock`.
pub(crate) fn run_on(world: Numbers, clock: impl Clock) -> Running {
    let log = world.log.clone();
    let (inbox, arrivals) = Inbox::with_capacity(16_384);
    let (store, control) = store(&log);
    let (runtime, handle) = Runtime::new(Shell {
        world,
        arrivals,
        store,
        executor: LoggingShell(log.clone()),
        publisher: LoggingShell(log.clone()),
        clock,
        settings: Settings::default(),
    });
    Running { inbox, handle, log, store: control, ended: tokio::spawn(runtime.run()) }
}

impl Running {
    pub(crate) async fn send(&self, event: Event) {
        self.inbox.send(event).await.unwrap();
    }

    /// Lets all tasks run that need no time to pass (except the timer's millisecond). Not for use while a commit
    /// hangs, because time does not advance then.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Like [`Running::settle`], while a commit hangs.
    pub(crate) async fn settle_hung(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn shut_down(self) -> (FinishedRuntime<Numbers, ScriptedStore>, Log) {
        self.handle.shutdown.cancel();
        (self.ended.await.unwrap(), self.log)
    }
}
