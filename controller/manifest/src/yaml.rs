//! YAML for people: trees that keep places and source text, and all problems told at once.
//!
//! In: the name and bytes of a text, a JSON Schema, a Rust type. Out: [`parse`] makes trees, [`check`] compares one with
//! a schema and tells everything wrong with it, [`from_node`] types it, [`to_yaml`] writes. Every problem has file,
//! line, column, path and, where it is plain, what to write instead. It must not know what a job is; what the schema's
//! own keywords (`x-…`) can say is listed at [`check`].
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
pub mod printable;
mod problem;
mod read;
mod scalar;
mod tree;
pub mod words;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use check::{Checked, check_fields};
pub use check::{check, schema_for, strictly};
pub use node::{Document, Entry, Node, Place, Style, Value};
pub use parse::{Limits, Parsed, parse, parse_within};
pub(crate) use path::{OwnedStep as PathStep, Trail, parse as parse_path};
pub use problem::{Position, Problem, Problems};
pub use read::from_node;
pub use tree::tree_of;
pub use words::nearest;
pub use write::{WriteError, to_yaml};
