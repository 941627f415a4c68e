//! Expressions → values.
//!
//! In: an expression, a [`Scope`] and the names that enclosing loops bind. Out: its value, or a problem with
//! its position. An undeclared name (`node.class`, `NOMAD_PORT_http`) resolves only when the task runs: with or
//! without quotes it is the text `${node.class}`, as in Nomad ([`mod@reference`]). Values outside of the job must be literal.

mod functions;
mod operators;
mod reference;
mod template;
mod traversal;

use std::collections::BTreeMap;
use std::sync::Arc;

use hcl_edit::expr::{Expression, ForExpr, FuncCall, Object, ObjectKey, UnaryOperator};
use hcl_edit::template::HeredocTemplate;
use hcl_edit::{Number, Span};

use super::repeats::repeated;
use super::scope::{Bound, Fault, Scope, bound};
use super::value::Value;
use crate::yaml::{Entry, Node, Position, Style, Value as Tree};

/// The context in which an expression is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eval<'e, 's> {
    pub(super) scope: &'e Scope<'s>,
    pub(super) bound: Option<&'e Bound<'e>>,
}

impl<'e, 's> Eval<'e, 's> {
    pub(super) fn new(scope: &'e Scope<'s>) -> Self {
        Self { scope, bound: None }
    }

    /// The same context within a loop.
    pub(super) fn within<'b>(&self, bound: &'b Bound<'b>) -> Eval<'b, 's>
    where
        'e: 'b,
    {
        Eval { scope: self.scope, bound: Some(bound) }
    }

    pub(super) fn position(&self, spanned: &impl Span) -> Position {
        self.scope.source.position(spanned)
    }

    /// Evaluates an expression to a tree in which the items of lists and objects keep their own positions.
    pub(super) fn node(&self, expression: &Expression) -> Result<Arc<Node>, Fault> {
        let position = self.position(expression);
        let collection =
            |value| Arc::new(Node { value, text: "".into(), style: Style::Collection, position });
        if let Expression::Array(items) = expression {
            let items: Result<_, _> = items.iter().map(|item| self.node(item)).collect();
            return Ok(collection(Tree::Seq(items?)));
        }
        if let Expression::HeredocTemplate(heredoc) = expression {
            let node = self.value(expression)?.into_node(position);
            let style = self.lines(heredoc, &node).map_or(node.style, Style::Lines);
            return Ok(Arc::new(Node { style, ..Node::clone(&node) }));
        }
        let Expression::Object(object) = expression else {
            return Ok(self.value(expression)?.into_node(position));
        };
        let mut entries: Vec<Entry> = Vec::new();
        let mut indexes: BTreeMap<String, usize> = BTreeMap::new();
        for (key, value) in object {
            let (name, key_position) = self.key(key)?;
            let entry = Entry { key: name.as_str().into(), key_position, value: self.node(value.expr())? };
            match indexes.get(&name).and_then(|index| entries.get_mut(*index)) {
                Some(earlier) => {
                    self.scope.warn(earlier.key_position, repeated(&name));
                    *earlier = entry;
                }
                None => {
                    indexes.insert(name, entries.len());
                    entries.push(entry);
                }
            }
        }
        Ok(collection(Tree::Map(entries)))
    }

    /// Returns where the first line of a heredoc begins, if its value has the same lines.
    fn lines(&self, heredoc: &HeredocTemplate, value: &Node) -> Option<Position> {
        let span = heredoc.template.span()?;
        let first = self.scope.source.position_at(span.start);
        let last = self.scope.source.position_at(span.end);
        let is_same = value.text.matches('\n').count() == usize::try_from(last.line - first.line).ok()?;
        let column = u32::try_from(heredoc.indent().unwrap_or_default() + 1).ok()?;
        is_same.then_some(Position { line: first.line, column })
    }

    pub(super) fn value(&self, expression: &Expression) -> Result<Value, Fault> {
        self.scope.spend(1, self.position(expression))?;
        match expression {
            Expression::Null(_) => Ok(Value::Null),
            Expression::Bool(value) => Ok(Value::Bool(*value.value())),
            Expression::Number(number) => Ok(number_of(number.value())),
            Expression::String(text) => self.spent(Value::Str(text.value().clone()), expression),
            Expression::Array(items) => {
                items.iter().map(|item| self.value(item)).collect::<Result<_, _>>().map(Value::List)
            }
            Expression::Object(object) => self.object(object),
            Expression::StringTemplate(text) => template::value(self, text),
            Expression::HeredocTemplate(heredoc) => template::value(self, &heredoc.template),
            Expression::Parenthesis(inner) => self.value(inner.inner()),
            Expression::Variable(name) => match bound(self.bound, name.as_str()) {
                Some(value) => self.spent(value.clone(), expression),
                None => self.reference(name, &[], expression),
            },
            Expression::Conditional(choice) => match self.boolean(&choice.cond_expr)? {
                true => self.value(&choice.true_expr),
                false => self.value(&choice.false_expr),
            },
            Expression::FuncCall(call) => self.call(call),
            Expression::Traversal(traversal) => self.traversal(traversal),
            Expression::UnaryOp(operation) => {
                let value = self.value(&operation.expr)?;
                match operation.operator.value() {
                    UnaryOperator::Not => Ok(Value::Bool(!self.boolean_of(&value, &operation.expr)?)),
                    UnaryOperator::Neg => operators::negate(&value)
                        .or_else(|message| self.scope.fail(self.position(&operation.expr), message)),
                }
            }
            Expression::BinaryOp(operation) => operators::binary(self, operation),
            Expression::ForExpr(each) => self.for_each(each),
        }
    }

    /// Returns a copied or created value after its weight was charged.
    pub(super) fn spent(&self, value: Value, place: &impl Span) -> Result<Value, Fault> {
        self.scope.spend(value.weight(), self.position(place))?;
        Ok(value)
    }

    /// Evaluates a condition.
    pub(super) fn boolean(&self, expression: &Expression) -> Result<bool, Fault> {
        let value = self.value(expression)?;
        self.boolean_of(&value, expression)
    }

    fn boolean_of(&self, value: &Value, place: &impl Span) -> Result<bool, Fault> {
        match value.as_bool() {
            Some(value) => Ok(value),
            None => self
                .scope
                .fail(self.position(place), format!("must be true or false, found {}", value.kind())),
        }
    }

    /// Returns the text of a scalar.
    pub(super) fn text(&self, value: &Value, place: &impl Span) -> Result<String, Fault> {
        match value.text() {
            Some(text) => Ok(text),
            None => {
                self.scope.fail(self.position(place), format!("must be a string, found {}", value.kind()))
            }
        }
    }

    fn object(&self, object: &Object) -> Result<Value, Fault> {
        let mut entries = BTreeMap::new();
        for (key, value) in object {
            let (name, position) = self.key(key)?;
            let value = self.value(value.expr())?;
            if entries.contains_key(&name) {
                self.scope.warn(position, repeated(&name));
            }
            entries.insert(name, value);
        }
        Ok(Value::Map(entries))
    }

    fn key(&self, key: &ObjectKey) -> Result<(String, Position), Fault> {
        match key {
            ObjectKey::Ident(name) => Ok((name.as_str().to_owned(), self.position(name))),
            ObjectKey::Expression(Expression::Variable(name)) => {
                Ok((name.as_str().to_owned(), self.position(name)))
            }
            ObjectKey::Expression(expression) => {
                let value = self.value(expression)?;
                Ok((self.text(&value, expression)?, self.position(expression)))
            }
        }
    }

    fn call(&self, call: &FuncCall) -> Result<Value, Fault> {
        let name = call.name.name.as_str();
        let position = self.position(&call.name.name);
        let last = call.args.len().saturating_sub(1);
        if call.name.is_namespaced() {
            return self.scope.fail(position, "namespaced functions are not supported");
        }
        if name == "try" || name == "can" {
            return self.attempt(call);
        }
        let mut values = Vec::new();
        for (number, argument) in call.args.iter().enumerate() {
            let value = self.value(argument)?;
            if !call.args.expand_final() || number != last {
                values.push(value);
            } else if let Value::List(items) = value {
                values.extend(items);
            } else {
                return self
                    .scope
                    .fail(self.position(argument), format!("must be a list, found {}", value.kind()));
            }
        }
        let result = functions::call(name, values, &|work| self.scope.spend(work, position));
        match result {
            Ok(value) => self.spent(value, call),
            Err(functions::Refusal::Wrong(message)) => self.scope.fail(position, message),
            Err(functions::Refusal::Exhausted(fault)) => Err(fault),
        }
    }

    /// `try(…)` returns the first argument that has a value; `can(…)` returns whether its argument has one.
    fn attempt(&self, call: &FuncCall) -> Result<Value, Fault> {
        let is_try = call.name.name.as_str() == "try";
        let mut last = None;
        for argument in call.args.iter() {
            match self.value(argument) {
                Ok(value) if is_try => return Ok(value),
                Ok(_) => return Ok(Value::Bool(true)),
                Err(exhausted @ Fault::Exhausted(_)) => return Err(exhausted),
                Err(fault @ Fault::Wrong(_)) => last = Some(fault),
            }
        }
        match last {
            Some(_) if !is_try => Ok(Value::Bool(false)),
            Some(fault) => Err(fault),
            None => self.scope.fail(self.position(&call.name.name), "needs an argument"),
        }
    }

    fn for_each(&self, each: &ForExpr) -> Result<Value, Fault> {
        let collection = self.value(&each.intro.collection_expr)?;
        let (mut list, mut map) = (Vec::new(), BTreeMap::<String, Value>::new());
        let names = (each.intro.key_var.as_ref().map(|name| name.as_str()), each.intro.value_var.as_str());
        self.items(&collection, names, &each.intro.collection_expr, &mut |inner| {
            if let Some(condition) = &each.cond
                && !inner.boolean(&condition.expr)?
            {
                return Ok(());
            }
            let value = inner.value(&each.value_expr)?;
            let Some(key) = &each.key_expr else {
                list.push(value);
                return Ok(());
            };
            let key_value = inner.value(key)?;
            let name = inner.text(&key_value, key)?;
            match map.get_mut(&name) {
                Some(Value::List(group)) if each.grouping => group.push(value),
                Some(_) => {
                    let message =
                        format!("the key `{name}` occurs twice; write `VALUE...` to group the values");
                    return self.scope.fail(self.position(key), message);
                }
                None if each.grouping => {
                    map.insert(name, Value::List(vec![value]));
                }
                None => {
                    map.insert(name, value);
                }
            }
            Ok(())
        })?;
        Ok(if each.key_expr.is_some() { Value::Map(map) } else { Value::List(list) })
    }

    /// Runs `body` for each item of a list or an object, with its key and value bound to names.
    pub(super) fn items(
        &self,
        collection: &Value,
        (key_name, value_name): (Option<&str>, &str),
        place: &impl Span,
        body: &mut dyn FnMut(&Eval<'_, 's>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut each = |key: Value, value: &Value| {
            self.scope.spend(1, self.position(place))?;
            let key_bound = key_name.map(|name| Bound { name, value: &key, outer: self.bound });
            let outer = key_bound.as_ref().or(self.bound);
            let bound = Bound { name: value_name, value, outer };
            body(&Eval { scope: self.scope, bound: Some(&bound) })
        };
        match collection {
            Value::List(items) => {
                items.iter().enumerate().try_for_each(|(index, item)| each(Value::Int(index as i128), item))
            }
            Value::Map(entries) => {
                entries.iter().try_for_each(|(key, value)| each(Value::Str(key.clone()), value))
            }
            other @ (Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_)) => {
                let message = format!("must be a list or an object, found {}", other.kind());
                self.scope.fail(self.position(place), message)
            }
        }
    }
}

fn number_of(number: &Number) -> Value {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(value), _, _) => Value::Int(i128::from(value)),
        (None, Some(value), _) => Value::Int(i128::from(value)),
        (None, None, Some(value)) => Value::float(value),
        (None, None, None) => Value::Null,
    }
}
