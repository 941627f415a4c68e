//! Attributes, indexes and splats: `var.name`, `local.list[0].key`, `local.list[*].key`.
//!
//! In: a traversal. Out: the value at its end; or, if it begins with an undeclared name, what [`super::reference`] returns.

use hcl_edit::Decorated;
use hcl_edit::expr::{Expression, Traversal, TraversalOperator};

use super::Eval;
use crate::hcl::scope::{Fault, bound};
use crate::hcl::value::Value;
use crate::yaml::{Position, nearest};
impl Eval<'_, '_> {
    pub(super) fn traversal(&self, traversal: &Traversal) -> Result<Value, Fault> {
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
}
