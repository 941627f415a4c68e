//! Kills a real agent with real processes at random points, again and again.
//!
//! In: a seed and the number of points. Out: a table of the points by kind, and every violation with the seed
//! of its life. A point is one `kill -9` (of the agent, of a supervisor, of both) around one operation,
//! followed by the start of a new agent. A life is one agent with its directories and jobs over some points.
//! It is checked every few points and taken down at the end.
//!
//! - [`work`]: the tasks of these lives, which detect by themselves when two instances run.
//! - [`job`]: the jobs.
//! - [`operation`]: requests to the agent, and the state that is wanted after them.
//! - [`moment`]: when to kill.
//! - [`networks`]: the networks of their tasks.
//! - [`life`]: the points of one agent, one after the other.
//! - [`oracle`]: the invariants once the agent had time to converge.
//! - [`campaign`]: many concurrent lives, and their table.
//! - [`starting`]: kills while very many tasks start.
//! - [`strangers`]: unrelated processes, which reuse the pids of ended ones.
//!
//! To cover a new part of herdlet, add it to the jobs (`job.rs`), its operations to `operation.rs` and the
//! traces that it must not leave to `oracle.rs`. Moments and victims need no change.

pub mod campaign;
pub mod job;
pub mod life;
pub mod moment;
pub mod networks;
pub mod operation;
pub mod oracle;
pub mod starting;
pub mod strangers;
pub mod work;
