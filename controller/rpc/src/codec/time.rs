//! Go's `time.Time`: 15 bytes in a text, in the format of Go's `Time.MarshalBinary`.
//!
//! ```text
//! version 1 │ seconds since the year 1, i64 │ nanoseconds, i32 │ minutes east of Greenwich, i16; −1: UTC      all big-endian
//! ```
//!
//! Version 2 has an extra byte for the seconds of the offset. The offset does not affect the moment and is dropped.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

/// Seconds from the start of the year 1, Go's zero time, to 1970.
const YEAR_1: i64 = 62_135_596_800;

/// A moment of the wall clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// Additional nanoseconds, below one billion.
    pub nanos: u32,
}

impl Time {
    /// Go's zero time, the start of the year 1: no time was set.
    pub const ZERO: Self = Self { seconds: -YEAR_1, nanos: 0 };

    /// Whether no time was set.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Converts nanoseconds since 1970.
    #[must_use]
    pub fn from_unix_nanos(nanos: i64) -> Self {
        const BILLION: i64 = 1_000_000_000;
        let rest = u32::try_from(nanos.rem_euclid(BILLION)).unwrap_or_default();
        Self { seconds: nanos.div_euclid(BILLION), nanos: rest }
    }

    /// Nanoseconds since 1970; `None` for the zero time and for times that 64 bits cannot represent: before 1678 and after 2261.
    #[must_use]
    pub fn unix_nanos(self) -> Option<i64> {
        let nanos = i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos);
        i64::try_from(nanos).ok()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let ((1, 15) | (2, 16)) = (*bytes.first()?, bytes.len()) else { return None };
        let seconds = i64::from_be_bytes(*bytes.get(1..)?.first_chunk()?);
        let nanos = u32::from_be_bytes(*bytes.get(9..)?.first_chunk()?);
        if nanos >= 1_000_000_000 {
            return None;
        }
        // Go's arithmetic wraps; here a time that cannot be represented is invalid.
        Some(Self { seconds: seconds.checked_sub(YEAR_1)?, nanos })
    }

    fn to_bytes(self) -> [u8; 15] {
        let mut bytes = [0xff; 15];
        bytes[0] = 1;
        bytes[1..9].copy_from_slice(&self.seconds.saturating_add(YEAR_1).to_be_bytes());
        bytes[9..13].copy_from_slice(&self.nanos.to_be_bytes());
        bytes
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self {
                seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanos: after.subsec_nanos(),
            },
            Err(before) => {
                let before = i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX);
                Self::from_unix_nanos(-before)
            }
        }
    }
}

impl TryFrom<Time> for SystemTime {
    type Error = ();

    /// Fails for times before 1970.
    fn try_from(time: Time) -> Result<Self, ()> {
        let seconds = u64::try_from(time.seconds).map_err(|_| ())?;
        UNIX_EPOCH.checked_add(Duration::new(seconds, time.nanos)).ok_or(())
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Binary)
    }
}

struct Binary;

impl Visitor<'_> for Binary {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time as Go's MarshalBinary writes it")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Time, E> {
        if bytes.is_empty() {
            return Ok(Time::ZERO);
        }
        Time::from_bytes(bytes).ok_or_else(|| E::invalid_value(de::Unexpected::Bytes(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Time, E> {
        Ok(Time::ZERO)
    }
}
