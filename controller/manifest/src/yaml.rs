//! YAML for people: trees that keep positions and source text, and reports of all problems at once.
//!
//! In: the name and bytes of a text, a JSON Schema, a Rust type. Out: [`parse()`] builds trees, [`check()`]
//! validates a tree against a schema and reports all problems, [`from_node`] types a tree, [`to_yaml`] writes
//! YAML. Every problem has a file, line, column, path and, where possible, a remedy. This module knows
//! nothing about jobs; the schema's own keywords (`x-…`) are listed at [`check()`].
//!
//! ```text
//! bytes ──parse──► Document ──check(schema)──► Problems
//!                     │
//!                     └──from_node──► T
//! ```

mod check;
mod node;
mod parse;
pub(crate) mod path;
pub mod phrases;
pub mod printable;
mod problem;
mod read;
mod scalar;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use check::{Checked, check_fields};
pub use check::{check, schema_for, strictly};
pub use node::{Document, Entry, Located, Node, Style, Value};
pub use parse::{Limits, Parsed, parse, parse_within};
pub(crate) use path::{OwnedStep as PathStep, Trail, parse as parse_path};
pub use phrases::nearest;
pub use problem::{Position, Problem, Problems};
pub use read::from_node;
pub use tree::tree_of;
pub use write::{WriteError, to_yaml};
