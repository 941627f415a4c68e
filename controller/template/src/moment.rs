//! A point in time as templates see it: `time.Time` of Go.

use jiff::{SignedDuration, civil::DateTime};

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The zero of Go's type.
const ZERO: DateTime = DateTime::constant(1, 1, 1, 0, 0, 0, 0);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moment {
    /// On the clocks of its zone.
    pub(crate) civil: DateTime,
    /// The distance of the zone from UTC, in seconds.
    pub(crate) offset: i32,
    /// The abbreviation of the zone; empty if only its distance is known.
    pub(crate) zone: String,
}

impl Moment {
    pub(crate) fn utc(civil: DateTime) -> Self {
        Self { civil, offset: 0, zone: "UTC".to_owned() }
    }

    pub(crate) fn zero() -> Self {
        Self::utc(ZERO)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.since_epoch() == ZERO.duration_since(EPOCH)
    }

    /// The time since 1970 in UTC.
    pub(crate) fn since_epoch(&self) -> SignedDuration {
        self.civil.duration_since(EPOCH) - SignedDuration::from_secs(i64::from(self.offset))
    }
}
