//! The pressure on the machine: the share of the last ten seconds in which some task waited for a processor, the disk or memory,
//! as the kernel reports it (`Documentation/accounting/psi.rst`).
//!
//! In: a limit in percent. Out: whether any of the three exceeds it. If the kernel reports nothing, there is no pressure.

use std::{fs, path::Path};

/// The kernel's reports.
const FILES: [&str; 3] = ["/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory"];

/// Whether the pressure on this machine exceeds the limit; always false for a limit of 100. Reads only procfs, so it does not
/// block.
pub fn is_above(limit: u8) -> bool {
    limit < 100 && any_above(limit, FILES.iter().filter_map(|path| fs::read_to_string(Path::new(path)).ok()))
}

fn any_above(limit: u8, mut reports: impl Iterator<Item = String>) -> bool {
    reports.any(|text| some_avg10(&text).is_some_and(|percent| percent > f64::from(limit)))
}

/// The share of time in which some task waited, in percent: `some avg10=1.53 avg60=…`.
fn some_avg10(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure_text(some: &str) -> String {
        format!(
            "some avg10={some} avg60=99.00 avg300=99.00 total=26439594004\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    }

    #[test]
    fn any_of_them_counts() {
        assert!(!any_above(
            60,
            [pressure_text("0.00"), pressure_text("60.00"), pressure_text("12.10")].into_iter()
        ));
        assert!(any_above(
            60,
            [pressure_text("0.00"), pressure_text("60.01"), pressure_text("12.10")].into_iter()
        ));
    }

    #[test]
    fn missing_pressure_files_mean_no_pressure() {
        assert!(!any_above(0, std::iter::empty()));
        assert!(!any_above(
            0,
            ["", "some\n", "some avg10=much\n", "full avg10=99.00\n"].map(String::from).into_iter()
        ));
        assert!(!is_above(100));
    }
}
