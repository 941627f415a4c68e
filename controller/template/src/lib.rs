//! The template language of Nomad's jobs: Go's `text/template`, with the functions of consul-template and sprig.
//!
//! In: the text of a template, [`Options`], a [`Source`] of data. Out: the rendered bytes, the queries that the
//! template made, and those without an answer yet. The crate does no IO, reads no clock and does not wait: a source
//! answers from what it has. Hostile templates and data end at [`Limits`].
//!
//! ```
//! use herdlet_template::{Options, Template, source::Fixed};
//!
//! let template = Template::parse(r#"port = {{ env "PORT" | parseInt | add 1 }}"#, &Options::default())?;
//! let source = Fixed::default().with_env("PORT", "8080");
//! let render = template.render(&source);
//! assert_eq!(render.result?.as_slice(), b"port = 8081");
//! # Ok::<(), herdlet_template::Error>(())
//! ```
//!
//! A template is parsed once and rendered as often as its data changes. Data without an answer renders as nothing,
//! and [`Render::missing`] lists it, so that one render finds all queries that do not depend on other data. A render
//! with missing queries is never a result to be used.

mod ast;
mod calls;
mod compare;
mod context;
mod error;
mod eval;
mod format;
mod function;
pub mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod json;
mod lex;
mod limits;
mod moment;
mod number;
mod options;
mod parse;
mod query;
pub mod source;
mod template;
mod text;
mod value;

pub use calls::Call;
pub use error::{Error, ErrorKind, Position};
pub use function::{Function, Group, Support};
pub use limits::Limits;
pub use options::{MissingKey, Options};
pub use query::{Answer, Choice, NodeAddress, Query, ServiceInstance, ServiceName, Variable, VariableMeta};
pub use source::Source;
pub use template::{Render, Template};
pub use text::Text;
