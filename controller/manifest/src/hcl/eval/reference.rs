//! Undeclared names, which resolve only when the task runs.
//!
//! In: a name with attributes and indexes. Out: the text `${…}`, or an error where values must be literal.

use hcl_edit::expr::{Expression, TraversalOperator};
use hcl_edit::{Decorated, Ident, Span};

use super::Eval;
use crate::hcl::scope::{Fault, References, bound};
use crate::hcl::value::Value;

/// The beginning of the names of variables that every task has.
const TASK_VARIABLES: &str = "NOMAD_";

impl Eval<'_, '_> {
    /// Returns the text of a reference that only resolves when the task runs.
    pub(super) fn reference(
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
    pub(super) fn unknown<T>(&self, name: &Ident, place: &impl Span) -> Result<T, Fault> {
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
