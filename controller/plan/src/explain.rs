//! What a plan waits for: kept as small values while planning, made into sentences only when somebody asks.
pub use herdlet_api_types::view::{Explanation, Wait};
