//! What a request of the HTTP API asks, as a question to servers.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use herdlet_api_types::parse_duration;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::codec::Value;
use serde_json::Value as Json;

use super::{
    Refused, json,
    routes::{Route, Take, Verb, percent_decoded},
};
use crate::node::asking::Question;

/// The longest that a question may wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Who asks, and the parameters of the query.
pub(super) struct Asked {
    pub(super) token: Secret,
    parameters: Vec<(String, String)>,
}

impl Asked {
    /// Reads a query and who asks it.
    pub(super) fn of(query: &str, headers: &HeaderMap) -> Result<Self, Refused> {
        let decoded = |text: &str| {
            let read = percent_decoded(&text.replace('+', " "));
            read.ok_or_else(|| Refused(400, "query parameters: they are no text".to_owned()))
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let parameters = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        let parameters: Vec<(String, String)> = parameters.collect::<Result<_, Refused>>()?;
        Ok(Self { token: token(headers), parameters })
    }

    /// A parameter; the first of that name.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The node that is meant; none for this one.
    pub(super) fn node(&self) -> Option<&str> {
        self.parameter("node_id").filter(|node| !node.is_empty())
    }

    /// Whether the answer is for people to read.
    pub(super) fn is_pretty(&self) -> bool {
        self.flag("pretty").unwrap_or_default().unwrap_or_default()
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.parameter(name) {
            None => Ok(None),
            Some("" | "1" | "t" | "true" | "True" | "TRUE") => Ok(Some(true)),
            Some("0" | "f" | "false" | "False" | "FALSE") => Ok(Some(false)),
            Some(other) => Err(format!("{name}: {other:?} is neither true nor false")),
        }
    }

    fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let text = self.parameter(name).filter(|text| !text.is_empty());
        let number = text.map(|text| text.parse().map_err(|_| format!("{name}: {text:?} is no number")));
        number.transpose()
    }

    /// The question that a route asks.
    pub(super) fn question(
        &self,
        route: &Route,
        named: &[(&'static str, String)],
        body: &Json,
    ) -> Result<Question, String> {
        let mut fields: Vec<(Value, Value)> = Vec::new();
        let mut of_list: Vec<(Value, Value)> = Vec::new();
        for (name, from) in route.query {
            let value = match from {
                Take::Text(parameter) => self.parameter(parameter).map(text),
                Take::Flag(parameter) => self.flag(parameter)?.map(Value::Bool),
                Take::Number(parameter) => self.number(parameter)?.map(Value::Int),
            };
            match (name.strip_prefix("Fields."), value) {
                (Some(name), Some(value)) => of_list.push((text(name), value)),
                (None, Some(value)) => fields.push((text(name), value)),
                (_, None) => {}
            }
        }
        if !of_list.is_empty() {
            fields.push((text("Fields"), Value::Map(of_list)));
        }
        if let Json::Object(given) = body {
            for name in route.body {
                let Some(value) = given.get(*name) else { continue };
                // Servers hold when it began beside it.
                let field = if *name == "DrainSpec" { "DrainStrategy" } else { name };
                fields.push((text(field), json::read(value, name)?));
            }
        }
        let of_path = named.iter().map(|(name, value)| (text(name), text(value)));
        fields.extend(of_path);
        if let Some(node) = self.node()
            && !fields.iter().any(|(name, _)| name.as_text() == Some("NodeID"))
        {
            fields.push((text("NodeID"), text(node)));
        }
        let is_write = route.verb != Verb::Get;
        if !is_write {
            self.of_list(&mut fields)?;
        }
        let wait = match self.parameter("wait").filter(|wait| !wait.is_empty()) {
            Some(wait) => {
                let nanos = parse_duration(wait).map_err(|error| format!("wait: {error}"))?;
                Duration::from_nanos(nanos.max(0).unsigned_abs()).min(WAIT_MAX)
            }
            None => Duration::ZERO,
        };
        let index = self.number("index")?.unwrap_or_default();
        let namespace = self.parameter("namespace").filter(|name| !name.is_empty()).unwrap_or("default");
        Ok(Question {
            token: self.token.clone(),
            region: self.parameter("region").filter(|region| !region.is_empty()).map(str::to_owned),
            namespace: namespace.to_owned(),
            index: if is_write { 0 } else { u64::try_from(index).unwrap_or_default() },
            wait,
            stale: self.flag("stale")?.unwrap_or_default(),
            is_write,
            fields: Value::Map(fields),
            ..Question::new(route.call)
        })
    }

    /// Which part of a list is wanted.
    fn of_list(&self, fields: &mut Vec<(Value, Value)>) -> Result<(), String> {
        for (field, parameter) in [("Prefix", "prefix"), ("Filter", "filter"), ("NextToken", "next_token")] {
            fields.extend(self.parameter(parameter).map(|value| (text(field), text(value))));
        }
        fields.extend(self.number("per_page")?.map(|number| (text("PerPage"), Value::Int(number))));
        fields.extend(self.flag("reverse")?.map(|flag| (text("Reverse"), Value::Bool(flag))));
        Ok(())
    }
}

/// The token of a request; empty where it has none.
fn token(headers: &HeaderMap) -> Secret {
    let own = headers.get("x-nomad-token").and_then(|token| token.to_str().ok());
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    own.or(bearer).unwrap_or_default().trim().into()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}
