//! Nomad's RPC, as both its sides speak it. Knows no allocation, and nothing of the agent.

pub mod address;
pub mod call;
pub mod codec;
pub mod connect;
pub mod error;
mod frame;
pub mod framed;
pub mod message;
pub mod mux;
pub mod pool;
#[cfg(test)]
mod recordings;
pub mod serve;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod tls;
