//! Paths and URLs of sprig.

use std::collections::BTreeMap;

use super::super::{arguments, row, strings};
use crate::{
    context::Context,
    error::{Fault, Outcome},
    function::{Function, Group::Sprig},
    value::{Element, Key, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_base", (1, 1), |context, values| path(context, values, base)),
    row(Sprig, "sprig_clean", (1, 1), |context, values| path(context, values, clean)),
    row(Sprig, "sprig_dir", (1, 1), |context, values| path(context, values, dir)),
    row(Sprig, "sprig_ext", (1, 1), |context, values| path(context, values, ext)),
    row(Sprig, "sprig_isAbs", (1, 1), |_, values| {
        Ok(Value::Bool(arguments::string(&values[0])?.starts_with('/')))
    }),
    row(Sprig, "sprig_osBase", (1, 1), |context, values| path(context, values, base)),
    row(Sprig, "sprig_osClean", (1, 1), |context, values| path(context, values, clean)),
    row(Sprig, "sprig_osDir", (1, 1), |context, values| path(context, values, dir)),
    row(Sprig, "sprig_osExt", (1, 1), |context, values| path(context, values, ext)),
    row(Sprig, "sprig_osIsAbs", (1, 1), |_, values| {
        Ok(Value::Bool(arguments::string(&values[0])?.starts_with('/')))
    }),
    row(Sprig, "sprig_urlJoin", (1, 1), url_join),
    row(Sprig, "sprig_urlParse", (1, 1), url_parse),
];

fn path(context: &mut Context<'_>, values: &[Value], map: fn(&str) -> String) -> Outcome<Value> {
    strings::mapped(context, &values[0], map)
}

fn base(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" if path.is_empty() => ".".to_owned(),
        "" => "/".to_owned(),
        trimmed => trimmed.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

fn dir(path: &str) -> String {
    clean(path.rfind('/').map_or("", |at| &path[..=at]))
}

fn ext(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind('.').map_or("", |at| &name[at..]).to_owned()
}

/// The shortest path that is the same by its text.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (is_absolute, joined.as_str()) {
        (true, _) => format!("/{joined}"),
        (false, "") => ".".to_owned(),
        (false, _) => joined,
    }
}

/// Splits an URL into its parts.
fn url_parse(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::string(&values[0])?.into_owned();
    if text.contains(|char: char| char.is_ascii_control()) {
        return Err(Fault::new("unable to parse url: it contains a control character"));
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((&text, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    };
    let (scheme, rest) = match rest.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_lowercase(), rest),
        Some(("", _)) => return Err(Fault::new("unable to parse url: missing protocol scheme")),
        Some(_) | None => (String::new(), rest),
    };
    let (mut authority, mut path, mut opaque) = ("", rest, "");
    if let Some(after) = rest.strip_prefix("//") {
        let end = after.find('/').unwrap_or(after.len());
        (authority, path) = after.split_at(end);
    } else if !scheme.is_empty() && !rest.starts_with('/') {
        (path, opaque) = ("", rest);
    }
    let (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let hostname = match (host.strip_prefix('['), host.split_once(':')) {
        (Some(inner), _) => inner.split(']').next().unwrap_or_default(),
        (None, Some((name, _))) => name,
        (None, None) => host,
    };
    let parts = [
        ("scheme", scheme.as_str()),
        ("host", host),
        ("hostname", hostname),
        ("path", &decoded(path)),
        ("query", query),
        ("opaque", opaque),
        ("fragment", &decoded(fragment)),
        ("userinfo", userinfo),
    ];
    let mut entries = BTreeMap::new();
    for (name, part) in parts {
        entries.insert(Key::Str(name.into()), context.text(part)?);
    }
    context.map(entries, Element::Any)
}

/// Decodes percent signs; wrong ones stay.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = text
            .get(at + 1..at + 3)
            .filter(|_| *byte == b'%')
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Joins the parts of an URL.
fn url_join(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let map = arguments::map(&values[0])?.ok_or_else(|| Fault::new("expected a map; got nil"))?;
    let part = |name: &str| match map.get(&Key::Str(name.into())) {
        Some(value) => arguments::string(&value).map(|text| text.into_owned()),
        None => Ok(String::new()),
    };
    let (scheme, host, opaque, userinfo) =
        (part("scheme")?, part("host")?, part("opaque")?, part("userinfo")?);
    let (path, query, fragment) = (part("path")?, part("query")?, part("fragment")?);
    let mut out = String::new();
    if !scheme.is_empty() {
        out.push_str(&format!("{scheme}:"));
    }
    if opaque.is_empty() {
        if !scheme.is_empty() && (!host.is_empty() || !path.is_empty())
            || !host.is_empty()
            || !userinfo.is_empty()
        {
            out.push_str("//");
        }
        if !userinfo.is_empty() {
            out.push_str(&format!("{userinfo}@"));
        }
        out.push_str(&host);
        if !path.is_empty() && !path.starts_with('/') && !host.is_empty() {
            out.push('/');
        }
        out.push_str(&encoded(&path));
    } else {
        out.push_str(&opaque);
    }
    if !query.is_empty() {
        out.push_str(&format!("?{query}"));
    }
    if !fragment.is_empty() {
        out.push_str(&format!("#{}", encoded(&fragment)));
    }
    context.text(out)
}

fn encoded(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!*'()".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
