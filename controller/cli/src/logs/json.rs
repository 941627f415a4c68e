//! Lines as JSON, for programs.

use herdlet_api_types::AllocId;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc;

use super::reading::Line;
use crate::stdout;

/// A line of a log, or a piece of a very long one, as JSON.
#[derive(Serialize)]
struct JsonLine<'l> {
    alloc: AllocId,
    /// `JOB.GROUP[N]/TASK`, with ` (canary)` for a canary.
    name: &'l str,
    /// `stdout` or `stderr`.
    stream: &'l str,
    /// With `--timestamps`, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'l str>,
    /// Without the line end. Invalid UTF-8 is replaced.
    line: &'l str,
}

/// Whether each line begins with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timestamps {
    Included,
    Absent,
}

pub(super) async fn print_json(mut lines: mpsc::Receiver<Line>, timestamps: Timestamps) {
    while let Some(line) = lines.recv().await {
        // Only the end of a line whose parts are already printed.
        if line.bytes.is_empty() {
            continue;
        }
        let Ok(text) = json_line(&line, timestamps) else { continue };
        stdout::bytes(text.as_bytes());
    }
}

fn json_line(line: &Line, timestamps: Timestamps) -> serde_json::Result<String> {
    let text = String::from_utf8_lossy(line.bytes.strip_suffix(b"\n").unwrap_or(&line.bytes));
    let (time, text) = match timestamps {
        Timestamps::Included => split_time(&text),
        Timestamps::Absent => (None, &*text),
    };
    let shown = JsonLine { alloc: line.alloc, name: &line.name, stream: line.stream, time, line: text };
    Ok(format!("{}\n", serde_json::to_string(&shown)?))
}

/// Splits a line into the time that the agent put before it, if that is known, and the rest.
fn split_time(line: &str) -> (Option<&str>, &str) {
    const UNKNOWN: &str = "-                    ";
    match (line.strip_prefix(UNKNOWN), line.split_once(' ')) {
        (Some(rest), _) => (None, rest),
        (None, Some((time, rest))) if time.parse::<Timestamp>().is_ok() => (Some(time), rest),
        // The rest of a very long line.
        (None, _) => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::reading::End;

    #[test]
    fn a_line_for_programs_bears_its_labels() {
        let alloc = AllocId::from_hash([0x11; 16]);
        let line = Line {
            alloc,
            name: "web.web[0]/httpd".to_owned(),
            stream: "stderr",
            bytes: b"a\x1b\xff\n".to_vec(),
            end: End::Line,
        };
        let shown = json_line(&line, Timestamps::Absent).unwrap();
        assert_eq!(
            shown,
            format!(
                "{{\"alloc\":\"{alloc}\",\"name\":\"web.web[0]/httpd\",\"stream\":\"stderr\",\"line\":\"a\\u001b\u{fffd}\"}}\n"
            )
        );
    }

    #[test]
    fn the_time_of_a_line_is_a_field_for_programs() {
        for (line, time, rest) in [
            ("2026-01-02T03:04:05Z said it", Some("2026-01-02T03:04:05Z"), "said it"),
            ("2026-01-02T03:04:05Z ", Some("2026-01-02T03:04:05Z"), ""),
            ("-                    old", None, "old"),
            ("the rest of a long line", None, "the rest of a long line"),
        ] {
            assert_eq!(split_time(line), (time, rest));
        }
    }
}
