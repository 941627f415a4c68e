//! Regular expressions and versions of sprig.

use super::{
    super::{arguments, row, strings},
    versions::Version,
};
use crate::{
    context::Context,
    error::{ErrorKind, Outcome},
    function::{Function, Group::Sprig},
    value::{Element, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_mustRegexFind", (2, 2), find),
    row(Sprig, "sprig_mustRegexFindAll", (3, 3), find_all),
    row(Sprig, "sprig_mustRegexMatch", (2, 2), |context, values| {
        strings::regex_match(context, &values[0], &values[1])
    }),
    row(Sprig, "sprig_mustRegexReplaceAll", (3, 3), |context, values| {
        let replacement = arguments::string(&values[2])?.into_owned();
        strings::regex_replace(context, &values[0], &values[1], &replacement)
    }),
    row(Sprig, "sprig_mustRegexReplaceAllLiteral", (3, 3), |context, values| {
        let replacement = arguments::string(&values[2])?.replace('$', "$$");
        strings::regex_replace(context, &values[0], &values[1], &replacement)
    }),
    row(Sprig, "sprig_mustRegexSplit", (3, 3), split),
    row(Sprig, "sprig_regexFind", (2, 2), find),
    row(Sprig, "sprig_regexFindAll", (3, 3), find_all),
    row(Sprig, "sprig_regexMatch", (2, 2), |context, values| {
        // An invalid expression matches nothing.
        strings::regex_match(context, &values[0], &values[1]).or_else(|fault| {
            if fault.kind() == ErrorKind::Limit { Err(fault) } else { Ok(Value::Bool(false)) }
        })
    }),
    row(Sprig, "sprig_regexQuoteMeta", (1, 1), |context, values| {
        strings::mapped(context, &values[0], quote_meta)
    }),
    row(Sprig, "sprig_regexReplaceAll", (3, 3), |context, values| {
        let replacement = arguments::string(&values[2])?.into_owned();
        strings::regex_replace(context, &values[0], &values[1], &replacement)
    }),
    row(Sprig, "sprig_regexReplaceAllLiteral", (3, 3), |context, values| {
        let replacement = arguments::string(&values[2])?.replace('$', "$$");
        strings::regex_replace(context, &values[0], &values[1], &replacement)
    }),
    row(Sprig, "sprig_regexSplit", (3, 3), split),
    row(Sprig, "sprig_semver", (1, 1), |context, values| {
        let version = Version::parse(&arguments::string(&values[0])?)?;
        version.value(context)
    }),
    row(Sprig, "sprig_semverCompare", (2, 2), |context, values| {
        let (constraint, version) = (arguments::string(&values[0])?, arguments::string(&values[1])?);
        context.charge((constraint.len() + version.len()).saturating_mul(CONDITION_BYTES))?;
        super::versions::satisfies(&constraint, &Version::parse(&version)?).map(Value::Bool)
    }),
];

/// A condition has a few characters, and takes about 300 bytes.
const CONDITION_BYTES: usize = 100;

fn find(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let expression = strings::compile(context, &values[0])?;
    let text = arguments::string(&values[1])?;
    strings::charge_search(context, &expression, &text)?;
    context.text(expression.regex.find(&text).map(|found| found.as_str()).unwrap_or_default())
}

/// The number of results that a count allows; all for a negative one.
fn limit(value: &Value) -> Outcome<usize> {
    Ok(usize::try_from(arguments::int(value)?).unwrap_or(usize::MAX))
}

fn find_all(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let expression = strings::compile(context, &values[0])?;
    let text = arguments::string(&values[1])?;
    let limit = limit(&values[2])?;
    strings::charge_search(context, &expression, &text)?;
    let mut found = Vec::new();
    for one in expression.regex.find_iter(&text).take(limit) {
        strings::charge_match(context, &expression, text.len() - one.start())?;
        found.push(context.text(one.as_str())?);
    }
    context.list(found, Element::Str)
}

fn split(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let expression = strings::compile(context, &values[0])?;
    let text = arguments::string(&values[1])?;
    let limit = limit(&values[2])?;
    strings::charge_search(context, &expression, &text)?;
    let mut parts = Vec::new();
    let mut at = 0;
    if limit > 0 {
        for found in expression.regex.find_iter(&text) {
            strings::charge_match(context, &expression, text.len() - found.start())?;
            if parts.len() + 1 >= limit {
                break;
            }
            if found.end() == 0 {
                continue;
            }
            if found.is_empty() && found.start() == text.len() {
                break;
            }
            parts.push(context.text(&text[at..found.start()])?);
            at = found.end();
        }
        parts.push(context.text(&text[at..])?);
    }
    context.list(parts, Element::Str)
}

fn quote_meta(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if r"\.+*?()|[]{}^$".contains(char) {
            out.push('\\');
        }
        out.push(char);
    }
    out
}
