//! The output of the campaign's tasks: `start`, then the numbers from 1, once and in order, with a mark where some are missing.
//!
//! In: a task's log, and what the daemon has stored of its container. Out: counts, or the first violation.

use std::{fs, path::Path};

use serde_json::Value;

/// What the agent writes where the daemon was restarted.
const MARK: &str = "[herdlet: the engine was restarted here; output may be missing]";

/// The first line of each run.
pub(super) const START: &str = "start";

/// Counts of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) numbers: u64,
    /// Places where numbers are missing.
    pub(super) gaps: u64,
    pub(super) marks: u64,
}

/// Checks a whole log. `runs` is the number of runs whose output it may have.
///
/// # Errors
/// A number that comes twice or too late, a gap without a mark, or more runs than there were: a log that was copied twice.
pub(super) fn judge(log: &str, runs: u64) -> Result<Lines, String> {
    let mut lines = Lines::default();
    let mut last = None;
    let mut begun = 0;
    // The agent connects to the restarted daemon a little after that has stored the first lines again.
    let (mut unmarked, mut marked) = (0, 0);
    for line in log.lines() {
        if line == MARK {
            lines.marks += 1;
            if unmarked > 0 {
                unmarked -= 1
            } else {
                marked += 1
            }
            continue;
        }
        let number: u64 = match line {
            START => 0,
            line => line.parse().map_err(|_| format!("the line {line:?} after {}", shown(last)))?,
        };
        // A run whose first line is missing begins at 1.
        let begins = number == 0 || number == 1 && last != Some(0);
        if begins && unmarked > 0 {
            return Err(format!("lines are missing without a mark before {}", shown(last)));
        }
        begun += u64::from(begins);
        lines.numbers += u64::from(line != START);
        match (number, last) {
            (0, _) => marked = 0,
            (_, Some(last)) if number == last + 1 => {}
            (_, Some(last)) if !begins && number <= last => {
                return Err(format!("{number} comes after {last}"));
            }
            _ => {
                lines.gaps += 1;
                if marked > 0 { marked -= 1 } else { unmarked += 1 }
            }
        }
        last = Some(number);
    }
    if unmarked > 0 {
        return Err(format!("lines are missing without a mark before {}", shown(last)));
    }
    match begun > runs {
        true => Err(format!("{begun} runs begin, and there were {runs}")),
        false => Ok(lines),
    }
}

fn shown(number: Option<u64>) -> String {
    match number {
        None => "the first line".to_owned(),
        Some(0) => START.to_owned(),
        Some(number) => number.to_string(),
    }
}

/// The lines of the newest run, without marks.
pub(super) fn newest_run(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().filter(|line| *line != MARK).collect();
    let start = lines.iter().rposition(|line| *line == START).unwrap_or(0);
    lines.get(start..).unwrap_or_default().to_vec()
}

/// The complete lines that Docker has stored of a container, oldest first.
pub(super) fn stored(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pieces = entries.filter_map(|entry| Some(entry["log"].as_str()?.to_owned()));
    pieces.filter_map(|piece| Some(piece.strip_suffix('\n')?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_need_marks() {
        let judged = |lines: &[&str]| judge(&lines.join("\n"), 9);
        assert_eq!(judged(&["start", "1", "2", "start", "1"]), Ok(Lines { numbers: 3, ..Lines::default() }));
        let one = Ok(Lines { numbers: 3, gaps: 1, marks: 1 });
        assert_eq!(judged(&["start", "1", MARK, "5", "6"]), one);
        assert_eq!(judged(&["start", "1", "5", "6", MARK]), one);
        assert_eq!(judged(&["start", "1", MARK, "1", "2"]), one, "the first line of a run is missing");
        assert_eq!(judged(&[MARK, "7", "8", "9"]), one);
        assert_eq!(judged(&["start", "1", MARK, "2"]), Ok(Lines { numbers: 2, gaps: 0, marks: 1 }));
        for wrong in [
            &["start", "1", "3"][..],
            &["start", "1", "3", "start", "1", MARK],
            &["start", "1", MARK, "3", "5"],
            &["start", "1", "2", "2"],
            &["start", "1", "2", "1", "2"],
            &["1", "2"],
            &["start", "2x"],
        ] {
            assert!(judged(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(newest_run("start\n1\nstart\n1\n2\n"), ["start", "1", "2"]);
    }

    #[test]
    fn a_log_has_each_run_once() {
        let once = "start\n1\n2\n";
        let copied = once.repeat(2);
        assert!(judge(once, 1).is_ok() && judge(&copied, 2).is_ok());
        assert_eq!(judge(&copied, 1), Err("2 runs begin, and there were 1".to_owned()));
        // The second copy has no first line.
        let cut = format!("{once}{MARK}\n1\n2\n");
        assert!(judge(&cut, 1).is_err() && judge(&cut, 2).is_ok());
        assert!(judge(once, 0).is_err());
    }
}
