//! Being a node of a Nomad cluster: what is told to servers of this machine, how they are found, and whose node it was before.

pub mod consul;
pub mod describe;
pub mod meta;
pub mod moving;
pub mod servers;
