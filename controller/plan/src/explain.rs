//! What a plan waits for: kept as small values while planning, rendered as sentences on request.
pub use herdlet_api_types::view::{Explanation, Wait};
