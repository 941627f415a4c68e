//! Templates: parse once, render often.

use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::{
    ast::Tree,
    context::Context,
    error::{Error, Fault, FaultDetails, Position},
    eval,
    options::Options,
    parse::{self, Templates},
    query::Query,
    source::Source,
};

/// A parsed template. Can be shared between threads.
pub struct Template {
    text: Arc<str>,
    templates: Templates,
    options: Options,
}

/// The end of a render.
pub struct Render {
    /// The output. With missing queries it is incomplete, and an error may only be their consequence.
    pub result: Result<Vec<u8>, Error>,
    /// All queries, each once, in the order in which the template made them.
    pub used: Vec<Query>,
    /// Queries that the source could not answer yet. When it can, further ones may follow.
    pub missing: BTreeSet<Query>,
}

/// Texts of templates may contain secrets.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({})", self.options.name)
    }
}

/// Outputs contain secrets.
impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = self.result.as_ref().map(Vec::len).map_err(|error| error.position);
        write!(f, "Render({result:?}, {} of {} queries missing)", self.missing.len(), self.used.len())
    }
}

/// Longest message of an error: it may contain data.
const MESSAGE_BYTES: usize = 2_000;

/// Longest part of a template in an error.
const CONTEXT_CHARS: usize = 60;

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// When the text is not a template, with the first problem.
    pub fn parse(text: &str, options: &Options) -> Result<Self, Error> {
        match parse::parse(text, options) {
            Ok(templates) => Ok(Self { text: text.into(), templates, options: options.clone() }),
            Err(fault) => Err(Error { context: String::new(), ..located(fault, text, options) }),
        }
    }

    /// The tree of all its templates.
    pub(crate) fn tree(&self) -> &Tree {
        &self.templates.tree
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Renders the template with the data that the source has now. The dot is nil, as in templates of jobs.
    pub fn render(&self, source: &dyn Source) -> Render {
        self.render_with(source, &serde_json::Value::Null)
    }

    /// Renders the template with a value as the dot.
    pub fn render_with(&self, source: &dyn Source, dot: &serde_json::Value) -> Render {
        let mut context = Context::new(&self.options, source);
        let result = eval::render(&self.text, &self.templates, (&mut context, dot));
        let (used, missing) = context.finish();
        Render { result: result.map_err(|fault| located(fault, &self.text, &self.options)), used, missing }
    }
}

fn located(fault: Fault, text: &str, options: &Options) -> Error {
    let FaultDetails { kind, message, span } = fault.into_details();
    let (start, end) = span.map_or((0, 0), |(start, end)| (start as usize, end as usize));
    let slice = text.get(start..end.min(text.len())).unwrap_or_default();
    let line = slice.lines().next().unwrap_or_default();
    let mut context: String = line.chars().take(CONTEXT_CHARS).collect();
    if context.len() < slice.len() {
        context.push('…');
    }
    Error {
        kind,
        name: Arc::clone(&options.name),
        position: Position::of(text, start),
        context,
        message: clipped(message),
    }
}

fn clipped(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push('…');
    }
    message
}
