//! The program: the agent with its front ends (`herdlet agent`), a private agent (`herdlet run`), a cluster of pretended nodes
//! (`herdlet simulate`), checks of a machine (`herdlet doctor`), and the command line around all of them.
//!
//! In: arguments, the environment. Out: an exit code. What the parts do is in the crates beside this one.

pub mod cli;
mod consul_config;
pub mod doctor;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guard;
pub mod run;
pub mod serve;
pub mod simulate;
