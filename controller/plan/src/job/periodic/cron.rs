//! Cron expressions: five fields, six with a year at the end, seven with seconds at the beginning too, or a name such
//! as `@daily`.
//!
//! In: the text; a civil time. Out: the next matching civil time. It knows no time zone: [`super::calendar`] maps civil
//! times to moments.
//!
//! | field | values | also |
//! | --- | --- | --- |
//! | seconds, minutes | 0–59 | `*`, `a-b`, `a,b`, `/step` |
//! | hours | 0–23 | the same |
//! | day of month | 1–31 | `L` (last), `LW`, `15W` (nearest weekday), `?` |
//! | month | 1–12, JAN–DEC, January–December | |
//! | day of week | 0–7, SUN–SAT, Sunday–Saturday (0 and 7 are Sunday) | `5L` (last Friday), `5#3` (third Friday), `?` |
//! | year | 1970–2099 | |
//!
//! If both day fields are restricted, either one is enough. The language is that of the parser that Nomad uses.

use std_alloc::{format, string::String, vec::Vec};

use jiff::civil::{Date, DateTime, Weekday, date};

/// The years that an expression can match.
const YEARS: core::ops::RangeInclusive<i16> = 1970..=2099;

/// The longest text: seven fields with every value written out.
const TEXT_BYTES_MAX: usize = 1_024;

/// Named expressions.
const NAMES: [(&str, &str); 7] = [
    ("@annually", "0 0 1 1 *"),
    ("@yearly", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: MonthDays,
    months: u64,
    weekdays: WeekDays,
    years: Option<Vec<i16>>,
}

/// `day of month`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MonthDays {
    any: bool,
    days: u64,
    last: bool,
    last_weekday: bool,
    nearest_weekday: u64,
}

/// `day of week`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WeekDays {
    any: bool,
    days: u64,
    /// The last of its month.
    last: u64,
    /// The n-th of its month: weekday and n.
    nth: Vec<(u8, u8)>,
}

impl Cron {
    /// Parses an expression.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("must have at most {TEXT_BYTES_MAX} bytes"));
        }
        let text = text.trim();
        if text.starts_with('@') {
            let found = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            let (_, meant) = found.ok_or_else(|| {
                let names = NAMES.map(|(name, _)| name).join(", ");
                format!("there is no name {text}; available: {names}")
            })?;
            return Self::parse(meant);
        }
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (second, rest, year) = match fields.as_slice() {
            rest @ [_, _, _, _, _] => ("0", rest, "*"),
            [rest @ .., year] if rest.len() == 5 => ("0", rest, *year),
            [second, rest @ .., year] if rest.len() == 5 => (*second, rest, *year),
            other => {
                return Err(format!(
                    "needs five fields (minute, hour, day of month, month, day of week), a year after them and seconds \
                     before them if wanted; found {}",
                    other.len()
                ));
            }
        };
        let [minute, hour, day, month, weekday] = rest else {
            return Err(String::from("needs five fields"));
        };
        Ok(Self {
            seconds: numbers(second, &SECONDS)?,
            minutes: numbers(minute, &MINUTES)?,
            hours: numbers(hour, &HOURS)?,
            days: month_days(day)?,
            months: numbers(month, &MONTH)?,
            weekdays: week_days(weekday)?,
            years: years(year)?,
        })
    }

    /// Whether it matches any time.
    pub fn names_any(&self) -> bool {
        self.next(date(*YEARS.start(), 1, 1).at(0, 0, 0, 0)).is_some()
    }

    /// The first matching civil time at `from` or later, if there is one up to the last year.
    pub(super) fn next(&self, from: DateTime) -> Option<DateTime> {
        let from = whole_second(from)?;
        let mut day = from.date();
        // On the first day only the remaining time counts.
        if self.names(day)
            && let Some(found) = self.next_of_day(from)
        {
            return Some(found);
        }
        loop {
            day = self.next_day(day)?;
            if let Some(found) = self.next_of_day(day.at(0, 0, 0, 0)) {
                return Some(found);
            }
        }
    }

    /// The next matching day after this one.
    fn next_day(&self, after: Date) -> Option<Date> {
        let mut day = after.tomorrow().ok()?;
        loop {
            if day.year() > *YEARS.end() {
                return None;
            }
            if !self.names_year(day.year()) {
                day = date(day.year().checked_add(1)?, 1, 1);
            } else if !has(self.months, day.month().unsigned_abs()) {
                day = day.last_of_month().tomorrow().ok()?;
            } else if self.names(day) {
                return Some(day);
            } else {
                day = day.tomorrow().ok()?;
            }
        }
    }

    fn next_of_day(&self, from: DateTime) -> Option<DateTime> {
        let (hour, minute, second) =
            (from.hour().unsigned_abs(), from.minute().unsigned_abs(), from.second().unsigned_abs());
        let at = |hour: u8, minute: u8, second: u8| {
            let [hour, minute, second] = [hour, minute, second].map(|part| i8::try_from(part).unwrap_or(0));
            from.date().at(hour, minute, second, 0)
        };
        let (first_minute, first_second) = (first(self.minutes, 0)?, first(self.seconds, 0)?);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = first(self.seconds, second)
            {
                return Some(at(hour, minute, second));
            }
            if let Some(minute) = first(self.minutes, minute + 1) {
                return Some(at(hour, minute, first_second));
            }
        }
        first(self.hours, hour + 1).map(|hour| at(hour, first_minute, first_second))
    }

    fn names_year(&self, year: i16) -> bool {
        YEARS.contains(&year) && self.years.as_ref().is_none_or(|years| years.contains(&year))
    }

    /// Whether it matches this day.
    fn names(&self, day: Date) -> bool {
        if !self.names_year(day.year()) || !has(self.months, day.month().unsigned_abs()) {
            return false;
        }
        match (self.days.any, self.weekdays.any) {
            (true, true) => true,
            (false, true) => self.days.names(day),
            (true, false) => self.weekdays.names(day),
            (false, false) => self.days.names(day) || self.weekdays.names(day),
        }
    }
}

impl MonthDays {
    fn names(&self, day: Date) -> bool {
        let number = day.day().unsigned_abs();
        let last = day.last_of_month();
        has(self.days, number)
            || self.last && day == last
            || self.last_weekday && day == nearest_weekday(last)
            || (1..=31).any(|wanted: i8| {
                has(self.nearest_weekday, wanted.unsigned_abs())
                    && wanted <= last.day()
                    && day == nearest_weekday(date(day.year(), day.month(), wanted))
            })
    }
}

impl WeekDays {
    fn names(&self, day: Date) -> bool {
        let weekday = day.weekday().to_sunday_zero_offset().unsigned_abs();
        let number = day.day().unsigned_abs();
        has(self.days, weekday)
            || has(self.last, weekday) && day.day() > day.days_in_month() - 7
            || self.nth.contains(&(weekday, number.div_ceil(7)))
    }
}

/// The weekday nearest to a day within its month.
fn nearest_weekday(day: Date) -> Date {
    let by = match day.weekday() {
        Weekday::Saturday if day.day() == 1 => 2,
        Weekday::Saturday => -1,
        Weekday::Sunday if day == day.last_of_month() => -2,
        Weekday::Sunday => 1,
        Weekday::Monday | Weekday::Tuesday | Weekday::Wednesday | Weekday::Thursday | Weekday::Friday => 0,
    };
    date(day.year(), day.month(), day.day() + by)
}

fn whole_second(at: DateTime) -> Option<DateTime> {
    let whole = at.with().subsec_nanosecond(0).build().ok()?;
    if whole == at { Some(whole) } else { whole.checked_add(jiff::SignedDuration::from_secs(1)).ok() }
}

/// Allowed values of a field.
struct Field {
    name: &'static str,
    from: u8,
    to: u8,
    /// Names of numbers; their first three letters are enough.
    words: &'static [&'static str],
    /// Number of the first name.
    first_word: u8,
}

const SECONDS: Field = Field { name: "second", from: 0, to: 59, words: &[], first_word: 0 };
const MINUTES: Field = Field { name: "minute", from: 0, to: 59, words: &[], first_word: 0 };
const HOURS: Field = Field { name: "hour", from: 0, to: 23, words: &[], first_word: 0 };
const MONTH_DAY: Field = Field { name: "day of month", from: 1, to: 31, words: &[], first_word: 1 };
const MONTH: Field = Field { name: "month", from: 1, to: 12, words: &MONTHS, first_word: 1 };
const WEEK_DAY: Field = Field { name: "day of week", from: 0, to: 7, words: &WEEKDAYS, first_word: 0 };

impl Field {
    fn error(&self, found: &str) -> String {
        let Self { name, from, to, .. } = self;
        format!("the {name} must be {from} to {to}, found {found:?}")
    }

    fn number(&self, text: &str) -> Result<u8, String> {
        let is_meant = |word: &&str| {
            word.eq_ignore_ascii_case(text)
                || word.get(..3).is_some_and(|short| short.eq_ignore_ascii_case(text))
        };
        if let Some(at) = self.words.iter().position(is_meant) {
            return Ok(self.first_word + u8::try_from(at).unwrap_or(0));
        }
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_number && (self.from..=self.to).contains(number));
        number.ok_or_else(|| self.error(text))
    }
}

fn has(set: u64, number: u8) -> bool {
    number < 64 && set & (1 << number) != 0
}

fn first(set: u64, from: u8) -> Option<u8> {
    (from..64).find(|number| has(set, *number))
}

/// A field of plain numbers.
fn numbers(text: &str, field: &Field) -> Result<u64, String> {
    text.split(',').try_fold(0, |set, part| Ok(set | range(part, field)?))
}

/// `*`, `a`, `a-b`, each with `/step`.
fn range(text: &str, field: &Field) -> Result<u64, String> {
    let (range, step) = match text.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (text, None),
    };
    let (from, to) = match range.split_once('-') {
        _ if range == "*" || range == "?" => (field.from, field.to),
        // A week may end with its Sunday.
        Some((from, to)) => match (field.number(from)?, field.number(to)?) {
            (from, 0) if from > 0 && field.to == WEEK_DAY.to => (from, WEEK_DAY.to),
            both => both,
        },
        // `5/10` begins at 5 and continues to the end.
        None if step.is_some() => (field.number(range)?, field.to),
        None => {
            let number = field.number(range)?;
            (number, number)
        }
    };
    let step = match step.map(|step| (step, step.parse::<u8>())) {
        None => 1,
        Some((_, Ok(step))) if (1..=field.to).contains(&step) => usize::from(step),
        Some((step, _)) => {
            let Field { name, to, .. } = field;
            return Err(format!("the step of the {name} must be 1 to {to}, found {step:?}"));
        }
    };
    if from > to {
        return Err(format!("the range {range:?} of the {} ends before it begins", field.name));
    }
    Ok((from..=to).step_by(step).fold(0, |set, number| set | 1 << number))
}

fn month_days(text: &str) -> Result<MonthDays, String> {
    let mut days = MonthDays { any: matches!(text, "*" | "?"), ..MonthDays::default() };
    for part in text.split(',') {
        match part.to_ascii_uppercase().as_str() {
            "L" => days.last = true,
            "LW" => days.last_weekday = true,
            other => match other.strip_suffix('W') {
                Some(day) => days.nearest_weekday |= 1 << MONTH_DAY.number(day)?,
                None => days.days |= range(part, &MONTH_DAY)?,
            },
        }
    }
    Ok(days)
}

fn week_days(text: &str) -> Result<WeekDays, String> {
    let mut days = WeekDays { any: matches!(text, "*" | "?"), ..WeekDays::default() };
    for part in text.split(',') {
        if let Some(day) = part.strip_suffix(['L', 'l']) {
            days.last |= sunday_once(1 << WEEK_DAY.number(day)?);
        } else if let Some((day, nth)) = part.split_once('#') {
            let day = WEEK_DAY.number(day)? % 7;
            let nth = nth.parse().ok().filter(|nth| (1..=5).contains(nth));
            let nth = nth.ok_or_else(|| {
                format!("what follows `#` in the day of week must be 1 to 5, found {part:?}")
            })?;
            days.nth.push((day, nth));
        } else {
            days.days |= sunday_once(range(part, &WEEK_DAY)?);
        }
    }
    Ok(days)
}

/// Maps 7 to 0: both are Sunday.
fn sunday_once(days: u64) -> u64 {
    (days | u64::from(has(days, 7))) & 0x7f
}

fn years(text: &str) -> Result<Option<Vec<i16>>, String> {
    if text == "*" {
        return Ok(None);
    }
    let (from, to) = (*YEARS.start(), *YEARS.end());
    let year = |text: &str| {
        let year = text.parse().ok().filter(|year| YEARS.contains(year));
        year.ok_or_else(|| format!("the year must be {from} to {to}, found {text:?}"))
    };
    let mut years = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (from, to),
            Some((first, last)) => (year(first)?, year(last)?),
            None if part.contains('/') => (year(range)?, to),
            None => (year(range)?, year(range)?),
        };
        let step = step.parse().ok().filter(|step: &usize| *step > 0);
        let step =
            step.ok_or_else(|| format!("the step of the year must be a number above 0, found {part:?}"))?;
        years.extend((first..=last).step_by(step));
    }
    Ok(Some(years))
}

#[cfg(test)]
mod tests;
