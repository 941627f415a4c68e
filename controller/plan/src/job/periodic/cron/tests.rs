//! Examples of expressions, with the moments that they match, and of refused ones.

use std_alloc::string::ToString;

use jiff::civil::datetime;

use super::*;

#[track_caller]
fn next(text: &str, from: &str, expected: &[&str]) {
    let cron = Cron::parse(text).unwrap();
    let mut at: DateTime = from.parse().unwrap();
    for expected in expected {
        let found = cron.next(at).map(|found| found.to_string());
        assert_eq!(found.as_deref(), Some(*expected), "{text} at {at} or later");
        at = cron.next(at).unwrap().checked_add(jiff::SignedDuration::from_nanos(1)).unwrap();
    }
}

#[test]
fn next_finds_the_following_moment() {
    let from = "2026-11-22T10:07:30";
    next("*/15 * * * *", from, &["2026-11-22T10:15:00", "2026-11-22T10:30:00"]);
    next("0 3 * * *", from, &["2026-11-23T03:00:00", "2026-11-24T03:00:00"]);
    next("5-10/5 0 * * *", from, &["2026-11-23T00:05:00", "2026-11-23T00:10:00"]);
    next("50/5 23 * * *", from, &["2026-11-22T23:50:00", "2026-11-22T23:55:00", "2026-11-23T23:50:00"]);
    next("0 0 1 JAN,jul *", from, &["2027-01-01T00:00:00", "2027-07-01T00:00:00"]);
    next("30 9 * * mon-FRI", "2026-11-20T10:00:00", &["2026-11-23T09:30:00"]);
    next("0 0 * * 7", from, &["2026-11-29T00:00:00"]);
    next("0 0 * * 5-7", from, &["2026-11-27T00:00:00", "2026-11-28T00:00:00", "2026-11-29T00:00:00"]);
    next("0 0 * * fri-sun", from, &["2026-11-27T00:00:00", "2026-11-28T00:00:00", "2026-11-29T00:00:00"]);
    next("0 0 * february Monday", from, &["2027-02-01T00:00:00", "2027-02-08T00:00:00"]);
    // If both days are restricted, either one is enough.
    next(
        "0 0 13 * 5",
        from,
        &["2026-11-27T00:00:00", "2026-12-04T00:00:00", "2026-12-11T00:00:00", "2026-12-13T00:00:00"],
    );
    next("0 0 29 2 *", from, &["2028-02-29T00:00:00", "2032-02-29T00:00:00"]);
    next("0 0 L * ?", from, &["2026-11-30T00:00:00", "2026-12-31T00:00:00"]);
    next("0 0 LW * *", from, &["2026-11-30T00:00:00", "2026-12-31T00:00:00", "2027-01-29T00:00:00"]);
    next("0 0 1W * *", "2026-07-31T01:00:00", &["2026-08-03T00:00:00", "2026-09-01T00:00:00"]);
    next("0 0 15W * *", from, &["2026-12-15T00:00:00", "2027-01-15T00:00:00", "2027-02-15T00:00:00"]);
    next("0 0 * * 5L", from, &["2026-11-27T00:00:00", "2026-12-25T00:00:00"]);
    next("0 0 * * 5L", "2027-04-02T00:00:00", &["2027-04-30T00:00:00"]);
    next("0 0 15W * *", "2027-05-01T00:00:00", &["2027-05-14T00:00:00"]);
    next("0 0 15W * *", "2027-08-01T00:00:00", &["2027-08-16T00:00:00"]);
    next("5,5 0 * * *", from, &["2026-11-23T00:05:00"]);
    next("0 0 * * 0-0", from, &["2026-11-29T00:00:00", "2026-12-06T00:00:00"]);
    next("0 0 * * mon#2", from, &["2026-12-14T00:00:00", "2027-01-11T00:00:00"]);
    next("0 12 * * * 2028", from, &["2028-01-01T12:00:00"]);
    next(
        "*/20 59 23 31 12 * *",
        from,
        &["2026-12-31T23:59:00", "2026-12-31T23:59:20", "2026-12-31T23:59:40"],
    );
    next("@hourly", from, &["2026-11-22T11:00:00"]);
    next("@Daily", from, &["2026-11-23T00:00:00"]);
    next("@weekly", from, &["2026-11-29T00:00:00"]);
    next("@monthly", from, &["2026-12-01T00:00:00"]);
    next("@yearly", from, &["2027-01-01T00:00:00"]);
    next("0 0 31 12 * 2099", "2098-12-31T00:00:00", &["2099-12-31T00:00:00"]);
    let longest = format!("{:1$}", "@hourly", TEXT_BYTES_MAX);
    next(&longest, from, &["2026-11-22T11:00:00"]);
    assert!(Cron::parse(&format!("{longest} ")).is_err_and(|why| why.contains("bytes")));
    // The moment itself counts, a fraction of a second after it does not.
    next("0 3 * * *", "2026-11-22T03:00:00", &["2026-11-22T03:00:00"]);
    next("0 3 * * *", "2026-11-22T03:00:00.000000001", &["2026-11-23T03:00:00"]);
}

#[test]
fn expression_without_future_moments_ends() {
    let from = datetime(2026, 11, 22, 10, 7, 30, 0);
    for text in ["0 0 31 2 *", "0 0 30 FEB *", "0 0 * * * 1999", "0 0 31 4,6,9,11 *"] {
        let cron = Cron::parse(text).unwrap();
        assert_eq!(cron.next(from), None, "{text}");
        assert_eq!(cron.names_any(), text.ends_with("1999"), "{text}");
    }
}

#[test]
fn invalid_cron_is_refused_with_a_reason() {
    for (text, expected) in [
        ("", "found 0"),
        ("* * * *", "found 4"),
        ("* * * * * * * *", "found 8"),
        ("60 * * * *", "the minute must be 0 to 59, found \"60\""),
        ("* 24 * * *", "the hour must be 0 to 23"),
        ("* * 0 * *", "the day of month must be 1 to 31"),
        ("* * * 13 *", "the month must be 1 to 12"),
        ("* * * * 8", "the day of week must be 0 to 7"),
        ("* * * * mondays", "the day of week must be 0 to 7"),
        ("* * * * 5#6", "must be 1 to 5"),
        ("*/0 * * * *", "the step of the minute must be 1 to 59"),
        ("*/90 * * * *", "the step of the minute must be 1 to 59"),
        ("* 0/24 * * *", "the step of the hour must be 1 to 23"),
        ("10-5 * * * *", "ends before it begins"),
        ("5-0 * * * *", "ends before it begins"),
        ("+5 * * * *", "the minute must be"),
        (",5 * * * *", "the minute must be"),
        ("* * * * * 1969", "the year must be 1970 to 2099"),
        ("@every 5m", "there is no name @every 5m; available: @annually"),
    ] {
        let error = Cron::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(Cron::parse(&"1,".repeat(600)).is_err());
}
