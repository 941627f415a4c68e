//! placeholder until the real one lands
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
/// Nanoseconds.
pub struct Duration(pub i64);
impl Duration {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// From seconds.
    pub const fn from_secs(s: i64) -> Self {
        Self(s * 1_000_000_000)
    }
    /// From milliseconds.
    pub const fn from_millis(s: i64) -> Self {
        Self(s * 1_000_000)
    }
    /// As nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }
}
impl core::fmt::Display for Duration {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}ns", self.0)
    }
}
/// Error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseDurationError;
