//! Nomad's RPC, as both its sides speak it. Knows no allocation, and nothing of the agent.

pub mod codec;
#[cfg(test)]
mod recordings;
