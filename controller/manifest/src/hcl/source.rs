//! An HCL text and its positions.
//!
//! In: bytes. Out: the syntax tree, the lines and columns of offsets, problems.

use hcl_edit::{Span, expr::Expression, structure::Body};

use super::repeats::{self, Repeat, repeated};
use super::scan;
use crate::yaml::{Position, Problem, Problems, printable::printable};

#[derive(Debug)]
pub(super) struct Source<'t> {
    /// The name that the author knows it by.
    pub(super) name: &'t str,
    text: &'t str,
    /// Offset of the first byte of each line.
    lines: Vec<usize>,
    /// Number of characters before each stretch of [`STRETCH`] bytes, because a line may be as long as the
    /// text.
    chars: Vec<usize>,
}

/// A parsed text.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) body: Body,
    pub(super) warnings: Vec<Problem>,
}

/// The same limit as that of Nomad's servers (`job_max_source_size`).
pub(super) const BYTES_MAX: usize = 1 << 20;
const STRETCH: usize = 256;

impl<'t> Source<'t> {
    /// Checks the length and the encoding of a text.
    pub(super) fn read(name: &'t str, bytes: &'t [u8]) -> Result<Self, Problem> {
        let of_all = |message: String| Problem {
            source: name.to_owned(),
            line: 0,
            column: 0,
            path: String::new(),
            message,
        };
        if bytes.len() > BYTES_MAX {
            let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
            return Err(of_all(format!(
                "has {:.1} MiB; the limit for HCL is {:.1} MiB",
                mib(bytes.len()),
                mib(BYTES_MAX)
            )));
        }
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err(of_all("is UTF-16; save it as UTF-8".to_owned()));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(name, text.strip_prefix('\u{feff}').unwrap_or(text))),
            Err(error) => {
                let offset = error.valid_up_to();
                let before = String::from_utf8_lossy(&bytes[..offset]);
                let byte = bytes.get(offset).copied().unwrap_or_default();
                let message = format!("is not UTF-8: byte 0x{byte:02x} at offset {offset}");
                Err(Source::new(name, &before).problem(before.len(), message))
            }
        }
    }

    pub(super) fn new(name: &'t str, text: &'t str) -> Self {
        let bytes = text.as_bytes();
        let ends = |at: usize| bytes[at] == b'\n' || bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n');
        let lines = std::iter::once(0).chain((0..bytes.len()).filter(|at| ends(*at)).map(|at| at + 1));
        let mut before = 0;
        let chars = bytes.chunks(STRETCH).map(|stretch| {
            let first = before;
            before += stretch.iter().filter(|byte| begins_a_char(**byte)).count();
            first
        });
        Self { name, text, lines: lines.collect(), chars: chars.collect() }
    }

    /// Parses the text.
    pub(super) fn parse(&self) -> Result<Parsed, Problem> {
        scan::bounds(self.text).map_err(|(offset, message)| self.problem(offset, message))?;
        match hcl_edit::parser::parse_body(self.text) {
            Ok(body) => Ok(Parsed { body, warnings: Vec::new() }),
            // The parser refuses keys of an object that are written twice; in Nomad the last one counts.
            Err(error) if error.message().contains("redefined object key") => self.parse_with_repeats(),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Parses the text without the values of keys that are written again.
    fn parse_with_repeats(&self) -> Result<Parsed, Problem> {
        let repeats = repeats::find(self.text);
        let text = repeats::without(self.text, &repeats);
        let body = hcl_edit::parser::parse_body(&text).map_err(|error| self.failed(&error))?;
        let warning = |repeat: &Repeat| self.problem(repeat.entry.start, repeated(&repeat.key));
        Ok(Parsed { body, warnings: repeats.iter().take(Problems::SHOWN_MAX).map(warning).collect() })
    }

    fn failed(&self, error: &hcl_edit::parser::Error) -> Problem {
        let offset = error.location().offset();
        let mut message = format!("is not HCL: {}", error.message());
        if let Some(remedy) = scan::remedy(self.text, offset) {
            message = format!("{message}; {remedy}");
        }
        self.problem(offset, message)
    }

    /// Parses the text as a single expression.
    pub(super) fn parse_expression(&self) -> Result<Expression, Problem> {
        scan::bounds(self.text).map_err(|(offset, message)| self.problem(offset, message))?;
        hcl_edit::parser::parse_expr(self.text).map_err(|error| {
            self.problem(error.location().offset(), format!("is not an HCL expression: {}", error.message()))
        })
    }

    /// Returns the position of a syntax element.
    pub(super) fn position(&self, spanned: &impl Span) -> Position {
        self.position_at(spanned.span().map_or(0, |span| span.start))
    }

    /// Returns the position of an offset.
    pub(super) fn position_at(&self, offset: usize) -> Position {
        let line = self.lines.partition_point(|begin| *begin <= offset).max(1);
        let begin = self.lines.get(line - 1).copied().unwrap_or_default();
        let column = self.chars_before(offset) - self.chars_before(begin) + 1;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Position { line: count(line), column: count(column) }
    }

    fn chars_before(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        let stretch = offset / STRETCH;
        let known = self.chars.get(stretch).copied();
        // The offset is the end of a text whose length is a multiple of a stretch.
        let (begin, known) = match known {
            Some(known) => (stretch * STRETCH, known),
            None if stretch > 0 => ((stretch - 1) * STRETCH, self.chars[stretch - 1]),
            None => (0, 0),
        };
        known + self.text.as_bytes()[begin..offset].iter().filter(|byte| begins_a_char(**byte)).count()
    }

    /// Returns a problem at an offset.
    pub(super) fn problem(&self, offset: usize, message: impl Into<String>) -> Problem {
        self.problem_at(self.position_at(offset), message)
    }

    /// Returns a problem at a position.
    pub(super) fn problem_at(&self, position: Position, message: impl Into<String>) -> Problem {
        Problem {
            source: self.name.to_owned(),
            line: position.line,
            column: position.column,
            path: String::new(),
            message: printable(message.into()),
        }
    }
}

fn begins_a_char(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}
