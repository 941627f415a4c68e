//! The watchers of the agent: they report changes that nothing else reports.
//!
//! In: directories, the mount table, links, addresses, rules, the read model. Out: events for the planner. They use kernel events wherever
//! there are any, and inspect periodically only what has none. They decide nothing.

pub mod addresses;

pub mod clock;

pub mod drift;

pub mod networks;

pub mod ports;
