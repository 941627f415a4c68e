//! The messages of CSI that herdlet uses, with the numbers of their fields (`csi.proto`, package `csi.v1`).
//!
//! A `oneof` with message fields has the encoding of its fields, each optional, and is declared as such here. Fields that
//! herdlet neither sets nor reads are left out: a decoder skips them. Messages with secrets or mount flags have no `Debug`.

mod controller;
mod identity;
mod node;
mod volume;

pub use controller::*;
pub use identity::*;
pub use node::*;
pub use volume::*;
