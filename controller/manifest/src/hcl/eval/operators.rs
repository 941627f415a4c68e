//! Binary operators and negation.
//!
//! In: operands. Out: the value, or why there is none. Integers stay exact as long as they fit in 128 bits.

use hcl_edit::expr::{BinaryOp, BinaryOperator};

use super::super::scope::Fault;
use super::super::value::Value;
use super::Eval;

/// Evaluates an operation. `&&` and `||` evaluate the right side only if the left one doesn't decide.
pub(super) fn binary(eval: &Eval<'_, '_>, operation: &BinaryOp) -> Result<Value, Fault> {
    let operator = *operation.operator.value();
    if matches!(operator, BinaryOperator::And | BinaryOperator::Or) {
        let decides = operator == BinaryOperator::Or;
        let left = eval.boolean(&operation.lhs_expr)?;
        let value = if left == decides { left } else { eval.boolean(&operation.rhs_expr)? };
        return Ok(Value::Bool(value));
    }
    let (left, right) = (eval.value(&operation.lhs_expr)?, eval.value(&operation.rhs_expr)?);
    compute(operator, &left, &right)
        .or_else(|message| eval.scope.fail(eval.position(&operation.operator), message))
}

pub(super) fn negate(value: &Value) -> Result<Value, String> {
    compute(BinaryOperator::Minus, &Value::Int(0), value)
}

fn compute(operator: BinaryOperator, left: &Value, right: &Value) -> Result<Value, String> {
    if matches!(operator, BinaryOperator::Eq | BinaryOperator::NotEq) {
        return Ok(Value::Bool(equal(left, right) == (operator == BinaryOperator::Eq)));
    }
    let number = |value: &Value| {
        value.number().ok_or_else(|| format!("`{operator}` takes numbers, found {}", value.kind()))
    };
    let (left, right) = (number(left)?, number(right)?);
    if let (Value::Int(left), Value::Int(right)) = (&left, &right)
        && let Some(value) = exact(operator, *left, *right)
    {
        return Ok(value);
    }
    let (left, right) = (left.as_f64().unwrap_or_default(), right.as_f64().unwrap_or_default());
    let value = match operator {
        BinaryOperator::LessEq => return Ok(Value::Bool(left <= right)),
        BinaryOperator::GreaterEq => return Ok(Value::Bool(left >= right)),
        BinaryOperator::Less => return Ok(Value::Bool(left < right)),
        BinaryOperator::Greater => return Ok(Value::Bool(left > right)),
        BinaryOperator::Plus => left + right,
        BinaryOperator::Minus => left - right,
        BinaryOperator::Mul => left * right,
        BinaryOperator::Div => left / right,
        BinaryOperator::Mod => left % right,
        BinaryOperator::Eq | BinaryOperator::NotEq | BinaryOperator::And | BinaryOperator::Or => f64::NAN,
    };
    match value.is_finite() {
        true => Ok(Value::float(value)),
        false => Err(format!("{left} {operator} {right} is not a number")),
    }
}

/// Computes an operation on integers; `None` if the result is not an integer or overflows.
fn exact(operator: BinaryOperator, left: i128, right: i128) -> Option<Value> {
    let value = match operator {
        BinaryOperator::LessEq => return Some(Value::Bool(left <= right)),
        BinaryOperator::GreaterEq => return Some(Value::Bool(left >= right)),
        BinaryOperator::Less => return Some(Value::Bool(left < right)),
        BinaryOperator::Greater => return Some(Value::Bool(left > right)),
        BinaryOperator::Plus => left.checked_add(right),
        BinaryOperator::Minus => left.checked_sub(right),
        BinaryOperator::Mul => left.checked_mul(right),
        BinaryOperator::Mod => left.checked_rem(right),
        BinaryOperator::Div => left.checked_div(right).filter(|value| value.checked_mul(right) == Some(left)),
        BinaryOperator::Eq | BinaryOperator::NotEq | BinaryOperator::And | BinaryOperator::Or => None,
    };
    value.map(Value::Int)
}

/// Compares two values; numbers by their numeric value.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Int(_) | Value::Float(_), Value::Int(_) | Value::Float(_)) => left.as_f64() == right.as_f64(),
        _ => left == right,
    }
}
