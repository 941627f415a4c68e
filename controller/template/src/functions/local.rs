//! Functions on the task, the node and the template itself.

use super::{ANY, addresses, arguments, refused, row, time};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    format::spew,
    function::{
        Body, Function,
        Group::{Debug, Local},
    },
    moment::Moment,
    query::{Answer, Query},
    text::Text,
    value::Value,
};

pub(super) static TABLE: &[Function] = &[
    row(Local, "env", (1, 1), |context, values| {
        let value = env(context, &values[0])?;
        Ok(Value::Str(value.unwrap_or_else(|| Text::from(""))))
    }),
    row(Local, "envOrDefault", (2, 2), |context, values| {
        let value = env(context, &values[0])?;
        Ok(Value::Str(value.map_or_else(|| arguments::text(&values[1]).cloned(), Ok)?))
    }),
    Function { name: "executeTemplate", group: Local, least: 1, most: 2, body: Body::Execute },
    row(Local, "file", (1, 1), file),
    row(Local, "mustEnv", (1, 1), must_env),
    refused(Local, "plugin", "herdlet runs no program for a template"),
    row(Local, "scratch", (0, 0), |_, _| Ok(Value::Scratch)),
    row(Local, "sockaddr", (1, ANY), sockaddr),
    // These two print to the output of Nomad's agent. Values may be secrets, so this agent prints nothing.
    row(Debug, "spew_dump", (0, ANY), |_, _| Ok(Value::from(""))),
    row(Debug, "spew_printf", (1, ANY), |_, _| Ok(Value::from(""))),
    row(Debug, "spew_sdump", (0, ANY), |context, values| {
        let text = spew::dump(context.limits(), values)?;
        context.charge(text.len())?;
        context.text(text)
    }),
    row(Debug, "spew_sprintf", (1, ANY), |context, values| {
        let format = arguments::text(&values[0])?;
        let text = spew::print_format(context.limits(), format, &values[1..])?;
        context.charge(text.len())?;
        context.text(text)
    }),
    row(Local, "timestamp", (0, 1), timestamp),
    refused(Local, "writeToFile", "a template has one destination; use another template for another file"),
];

fn env(context: &mut Context<'_>, name: &Value) -> Outcome<Option<Text>> {
    let query = Query::Env { name: arguments::string(name)?.into_owned() };
    let (asked, answer) = context.ask(query)?;
    if let Answer::Text(value) = answer {
        context.charge(value.len())?;
        return Ok(Some(value));
    }
    if answer.is_nothing() { Ok(None) } else { Err(context.unfitting(asked)) }
}

fn must_env(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    match env(context, &values[0])? {
        Some(value) if !value.is_empty() => Ok(Value::Str(value)),
        Some(_) | None => {
            let name = arguments::string(&values[0])?;
            Err(Fault::new(format!("required environment variable {name} is empty")))
        }
    }
}

fn file(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let path = arguments::string(&values[0])?;
    let path = path.trim();
    if path.is_empty() {
        return Ok(Value::from(""));
    }
    let query = Query::File { path: resolve(path, context.options.sandbox.as_deref())? };
    let (asked, answer) = context.ask(query)?;
    if let Answer::Text(content) = answer {
        context.charge(content.len())?;
        return Ok(Value::Str(content));
    }
    if !answer.is_nothing() {
        return Err(context.unfitting(asked));
    }
    // The template waits until the file exists.
    context.miss(asked);
    Ok(Value::from(""))
}

/// Linux accepts no longer path.
const PATH_BYTES_MAX: usize = 4_095;

/// Returns a path without `.` and `..`; with a sandbox, relative to it.
fn resolve(path: &str, sandbox: Option<&str>) -> Outcome<String> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Fault::new(format!("the path of a file has more than {PATH_BYTES_MAX} bytes")));
    }
    let outside = || Fault::new(format!("'{path}' is outside of sandbox"));
    if path.contains('\0') {
        return Err(Fault::new("the path of a file contains a NUL"));
    }
    let Some(root) = sandbox else { return Ok(parts(path).ok_or_else(outside)?.join("/")) };
    let root: Vec<&str> = parts(root).unwrap_or_default();
    let mut found = parts(path).ok_or_else(outside)?;
    if path.starts_with('/') {
        if !found.starts_with(&root) {
            return Err(outside());
        }
        found.drain(..root.len());
        // The empty part before the first slash belongs to an absolute root.
        found.retain(|part| !part.is_empty());
    }
    Ok(found.join("/"))
}

/// The parts of a path; an absolute one begins with an empty part. None if it leaves its start.
fn parts(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let begins_absolute = path.starts_with('/');
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.is_empty() && begins_absolute => {}
            ".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    if begins_absolute {
        parts.insert(0, "");
    }
    Some(parts)
}

fn sockaddr(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let words = values.iter().map(arguments::string).collect::<Outcome<Vec<_>>>()?;
    let text = addresses::evaluate(context, &words.join(" "))?;
    context.text(text)
}

fn timestamp(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let seconds = context
        .unix_time()
        .ok_or_else(|| Fault::refused("timestamp is not available here: the time is not known"))?;
    let now = jiff::Timestamp::from_second(seconds).map_err(|_| Fault::new("the time is out of range"))?;
    let now = Moment::utc(now.to_zoned(jiff::tz::TimeZone::UTC).datetime());
    let layout = values.first().map(arguments::string).transpose()?;
    let text = match layout.as_deref() {
        Some("unix") => seconds.to_string(),
        Some(layout) => {
            // Each character is compared with all elements of layouts.
            context.charge(layout.len().saturating_mul(8))?;
            time::format(layout, &now)
        }
        None => time::format("2006-01-02T15:04:05Z07:00", &now),
    };
    context.text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_sandbox() {
        for (path, resolved) in [
            ("local/a", Some("local/a")),
            ("/task/local/../local/./a", Some("local/a")),
            ("local/../../etc/passwd", None),
            ("/etc/passwd", None),
            ("/task/../etc/passwd", None),
            ("/taskother/a", None),
            ("../task/a", None),
        ] {
            assert_eq!(resolve(path, Some("/task")).ok().as_deref(), resolved, "{path}");
        }
        assert_eq!(resolve("/etc//hosts", None).ok().as_deref(), Some("/etc/hosts"));
    }
}
