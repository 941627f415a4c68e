//! When a cron expression is due on the clocks of a time zone.
//!
//! In: expressions, a time zone of the IANA database (bundled at compile time), a moment. Out: the next moment.
//!
//! As in Nomad, a moment is due when the clocks show it: never in an hour that they skip in spring, twice in an hour
//! that they repeat in autumn.

use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::{UnixNanos, job::Periodic};
use jiff::{
    SignedDuration, Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};

use super::cron::Cron;

/// A generous limit; each expression is evaluated at each launch.
pub const EXPRESSIONS_LEN_MAX: usize = 64;

/// Cron expressions and a time zone.
#[derive(Debug, Clone)]
pub struct Calendar {
    expressions: Vec<Cron>,
    zone: TimeZone,
}

impl Calendar {
    /// The calendar of a periodic job.
    ///
    /// # Errors
    /// An invalid expression or time zone. Jobs are validated before they are accepted.
    pub fn of(periodic: &Periodic) -> Result<Self, String> {
        let expressions = periodic.crons.iter().map(|text| Cron::parse(text));
        Ok(Self { expressions: expressions.collect::<Result<_, _>>()?, zone: zone(&periodic.time_zone)? })
    }

    /// The first moment after this one that matches an expression, if any.
    pub fn next(&self, after: UnixNanos) -> Option<UnixNanos> {
        let after = Timestamp::from_nanosecond(i128::from(after.0)).ok()?;
        let next = self.expressions.iter().filter_map(|cron| next(cron, &self.zone, after)).min()?;
        i64::try_from(next.as_nanosecond()).ok().map(UnixNanos)
    }
}

/// The time zone with that name.
///
/// # Errors
/// When there is none.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    let found = TimeZoneDatabase::bundled().get(name);
    found.map_err(|_| {
        format!("there is no time zone {name:?}; write for instance \"UTC\" or \"Europe/Berlin\"")
    })
}

/// Searches each interval between two clock changes separately.
fn next(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut from = after.checked_add(SignedDuration::from_nanos(1)).ok()?;
    loop {
        let offset = zone.to_offset(from);
        let found = offset.to_timestamp(cron.next(offset.to_datetime(from))?).ok()?;
        match zone.following(from).next() {
            Some(change) if change.timestamp() <= found => from = change.timestamp(),
            Some(_) | None => return Some(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::{string::ToString, vec};

    use super::*;

    /// All moments from one to another, in UTC without date where the day is plain.
    #[track_caller]
    fn table(cron: &str, zone: &str, from: &str, expected: &[&str]) {
        let periodic =
            Periodic { crons: vec![cron.to_string()], time_zone: zone.to_string(), ..Periodic::default() };
        let calendar = Calendar::of(&periodic).unwrap();
        let mut at = UnixNanos(i64::try_from(from.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap());
        for expected in expected {
            let next = calendar.next(at).unwrap();
            let shown = Timestamp::from_nanosecond(i128::from(next.0)).unwrap().to_string();
            assert_eq!(shown, *expected, "{cron} in {zone}, after {}", at.0);
            assert!(next.0 > at.0);
            at = next;
        }
    }

    /// Berlin 2026: 29 March 02:00 is 03:00 (01:00 UTC); 25 October 03:00 is 02:00 (01:00 UTC).
    #[test]
    fn skipped_wall_times_are_not_launched() {
        let berlin = |cron, expected| table(cron, "Europe/Berlin", "2026-03-28T12:00:00Z", expected);
        berlin("30 2 * * *", &["2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"]);
        berlin("0 2 * * *", &["2026-03-30T00:00:00Z"]);
        berlin("59 1 * * *", &["2026-03-29T00:59:00Z", "2026-03-29T23:59:00Z"]);
        berlin("0 3 * * *", &["2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"]);
        berlin("30 1-3 * * *", &["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T23:30:00Z"]);
        table(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:29:59Z",
            &["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z"],
        );
    }

    #[test]
    fn repeated_wall_times_are_launched_twice() {
        let berlin = |cron, expected| table(cron, "Europe/Berlin", "2026-10-24T12:00:00Z", expected);
        berlin("30 2 * * *", &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]);
        berlin("0 2 * * *", &["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-26T01:00:00Z"]);
        berlin("59 1 * * *", &["2026-10-24T23:59:00Z", "2026-10-26T00:59:00Z"]);
        berlin("0 3 * * *", &["2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"]);
        // Starts within the repeated hour.
        table("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", &["2026-10-25T01:30:00Z"]);
        table("30 2 * * *", "Europe/Berlin", "2026-10-25T01:30:00Z", &["2026-10-26T01:30:00Z"]);
        table(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T00:00:00Z",
            &["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"],
        );
    }

    #[test]
    fn other_places() {
        // New York: 8 March 02:00 is 03:00; 1 November 02:00 is 01:00.
        table(
            "30 2 * * *",
            "America/New_York",
            "2026-03-07T12:00:00Z",
            &["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"],
        );
        table(
            "30 1 * * *",
            "America/New_York",
            "2026-11-01T00:00:00Z",
            &["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"],
        );
        // Half an hour only: 4 October 02:00 is 02:30; 5 April 02:00 is 01:30.
        let lord_howe = |cron, from, expected| table(cron, "Australia/Lord_Howe", from, expected);
        lord_howe("15 2 * * *", "2026-10-03T00:00:00Z", &["2026-10-04T15:15:00Z"]);
        lord_howe("31 2 * * *", "2026-10-03T00:00:00Z", &["2026-10-03T15:31:00Z", "2026-10-04T15:31:00Z"]);
        lord_howe("31 1 * * *", "2026-04-04T12:00:00Z", &["2026-04-04T14:31:00Z", "2026-04-04T15:01:00Z"]);
        lord_howe("3 1 * * *", "2026-04-04T12:00:00Z", &["2026-04-04T14:03:00Z", "2026-04-05T14:33:00Z"]);
        // Midnight is skipped: 4 November 2018 00:00 is 01:00.
        table("5 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", &["2018-11-05T02:05:00Z"]);
        // A day that Samoa skipped: 30 December 2011.
        table("0 12 30 * *", "Pacific/Apia", "2011-12-01T00:00:00Z", &["2012-01-29T22:00:00Z"]);
        table("0 0 * * *", "UTC", "2026-12-31T23:59:59Z", &["2027-01-01T00:00:00Z"]);
        assert!(zone("Mars/Olympus").is_err());
    }

    #[test]
    fn the_earliest_of_several_expressions_counts() {
        let periodic = Periodic {
            crons: vec!["0 5 * * *".to_string(), "0 4 * * *".to_string(), "0 0 31 2 *".to_string()],
            time_zone: "UTC".to_string(),
            ..Periodic::default()
        };
        let next = Calendar::of(&periodic).unwrap().next(UnixNanos(0));
        assert_eq!(next, Some(UnixNanos(4 * 3_600_000_000_000)));
    }
}
