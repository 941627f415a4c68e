//! Functions for numbers.

use super::{Answer, Arguments, Function};
use crate::hcl::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "abs", arguments: (1, 1), call: |all| whole(all, i128::checked_abs, f64::abs) },
    Function { name: "ceil", arguments: (1, 1), call: |all| whole(all, Some, f64::ceil) },
    Function { name: "floor", arguments: (1, 1), call: |all| whole(all, Some, f64::floor) },
    Function { name: "max", arguments: (1, usize::MAX), call: |all| extreme(all, |one, best| one > best) },
    Function { name: "min", arguments: (1, usize::MAX), call: |all| extreme(all, |one, best| one < best) },
    Function { name: "parseint", arguments: (2, 2), call: parseint },
    Function { name: "pow", arguments: (2, 2), call: |all| finite(all.float(0)?.powf(all.float(1)?)) },
    Function { name: "log", arguments: (2, 2), call: |all| finite(all.float(0)?.log(all.float(1)?)) },
    Function {
        name: "signum",
        arguments: (1, 1),
        call: |all| whole(all, |value| Some(value.signum()), f64::signum),
    },
];

/// Applies a function; integers remain integers.
fn whole(all: &Arguments<'_>, int: fn(i128) -> Option<i128>, float: fn(f64) -> f64) -> Answer {
    match all.value(0).as_int().and_then(int) {
        Some(value) => Ok(Value::Int(value)),
        None => finite(float(all.float(0)?)),
    }
}

fn extreme(all: &Arguments<'_>, is_better: fn(f64, f64) -> bool) -> Answer {
    let (mut best, mut at) = (all.float(0)?, 0);
    for number in 1..all.len() {
        let one = all.float(number)?;
        if is_better(one, best) {
            (best, at) = (one, number);
        }
    }
    Ok(all.value(at).number().unwrap_or(Value::Null))
}

fn parseint(all: &Arguments<'_>) -> Answer {
    let (text, base) = (all.text(0)?, all.int(1)?);
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err("the base must be between 2 and 36".into());
    };
    match i128::from_str_radix(&text, base) {
        Ok(value) => Ok(Value::Int(value)),
        Err(_) => Err(format!("{text:?} is not an integer in base {base}").into()),
    }
}

fn finite(value: f64) -> Answer {
    if value.is_finite() { Ok(Value::float(value)) } else { Err("the result is not a finite number".into()) }
}
