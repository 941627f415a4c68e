//! The library of these tests: simulated lives, end-to-end tests, campaigns of crashes, power cuts and stock
//! Nomad, and resource use after much work.

#[expect(clippy::expect_used, reason = "a campaign that can't go on says why and ends")]
pub mod crashes;
pub mod e2e;
pub mod environment;
#[expect(clippy::expect_used, reason = "a measure that can't go on says why and ends")]
pub mod flat;
#[expect(clippy::expect_used, reason = "a campaign that can't go on says why and ends")]
pub mod power_cuts;
pub mod sim;
#[expect(clippy::expect_used, reason = "a campaign that can't go on says why and ends")]
pub mod stock_nomad;
#[expect(clippy::expect_used, reason = "a test that can't go on says why and ends")]
pub mod upgrade;

/// Folder of the stories.
pub const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stories");
