//! For `#[serde(with = "codec::duration")]`: Go's `time.Duration`, nanoseconds in a signed integer, as a [`Duration`].
//!
//! What is negative in Go (which Nomad means nowhere) is read as zero, what does not fit is written as the longest: 292 years.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer, Serializer};

/// Writes nanoseconds.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Reads nanoseconds.
///
/// # Errors
/// When it is no integer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let nanos = i64::deserialize(deserializer)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))
}
