//! Tree → output. The evaluator recurses by blocks, parentheses and template calls, bounded by
//! [`crate::Limits::depth`].

mod call;
mod field;
mod variables;

use crate::{
    ast::{Branch, Branches, Node, Part, Pipe, ROOT_VARIABLE, Span, VariableId},
    context::Context,
    error::{Fault, Outcome},
    format::{Output, print_action},
    json::{self, Numbers},
    parse::Templates,
    value::Value,
};

use variables::Variables;

/// Renders the main template.
///
/// # Errors
/// The error, with the bytes of the text that it is about.
pub(crate) fn render(
    text: &str,
    templates: &Templates,
    (context, dot): (&mut Context<'_>, &serde_json::Value),
) -> Outcome<Vec<u8>> {
    let dot = json::value(context, dot, Numbers::Floats)?;
    let out = Output::with_capacity(context.limits(), text.len());
    let mut state = State {
        text,
        templates,
        context,
        out,
        variables: Variables::new(),
        stack: Vec::with_capacity(16),
        depth: 0,
    };
    state.template("", dot)?;
    Ok(state.out.bytes)
}

pub(super) struct State<'s, 'r> {
    text: &'s str,
    templates: &'s Templates,
    context: &'s mut Context<'r>,
    out: Output<'r>,
    variables: Variables,
    /// The results of the pipelines in progress, and the arguments of their calls. Evaluating pushes one value.
    stack: Vec<Value>,
    depth: usize,
}

/// Which value is the dot in a branch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DotOf {
    Outside,
    Condition,
}

/// What follows a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl State<'_, '_> {
    /// Renders a template of this text. It sees no variable but `$`.
    fn template(&mut self, name: &str, dot: Value) -> Outcome<()> {
        let Some(nodes) = self.templates.get(name) else {
            return Err(Fault::new(format!("template {name:?} not defined")));
        };
        let frame = self.variables.enter();
        self.variables.declare(ROOT_VARIABLE, dot.clone());
        let done = self.nested(|state| state.list(&dot, nodes));
        self.variables.leave(frame);
        done.map(|_| ())
    }

    fn nested<T>(&mut self, evaluate: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth >= self.context.limits().depth {
            let message = format!("blocks and template calls are nested more than {} deep", self.depth);
            return Err(Fault::limit(message));
        }
        self.depth += 1;
        let value = evaluate(self);
        self.depth -= 1;
        value
    }

    fn list(&mut self, dot: &Value, nodes: Part) -> Outcome<Flow> {
        for node in nodes.items(&self.templates.tree.nodes) {
            let flow = self.node(dot, node)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, dot: &Value, node: &Node) -> Outcome<Flow> {
        self.context.step()?;
        match node {
            Node::Text((start, end)) => {
                let text = self.text;
                self.out.push(&text.as_bytes()[*start as usize..*end as usize])?;
            }
            Node::Action(pipe) => {
                let value = self.value(dot, pipe)?;
                if pipe.variables.is_empty() {
                    print_action(&mut self.out, &value).map_err(|fault| fault.at(pipe.span))?;
                }
            }
            Node::If(branches) => return self.branches(dot, branches, DotOf::Outside),
            Node::With(branches) => return self.branches(dot, branches, DotOf::Condition),
            Node::Range { pipe, body, otherwise } => {
                let visible = self.variables.len();
                let flow = self.range(dot, pipe, *body, *otherwise);
                self.variables.truncate(visible);
                return flow;
            }
            Node::Template { name, pipe, span } => {
                let value = match pipe {
                    Some(pipe) => self.value(dot, pipe)?,
                    None => Value::Nil,
                };
                self.template(name, value).map_err(|fault| fault.at(*span))?;
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// Renders the first branch whose value is true.
    fn branches(&mut self, dot: &Value, branches: &Branches, dot_of: DotOf) -> Outcome<Flow> {
        let visible = self.variables.len();
        let flow = self.branch(dot, branches, dot_of)?;
        self.variables.truncate(visible);
        Ok(flow)
    }

    fn branch(&mut self, dot: &Value, branches: &Branches, dot_of: DotOf) -> Outcome<Flow> {
        for Branch { pipe, body } in branches.branches.items(&self.templates.tree.branches) {
            let value = self.value(dot, pipe)?;
            if value.is_true() {
                let dot = if dot_of == DotOf::Condition { &value } else { dot };
                return self.nested(|state| state.list(dot, *body)).map_err(|fault| fault.at(pipe.span));
            }
        }
        self.nested(|state| state.list(dot, branches.otherwise))
    }

    fn range(&mut self, dot: &Value, pipe: &Pipe, body: Part, otherwise: Part) -> Outcome<Flow> {
        let value = self.value(dot, pipe)?;
        let mut turn = Turn { pipe, body, visible: self.variables.len(), has_run: false };
        match &value {
            Value::Nil => {}
            Value::Int(count) | Value::Int64(count) => {
                self.count(
                    &mut turn,
                    &value,
                    *count,
                    if matches!(value, Value::Int(_)) { Value::Int } else { Value::Int64 },
                )?;
            }
            Value::Uint(count) => {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                self.count(&mut turn, &value, count, |number| Value::Uint(number.unsigned_abs()))?;
            }
            Value::List(list) => {
                for (index, item) in (0..).zip(&list.items) {
                    if self.turn(&mut turn, Value::Int(index), item)? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                // A copy: the body may change the map.
                let entries: Vec<_> =
                    map.entries().iter().map(|(key, value)| (key.value(), value.clone())).collect();
                self.context.charge(entries.len() * size_of::<(Value, Value)>())?;
                for (key, value) in entries {
                    if self.turn(&mut turn, key, &value)? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Sequence(start, end) => {
                for (index, number) in (0..).zip(*start..*end) {
                    if self.turn(&mut turn, Value::Int(index), &Value::Int64(number))? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Bool(_) | Value::Float(_) | Value::Str(_) | Value::Struct(_) | Value::Scratch => {
                return Err(
                    Fault::new(format!("range can't iterate over a {}", value.type_name())).at(pipe.span)
                );
            }
        }
        if turn.has_run {
            return Ok(Flow::Next);
        }
        match self.nested(|state| state.list(dot, otherwise))? {
            // As in Go, a break in the else part ends this range, and continue the iteration around it.
            Flow::Next | Flow::Break => Ok(Flow::Next),
            Flow::Continue => Ok(Flow::Continue),
        }
    }

    /// Iterates over an integer.
    fn count(
        &mut self,
        turn: &mut Turn<'_>,
        value: &Value,
        count: i64,
        number: fn(i64) -> Value,
    ) -> Outcome<()> {
        if turn.pipe.variables.len() > 1 {
            let message = format!("can't use a {} to iterate over more than one variable", value.type_name());
            return Err(Fault::new(message).at(turn.pipe.span));
        }
        for index in 0..count {
            if self.turn(turn, Value::Nil, &number(index))? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Renders the body of a range once.
    fn turn(&mut self, turn: &mut Turn<'_>, index: Value, item: &Value) -> Outcome<Flow> {
        self.context.step()?;
        turn.has_run = true;
        match (turn.pipe.variables.as_slice(), turn.pipe.assigns) {
            ([], _) => {}
            ([variable], true) => self.assign(*variable, item.clone(), turn.pipe.span)?,
            ([first, second, ..], true) => {
                self.assign(*first, index, turn.pipe.span)?;
                self.assign(*second, item.clone(), turn.pipe.span)?;
            }
            (declared, false) => {
                // The pipeline has declared them, in this order.
                let first = turn.visible - declared.len();
                if declared.len() > 1 {
                    self.variables.set(first, index);
                }
                self.variables.set(turn.visible - 1, item.clone());
            }
        }
        let flow = self.nested(|state| state.list(item, turn.body));
        self.variables.truncate(turn.visible);
        flow.map_err(|fault| fault.at(turn.pipe.span))
    }

    /// Evaluates a pipeline, and declares or assigns its variables.
    fn value(&mut self, dot: &Value, pipe: &Pipe) -> Outcome<Value> {
        self.pipe(dot, pipe)?;
        Ok(self.pop())
    }

    /// Evaluates a pipeline onto the stack, and declares or assigns its variables.
    fn pipe(&mut self, dot: &Value, pipe: &Pipe) -> Outcome<()> {
        let start = self.stack.len();
        for command in pipe.commands.items(&self.templates.tree.commands) {
            self.command(dot, command, start).map_err(|fault| fault.at(command.span))?;
        }
        for variable in &pipe.variables {
            let value = self.stack.last().cloned().unwrap_or_default();
            if pipe.assigns {
                self.assign(*variable, value, pipe.span)?;
            } else {
                self.variables.declare(*variable, value);
            }
        }
        Ok(())
    }

    /// Takes the value that was evaluated last.
    fn pop(&mut self) -> Value {
        self.stack.pop().unwrap_or_default()
    }

    fn assign(&mut self, variable: VariableId, value: Value, span: Span) -> Outcome<()> {
        match self.variables.get_mut(variable) {
            Some(known) => {
                *known = value;
                Ok(())
            }
            None => Err(Fault::new("undefined variable: declare it with := first").at(span)),
        }
    }
}

/// A range in progress.
struct Turn<'p> {
    pipe: &'p Pipe,
    body: Part,
    /// Variables that are visible in the body.
    visible: usize,
    has_run: bool,
}
