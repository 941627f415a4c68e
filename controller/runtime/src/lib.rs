//! The reconcile runtime of herdlet: a turn loop with a key-only queue, a committer, and the operations it starts.
//!
//! In: events, through an [`Inbox`]. Out: actions, records, statuses and replies, each released when the records of
//! its turn are durable. A [`World`], which is synchronous and pure, defines keys, events and actions; this crate
//! must not know what is being reconciled.
//!
//! ```text
//!   Inbox ──► Runtime::run ──► Reconciler::turn (pure) ──► Committer ──► Executor::start, Publisher::offer, Reply
//!     ▲          │  ▲                │                        │
//!     │          │  └── alarm ◄── WakeQueue                   └── Store::commit, in order, one in flight, on a thread
//!     └──────────┼────────────────────────────── Operations (own task, permit, deadline, token)
//!                └── awaits its inbox and its alarm, nothing else
//! ```
//!
//! - [`world`]: the trait that a user implements, and the result of one turn.
//! - [`turn`]: the synchronous core, which a simulator can drive without tokio.
//! - [`queue`]: wakes, one per key; the earliest wins.
//! - [`inbox`] and [`run`]: the loop around the core.
//! - [`committer`]: durability first, then effects.
//! - [`operation`], [`permit`] and [`pace`]: execution of actions, with bounds.
//! - [`mod@off_thread`]: blocking work.
//! - [`settings`], [`ready`], [`backoff`], [`clock`], [`metrics`]: small utilities of the above and of worlds.
//!
//! There is no timer tick: nothing runs without an event or a due wake. Wakes are kept in a sorted set with one alarm
//! instead of a timer wheel, so that the simulator and the agent share the queue, any deadline is legal, and the
//! alarm can be set on `CLOCK_BOOTTIME`, which advances while the machine is suspended.
#![warn(missing_docs)]

pub mod backoff;
pub mod clock;
pub mod committer;
pub mod inbox;
pub mod metrics;
pub mod off_thread;
pub mod operation;
pub mod pace;
pub mod permit;
pub mod queue;
pub mod ready;
pub mod run;
pub mod settings;
pub mod turn;
pub mod world;

mod panic;

pub use backoff::{Attempts, Backoff};
pub use clock::{Alarm, BootClock, Clock, Now, TokioClock};
pub use committer::{Executor, Publisher, Store, StoreHealth};
pub use inbox::{Arrivals, Inbox, InboxError};
pub use metrics::Metrics;
pub use off_thread::{OffThread, off_thread};
pub use operation::{Operations, Outcome, Report, Request};
pub use pace::Pace;
pub use permit::{Limit, Permit, Permits, Rate};
pub use queue::{Wake, WakeQueue};
pub use ready::{Gate, GateOpener};
pub use run::{FinishedRuntime, Handle, Runtime, Shell};
pub use settings::Settings;
pub use turn::Reconciler;
pub use world::{Action, CommitIndex, Dirty, Release, Reply, Turn, World};
