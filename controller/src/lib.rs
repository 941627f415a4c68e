//! The shell of herdlet: everything that touches the world. Decisions are made in `herdlet-plan`, turns in
//! `herdlet-runtime`; this crate feeds them events and carries out their actions.

pub mod desired;
pub mod drivers;
pub mod paths;
pub mod planner;
