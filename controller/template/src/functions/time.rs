//! Times in the layouts of Go.

mod reading;

use jiff::civil::DateTime;

pub(crate) use reading::parse;

use crate::moment::Moment;

/// The layout of a time as an output.
pub(crate) const SHOWN: &str = "2006-01-02 15:04:05.999999999 -0700 MST";

/// Elements of a layout, the longer ones before their beginnings.
const ELEMENTS: [&str; 34] = [
    "January",
    "Jan",
    "Monday",
    "Mon",
    "MST",
    "2006",
    "Z07:00:00",
    "Z07:00",
    "Z0700",
    "Z07",
    "-07:00:00",
    "-07:00",
    "-0700",
    "-07",
    "002",
    "_2",
    "01",
    "02",
    "03",
    "04",
    "05",
    "06",
    "15",
    "PM",
    "pm",
    "1",
    "2",
    "3",
    "4",
    "5",
    ".0",
    ",0",
    ".9",
    ",9",
];

/// Formats a time.
pub(crate) fn format(layout: &str, time: &Moment) -> String {
    let mut out = String::new();
    let mut rest = layout;
    while let Some(char) = rest.chars().next() {
        match element_at(rest) {
            Some(element) => {
                let length = written(&mut out, time, (element, rest));
                rest = &rest[length..];
            }
            None => {
                out.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
    }
    out
}

/// The element at the beginning of a layout.
fn element_at(layout: &str) -> Option<&'static str> {
    ELEMENTS.iter().find(|element| is_element(layout, element)).copied()
}

/// `Jan` is no element in `January`'s place, and a fraction must not be followed by other digits.
fn is_element(rest: &str, element: &str) -> bool {
    if !rest.starts_with(element) {
        return false;
    }
    match element {
        ".0" | ",0" | ".9" | ",9" => {
            let digit = &element[1..];
            let after = rest[1..].trim_start_matches(digit);
            !after.starts_with(|next: char| next.is_ascii_digit())
        }
        "Mon" | "Jan" => !rest[3..].starts_with(|next: char| next.is_ascii_lowercase()),
        _ => true,
    }
}

/// Writes an element; returns its length in the layout.
fn written(out: &mut String, moment: &Moment, (element, rest): (&str, &str)) -> usize {
    let time = moment.civil;
    let hour = match time.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    let text = match element {
        "January" => time.strftime("%B").to_string(),
        "Jan" => time.strftime("%b").to_string(),
        "Monday" => time.strftime("%A").to_string(),
        "Mon" => time.strftime("%a").to_string(),
        "MST" if moment.zone.is_empty() => offset(moment.offset, "-0700"),
        "MST" => moment.zone.clone(),
        "2006" => format!("{:04}", time.year()),
        "06" => format!("{:02}", time.year().rem_euclid(100)),
        "Z07:00:00" | "Z07:00" | "Z0700" | "Z07" if moment.offset == 0 => "Z".to_owned(),
        "Z07:00:00" | "Z07:00" | "Z0700" | "Z07" | "-07:00:00" | "-07:00" | "-0700" | "-07" => {
            offset(moment.offset, element)
        }
        "002" => format!("{:03}", time.day_of_year()),
        "_2" => format!("{:2}", time.day()),
        "01" => format!("{:02}", time.month()),
        "1" => time.month().to_string(),
        "02" => format!("{:02}", time.day()),
        "2" => time.day().to_string(),
        "15" => format!("{:02}", time.hour()),
        "03" => format!("{hour:02}"),
        "3" => hour.to_string(),
        "04" => format!("{:02}", time.minute()),
        "4" => time.minute().to_string(),
        "05" => format!("{:02}", time.second()),
        "5" => time.second().to_string(),
        "PM" => if time.hour() < 12 { "AM" } else { "PM" }.to_owned(),
        "pm" => if time.hour() < 12 { "am" } else { "pm" }.to_owned(),
        _ => return fraction(out, time, rest),
    };
    out.push_str(&text);
    element.len()
}

/// The distance from UTC in the form of an element.
fn offset(seconds: i32, element: &str) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let all = seconds.unsigned_abs();
    let separator = if element.contains(':') { ":" } else { "" };
    let count = element.bytes().filter(u8::is_ascii_digit).count() / 2;
    let numbers = [all / 3_600, all / 60 % 60, all % 60].map(|number| format!("{number:02}"));
    format!("{sign}{}", numbers[..count.min(3)].join(separator))
}

/// `.000` writes three digits, `.999` up to three without zeros at the end.
fn fraction(out: &mut String, time: DateTime, rest: &str) -> usize {
    let digit = rest.chars().nth(1).unwrap_or('0');
    let count = rest[1..].len() - rest[1..].trim_start_matches(digit).len();
    let nanos = format!("{:09}", time.subsec_nanosecond());
    let kept = &nanos[..count.min(9)];
    let kept = if digit == '9' { kept.trim_end_matches('0') } else { kept };
    if !(digit == '9' && kept.is_empty()) {
        out.push_str(&rest[..1]);
        out.push_str(kept);
    }
    1 + count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_go() {
        let time = Moment::utc(DateTime::constant(2006, 1, 2, 15, 4, 5, 120_000_000));
        for (layout, text) in [
            ("2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05Z"),
            ("Mon Jan _2 15:04:05 2006", "Mon Jan  2 15:04:05 2006"),
            ("Monday, 02-Jan-06 3:04PM MST", "Monday, 02-Jan-06 3:04PM UTC"),
            ("20060102150405.000", "20060102150405.120"),
            ("15:04:05.999999999 -0700", "15:04:05.12 +0000"),
            ("January 2 (002)", "January 2 (002)"),
        ] {
            assert_eq!(format(layout, &time), text);
        }
    }
}
