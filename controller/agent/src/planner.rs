//! Runs the planner's world under the runtime: translates between the two and makes no decisions.
//!
//! In: [`Input`]s. Out: the turn's actions, records, views and answers. Each request gets a number while the world
//! processes it, so that the world needs to know no channels.

use std::{collections::BTreeSet, sync::Arc};

use herdlet_api_types::UnixNanos;
use herdlet_plan::{
    action::Action,
    event::{Command, Event, Reply},
    op::{Key, Op, Target},
    record::Record,
    time::{BootId, Now},
    turn::{Note, Turn, View},
    world::World,
};
use herdlet_runtime as runtime;
use tokio::sync::oneshot;

/// An event of the loop.
#[derive(Debug)]
pub enum Input {
    Event(Event),
    /// A request whose caller waits for the answer.
    Request(Command, oneshot::Sender<Answer>),
}

/// The answer to a request, sent when the resulting changes are durable.
#[derive(Debug)]
pub struct Answer {
    /// The planner's reply.
    pub reply: Reply,
    /// The commit that made it durable.
    pub index: runtime::CommitIndex,
}

/// Counts the planner's notes. Called on the loop; must not block.
pub type NoteSink = Arc<dyn Fn(&Note) + Send + Sync>;

/// The planner's world, as the runtime drives it.
pub struct Planner {
    world: World,
    boot: BootId,
    notes: NoteSink,
    requests: u64,
}

impl Planner {
    /// Drives `world` during the boot `boot`.
    pub fn new(world: World, boot: BootId, notes: NoteSink) -> Self {
        Self { world, boot, notes, requests: 0 }
    }

    fn now(&self, now: runtime::Now) -> Now {
        Now { boot: self.boot, boot_ns: now.boot_ns, wall: UnixNanos(now.wall_ns) }
    }

    /// Adds the planner's output to the runtime's turn.
    fn hand_over(&self, made: Turn, turn: &mut runtime::Turn<Self>, asked: Option<PendingRequest>) {
        let Turn { records, actions, views, replies, wakes, notes } = made;
        turn.records.extend(records);
        turn.actions.extend(actions.into_iter().map(PlannedAction));
        turn.statuses.extend(views);
        for (key, at_ns) in wakes {
            turn.wake(key, at_ns, "plan");
        }
        if let Some(PendingRequest { request, sender }) = asked
            && let Some((_, reply)) = replies.into_iter().find(|(number, _)| *number == request)
        {
            turn.replies.push(PendingReply { sender, reply });
        }
        for note in &notes {
            (self.notes)(note);
        }
    }
}

impl runtime::World for Planner {
    type Key = Key;
    type Event = Input;
    type Action = PlannedAction;
    type Record = Record;
    type Status = View;
    type Reply = PendingReply;

    fn begin(&mut self, _now: runtime::Now, dirty: &mut runtime::Dirty<Key>) {
        for key in self.world.keys() {
            dirty.mark(key);
        }
    }

    fn key_of(&self, input: &Input) -> Option<Key> {
        match input {
            Input::Event(event) => key_of(event),
            Input::Request(..) => None,
        }
    }

    fn apply(
        &mut self,
        now: runtime::Now,
        input: Input,
        dirty: &mut runtime::Dirty<Key>,
        turn: &mut runtime::Turn<Self>,
    ) {
        // Requests are answered as they are applied. The sender is held here, so that a panic drops it and the caller
        // gets an error.
        let (event, asked) = match input {
            Input::Event(event) => (event, None),
            Input::Request(command, sender) => {
                self.requests += 1;
                let request = self.requests;
                (Event::Command { request, command }, Some(PendingRequest { request, sender }))
            }
        };
        let (mut keys, mut made) = (BTreeSet::new(), Turn::default());
        self.world.apply(self.now(now), event, &mut keys, &mut made);
        for key in keys {
            if asked.is_none() {
                dirty.mark(key);
                continue;
            }
            // A request may repair whatever made its object panic.
            if let Key::Job(job) = &key {
                dirty.readmit(Key::Waiting(job.clone()));
            }
            dirty.release(key);
        }
        self.hand_over(made, turn, asked);
    }

    fn reconcile(&mut self, now: runtime::Now, key: &Key, turn: &mut runtime::Turn<Self>) {
        let (mut keys, mut made) = (BTreeSet::new(), Turn::default());
        self.world.reconcile(self.now(now), key, &mut keys, &mut made);
        turn.dirty.extend(keys);
        self.hand_over(made, turn, None);
    }

    fn quarantined(&mut self, now: runtime::Now, key: &Key, message: &str, turn: &mut runtime::Turn<Self>) {
        let (mut keys, mut made) = (BTreeSet::new(), Turn::default());
        self.world.quarantine(self.now(now), key, message, &mut keys, &mut made);
        turn.dirty.extend(keys);
        self.hand_over(made, turn, None);
    }
}

/// A request that the world is processing.
struct PendingRequest {
    request: u64,
    sender: oneshot::Sender<Answer>,
}

/// An action under the runtime.
#[derive(Debug)]
pub struct PlannedAction(pub Action);

impl runtime::Action for PlannedAction {
    fn release(&self) -> runtime::Release {
        use herdlet_plan::action::Release;
        match self.0.release() {
            Release::AtOnce => runtime::Release::AtOnce,
            Release::AfterCommit => runtime::Release::AfterCommit,
            Release::Stop => runtime::Release::Stop,
        }
    }
}

/// An answer that has not been sent yet.
#[derive(Debug)]
pub struct PendingReply {
    sender: oneshot::Sender<Answer>,
    reply: Reply,
}

impl runtime::Reply for PendingReply {
    fn release(self, index: runtime::CommitIndex) {
        // The caller may have gone away.
        let _ = self.sender.send(Answer { reply: self.reply, index });
    }

    fn release_when(&self) -> runtime::Release {
        match self.reply {
            Reply::Explanation(_) => runtime::Release::AtOnce,
            Reply::Applied { .. }
            | Reply::Accepted { .. }
            | Reply::DeploymentFailed { .. }
            | Reply::Dispatched { .. }
            | Reply::Collected { .. }
            | Reply::Refused(_) => runtime::Release::AfterCommit,
        }
    }
}

fn key_of(event: &Event) -> Option<Key> {
    match event {
        Event::Outcome(Op { target: Target::Alloc(alloc, _), .. }, _)
        | Event::Exited { alloc, .. }
        | Event::Check { alloc, .. }
        | Event::Drift { alloc, .. }
        | Event::SourceChanging { alloc, .. }
        | Event::SourceChanged { alloc, .. }
        | Event::Driver { alloc, .. }
        | Event::Plugin { alloc, .. }
        | Event::Progress { alloc, .. }
        | Event::Found { alloc, .. } => Some(Key::Alloc(*alloc)),
        Event::Outcome(Op { target: Target::Volume(name), .. }, _) => Some(Key::Volume(name.clone())),
        Event::Desired(_)
        | Event::Node { .. }
        | Event::Listening(_)
        | Event::HostNetworks(_)
        | Event::ClockSet
        | Event::Command { .. } => None,
    }
}
