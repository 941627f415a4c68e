//! Prints the lines of several streams so that no stream continues another's line.
//!
//! In: lines as they come, finished or not. Out: text for standard output and standard error. If both are the same terminal or
//! file, they share a line. With several tasks, each line begins with the name of its task, in the task's colour.

use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use herdlet_api_types::AllocId;
use tokio::sync::mpsc;

use super::{
    LINES_LEN,
    reading::{End, Line},
};
use crate::{stdout, style};

/// Prints lines as they come; with labels if there are any.
pub(super) async fn print(mut lines: mpsc::Receiver<Line>, labels: Option<Labels>) {
    let colours = Colours::of_process();
    let mut printed = Printed { labels, colours, outputs: outputs(), unfinished: Vec::new() };
    let mut batch = Vec::with_capacity(LINES_LEN);
    while lines.recv_many(&mut batch, LINES_LEN).await > 0 {
        // A busy task has many lines in the queue, which are written at once.
        for of_stream in batch.chunk_by(|one, next| one.stream == next.stream) {
            let mut text = Vec::new();
            of_stream.iter().for_each(|line| printed.put(line, &mut text));
            if let Some(first) = of_stream.first() {
                write(first.stream, &text);
            }
        }
        batch.clear();
    }
    // So that the next output, such as an error or a prompt, begins a new line. A file gets only what the task wrote.
    let is_shared = |line: &&Origin| printed.labels.is_some() || is_terminal(line.stream);
    printed.unfinished.iter().filter(is_shared).for_each(|line| write(line.stream, b"\n"));
}

/// Stderr of tasks goes to stderr, so that redirections work as with the task itself. A task's bytes are never changed: text
/// without colours would also lose whatever follows an unfinished escape sequence, and bytes that are not UTF-8.
fn write(stream: &str, text: &[u8]) {
    match stream {
        "stderr" => stdout::bytes_of_stderr(text),
        _ => stdout::bytes(text),
    }
}

fn is_terminal(stream: &str) -> bool {
    match stream {
        "stderr" => io::stderr().is_terminal(),
        _ => io::stdout().is_terminal(),
    }
}

/// The colours of labels, by output.
struct Colours {
    stdout: ColorChoice,
    stderr: ColorChoice,
}

impl Colours {
    fn of_process() -> Self {
        Self { stdout: AutoStream::choice(&io::stdout()), stderr: AutoStream::choice(&io::stderr()) }
    }

    fn of(&self, stream: &str, style: Style) -> Style {
        let choice = if stream == "stderr" { self.stderr } else { self.stdout };
        match choice {
            ColorChoice::Never => Style::new(),
            ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => style,
        }
    }
}

/// The destinations of standard output and standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outputs {
    /// The same terminal, pipe or file.
    Same,
    Apart,
}

fn outputs() -> Outputs {
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino) => Outputs::Same,
        (Ok(_) | Err(_), _) => Outputs::Apart,
    }
}

/// The state of the output that matters for the next line.
struct Printed {
    /// None if lines have no labels.
    labels: Option<Labels>,
    colours: Colours,
    outputs: Outputs,
    /// The origins of the unfinished lines at the end of each output.
    unfinished: Vec<Origin>,
}

/// The origin of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    alloc: AllocId,
    name: String,
    stream: &'static str,
}

impl Printed {
    /// Appends the text of a line.
    fn put(&mut self, line: &Line, text: &mut Vec<u8>) {
        let is_own =
            |one: &Origin| (one.alloc, one.stream) == (line.alloc, line.stream) && one.name == line.name;
        let shares = |one: &Origin| self.outputs == Outputs::Same || one.stream == line.stream;
        let before = self.unfinished.iter().position(shares).map(|at| self.unfinished.swap_remove(at));
        let goes_on = before.as_ref().is_some_and(is_own);
        if line.bytes.is_empty() && !goes_on {
            // The end of a line that another stream's line has already cut off. That other line may still be unfinished.
            self.unfinished.extend(before);
            return;
        }
        if !goes_on {
            if before.is_some() {
                text.push(b'\n');
            }
            if let Some(labels) = &mut self.labels {
                let style = self.colours.of(line.stream, labels.style_of(&line.name));
                labels.put(&line.name, style, text);
            }
        }
        text.extend_from_slice(&line.bytes);
        match line.end {
            End::Line if line.bytes.ends_with(b"\n") => {}
            End::Line if self.labels.is_some() => text.push(b'\n'),
            End::Line | End::Open => {
                let Line { alloc, stream, .. } = *line;
                self.unfinished.push(Origin { alloc, name: line.name.clone(), stream });
            }
        }
    }
}

/// Task names before lines.
#[derive(Default)]
pub(super) struct Labels {
    /// In the order of appearance; each has its own colour.
    names: Vec<String>,
    width: usize,
}

impl Labels {
    /// Labels that are aligned for names of up to this length from the first line on.
    pub(super) fn of_width(width: usize) -> Self {
        Self { names: Vec::new(), width }
    }

    fn style_of(&mut self, name: &str) -> Style {
        let position = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        self.width = self.width.max(name.len());
        style::TASKS[position % style::TASKS.len()]
    }

    fn put(&self, name: &str, style: Style, text: &mut Vec<u8>) {
        let width = self.width;
        let _ = write!(text, "{style}{name:width$} |{style:#} ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(labels: Option<Labels>, outputs: Outputs, lines: &[(u8, &'static str, &str, End)]) -> String {
        let colours = Colours { stdout: ColorChoice::Always, stderr: ColorChoice::Never };
        let mut printed = Printed { labels, colours, outputs, unfinished: Vec::new() };
        let mut text = Vec::new();
        for (seed, stream, bytes, end) in lines {
            let line = Line {
                alloc: AllocId::from_hash([*seed; 16]),
                name: format!("t{seed}"),
                stream,
                bytes: bytes.as_bytes().to_vec(),
                end: *end,
            };
            printed.put(&line, &mut text);
        }
        anstream::adapter::strip_bytes(&text).into_vec().into_iter().map(char::from).collect()
    }

    /// Text without colours used to lose everything after an unfinished escape sequence, and the ü of Latin-1.
    #[test]
    fn log_bytes_are_printed_unchanged_and_only_labels_colored() {
        let colours = Colours { stdout: ColorChoice::Never, stderr: ColorChoice::Always };
        let mut printed = Printed {
            labels: Some(Labels::default()),
            colours,
            outputs: Outputs::Apart,
            unfinished: Vec::new(),
        };
        let mut put = |stream: &'static str, bytes: &[u8]| {
            let (alloc, name) = (AllocId::from_hash([1; 16]), "t".to_owned());
            let line = Line { alloc, name, stream, bytes: bytes.to_vec(), end: End::Line };
            let mut text = Vec::new();
            printed.put(&line, &mut text);
            text
        };
        let odd = b"\x1b]0;title Gr\xfc\xdfe \x1b[31m\x9b\x7f\n";
        assert_eq!(put("stdout", odd), [&b"t | "[..], odd].concat());
        assert_eq!(put("stderr", odd), [&b"\x1b[36mt |\x1b[0m "[..], odd].concat());
    }

    /// The width grew with each task that wrote its first line.
    #[test]
    fn labels_are_aligned_from_the_first_line_on() {
        let lines = [(1, "stdout", "a\n", End::Line)];
        assert_eq!(rendered(Some(Labels::of_width(4)), Outputs::Apart, &lines), "t1   | a\n");
    }

    #[test]
    fn streams_are_not_mixed_within_a_line() {
        let lines = [
            (1, "stdout", "name? ", End::Open),
            (2, "stdout", "busy\n", End::Line),
            (1, "stdout", "x\n", End::Line),
            (2, "stdout", "a", End::Open),
            (2, "stdout", "b", End::Open),
            (2, "stdout", "c\n", End::Line),
            (1, "stdout", "p", End::Open),
            (2, "stdout", "q", End::Open),
            // The first line was already cut off, so its end prints nothing; the other line continues.
            (1, "stdout", "", End::Line),
            (2, "stdout", "r\n", End::Line),
            (1, "stdout", "last", End::Line),
        ];
        assert_eq!(
            rendered(Some(Labels::default()), Outputs::Apart, &lines),
            "t1 | name? \nt2 | busy\nt1 | x\nt2 | abc\nt1 | p\nt2 | qr\nt1 | last\n"
        );
        let both = [
            (1, "stdout", "name? ", End::Open),
            (1, "stderr", "slow\n", End::Line),
            (1, "stdout", "x\n", End::Line),
        ];
        assert_eq!(rendered(None, Outputs::Same, &both), "name? \nslow\nx\n");
        // Each output is a separate file, and gets only what its task wrote.
        assert_eq!(rendered(None, Outputs::Apart, &both), "name? slow\nx\n");
        assert_eq!(
            rendered(None, Outputs::Same, &[(1, "stdout", "a", End::Open), (1, "stdout", "", End::Line)]),
            "a"
        );
        // The output of one task is not altered: dumps and archives had a line end more.
        let end = [(1, "stdout", "a\n", End::Line), (1, "stdout", "b", End::Line)];
        assert_eq!(rendered(None, Outputs::Apart, &end), "a\nb");
        let two = [(1, "stdout", "b", End::Line), (1, "stderr", "c\n", End::Line)];
        assert_eq!(rendered(None, Outputs::Apart, &two), "bc\n");
        assert_eq!(rendered(None, Outputs::Same, &two), "b\nc\n");
    }
}
