//! HCL2, the language of Nomad's job files: a text and values for its variables → attributes and blocks with
//! values.
//!
//! In: the name and bytes of an untrusted text, and [`Variables`]. Out: its [`Body`] with every expression
//! evaluated and every `dynamic` block expanded, each with its position; or problems. References that only
//! resolve when a task runs (`"${NOMAD_PORT_http}"`) stay as written. Size, depth and work are bounded:
//! evaluation of an expression that multiplies values is refused. This module knows nothing about jobs.
//!
//! ```text
//! bytes ──source──► text ──scan, hcl_edit──► syntax ──variables, locals──► scope ──body──► Body
//! ```

mod body;
mod eval;
mod locals;
mod repeats;
mod scan;
mod scope;
mod source;
mod value;
mod variable_type;
mod variables;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use body::{Attribute, Block, Body, Label};
pub use variables::Variables;

use super::yaml::{Problem, Problems};
use scope::Scope;
use source::{Parsed, Source};

/// An evaluated text.
#[derive(Debug)]
pub struct Evaluated {
    /// Everything except the declarations of variables and locals.
    pub body: Body,
    /// The names of the variables that the text declares.
    pub declared: BTreeSet<String>,
    /// Problems with single values. Those values are `Refused` in the body.
    pub problems: Problems,
    /// Accepted, but worth reporting.
    pub warnings: Vec<Problem>,
}

/// Parses and evaluates a text.
///
/// # Errors
/// Problems that affect the whole text. A syntax error hides all other problems.
pub fn evaluate(source: &str, bytes: &[u8], variables: &Variables) -> Result<Evaluated, Problems> {
    let source = Source::read(source, bytes)?;
    let Parsed { body: syntax, mut warnings } = source.parse()?;
    let mut problems = Problems::new();
    let (scope, declared) = declarations(&source, &syntax, variables, &mut problems);
    // Expressions that use a wrong declaration would only repeat its problem.
    problems.into_result()?;
    let mut problems = Problems::new();
    let body = body::evaluate(&syntax, &scope, &mut problems);
    if body.torn {
        return Err(problems);
    }
    warnings.extend(scope.take_warnings());
    Ok(Evaluated { body, declared, problems, warnings })
}

/// Declares `var` and `local`.
fn declarations<'s>(
    source: &'s Source<'s>,
    syntax: &hcl_edit::structure::Body,
    variables: &Variables,
    problems: &mut Problems,
) -> (Scope<'s>, BTreeSet<String>) {
    let mut scope = Scope::new(source);
    let declared = variables::declare(syntax, variables, &mut scope, problems);
    if problems.is_empty() {
        locals::declare(syntax, &mut scope, problems);
    }
    (scope, declared)
}

/// Returns whether a text is HCL: by its name, otherwise by its first block.
pub fn is_hcl(source: &str, bytes: &[u8]) -> bool {
    match source.rsplit_once('.').map(|(_, extension)| extension) {
        Some("hcl" | "nomad") => true,
        Some("yaml" | "yml" | "json") => false,
        Some(_) | None => scan::begins_with_a_block(bytes),
    }
}
