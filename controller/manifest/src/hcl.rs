//! HCL2, the language of Nomad's job files: a text and values for its variables → attributes and blocks with values.
//!
//! In: the name and bytes of a text, trusted in nothing, and [`Variables`]. Out: its [`Body`] with every expression
//! evaluated and every `dynamic` block expanded, each with its place; or problems. What is only known when a task runs
//! (`"${NOMAD_PORT_http}"`) stays as it is written. Size, depth and work are bounded: an expression that multiplies is
//! refused, not waited for. It must not know what a job is.
//!
//! ```text
//! bytes ──source──► text ──scan, hcl_edit──► syntax ──variables, locals──► scope ──body──► Body
//! ```

mod body;
mod eval;
mod kind;
mod locals;
mod scan;
mod scope;
mod source;
mod value;
mod variables;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use body::{Attribute, Block, Body, Label};
pub use variables::Variables;

use super::yaml::Problems;
use scope::Scope;
use source::Source;

/// What a text says, once it is evaluated.
#[derive(Debug)]
pub struct Evaluated {
    /// Everything but the declarations of variables and locals.
    pub body: Body,
    /// The variables that it declares.
    pub declared: BTreeSet<String>,
    /// What is wrong with single values, each of which is left out of the body.
    pub problems: Problems,
}

/// Reads a text and evaluates it.
///
/// # Errors
/// What is wrong with it as a whole; a syntax error hides all else.
pub fn evaluate(source: &str, bytes: &[u8], variables: &Variables) -> Result<Evaluated, Problems> {
    let source = Source::read(source, bytes)?;
    let syntax = source.parse()?;
    let mut problems = Problems::new();
    let (scope, declared) = declarations(&source, &syntax, variables, &mut problems);
    // What uses a declaration that is wrong would only say so again.
    problems.into_result()?;
    let mut problems = Problems::new();
    let body = body::evaluate(&syntax, &scope, &mut problems);
    if body.torn {
        return Err(problems);
    }
    Ok(Evaluated { body, declared, problems })
}

/// `var` and `local`.
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

/// Whether a text is HCL: by its name, and where that doesn't tell by how it begins.
pub fn is_hcl(source: &str, bytes: &[u8]) -> bool {
    match source.rsplit_once('.').map(|(_, extension)| extension) {
        Some("hcl" | "nomad") => true,
        Some("yaml" | "yml" | "json") => false,
        Some(_) | None => scan::begins_with_a_block(bytes),
    }
}
