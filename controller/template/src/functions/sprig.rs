//! Functions of sprig, with the prefix that consul-template gives them.
//!
//! Those that need randomness, the clock, the environment or the network are refused: a template renders the same from
//! the same data.

mod basics;
mod dates;
mod dicts;
mod lists;
mod numbers;
mod paths;
mod patterns;
mod text;
mod versions;
mod words;

use crate::{context::Context, error::Outcome, format, function::Function, text::Text, value::Value};

pub(super) const PREFIX: &str = "sprig_";

/// Why a function is not offered.
const RANDOM: &str = "its result differs each time, so that the task would restart at each render";

static TABLES: [&[Function]; 8] = [
    basics::TABLE,
    dates::TABLE,
    dicts::TABLE,
    lists::TABLE,
    numbers::TABLE,
    paths::TABLE,
    patterns::TABLE,
    text::TABLE,
];

pub(super) fn tables() -> &'static [&'static [Function]] {
    &TABLES
}

/// Whether a value is the zero of its type.
fn is_empty(value: &Value) -> bool {
    !value.is_true()
}

/// The text of any value.
fn text_of(context: &mut Context<'_>, value: &Value) -> Outcome<Text> {
    if let Some(text) = value.as_text() {
        return Ok(text.clone());
    }
    let shown = format::shown(context.limits(), value)?;
    context.charge(shown.len())?;
    Ok(shown.into())
}
