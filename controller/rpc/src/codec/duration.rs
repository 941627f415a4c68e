//! For `#[serde(with = "codec::duration")]`: Go's `time.Duration`, nanoseconds in a signed integer, as a [`Duration`].
//!
//! Negative durations, which Nomad never uses, decode as zero. Durations that do not fit are encoded as the maximum: 292 years.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer, Serializer};

/// Encodes nanoseconds.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Decodes nanoseconds.
///
/// # Errors
/// If the value is not an integer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let nanos = i64::deserialize(deserializer)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))
}
