//! What a function of the language is. The table is in [`crate::functions`].

use crate::{context::Context, error::Outcome, value::Value};

/// A function that templates can call.
#[derive(Debug)]
pub struct Function {
    pub name: &'static str,
    pub group: Group,
    /// Fewest arguments.
    pub(crate) least: usize,
    /// Most arguments.
    pub(crate) most: usize,
    pub(crate) body: Body,
}

/// The origin of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Of Go's text/template.
    Go,
    Nomad,
    Consul,
    Vault,
    /// Of the task, the node and the template itself.
    Local,
    Encoding,
    Text,
    Collections,
    Math,
    Debug,
    Sprig,
}

/// What a call does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body {
    Call(Call),
    /// Evaluates its arguments until one decides.
    And,
    Or,
    /// Renders another template of the same text.
    Execute,
    /// Fails with a reason.
    Refused(&'static str),
}

/// The arguments have the length that the table allows.
pub(crate) type Call = fn(&mut Context<'_>, &[Value]) -> Outcome<Value>;

/// Whether a function can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    Works,
    NeedsConsul,
    NeedsVault,
    Refused(&'static str),
}

impl Function {
    pub fn support(&self) -> Support {
        match (self.body, self.group) {
            (Body::Refused(why), _) => Support::Refused(why),
            (_, Group::Consul) => Support::NeedsConsul,
            (_, Group::Vault) => Support::NeedsVault,
            (_, _) => Support::Works,
        }
    }
}
