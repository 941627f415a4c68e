//! Types of variables: `string`, `list(number)`, `object({port = number})`.
//!
//! In: the expression after `type =`, and values. Out: values of that type, with Nomad's conversions.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, FuncCall, ObjectKey};

use super::source::Source;
use super::value::Value;
use crate::yaml::Problem;

/// The type of a variable.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum VariableType {
    Any,
    Str,
    Number,
    Bool,
    List(Box<Self>),
    Map(Box<Self>),
    Tuple(Vec<Self>),
    /// Each field with whether it is optional.
    Object(BTreeMap<String, (Self, bool)>),
}

impl VariableType {
    /// Parses a type expression.
    pub(super) fn read(expression: &Expression, source: &Source<'_>) -> Result<Self, Problem> {
        let error = || {
            let names = "string, number, bool, any, list(…), set(…), map(…), object({…}) or tuple([…])";
            source.problem_at(source.position(expression), format!("is not a type; expected {names}"))
        };
        if let Expression::Variable(name) = expression {
            return match name.as_str() {
                "any" => Ok(Self::Any),
                "string" => Ok(Self::Str),
                "number" => Ok(Self::Number),
                "bool" => Ok(Self::Bool),
                "list" | "set" => Ok(Self::List(Box::new(Self::Any))),
                "map" => Ok(Self::Map(Box::new(Self::Any))),
                _ => Err(error()),
            };
        }
        let Expression::FuncCall(call) = expression else { return Err(error()) };
        let Some(argument) = only(call) else { return Err(error()) };
        match call.name.name.as_str() {
            "list" | "set" => Ok(Self::List(Box::new(Self::read(argument, source)?))),
            "map" => Ok(Self::Map(Box::new(Self::read(argument, source)?))),
            "tuple" => {
                let Expression::Array(kinds) = argument else { return Err(error()) };
                let kinds: Result<_, _> = kinds.iter().map(|kind| Self::read(kind, source)).collect();
                Ok(Self::Tuple(kinds?))
            }
            "object" => Self::object(argument, source).unwrap_or_else(|| Err(error())),
            _ => Err(error()),
        }
    }

    fn object(argument: &Expression, source: &Source<'_>) -> Option<Result<Self, Problem>> {
        let Expression::Object(object) = argument else { return None };
        let mut fields = BTreeMap::new();
        for (key, value) in object {
            let name = match key {
                ObjectKey::Ident(name) => name.as_str().to_owned(),
                ObjectKey::Expression(Expression::String(name)) => name.value().clone(),
                ObjectKey::Expression(_) => return None,
            };
            let wrapped = within_optional(value.expr());
            let (inner, optional) = (wrapped.unwrap_or(value.expr()), wrapped.is_some());
            match Self::read(inner, source) {
                Ok(kind) => fields.insert(name, (kind, optional)),
                Err(problem) => return Some(Err(problem)),
            };
        }
        Some(Ok(Self::Object(fields)))
    }

    /// Returns whether a value on the command line is literal text and not an expression.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Self::Any | Self::Str | Self::Number | Self::Bool => true,
            Self::List(_) | Self::Map(_) | Self::Tuple(_) | Self::Object(_) => false,
        }
    }

    /// Converts a value to this type, or returns the reason why it has none.
    pub(super) fn convert(&self, value: Value) -> Result<Value, String> {
        let error = |value: &Value| Err(format!("must be {}, found {}", self.name(), value.kind()));
        match (self, value) {
            (Self::Any, value) | (_, value @ Value::Null) => Ok(value),
            (Self::Str, value) => value.text().map_or_else(|| error(&value), |text| Ok(Value::Str(text))),
            (Self::Number, value) => value.number().map_or_else(|| error(&value), Ok),
            (Self::Bool, value) => {
                value.as_bool().map_or_else(|| error(&value), |value| Ok(Value::Bool(value)))
            }
            (Self::List(kind), Value::List(items)) => {
                let items = items.into_iter().enumerate().map(|(index, item)| {
                    kind.convert(item).map_err(|message| format!("item {index} {message}"))
                });
                items.collect::<Result<_, _>>().map(Value::List)
            }
            (Self::Map(kind), Value::Map(entries)) => {
                let entries = entries.into_iter().map(|(key, value)| {
                    let value = kind.convert(value).map_err(|message| format!("`{key}` {message}"))?;
                    Ok((key, value))
                });
                entries.collect::<Result<_, String>>().map(Value::Map)
            }
            (Self::Tuple(kinds), Value::List(items)) if kinds.len() == items.len() => {
                let items = kinds.iter().zip(items).map(|(kind, item)| kind.convert(item));
                items.collect::<Result<_, _>>().map(Value::List)
            }
            (Self::Object(fields), Value::Map(mut entries)) => {
                let mut object = BTreeMap::new();
                for (name, (kind, optional)) in fields {
                    let value = match entries.remove(name) {
                        Some(value) => {
                            kind.convert(value).map_err(|message| format!("`{name}` {message}"))?
                        }
                        None if *optional => Value::Null,
                        None => return Err(format!("lacks `{name}`")),
                    };
                    object.insert(name.clone(), value);
                }
                Ok(Value::Map(object))
            }
            (Self::List(_) | Self::Map(_) | Self::Tuple(_) | Self::Object(_), value) => error(&value),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Any => "anything".to_owned(),
            Self::Str => "a string".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) | Self::Object(_) => "an object".to_owned(),
            Self::Tuple(kinds) => format!("a list of {}", kinds.len()),
        }
    }
}

fn only(call: &FuncCall) -> Option<&Expression> {
    if call.args.len() == 1 { call.args.get(0) } else { None }
}

/// Returns the argument of `optional(…)`.
fn within_optional(expression: &Expression) -> Option<&Expression> {
    let Expression::FuncCall(call) = expression else { return None };
    if call.name.name.as_str() == "optional" { call.args.get(0) } else { None }
}
