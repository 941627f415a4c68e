//! The tree of a parsed template. It owns its strings and can be shared between threads.
//!
//! It is flat: parts of a few long lists take the place of many short lists.

use std::sync::Arc;

use crate::{function::Function, lex::offset, number::Number, text::Text};

/// Bytes in the text, for errors.
pub(crate) type Span = (u32, u32);

/// Interned name of a variable.
pub(crate) type VariableId = u16;

/// The variable `$`.
pub(crate) const ROOT_VARIABLE: VariableId = 0;

/// The parts of all trees of a text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) branches: Vec<Branch>,
    pub(crate) commands: Vec<Command>,
    pub(crate) operands: Vec<Operand>,
}

impl Tree {
    /// The tree of a text that has about this many tokens.
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(tokens / 6),
            operands: Vec::with_capacity(tokens / 3),
            ..Self::default()
        }
    }
}

/// Consecutive items of a list of a [`Tree`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    start: u32,
    end: u32,
}

impl Part {
    /// The items between two indexes, which fit as spans do.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start: offset(start), end: offset(end) }
    }

    #[inline]
    pub(crate) fn items<T>(self, list: &[T]) -> &[T] {
        &list[self.start as usize..self.end as usize]
    }
}

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
        body: Part,
        otherwise: Part,
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
    pub(crate) branches: Part,
    pub(crate) otherwise: Part,
}

#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) pipe: Pipe,
    pub(crate) body: Part,
}

/// `$a := f x | g`
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) span: Span,
    pub(crate) variables: Vec<VariableId>,
    /// Whether the variables exist already.
    pub(crate) assigns: bool,
    pub(crate) commands: Part,
}

/// An operand with its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) span: Span,
    pub(crate) operands: Part,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) span: Span,
    pub(crate) term: Term,
    /// `.a.b` after the term. Only variables, parentheses, functions and the dot have fields.
    pub(crate) fields: Vec<Text>,
}

impl Operand {
    /// Whether it is a value that cannot be called.
    pub(crate) fn is_literal(&self) -> bool {
        let is_literal =
            matches!(self.term, Term::Bool(_) | Term::Nil | Term::Number(_) | Term::Str(_) | Term::Dot);
        is_literal && self.fields.is_empty()
    }
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
