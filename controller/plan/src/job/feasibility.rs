//! Whether a group may run on this node: datacenters, node pool, and the constraints of its job, itself and its tasks.
//!
//! In: the job, the node, and the number of live allocations. Out: `Ok`, or a message with the node's value and the
//! required one. Capacity is checked elsewhere.

pub mod compare;
pub mod version;

use std_alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::{
    constraint::{Constraint, Operator},
    job::{Group, Job},
    manifest::defaults::NODE_POOL,
    nomad::ALL_POOLS,
    view::{Reason, Unplaced},
};

use crate::env::NodeFacts;

/// Number of reasons listed; further ones are only counted.
const TOLD_MAX: usize = 8;

/// What prevents a group from running on this node.
#[derive(Default)]
struct Misses {
    sentences: Vec<String>,
    constraints: Vec<String>,
}

impl Misses {
    /// The node is not a candidate; no constraint is listed as filtering it.
    fn absent(&mut self, sentence: String) {
        self.sentences.push(sentence);
    }

    /// The node is a candidate, and this constraint does not hold. A constraint that occurs twice is reported once.
    fn filtered(&mut self, constraint: &Constraint, sentence: String) {
        let constraint = constraint.to_string();
        if !self.constraints.contains(&constraint) {
            self.constraints.push(constraint);
            self.sentences.push(sentence);
        }
    }

    /// Adds a driver that is away, and Nomad's name for this reason.
    fn lacks_driver(&mut self, driver: &str, why: &str) {
        let sentence = format!("driver {driver} is not available: {why}");
        if !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
        let filter = String::from("missing drivers");
        if !self.constraints.contains(&filter) {
            self.constraints.push(filter);
        }
    }

    /// Reports all reasons at once, so that the user can fix them together.
    fn verdict(mut self) -> Result<(), Unplaced> {
        if self.sentences.is_empty() {
            return Ok(());
        }
        let more = self.sentences.len().saturating_sub(TOLD_MAX);
        self.sentences.truncate(TOLD_MAX);
        if more > 0 {
            self.sentences.push(format!("and {more} more"));
        }
        let (message, filtered_by) = (self.sentences.join("; "), self.constraints);
        Err(Unplaced { reason: Reason::Constraint, message, filtered_by, exhausted: Vec::new() })
    }
}

/// Whether the node meets the job's datacenters, node pool and constraints.
///
/// # Errors
/// All reasons why the group can't run on this node.
pub fn check(job: &Job, group: &Group, node: &NodeFacts) -> Result<(), Unplaced> {
    check_with_drivers(job, group, node, &BTreeMap::new())
}

/// The same, where some drivers are `away`, each for a reason.
///
/// # Errors
/// As [`check`], and the drivers that the group has to wait for.
pub fn check_with_drivers(
    job: &Job,
    group: &Group,
    node: &NodeFacts,
    away: &BTreeMap<String, String>,
) -> Result<(), Unplaced> {
    let mut misses = Misses::default();
    for task in &group.tasks {
        if let Some(why) = away.get(&task.driver) {
            misses.lacks_driver(&task.driver, why);
        }
    }
    if !job.datacenters.iter().any(|pattern| compare::fits_pattern(&node.datacenter, pattern)) {
        let wanted = job.datacenters.join(", ");
        misses.absent(format!(
            "this node is in datacenter \"{}\", but must be in one of: {wanted}; \
             change `datacenters` of the job, or `datacenter` in the agent's config",
            node.datacenter
        ));
    }
    let pool = if node.pool.is_empty() { NODE_POOL } else { node.pool.as_str() };
    if job.node_pool != pool && job.node_pool != ALL_POOLS {
        misses.absent(format!(
            "this node is in node pool \"{}\", but must be in \"{}\"; \
             change `node_pool` of the job, or in the agent's config",
            pool, job.node_pool
        ));
    }
    let of_tasks = group
        .tasks
        .iter()
        .flat_map(|task| task.constraints.iter().map(move |constraint| (constraint, Some(&task.name))));
    let outer = job.constraints.iter().chain(&group.constraints).map(|constraint| (constraint, None));
    for (constraint, task) in outer.chain(of_tasks) {
        let has = node.value_of(&constraint.attribute);
        let is_known = !constraint.operator.is_distinct() || constraint.operator == Operator::DistinctHosts;
        let holds = if is_known {
            compare::holds(constraint.operator, has, node.value_of(&constraint.value))
        } else {
            has.is_some()
        };
        if !holds {
            let of_task = task.map(|task| format!(" (constraint of task {task})")).unwrap_or_default();
            misses.filtered(constraint, format!("{}{of_task}", sentence(constraint, has)));
        }
    }
    misses.verdict()
}

/// Whether one more allocation may join the live ones: `of_job` of the job, of which `of_group` belong to the group.
///
/// # Errors
/// The constraints that forbid it.
pub fn check_distinct(job: &Job, group: &Group, of_job: u32, of_group: u32) -> Result<(), Unplaced> {
    let of_job = job.constraints.iter().map(|constraint| (constraint, of_job, "job"));
    let of_group = group.constraints.iter().map(|constraint| (constraint, of_group, "group"));
    let mut misses = Misses::default();
    for (constraint, live, of) in of_job.chain(of_group) {
        // A system job has only one allocation of each group on a machine anyway.
        let most = if constraint.operator == Operator::DistinctHosts && !job.kind.is_on_each_machine() {
            1
        } else if constraint.operator == Operator::DistinctProperty {
            constraint.value.parse().unwrap_or(1)
        } else {
            continue;
        };
        if live >= most {
            let sentence = format!(
                "{constraint} allows {most} of this {of} on one machine, but {live} {} there already",
                if live == 1 { "is" } else { "are" }
            );
            misses.filtered(constraint, sentence);
        }
    }
    misses.verdict()
}

/// Whether [`check_distinct`] has anything to check.
pub fn is_distinct(job: &Job, group: &Group) -> bool {
    job.constraints.iter().chain(&group.constraints).any(|constraint| constraint.operator.is_distinct())
}

/// The score that Nomad would give this node: the weights of the affinities that hold, divided by the sum of all
/// weights.
pub fn affinity_score(job: &Job, group: &Group, node: &NodeFacts) -> Option<f64> {
    let of_tasks = group.tasks.iter().flat_map(|task| &task.affinities);
    let affinities = || job.affinities.iter().chain(&group.affinities).chain(of_tasks.clone());
    let total: f64 = affinities().map(|affinity| f64::from(affinity.weight).abs()).sum();
    let held = affinities().filter(|affinity| {
        let Constraint { attribute, operator, value } = &affinity.wanted;
        compare::holds(*operator, node.value_of(attribute), node.value_of(value))
    });
    (total > 0.0).then(|| held.map(|affinity| f64::from(affinity.weight)).sum::<f64>() / total)
}

fn sentence(constraint: &Constraint, has: Option<&str>) -> String {
    let Constraint { attribute, operator, value } = constraint;
    let must = match operator {
        Operator::Equal => format!("must be \"{value}\""),
        Operator::NotEqual => format!("must not be \"{value}\""),
        Operator::Less => format!("must be below \"{value}\""),
        Operator::LessOrEqual => format!("must be at most \"{value}\""),
        Operator::Greater => format!("must be above \"{value}\""),
        Operator::GreaterOrEqual => format!("must be at least \"{value}\""),
        Operator::Regexp => format!("must match the regular expression \"{value}\""),
        Operator::Version | Operator::Semver => format!("must be a version \"{value}\""),
        Operator::SetContains => format!("must contain all of \"{value}\""),
        Operator::SetContainsAny => format!("must contain any of \"{value}\""),
        Operator::IsSet | Operator::DistinctProperty => String::from("must be set"),
        Operator::IsNotSet => String::from("must not be set"),
        Operator::DistinctHosts => String::from("must be another node"),
    };
    match has {
        Some(has) => format!("{attribute} is \"{has}\" on this node, but {must}"),
        None => format!("{attribute} is not set on this node{}, but {must}", unset_reason(attribute)),
    }
}

/// Why an attribute of another program is not set, after "on this node".
fn unset_reason(attribute: &str) -> &'static str {
    let is_of = |names: [&str; 2]| names.iter().any(|name| attribute.starts_with(name));
    if is_of(["${attr.consul.", "${attr.unique.consul."]) {
        " (no Consul agent has answered; set its address with consul.address or CONSUL_HTTP_ADDR)"
    } else if is_of(["${attr.vault.", "${attr.unique.vault."]) {
        " (no Vault has answered; set its address with vault.default.address)"
    } else {
        ""
    }
}

impl NodeFacts {
    /// The value of `${attr.…}`, `${meta.…}` or `${node.…}` on this node; any other text is returned as it is.
    pub fn value_of<'n>(&'n self, text: &'n str) -> Option<&'n str> {
        let Some(name) = text.strip_prefix("${").and_then(|name| name.strip_suffix('}')) else {
            return Some(text);
        };
        let of_map = |root: &str, map: &'n std_alloc::collections::BTreeMap<String, String>| {
            map.get(name.strip_prefix(root)?).map(String::as_str)
        };
        match name {
            "node.unique.id" => Some(&self.id),
            "node.unique.name" => Some(&self.name),
            "node.datacenter" => Some(&self.datacenter),
            "node.region" => Some(&self.region),
            "node.class" => Some(&self.class),
            "node.pool" => Some(&self.pool),
            _ => of_map("attr.", &self.attributes).or_else(|| of_map("meta.", &self.meta)),
        }
    }
}

#[cfg(test)]
mod tests;
