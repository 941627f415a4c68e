//! What the tests of this package share: simulated lives, and the environment of end-to-end tests.

pub mod e2e;
pub mod environment;
pub mod sim;
