//! Expressions → values.
//!
//! In: an expression, a [`Scope`] and the names that enclosing loops bind. Out: its value, or a problem with
//! its position. An undeclared name (`node.class`, `NOMAD_PORT_http`) resolves only when the task runs: with or
//! without quotes it is the text `${node.class}`, as in Nomad. Values outside of the job must be literal.

mod functions;
mod operators;
mod template;

use std::collections::BTreeMap;
use std::sync::Arc;

use hcl_edit::expr::{
    Expression, ForExpr, FuncCall, Object, ObjectKey, Traversal, TraversalOperator, UnaryOperator,
};
use hcl_edit::{Decorated, Ident, Number, Span};

use super::repeats::repeated;
use super::scope::{Bound, Fault, References, Scope, bound};
use super::value::Value;
use crate::yaml::{Entry, Node, Position, Style, Value as Tree, nearest};

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

    fn traversal(&self, traversal: &Traversal) -> Result<Value, Fault> {
        let (steps, from) = (&traversal.operators[..], self.position(traversal));
        let Expression::Variable(name) = &traversal.expr else {
            return self.walk(&self.value(&traversal.expr)?, steps, from);
        };
        if let Some(value) = bound(self.bound, name.as_str()) {
            return self.walk(value, steps, from);
        }
        let (all, kind) = match name.as_str() {
            "var" => (&self.scope.variables, "variable"),
            "local" => (&self.scope.locals, "local"),
            _ => return self.reference(name, steps, traversal),
        };
        let Some((first, steps)) = steps.split_first() else {
            return self.unknown(name, traversal);
        };
        let TraversalOperator::GetAttr(wanted) = first.value() else {
            let message = format!("write {name}.NAME", name = name.as_str());
            return self.scope.fail(self.position(traversal), message);
        };
        match all.get(wanted.as_str()) {
            Some(value) => self.walk(value, steps, from),
            None => {
                let wanted_name = wanted.as_str();
                let mut message = format!("there is no {kind} `{wanted_name}`");
                if let Some(near) = nearest(wanted_name, all.keys().map(String::as_str)) {
                    message = format!("{message}; did you mean `{near}`?");
                }
                self.scope.fail(self.position(wanted), message)
            }
        }
    }

    /// Follows attributes, indexes and splats from a value.
    fn walk(
        &self,
        value: &Value,
        steps: &[Decorated<TraversalOperator>],
        from: Position,
    ) -> Result<Value, Fault> {
        let Some((step, rest)) = steps.split_first() else {
            self.scope.spend(value.weight(), from)?;
            return Ok(value.clone());
        };
        let position = self.position(step);
        match step.value() {
            TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => {
                let items = match value {
                    Value::List(items) => items.as_slice(),
                    Value::Null => &[],
                    Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Map(_) => {
                        std::slice::from_ref(value)
                    }
                };
                items
                    .iter()
                    .map(|item| self.walk(item, rest, from))
                    .collect::<Result<_, _>>()
                    .map(Value::List)
            }
            TraversalOperator::GetAttr(name) => self.entry(value, name.as_str(), position, rest),
            TraversalOperator::LegacyIndex(index) => {
                self.item(value, i128::from(*index.value()), position, rest)
            }
            TraversalOperator::Index(index) => match (self.value(index)?, value) {
                (index, Value::List(_)) => match index.as_int() {
                    Some(index) => self.item(value, index, position, rest),
                    None => self.scope.fail(position, "the index of a list must be an integer"),
                },
                (key, _) => self.entry(value, &self.text(&key, index)?, position, rest),
            },
        }
    }

    fn entry(
        &self,
        value: &Value,
        name: &str,
        position: Position,
        rest: &[Decorated<TraversalOperator>],
    ) -> Result<Value, Fault> {
        let Value::Map(entries) = value else {
            return self.scope.fail(position, format!("{} has no `{name}`", value.kind()));
        };
        match entries.get(name) {
            Some(entry) => self.walk(entry, rest, position),
            None => {
                let near = nearest(name, entries.keys().map(String::as_str));
                let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                self.scope.fail(position, format!("the object has no `{name}`{near}"))
            }
        }
    }

    fn item(
        &self,
        value: &Value,
        index: i128,
        position: Position,
        rest: &[Decorated<TraversalOperator>],
    ) -> Result<Value, Fault> {
        let Value::List(items) = value else {
            return self.scope.fail(position, format!("{} has no item {index}", value.kind()));
        };
        match usize::try_from(index).ok().and_then(|index| items.get(index)) {
            Some(item) => self.walk(item, rest, position),
            None => self
                .scope
                .fail(position, format!("the list has no item {index}, its length is {}", items.len())),
        }
    }

    /// Returns the text of a reference that only resolves when the task runs.
    fn reference(
        &self,
        name: &Ident,
        steps: &[Decorated<TraversalOperator>],
        place: &impl Span,
    ) -> Result<Value, Fault> {
        let text = match self.scope.references {
            References::Kept => self.written(name, steps)?,
            References::Refused => None,
        };
        let Some(text) = text else { return self.unknown(name, place) };
        if steps.is_empty() && !name.starts_with(TASK_VARIABLES) {
            let message = format!(
                "`{}` has no value in a job file, so this is the text {text:?}, which is replaced when the task runs; \
                 write a text in quotes",
                name.as_str()
            );
            self.scope.warn(self.position(place), message);
        }
        self.spent(Value::Str(text), place)
    }

    /// Reports a name without a value.
    fn unknown<T>(&self, name: &Ident, place: &impl Span) -> Result<T, Fault> {
        let name = name.as_str();
        let message = match (name, self.scope.references) {
            ("var" | "local", _) => format!("write {name}.NAME"),
            (_, References::Refused) => format!("there is no `{name}`; only literal values are allowed here"),
            (_, References::Kept) => {
                format!("there is no `{name}`; only var.NAME and local.NAME can be used in this way")
            }
        };
        self.scope.fail(self.position(place), message)
    }

    /// Returns the source text of an interpolation that only resolves when the task runs; `None` for other
    /// expressions.
    pub(super) fn left_in_place(&self, expression: &Expression) -> Result<Option<String>, Fault> {
        if let Expression::Variable(name) = expression {
            self.written(name, &[])
        } else if let Expression::Traversal(traversal) = expression
            && let Expression::Variable(name) = &traversal.expr
        {
            self.written(name, &traversal.operators)
        } else {
            Ok(None)
        }
    }

    /// Returns a reference as `${…}`; `None` if the name has a value here, or the reference can't be written so.
    fn written(&self, name: &Ident, steps: &[Decorated<TraversalOperator>]) -> Result<Option<String>, Fault> {
        if matches!(name.as_str(), "var" | "local") || bound(self.bound, name.as_str()).is_some() {
            return Ok(None);
        }
        let mut text = format!("${{{}", name.as_str());
        for step in steps {
            match step.value() {
                TraversalOperator::GetAttr(name) => text.push_str(&format!(".{}", name.as_str())),
                TraversalOperator::LegacyIndex(index) => text.push_str(&format!(".{}", index.value())),
                TraversalOperator::Index(index) => {
                    let key = self.value(index)?;
                    let shown = self.text(&key, index)?;
                    let is_name = matches!(key, Value::Str(_));
                    text.push_str(&if is_name { format!("[{shown:?}]") } else { format!("[{shown}]") });
                }
                TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => return Ok(None),
            }
        }
        text.push('}');
        Ok(Some(text))
    }
}

/// The beginning of the names of variables that every task has.
const TASK_VARIABLES: &str = "NOMAD_";

fn number_of(number: &Number) -> Value {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(value), _, _) => Value::Int(i128::from(value)),
        (None, Some(value), _) => Value::Int(i128::from(value)),
        (None, None, Some(value)) => Value::float(value),
        (None, None, None) => Value::Null,
    }
}
