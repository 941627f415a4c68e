//! Times from texts, in the layouts of Go.
//!
//! A text without a zone is in UTC.

use jiff::civil::{Date, DateTime, Time};

use super::element_at;
use crate::moment::Moment;

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

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Years of two digits from here on are of the 20th century.
const CENTURY: i16 = 69;

/// What a text contains.
#[derive(Default)]
struct Parts {
    year: i16,
    month: Option<i8>,
    day: Option<i8>,
    day_of_year: Option<i16>,
    hour: i8,
    minute: i8,
    second: i8,
    nanos: i32,
    half: Option<Half>,
    zone: Option<(i32, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Morning,
    Afternoon,
}

/// Digits of a number in a layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digits {
    Two,
    OneOrTwo,
}

impl Digits {
    fn in_layout(element: &str) -> Self {
        if element.starts_with('0') { Self::Two } else { Self::OneOrTwo }
    }
}

/// Reads a time. None if the text does not have the layout, or if there is no such time.
pub(crate) fn parse(layout: &str, text: &str) -> Option<Moment> {
    let (mut layout, mut text) = (layout, text);
    let mut parts = Parts::default();
    while let Some(char) = layout.chars().next() {
        match element_at(layout) {
            Some(element) => {
                let length = fraction_length(layout, element).unwrap_or(element.len());
                text = parts.read((&layout[..length], &layout[length..]), text)?;
                layout = &layout[length..];
            }
            // Any number of spaces in the text are like those in the layout.
            None if char == ' ' => {
                if !text.is_empty() && !text.starts_with(' ') {
                    return None;
                }
                (layout, text) = (layout.trim_start_matches(' '), text.trim_start_matches(' '));
            }
            None => {
                text = text.strip_prefix(char)?;
                layout = &layout[char.len_utf8()..];
            }
        }
    }
    if text.is_empty() { parts.moment() } else { None }
}

/// The length of a fraction in a layout: all its digits.
fn fraction_length(layout: &str, element: &str) -> Option<usize> {
    let digit = element.strip_prefix(['.', ','])?;
    let digits = &layout[1..];
    Some(1 + digits.len() - digits.trim_start_matches(digit).len())
}

impl Parts {
    /// Reads an element of a layout, which another part follows; returns the rest of the text.
    fn read<'t>(&mut self, (element, next): (&str, &str), text: &'t str) -> Option<&'t str> {
        match element {
            "2006" | "06" | "January" | "Jan" | "01" | "1" | "02" | "2" | "_2" | "002" => {
                self.date(element, text)
            }
            "Monday" => named(text, &DAYS, |name| name).map(|(_, rest)| rest),
            "Mon" => named(text, &DAYS, |name| &name[..3]).map(|(_, rest)| rest),
            "MST" => self.abbreviation(text),
            _ if element.starts_with(['Z', '-']) => self.offset(element, text),
            // A fraction of 9s may be absent.
            _ if element.starts_with(['.', ',']) && element.ends_with('9') => {
                Some(self.fraction(text, None).unwrap_or(text))
            }
            _ if element.starts_with(['.', ',']) => self.fraction(text, Some(element.len() - 1)),
            _ => self.time((element, next), text),
        }
    }

    fn date<'t>(&mut self, element: &str, text: &'t str) -> Option<&'t str> {
        let rest = match element {
            "2006" => {
                let (year, rest) = digits(text, (4, 4))?;
                self.year = i16::try_from(year).ok()?;
                rest
            }
            "06" => {
                let (year, rest) = digits(text, (2, 2))?;
                let year = i16::try_from(year).ok()?;
                self.year = if year >= CENTURY { 1900 + year } else { 2000 + year };
                rest
            }
            "January" | "Jan" => {
                let part: fn(&'static str) -> &'static str =
                    if element == "Jan" { |name| &name[..3] } else { |name| name };
                let (index, rest) = named(text, &MONTHS, part)?;
                self.month = i8::try_from(index + 1).ok();
                rest
            }
            "01" | "1" => {
                let (month, rest) = number(text, Digits::in_layout(element))?;
                self.month = Some(month);
                rest
            }
            "002" => {
                let (day, rest) = digits(text, (3, 3))?;
                self.day_of_year = Some(i16::try_from(day).ok()?);
                rest
            }
            _ => {
                let text = text.strip_prefix(' ').filter(|_| element == "_2").unwrap_or(text);
                let (day, rest) = number(text, Digits::in_layout(element))?;
                self.day = Some(day);
                rest
            }
        };
        Some(rest)
    }

    fn time<'t>(&mut self, (element, next): (&str, &str), text: &'t str) -> Option<&'t str> {
        if let "PM" | "pm" = element {
            let (half, rest) = text.split_at_checked(2)?;
            self.half = match (element, half) {
                ("PM", "AM") | ("pm", "am") => Some(Half::Morning),
                ("PM", "PM") | ("pm", "pm") => Some(Half::Afternoon),
                _ => return None,
            };
            return Some(rest);
        }
        let is_hour = matches!(element, "15" | "03" | "3");
        let (number, rest) = number(text, Digits::in_layout(element))?;
        let most = match element {
            "15" => 23,
            _ if is_hour => 12,
            _ => 59,
        };
        if number > most {
            return None;
        }
        match element {
            _ if is_hour => self.hour = number,
            "04" | "4" => self.minute = number,
            _ => {
                self.second = number;
                // A fraction need not be in the layout.
                let is_next = element_at(next).is_some_and(|next| next.starts_with(['.', ',']));
                return Some(if is_next { rest } else { self.fraction(rest, None).unwrap_or(rest) });
            }
        }
        Some(rest)
    }

    /// Reads an abbreviation, whose distance from UTC is unknown.
    fn abbreviation<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let length = text.bytes().take_while(u8::is_ascii_uppercase).count();
        let (name, rest) = text.split_at(Some(length).filter(|length| (3..=4).contains(length))?);
        self.zone = Some((0, name.to_owned()));
        Some(rest)
    }

    /// Reads `.120`, with exactly this many digits or any number of them.
    fn fraction<'t>(&mut self, text: &'t str, count: Option<usize>) -> Option<&'t str> {
        let digits = text.strip_prefix(['.', ','])?;
        let found = digits.bytes().take_while(u8::is_ascii_digit).count();
        let length = count.unwrap_or(found);
        if length == 0 || length > found {
            return None;
        }
        let (fraction, rest) = digits.split_at(length);
        let kept = &fraction[..length.min(9)];
        self.nanos = format!("{kept:0<9}").parse().ok()?;
        Some(rest)
    }

    /// Reads `Z`, `+02`, `+0200`, `+02:00` or `+02:00:00`.
    fn offset<'t>(&mut self, element: &str, text: &'t str) -> Option<&'t str> {
        if let Some(rest) = text.strip_prefix('Z').filter(|_| element.starts_with('Z')) {
            self.zone = None;
            return Some(rest);
        }
        let sign = if text.starts_with('-') { -1 } else { 1 };
        let mut rest = text.strip_prefix(['+', '-'])?;
        let mut seconds = 0;
        let count = element.bytes().filter(u8::is_ascii_digit).count() / 2;
        for (index, factor) in [3_600, 60, 1].into_iter().take(count).enumerate() {
            if index > 0 && element.contains(':') {
                rest = rest.strip_prefix(':')?;
            }
            let (number, after) = digits(rest, (2, 2))?;
            let most = if index == 0 { 24 } else { 60 };
            seconds += i32::try_from(number).ok().filter(|number| *number <= most)? * factor;
            rest = after;
        }
        self.zone = (seconds != 0).then(|| (sign * seconds, String::new()));
        Some(rest)
    }

    fn moment(self) -> Option<Moment> {
        let hour = match (self.half, self.hour) {
            (Some(Half::Afternoon), hour) if hour < 12 => hour + 12,
            (Some(Half::Morning), 12) => 0,
            (_, hour) => hour,
        };
        let date = match self.day_of_year {
            Some(day) => {
                let date = Date::new(self.year, 1, 1).ok()?.with().day_of_year(day).build().ok()?;
                let is_same = self.month.is_none_or(|month| month == date.month())
                    && self.day.is_none_or(|day| day == date.day());
                Some(date).filter(|_| is_same)?
            }
            None => Date::new(self.year, self.month.unwrap_or(1), self.day.unwrap_or(1)).ok()?,
        };
        let time = Time::new(hour, self.minute, self.second, self.nanos).ok()?;
        let civil = DateTime::from_parts(date, time);
        let (offset, zone) = self.zone.unwrap_or_else(|| (0, "UTC".to_owned()));
        Some(Moment { civil, offset, zone })
    }
}

fn digits(text: &str, (least, most): (usize, usize)) -> Option<(u32, &str)> {
    let found = text.bytes().take_while(u8::is_ascii_digit).count().min(most);
    if found < least {
        return None;
    }
    let (number, rest) = text.split_at(found);
    Some((number.parse().ok()?, rest))
}

fn number(text: &str, form: Digits) -> Option<(i8, &str)> {
    let (number, rest) = digits(text, (if form == Digits::Two { 2 } else { 1 }, 2))?;
    Some((i8::try_from(number).ok()?, rest))
}

/// A name at the beginning of a text, in capital or small letters, with its index.
fn named<'t>(
    text: &'t str,
    names: &[&'static str],
    part: fn(&'static str) -> &'static str,
) -> Option<(usize, &'t str)> {
    names.iter().enumerate().find_map(|(index, name)| {
        let name = part(name);
        let (begin, rest) = text.split_at_checked(name.len())?;
        begin.eq_ignore_ascii_case(name).then_some((index, rest))
    })
}
