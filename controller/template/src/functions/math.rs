//! Arithmetic of consul-template. The last argument is the first operand, so that values can be piped in.

use super::row;
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Math},
    value::Value,
};

pub(super) static TABLE: &[Function] = &[
    row(Math, "add", (2, 2), |_, values| {
        arithmetic(values, (i64::wrapping_add, u64::wrapping_add, |one, other| one + other))
    }),
    row(Math, "divide", (2, 2), divide),
    row(Math, "maximum", (2, 2), |_, values| choose(values, |one, other| one > other)),
    row(Math, "minimum", (2, 2), |_, values| choose(values, |one, other| one < other)),
    row(Math, "modulo", (2, 2), modulo),
    row(Math, "multiply", (2, 2), |_, values| {
        arithmetic(values, (i64::wrapping_mul, u64::wrapping_mul, |one, other| one * other))
    }),
    row(Math, "subtract", (2, 2), |_, values| {
        arithmetic(values, (i64::wrapping_sub, u64::wrapping_sub, |one, other| one - other))
    }),
];

/// An operation on each type of numbers.
type Operation = (fn(i64, i64) -> i64, fn(u64, u64) -> u64, fn(f64, f64) -> f64);

/// A number. Go mixes signed and unsigned ones as signed, and any with floating-point ones as such.
#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Outcome<Self> {
        match value {
            Value::Int(value) | Value::Int64(value) => Ok(Self::Int(*value)),
            Value::Uint(value) => Ok(Self::Uint(*value)),
            Value::Float(value) => Ok(Self::Float(*value)),
            Value::Nil
            | Value::Bool(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Struct(_)
            | Value::Sequence(..)
            | Value::Scratch => Err(Fault::new(format!("unknown type for a number: {}", value.type_name()))),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Uint(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    fn int(self) -> i64 {
        match self {
            Self::Int(value) => value,
            Self::Uint(value) => value.cast_signed(),
            Self::Float(value) => value as i64,
        }
    }

    fn value(self) -> Value {
        match self {
            Self::Int(value) => Value::Int64(value),
            Self::Uint(value) => Value::Uint(value),
            Self::Float(value) => Value::Float(value),
        }
    }
}

fn operands(values: &[Value]) -> Outcome<(Number, Number)> {
    Ok((Number::of(&values[1])?, Number::of(&values[0])?))
}

fn arithmetic(values: &[Value], (ints, uints, floats): Operation) -> Outcome<Value> {
    Ok(match operands(values)? {
        (Number::Uint(one), Number::Uint(other)) => Value::Uint(uints(one, other)),
        (one @ Number::Float(_), other) | (one, other @ Number::Float(_)) => {
            Value::Float(floats(one.float(), other.float()))
        }
        (one, other) => Value::Int64(ints(one.int(), other.int())),
    })
}

fn divide(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    refuse_zero(values)?;
    arithmetic(values, (i64::wrapping_div, |one, other| one / other, |one, other| one / other))
}

fn modulo(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    refuse_zero(values)?;
    if values.iter().any(|value| matches!(value, Value::Float(_))) {
        return Err(Fault::new("unknown type for an integer: float64"));
    }
    arithmetic(values, (i64::wrapping_rem, |one, other| one % other, |one, _| one))
}

fn refuse_zero(values: &[Value]) -> Outcome<()> {
    let (one, divisor) = operands(values)?;
    let is_float = matches!(one, Number::Float(_)) || matches!(divisor, Number::Float(_));
    if !is_float && divisor.int() == 0 {
        return Err(Fault::new("integer divide by zero"));
    }
    Ok(())
}

/// Returns the operand that is better; the other one if both are equal.
fn choose(values: &[Value], is_better: fn(f64, f64) -> bool) -> Outcome<Value> {
    let (one, other) = operands(values)?;
    let is_one = match (one, other) {
        (Number::Uint(one), Number::Uint(other)) if one != other => {
            is_better(if one > other { 1.0 } else { 0.0 }, 0.5)
        }
        (Number::Float(_), _) | (_, Number::Float(_)) => is_better(one.float(), other.float()),
        (one, other) if one.int() == other.int() => false,
        (one, other) => is_better(if one.int() > other.int() { 1.0 } else { 0.0 }, 0.5),
    };
    Ok(if is_one { one.value() } else { other.value() })
}
