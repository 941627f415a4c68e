//! Functions on Nomad's variables and services.

use std::collections::BTreeMap;

use super::{arguments, row};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Nomad},
    moment::Moment,
    query::{Answer, Choice, Query, VariableMeta},
    text::Text,
    value::{Element, Key, Struct, Value, item},
};

pub(super) static TABLE: &[Function] = &[
    row(Nomad, "nomadService", (1, 3), service),
    row(Nomad, "nomadServices", (0, 1), services),
    row(Nomad, "nomadVar", (1, 1), variable),
    row(Nomad, "nomadVarExists", (1, 1), variable_exists),
    row(Nomad, "nomadVarList", (0, 1), |context, values| variables(context, values, WhenEmpty::Renders)),
    row(Nomad, "nomadVarListSafe", (0, 1), |context, values| variables(context, values, WhenEmpty::Waits)),
];

/// What an empty list means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenEmpty {
    Renders,
    /// As if it had no answer, so that a lost list does not empty a configuration.
    Waits,
}

fn is_word(text: &str, also: &[char]) -> bool {
    !text.is_empty()
        && text.chars().all(|char| char.is_ascii_alphanumeric() || char == '_' || also.contains(&char))
}

/// Reads `PATH[@NAMESPACE[.REGION]]`.
fn scoped(text: &str) -> Option<(String, String, String)> {
    let text = text.trim();
    let Some((path, scope)) = text.split_once('@') else {
        return Some((text.trim_matches('/').to_owned(), String::new(), String::new()));
    };
    let (namespace, region) = scope.split_once('.').unwrap_or((scope, ""));
    let is_valid =
        (namespace == "*" || is_word(namespace, &['-'])) && (region.is_empty() || is_word(region, &['-']));
    is_valid.then(|| (path.trim_matches('/').to_owned(), namespace.to_owned(), region.to_owned()))
}

/// The query for a variable; none for an empty path.
fn variable_query(value: &Value) -> Outcome<Option<Query>> {
    let text = arguments::string(value)?;
    match scoped(&text) {
        Some((_, namespace, _)) if namespace == "*" => {
            Err(Fault::new(format!("invalid path of a variable: {text:?}")))
        }
        Some((path, _, _)) if path.is_empty() && text.trim().trim_matches('/').is_empty() => Ok(None),
        Some((path, namespace, region)) if !path.is_empty() => {
            Ok(Some(Query::NomadVariable { path, namespace, region }))
        }
        Some(_) | None => Err(Fault::new(format!("invalid path of a variable: {text:?}"))),
    }
}

fn variable(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let mut entries = BTreeMap::new();
    let Some(query) = variable_query(&values[0])? else { return context.map(entries, Element::Item) };
    let (asked, answer) = context.ask(query)?;
    if let Answer::Variable(variable) = answer {
        for (key, value) in &variable.items {
            context.charge(key.len() + 2 * value.len())?;
            let key = Text::from(key.as_str());
            entries.insert(Key::Str(key.clone()), item(key, value));
        }
        return context.items(entries, variable);
    }
    if !answer.is_nothing() {
        return Err(context.unfitting(asked));
    }
    // The template waits until the variable exists.
    context.miss(asked);
    context.map(entries, Element::Item)
}

fn variable_exists(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let Some(query) = variable_query(&values[0])? else { return Ok(Value::Bool(false)) };
    Ok(Value::Bool(matches!(context.ask(query)?, (_, Answer::Variable(_)))))
}

fn variables(context: &mut Context<'_>, values: &[Value], when_empty: WhenEmpty) -> Outcome<Value> {
    let text = values.first().map(arguments::string).transpose()?.unwrap_or_default();
    let (prefix, namespace, region) =
        scoped(&text).ok_or_else(|| Fault::new(format!("invalid prefix of variables: {text:?}")))?;
    let query = Query::NomadVariables { prefix, namespace, region };
    let (asked, answer) = context.ask(query)?;
    let is_nothing = answer.is_nothing();
    let found = if let Answer::Variables(found) = answer { Some(found) } else { None };
    if found.is_none() && !is_nothing {
        return Err(context.unfitting(asked));
    }
    let found = found.unwrap_or_default();
    if found.is_empty() && when_empty == WhenEmpty::Waits {
        context.miss(asked);
    }
    let found = found.iter().map(|found| meta(context, found)).collect::<Outcome<Vec<_>>>()?;
    context.list(found, Element::Struct)
}

/// The metadata of a variable.
pub(crate) fn meta(context: &mut Context<'_>, meta: &VariableMeta) -> Outcome<Value> {
    context.charge(meta.path.len() + meta.namespace.len())?;
    let fields = vec![
        ("Namespace", Value::from(meta.namespace.as_str())),
        ("Path", Value::from(meta.path.as_str())),
        ("CreateIndex", Value::Uint(meta.create_index)),
        ("ModifyIndex", Value::Uint(meta.modify_index)),
        ("CreateTime", time(meta.create_time)),
        ("ModifyTime", time(meta.modify_time)),
    ];
    context.structure(Struct {
        type_name: "dependency.NomadVarMeta",
        fields,
        shown: Some(meta.path.as_str().into()),
        time: None,
    })
}

/// A time as Go prints it, in UTC.
fn time(nanos: i64) -> Value {
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    let time = Moment::utc(time.to_zoned(jiff::tz::TimeZone::UTC).datetime());
    let text = super::time::format(super::time::SHOWN, &time);
    Value::from(text.as_str())
}

/// The query for `[TAG.]NAME[@REGION]`.
fn service_query(text: &str, choice: Option<Choice>) -> Outcome<Query> {
    let (service, region) = text.split_once('@').unwrap_or((text, ""));
    let (tag, name) = service.rsplit_once('.').unwrap_or(("", service));
    let is_valid = is_word(name, &['-'])
        && (region.is_empty() && !text.ends_with('@') || is_word(region, &['-', '.']))
        && (tag.is_empty() && !service.starts_with('.') || is_word(tag, &['=', ':', '.', '-']));
    if !is_valid {
        return Err(Fault::new(format!("invalid name of a service: {text:?}; expected [TAG.]NAME[@REGION]")));
    }
    Ok(Query::NomadService { name: name.to_owned(), tag: tag.to_owned(), region: region.to_owned(), choice })
}

fn service(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let query = match values {
        [name] => service_query(&arguments::string(name)?, None)?,
        [count, key, name] => {
            let count = usize::try_from(arguments::int(count)?)
                .map_err(|_| Fault::new("expected a positive integer for <count> argument"))?;
            let key = arguments::string(key)?.into_owned();
            service_query(&arguments::string(name)?, Some(Choice { count, key }))?
        }
        _ => return Err(Fault::new("expected arguments <service> or <count> <key> <service>")),
    };
    let (asked, answer) = context.ask(query)?;
    let is_nothing = answer.is_nothing();
    let found = if let Answer::Services(found) = answer { Some(found) } else { None };
    if found.is_none() && !is_nothing {
        return Err(context.unfitting(asked));
    }
    let found = found.unwrap_or_default();
    let mut instances = Vec::with_capacity(found.len());
    for instance in found.iter() {
        let tags = sorted_tags(context, &instance.tags)?;
        let mut text = |text: &str| context.text(text);
        let fields = vec![
            ("ID", text(&instance.id)?),
            ("Name", text(&instance.name)?),
            ("Node", text(&instance.node)?),
            ("Address", text(&instance.address)?),
            ("Port", Value::Int(i64::from(instance.port))),
            ("Datacenter", text(&instance.datacenter)?),
            ("Tags", tags),
            ("JobID", text(&instance.job_id)?),
            ("AllocID", text(&instance.alloc_id)?),
        ];
        instances.push(context.structure(Struct {
            type_name: "dependency.NomadService",
            fields,
            shown: None,
            time: None,
        })?);
    }
    context.list(instances, Element::Struct)
}

fn sorted_tags(context: &mut Context<'_>, tags: &[String]) -> Outcome<Value> {
    let mut tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    tags.sort_unstable();
    context.strings(tags)
}

fn services(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = values.first().map(arguments::string).transpose()?.unwrap_or_default();
    let region = match (text.strip_prefix('@'), text.is_empty()) {
        (Some(region), _) if is_word(region, &['-', '.']) => region.to_owned(),
        (None, true) => String::new(),
        (_, _) => return Err(Fault::new(format!("invalid region: {text:?}; expected @REGION"))),
    };
    let query = Query::NomadServices { region };
    let (asked, answer) = context.ask(query)?;
    let is_nothing = answer.is_nothing();
    let found = if let Answer::ServiceNames(found) = answer { Some(found) } else { None };
    if found.is_none() && !is_nothing {
        return Err(context.unfitting(asked));
    }
    let found = found.unwrap_or_default();
    let mut names = Vec::with_capacity(found.len());
    for service in found.iter() {
        let fields = vec![
            ("Name", context.text(service.name.as_str())?),
            ("Tags", sorted_tags(context, &service.tags)?),
        ];
        names.push(context.structure(Struct {
            type_name: "dependency.NomadServicesSnippet",
            fields,
            shown: None,
            time: None,
        })?);
    }
    context.list(names, Element::Struct)
}
