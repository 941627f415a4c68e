//! The tree of a parsed template. It owns its strings and can be shared between threads.

use std::sync::Arc;

use crate::{function::Function, number::Number, text::Text};

/// Bytes in the text, for errors.
pub(crate) type Span = (u32, u32);

/// Interned name of a variable.
pub(crate) type VariableId = u16;

/// The variable `$`.
pub(crate) const ROOT_VARIABLE: VariableId = 0;

#[derive(Debug)]
pub(crate) enum Node {
    Text(Span),
    Action(Pipe),
    /// `if`, with a branch for each `else if`.
    If(Branches),
    /// `with`, with a branch for each `else with`.
    With(Branches),
    Range {
        pipe: Pipe,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Template {
        name: Arc<str>,
        pipe: Option<Pipe>,
        span: Span,
    },
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct Branches {
    pub(crate) branches: Vec<(Pipe, Vec<Node>)>,
    pub(crate) otherwise: Vec<Node>,
}

/// `$a := f x | g`
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) span: Span,
    pub(crate) variables: Vec<VariableId>,
    /// Whether the variables exist already.
    pub(crate) assigns: bool,
    pub(crate) commands: Vec<Command>,
}

/// An operand with its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) span: Span,
    pub(crate) first: Operand,
    pub(crate) arguments: Vec<Operand>,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) span: Span,
    pub(crate) term: Term,
    /// `.a.b` after the term. Only variables, parentheses, functions and the dot have fields.
    pub(crate) fields: Vec<Text>,
}

#[derive(Debug)]
pub(crate) enum Term {
    Dot,
    Nil,
    Bool(bool),
    Number(Number),
    Str(Text),
    Variable(VariableId),
    Function(&'static Function),
    /// A function of the denylist: an error when it is called.
    Denied(&'static str),
    Paren(Box<Pipe>),
}
