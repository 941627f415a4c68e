//! The section `template`: settings of the templates of tasks, with Nomad's names and defaults.
//!
//! In: the section of a config file. Out: [`Template`], with all defaults filled in, or problems.

use herdlet_api_types::{
    Duration,
    job::TemplateWait,
    manifest::{Span, TemplateWait as Bounds},
};
use herdlet_manifest::manifests::DENIED_FUNCTIONS;
use schemars::JsonSchema;
use serde::Deserialize;

/// The section of a config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Functions that templates may not use; `*` is any text. Default `executeTemplate`, `plugin` and `writeToFile`.
    pub function_denylist: Option<Vec<String>>,
    /// How long the data of a template must be quiet; default 5s, at most 4m.
    pub wait: Bounds,
    /// The shortest and the longest `wait` that a job may set.
    pub wait_bounds: Bounds,
    /// How long servers or Consul may block a query for data of templates; default and at most 5m, at least 1s.
    pub block_query_wait: Option<Span>,
    /// On a node: a server without contact to its leader for longer is not relied on; default 87600h.
    pub max_stale: Option<Span>,
    /// On a node: pauses while servers are away.
    pub nomad_retry: Retry,
    /// Pauses while Consul is away.
    pub consul_retry: Retry,
}

/// Pauses between attempts, which have no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// The first pause, which doubles each time; default 1s.
    pub backoff: Option<Span>,
    /// The longest pause; default 1m, 0s for no limit.
    pub max_backoff: Option<Span>,
}

/// Settings of the templates of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Functions that templates may not use; `*` is any text.
    pub function_denylist: Vec<String>,
    /// How long the data of a template must be quiet, unless the job says so.
    pub wait: TemplateWait,
    /// The shortest `wait` that a job may set.
    pub wait_min: Duration,
    /// The longest `wait` that a job may set; `None` for any.
    pub wait_max: Option<Duration>,
    /// How long servers may block a query; `None` for the default.
    pub block_query_wait: Option<Duration>,
    /// How long a server may be without contact to its leader; `None` for the default.
    pub max_stale: Option<Duration>,
    /// The first pause while servers are away; `None` for the default.
    pub retry_backoff: Option<Duration>,
    /// The longest pause while servers are away; zero for any, `None` for the default.
    pub retry_backoff_max: Option<Duration>,
    /// The first pause while Consul is away; `None` for the default.
    pub consul_retry_backoff: Option<Duration>,
    /// The longest pause while Consul is away; zero for any, `None` for the default.
    pub consul_retry_backoff_max: Option<Duration>,
}

/// Nomad's default of `wait`.
const WAIT: TemplateWait = TemplateWait { min: Duration::from_secs(5), max: Duration::from_secs(4 * 60) };

impl Section {
    /// Checks what the types can't express. Returns problems by field.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let wait = self.wait_or_default();
        let bounds = &self.wait_bounds;
        let bounds = bounds.min.zip(bounds.max).map(|(min, max)| ("wait_bounds.min", min, max));
        let ranges = [Some(("wait.min", Span(wait.min), Span(wait.max))), bounds];
        let empty = ranges.into_iter().flatten().filter(|(_, min, max)| min > max);
        empty.map(|(at, min, max)| (at, format!("must be at most max ({max}), found {min}"))).collect()
    }

    /// Fills in the defaults.
    pub(super) fn settled(self) -> Template {
        let wait = self.wait_or_default();
        Template {
            function_denylist: self
                .function_denylist
                .unwrap_or_else(|| DENIED_FUNCTIONS.map(str::to_owned).to_vec()),
            wait,
            wait_min: self.wait_bounds.min.map_or(Duration::ZERO, |min| min.0),
            wait_max: self.wait_bounds.max.map(|max| max.0),
            block_query_wait: self.block_query_wait.map(|span| span.0),
            max_stale: self.max_stale.map(|span| span.0),
            retry_backoff: self.nomad_retry.backoff.map(|span| span.0),
            retry_backoff_max: self.nomad_retry.max_backoff.map(|span| span.0),
            consul_retry_backoff: self.consul_retry.backoff.map(|span| span.0),
            consul_retry_backoff_max: self.consul_retry.max_backoff.map(|span| span.0),
        }
    }

    /// A missing bound is Nomad's, or what the other one allows.
    fn wait_or_default(&self) -> TemplateWait {
        match (self.wait.min, self.wait.max) {
            (None, None) => WAIT,
            (None, Some(max)) => TemplateWait { min: WAIT.min.min(max.0), max: max.0 },
            (Some(_), None | Some(_)) => self.wait.to_wait(),
        }
    }
}

impl Default for Template {
    fn default() -> Self {
        Section::default().settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(min: i64, max: i64) -> TemplateWait {
        TemplateWait { min: Duration::from_secs(min), max: Duration::from_secs(max) }
    }

    fn bounds(min: Option<i64>, max: Option<i64>) -> Bounds {
        let span = |seconds: i64| Span(Duration::from_secs(seconds));
        Bounds { min: min.map(span), max: max.map(span) }
    }

    #[test]
    fn defaults_are_those_of_nomad() {
        let template = Template::default();
        assert_eq!(template.function_denylist, ["executeTemplate", "plugin", "writeToFile"]);
        assert_eq!(template.wait, seconds(5, 240));
        let none = Section { function_denylist: Some(Vec::new()), ..Section::default() };
        assert!(none.settled().function_denylist.is_empty());
    }

    #[test]
    fn a_missing_bound_follows_from_the_other() {
        for (min, max, expected) in [
            (Some(1), None, seconds(1, 4)),
            (None, Some(2), seconds(2, 2)),
            (None, Some(60), seconds(5, 60)),
            (Some(1), Some(2), seconds(1, 2)),
        ] {
            let section = Section { wait: bounds(min, max), ..Section::default() };
            assert_eq!((section.problems(), section.settled().wait), (Vec::new(), expected));
        }
    }

    #[test]
    fn empty_ranges_are_refused() {
        let section = Section {
            wait: bounds(Some(2), Some(1)),
            wait_bounds: bounds(Some(3), Some(1)),
            ..Section::default()
        };
        let fields: Vec<&str> = section.problems().iter().map(|(field, _)| *field).collect();
        assert_eq!(fields, ["wait.min", "wait_bounds.min"]);
    }
}
