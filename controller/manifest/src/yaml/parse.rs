//! Source text → trees.
//!
//! In: the name and bytes of an untrusted text with any number of YAML documents. Out: a tree for every
//! readable document, and all problems. Problems that leave the structure intact (a duplicate key, an unknown
//! tag) don't end a document, and a broken document doesn't end the text. Size, depth, number of values and
//! expansion of aliases are bounded. This module must not know what the documents mean.

use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScanError};

use super::node::Document;
use super::problem::{Position, Problem, Problems};

mod build;
mod syntax;

use build::{Builder, Stop};

/// The limits of a text.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub bytes_max: usize,
    /// Nesting of lists and maps, including expanded aliases.
    pub depth_max: usize,
    /// Values in all documents of the text, including every expansion of an alias.
    pub nodes_max: usize,
    /// Bytes of scalars in expanded aliases.
    pub repeated_bytes_max: usize,
    /// Documents in the text, including empty ones.
    pub documents_max: usize,
}

impl Limits {
    /// A large real manifest has some thousand values in a hundred kilobytes. The defaults leave room for
    /// generated ones and limit the memory for a hostile one to some 100 MiB.
    pub const DEFAULT: Self = Self {
        bytes_max: 4 << 20,
        depth_max: 64,
        nodes_max: 250_000,
        repeated_bytes_max: 16 << 20,
        documents_max: 10_000,
    };
}

/// The result of parsing a text.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// The documents with a value, in order, including those with problems that leave their structure intact.
    pub documents: Vec<Document>,
    pub problems: Problems,
}

/// Parses a text with the default limits.
pub fn parse(source: &str, bytes: &[u8]) -> Parsed {
    parse_within(source, bytes, Limits::DEFAULT)
}

/// Parses a text with the given limits.
pub fn parse_within(source: &str, bytes: &[u8], limits: Limits) -> Parsed {
    match decode(source, bytes, limits) {
        Ok(text) => Reader::new(source, text, limits).read(),
        Err(problem) => Parsed { documents: Vec::new(), problems: problem.into() },
    }
}

/// Returns the position after a text. Lines end as in YAML: with `\n`, `\r` or both.
fn end_of(text: &str) -> Position {
    let (mut line, mut column, mut last) = (1, 1, ' ');
    for char in text.chars() {
        match char {
            '\n' if last == '\r' => {}
            '\n' | '\r' => (line, column) = (line + 1, 1),
            _ => column += 1,
        }
        last = char;
    }
    Position { line: count(line), column: count(column) }
}

fn decode<'a>(source: &str, bytes: &'a [u8], limits: Limits) -> Result<&'a str, Problem> {
    let problem = |position: Position, message: String| {
        let Position { line, column } = position;
        Problem { source: source.to_owned(), line, column, path: String::new(), message }
    };
    if bytes.len() > limits.bytes_max {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let message =
            format!("has {:.1} MiB; the limit is {:.1} MiB", mib(bytes.len()), mib(limits.bytes_max));
        return Err(problem(Position::default(), message));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(problem(Position::default(), "is UTF-16; save it as UTF-8".to_owned()));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        let position = end_of(&String::from_utf8_lossy(&bytes[..offset]));
        let byte = bytes.get(offset).copied().unwrap_or_default();
        problem(position, format!("is not UTF-8: byte 0x{byte:02x} at offset {offset}"))
    })
}

/// Drives the parser through the documents.
struct Reader<'a> {
    source: Arc<str>,
    text: &'a str,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    builder: Builder,
    documents: Vec<Document>,
    /// Number of documents begun, including empty and broken ones.
    begun: usize,
    limits: Limits,
}

impl<'a> Reader<'a> {
    fn new(source: &str, text: &'a str, limits: Limits) -> Self {
        let mut options = granit_parser::options! {
            emit_unresolved_aliases: true,
            flow_nesting_limit: limits.depth_max,
            block_nesting_limit: limits.depth_max,
        };
        // The parser buffers comments and fails when the buffer is full.
        options.set_emit_comments(false);
        let source: Arc<str> = source.into();
        Self {
            parser: Parser::new_from_str_with_options(text, options),
            builder: Builder::new(source.clone(), limits),
            documents: Vec::new(),
            begun: 0,
            limits,
            source,
            text,
        }
    }

    fn read(mut self) -> Parsed {
        loop {
            let stop = match self.parser.next_event() {
                None => break,
                Some(Err(error)) => Err(self.syntax(&error)),
                Some(Ok((event, span))) => self.event(event, &span),
            };
            match stop {
                Ok(()) => {}
                Err(Stop::Document(problem)) => {
                    self.builder.problems.push(problem);
                    self.builder.abandon();
                    // `Err` is an I/O error, which a text in memory can't have.
                    if !self.parser.proceed_next_document().unwrap_or(false) {
                        break;
                    }
                }
                Err(Stop::Source(problem)) => {
                    self.builder.problems.push(problem);
                    break;
                }
            }
        }
        Parsed { documents: self.documents, problems: self.builder.problems }
    }

    fn event(&mut self, event: Event<'_>, span: &granit_parser::Span) -> Result<(), Stop> {
        if let Event::DocumentStart(..) = event {
            self.begun += 1;
            if self.begun > self.limits.documents_max {
                let message = format!("has more than {} documents", self.limits.documents_max);
                return Err(Stop::Source(self.builder.problem(position(span.start), message)));
            }
        }
        if let Some(root) = self.builder.event(event, span)? {
            let index = self.documents.len();
            self.documents.push(Document { source: self.source.clone(), index, root });
        }
        Ok(())
    }

    fn syntax(&self, error: &ScanError) -> Stop {
        let at = position(*error.marker());
        Stop::Document(if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            self.builder.too_deep(at)
        } else {
            self.builder.problem(at, syntax::message(error, self.text))
        })
    }
}

/// The parser counts lines from 1 and columns from 0.
fn position(marker: granit_parser::Marker) -> Position {
    Position { line: count(marker.line()), column: count(marker.col() + 1) }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
