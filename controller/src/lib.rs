//! The program: the agent with its front ends (`herdlet agent`), a private agent (`herdlet run`), a cluster of simulated nodes
//! (`herdlet simulate`), checks of a machine (`herdlet doctor`), and their command line.
//!
//! In: arguments, the environment. Out: an exit code. The other crates implement the parts.

pub mod cli;
mod consul_config;
pub mod doctor;
mod drivers;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guard;
pub mod run;
pub mod serve;
pub mod simulate;
mod variable_keys;
