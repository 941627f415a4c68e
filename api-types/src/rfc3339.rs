//! Points in time in the format of Go's JSON.

use std_alloc::{format, string::String};

use crate::UnixNanos;

const SECOND: i64 = 1_000_000_000;

/// RFC 3339 in UTC with as many fractional digits as necessary, as Go's `time.RFC3339Nano`; `None` for "never".
pub fn rfc3339(at: UnixNanos) -> Option<String> {
    if at.0 == 0 {
        return None;
    }
    let (seconds, nanos) = (at.0.div_euclid(SECOND), at.0.rem_euclid(SECOND));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let mut text = format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        second / 3_600,
        second / 60 % 60,
        second % 60
    );
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('Z');
    Some(text)
}

/// Year, month and day for a number of days since 1970-01-01 in the proleptic Gregorian calendar. Eras have 400 years;
/// each year begins in March, so that the leap day is its last day.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_does() {
        let text = |nanos| rfc3339(UnixNanos(nanos)).unwrap_or_default();
        assert_eq!(text(0), "");
        assert_eq!(text(1), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(text(951_782_400 * SECOND), "2000-02-29T00:00:00Z");
        assert_eq!(text(1_700_000_000 * SECOND + 120_000_000), "2023-11-14T22:13:20.12Z");
        assert_eq!(text(-SECOND), "1969-12-31T23:59:59Z");
        assert_eq!(text(4_107_542_399 * SECOND), "2100-02-28T23:59:59Z");
    }
}
