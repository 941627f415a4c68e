//! A real agent with real processes, killed at random points, again and again.
//!
//! In: a seed and how many points. Out: a table of the points by kind, and every promise that was broken with the seed of its
//! life. A point is one `kill -9` (of the agent, of a supervisor, of both) around one operation, and a new agent after it.
//! A life is one agent with its directories and jobs over some points, judged every few points and taken down in the end.
//!
//! - [`work`]: what the tasks of these lives do; they know by themselves when they run twice.
//! - [`job`]: the jobs.
//! - [`operation`]: what is asked of the agent, and what is wanted from then on.
//! - [`moment`]: when it is killed.
//! - [`life`]: points, one after the other, of one agent.
//! - [`oracle`]: what must hold when the agent had its time.
//! - [`campaign`]: many lives side by side, and their table.
//! - [`starting`]: killed while very many tasks start.
//! - [`strangers`]: processes of others, which get the pids of the dead.
//!
//! Another part of herdlet joins by adding what it brings to the jobs (`job.rs`), its operations (`operation.rs`) and what it
//! must not leave behind (`oracle.rs`); moments and victims come by themselves.

pub mod campaign;
pub mod job;
pub mod life;
pub mod moment;
pub mod operation;
pub mod oracle;
pub mod starting;
pub mod strangers;
pub mod work;
