//! What the tests of this package share.

pub mod environment;
