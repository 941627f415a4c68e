//! Evaluates the blocks and attributes of a body.
//!
//! In: the syntax of a body and a scope. Out: the same structure in source order, with every expression
//! evaluated and `dynamic` blocks expanded. Each faulty expression is one problem; evaluation continues after
//! it, and its attribute keeps its position.

use std::sync::Arc;

use hcl_edit::expr::Expression;
use hcl_edit::structure::{Block as Syntax, Body as SyntaxBody, Structure};

use super::eval::Eval;
use super::scope::{Fault, Scope};
use super::value::Value;
use crate::yaml::{Node, Position, Problems, Style, Value as Tree};

/// The attributes and blocks of a text or of one block.
#[derive(Debug, Default)]
pub struct Body {
    /// `name = value`.
    pub attributes: Vec<Attribute>,
    /// `kind "label" { … }`.
    pub blocks: Vec<Block>,
    /// Set if some blocks could not be evaluated, so that the body is incomplete.
    pub torn: bool,
}

#[derive(Debug)]
pub struct Attribute {
    pub name: Box<str>,
    /// The position of the name.
    pub position: Position,
    /// The value, with its own position.
    pub value: Arc<Node>,
}

#[derive(Debug)]
pub struct Block {
    /// The block's type, e.g. `task`.
    pub kind: Box<str>,
    /// The position of `kind`.
    pub position: Position,
    pub labels: Vec<Label>,
    pub body: Body,
}

/// A label of a block.
#[derive(Debug)]
pub struct Label {
    pub text: Box<str>,
    pub position: Position,
}

/// The block types that declare names.
const DECLARATIONS: [&str; 3] = ["variable", "variables", "locals"];

/// Evaluates the body of a whole text.
pub(super) fn evaluate(syntax: &SyntaxBody, scope: &Scope<'_>, problems: &mut Problems) -> Body {
    let mut body = Body::default();
    let undeclaring = syntax.iter().filter(|structure| match structure {
        Structure::Block(block) => !DECLARATIONS.contains(&block.ident.as_str()),
        Structure::Attribute(_) => true,
    });
    for structure in undeclaring {
        if let Err(fault) = read(structure, &Eval::new(scope), &mut body, problems) {
            problems.push(fault.into_problem());
            body.torn = true;
            break;
        }
    }
    body
}

/// Reads one attribute or block. Returns only the faults that end the evaluation; other faults become
/// problems.
fn read(
    structure: &Structure,
    eval: &Eval<'_, '_>,
    body: &mut Body,
    problems: &mut Problems,
) -> Result<(), Fault> {
    let result = match structure {
        Structure::Attribute(attribute) => {
            let value = eval.node(&attribute.value);
            let result = value.as_ref().map(|_| ()).map_err(Fault::clone);
            let place = eval.position(&attribute.value);
            let refused =
                || Node { value: Tree::Refused, text: "".into(), style: Style::Plain, position: place };
            let value = value.unwrap_or_else(|_| Arc::new(refused()));
            let position = eval.position(&attribute.key);
            body.attributes.push(Attribute { name: attribute.key.as_str().into(), position, value });
            result
        }
        Structure::Block(block) if block.ident.as_str() == "dynamic" => {
            let result = dynamic(block, eval, body, problems);
            body.torn |= result.is_err();
            result
        }
        Structure::Block(block) => {
            let labels = block.labels.iter().map(|label| Label {
                text: label.as_str().into(),
                position: match label {
                    hcl_edit::structure::BlockLabel::Ident(name) => eval.position(name),
                    hcl_edit::structure::BlockLabel::String(name) => eval.position(name),
                },
            });
            let (kind, position) = (block.ident.as_str().into(), eval.position(&block.ident));
            eval.scope.spend(1, position)?;
            let labels = labels.collect();
            let body_of_block = read_body(&block.body, eval, problems)?;
            body.torn |= body_of_block.torn;
            body.blocks.push(Block { kind, position, labels, body: body_of_block });
            Ok(())
        }
    };
    match result {
        Err(Fault::Wrong(problem)) => {
            problems.push(problem);
            Ok(())
        }
        Ok(()) | Err(Fault::Exhausted(_)) => result,
    }
}

fn read_body(syntax: &SyntaxBody, eval: &Eval<'_, '_>, problems: &mut Problems) -> Result<Body, Fault> {
    let mut body = Body::default();
    for structure in syntax {
        read(structure, eval, &mut body, problems)?;
    }
    Ok(body)
}

/// Expands `dynamic "KIND" { for_each, iterator, labels, content { … } }` to one block of that kind for each
/// item.
fn dynamic(
    block: &Syntax,
    eval: &Eval<'_, '_>,
    body: &mut Body,
    problems: &mut Problems,
) -> Result<(), Fault> {
    let position = eval.position(&block.ident);
    let [kind] = block.labels.as_slice() else {
        return eval.scope.fail(position, "needs one label, the block type: `dynamic \"KIND\" { … }`");
    };
    let kind = kind.as_str();
    let Some(for_each) = block.body.get_attribute("for_each") else {
        return eval.scope.fail(position, "needs `for_each`");
    };
    let Some(content) = block.body.get_blocks("content").next() else {
        return eval.scope.fail(position, "needs a block `content`");
    };
    let iterator = match block.body.get_attribute("iterator").map(|attribute| &attribute.value) {
        None => kind,
        Some(Expression::Variable(name)) => name.as_str(),
        Some(other) => return eval.scope.fail(eval.position(other), "must be a name"),
    };
    let labels = block.body.get_attribute("labels").map(|attribute| &attribute.value);
    let collection = eval.value(&for_each.value)?;
    eval.items(&collection, (Some("key"), "value"), &for_each.value, &mut |inner| {
        // The iterator has `KIND.key` and `KIND.value`.
        let pair = |name: &str| super::scope::bound(inner.bound, name).cloned().unwrap_or(Value::Null);
        let both = [("key", pair("key")), ("value", pair("value"))];
        let item = Value::Map(both.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        eval.scope.spend(item.weight(), position)?;
        let bound = super::scope::Bound { name: iterator, value: &item, outer: eval.bound };
        let within = eval.within(&bound);
        let labels = match labels {
            None => Vec::new(),
            Some(expression) => self::labels(&within, expression)?,
        };
        let content = read_body(&content.body, &within, problems)?;
        body.torn |= content.torn;
        body.blocks.push(Block { kind: kind.into(), position, labels, body: content });
        Ok(())
    })
}

/// Evaluates the computed labels of a dynamic block.
fn labels(eval: &Eval<'_, '_>, expression: &Expression) -> Result<Vec<Label>, Fault> {
    let (value, position) = (eval.value(expression)?, eval.position(expression));
    let Value::List(items) = value else {
        return eval.scope.fail(position, format!("must be a list of strings, found {}", value.kind()));
    };
    let label = |item| Ok(Label { text: eval.text(item, expression)?.into(), position });
    items.iter().map(label).collect()
}
