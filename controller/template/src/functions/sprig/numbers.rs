//! Numbers of sprig. Every value is converted; what is none counts as 0.

use super::{
    super::{ANY, arguments, refused, row},
    RANDOM, text_of,
};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Sprig},
    number,
    value::{Element, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_add", (0, ANY), |_, values| fold(values, 0, i64::wrapping_add)),
    row(Sprig, "sprig_add1", (1, 1), |_, values| Ok(Value::Int64(int(&values[0]).wrapping_add(1)))),
    row(Sprig, "sprig_add1f", (1, 1), |_, values| {
        decimal(&[values[0].clone(), Value::Int(1)], |one, other| one + other)
    }),
    row(Sprig, "sprig_addf", (0, ANY), |_, values| {
        decimal(&[&[Value::Int(0)], values].concat(), |one, other| one + other)
    }),
    row(Sprig, "sprig_atoi", (1, 1), |_, values| {
        Ok(Value::Int(arguments::string(&values[0])?.parse().unwrap_or(0)))
    }),
    row(Sprig, "sprig_biggest", (1, ANY), |_, values| fold(&values[1..], int(&values[0]), i64::max)),
    row(Sprig, "sprig_ceil", (1, 1), |_, values| Ok(Value::Float(float(&values[0]).ceil()))),
    row(Sprig, "sprig_div", (2, 2), |_, values| divide(values, i64::checked_div)),
    row(Sprig, "sprig_divf", (1, ANY), |_, values| decimal(values, |one, other| one / other)),
    row(Sprig, "sprig_float64", (1, 1), |_, values| Ok(Value::Float(float(&values[0])))),
    row(Sprig, "sprig_floor", (1, 1), |_, values| Ok(Value::Float(float(&values[0]).floor()))),
    row(Sprig, "sprig_int", (1, 1), |_, values| Ok(Value::Int(int(&values[0])))),
    row(Sprig, "sprig_int64", (1, 1), |_, values| Ok(Value::Int64(int(&values[0])))),
    row(Sprig, "sprig_max", (1, ANY), |_, values| fold(&values[1..], int(&values[0]), i64::max)),
    row(Sprig, "sprig_maxf", (1, ANY), |_, values| {
        Ok(Value::Float(values.iter().map(float).fold(f64::NEG_INFINITY, f64::max)))
    }),
    row(Sprig, "sprig_min", (1, ANY), |_, values| fold(&values[1..], int(&values[0]), i64::min)),
    row(Sprig, "sprig_minf", (1, ANY), |_, values| {
        Ok(Value::Float(values.iter().map(float).fold(f64::INFINITY, f64::min)))
    }),
    row(Sprig, "sprig_mod", (2, 2), |_, values| divide(values, i64::checked_rem)),
    row(Sprig, "sprig_mul", (1, ANY), |_, values| fold(&values[1..], int(&values[0]), i64::wrapping_mul)),
    row(Sprig, "sprig_mulf", (1, ANY), |_, values| decimal(values, |one, other| one * other)),
    refused(Sprig, "sprig_randInt", RANDOM),
    row(Sprig, "sprig_round", (2, 3), round),
    row(Sprig, "sprig_seq", (0, ANY), seq),
    row(Sprig, "sprig_sub", (2, 2), |_, values| {
        Ok(Value::Int64(int(&values[0]).wrapping_sub(int(&values[1]))))
    }),
    row(Sprig, "sprig_subf", (1, ANY), |_, values| decimal(values, |one, other| one - other)),
    row(Sprig, "sprig_toDecimal", (1, 1), |context, values| {
        let text = text_of(context, &values[0])?;
        Ok(Value::Int64(i64::from_str_radix(&String::from_utf8_lossy(&text), 8).unwrap_or(0)))
    }),
    row(Sprig, "sprig_until", (1, 1), |context, values| {
        let count = arguments::int(&values[0])?;
        let numbers = steps(context, (0, count, if count < 0 { -1 } else { 1 }))?;
        int_list(context, numbers)
    }),
    row(Sprig, "sprig_untilStep", (3, 3), |context, values| {
        let bounds = (arguments::int(&values[0])?, arguments::int(&values[1])?, arguments::int(&values[2])?);
        let numbers = steps(context, bounds)?;
        int_list(context, numbers)
    }),
];

/// Converts any value to an integer.
pub(super) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(value) | Value::Int64(value) => *value,
        Value::Uint(value) => value.cast_signed(),
        Value::Float(value) => *value as i64,
        Value::Bool(value) => i64::from(*value),
        Value::Str(text) => {
            let text = text.lossy();
            let whole = text.split_once('.').filter(|(_, zeros)| zeros.bytes().all(|byte| byte == b'0'));
            let text = whole.map_or(&*text, |(whole, _)| whole);
            number::integer(text).and_then(|value| i64::try_from(value).ok()).unwrap_or(0)
        }
        Value::Nil
        | Value::List(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => 0,
    }
}

/// Converts any value to a floating-point number.
fn float(value: &Value) -> f64 {
    match value {
        Value::Float(value) => *value,
        Value::Uint(value) => *value as f64,
        Value::Str(text) => number::float(&text.lossy()).unwrap_or(0.0),
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Int64(_)
        | Value::List(_)
        | Value::Map(_)
        | Value::Struct(_)
        | Value::Sequence(..)
        | Value::Scratch => int(value) as f64,
    }
}

fn fold(values: &[Value], start: i64, operation: fn(i64, i64) -> i64) -> Outcome<Value> {
    Ok(Value::Int64(values.iter().map(int).fold(start, operation)))
}

fn divide(values: &[Value], operation: fn(i64, i64) -> Option<i64>) -> Outcome<Value> {
    let divided = operation(int(&values[0]), int(&values[1]));
    divided.map(Value::Int64).ok_or_else(|| Fault::new("integer divide by zero"))
}

/// Computes with 16 decimal digits, so that 0.1 + 0.2 is 0.3, as decimal numbers do.
fn decimal(values: &[Value], operation: fn(f64, f64) -> f64) -> Outcome<Value> {
    let mut numbers = values.iter().map(float);
    let first = numbers.next().unwrap_or(0.0);
    let result = numbers.fold(first, operation);
    if !result.is_finite() {
        return Err(Fault::new("decimal division by 0, or a result that is too large"));
    }
    Ok(Value::Float(format!("{result:.15e}").parse().unwrap_or(result)))
}

fn round(_: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let places = i32::try_from(arguments::int(&values[1])?).unwrap_or(0);
    let round_on = values.get(2).map_or(0.5, float);
    let power = 10f64.powi(places);
    let digits = power * float(&values[0]);
    let rounded = if digits.fract() >= round_on { digits.ceil() } else { digits.floor() };
    Ok(Value::Float(rounded / power))
}

/// The numbers from a start up to an end, by a step.
fn steps(context: &mut Context<'_>, (start, end, step): (i64, i64, i64)) -> Outcome<Vec<i64>> {
    let is_descending = end < start;
    if step == 0 || is_descending == (step > 0) {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    let mut number = start;
    while if is_descending { number > end } else { number < end } {
        context.step()?;
        context.charge(8)?;
        numbers.push(number);
        let Some(next) = number.checked_add(step) else { break };
        number = next;
    }
    Ok(numbers)
}

fn int_list(context: &mut Context<'_>, numbers: Vec<i64>) -> Outcome<Value> {
    context.list(numbers.into_iter().map(Value::Int).collect(), Element::Int)
}

fn seq(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let numbers = values.iter().map(arguments::int).collect::<Outcome<Vec<_>>>()?;
    let towards = |start: i64, end: i64| if end < start { -1 } else { 1 };
    let bounds = match *numbers.as_slice() {
        [end] => (1, end.saturating_add(towards(1, end)), towards(1, end)),
        [start, end] => (start, end.saturating_add(towards(start, end)), towards(start, end)),
        [start, step, end] if end >= start || step <= 0 => {
            (start, end.saturating_add(towards(start, end)), step)
        }
        _ => return Ok(Value::from("")),
    };
    let numbers = steps(context, bounds)?;
    let texts: Vec<String> = numbers.iter().map(i64::to_string).collect();
    context.text(texts.join(" "))
}
