//! `constraints`, `affinities` and `spreads`: whether each one expresses a single condition that can be
//! evaluated. The rules are Nomad's (`Constraint.Validate`, `Affinity.Validate`, `Spread.Validate`).

use std::collections::BTreeSet;

use herdlet_api_types::constraint::Operator;
use herdlet_api_types::job::JobType;
use herdlet_api_types::manifest::{Affinity, Constraint, Spread};
use herdlet_plan::job::feasibility::compare::{VALUE_BYTES_MAX, regexp};
use herdlet_plan::job::feasibility::version::{Conditions, Rules};

use super::{Findings, attributes};
use crate::yaml::Trail;

/// The block that contains the constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Job,
    Group,
    Task,
}

/// Validates the constraints and affinities of a job, group or task.
pub(super) fn of(
    constraints: Option<&[Constraint]>,
    affinities: Option<&[Affinity]>,
    (level, kind): (Level, JobType),
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("constraints");
    for (index, constraint) in constraints.into_iter().flatten().enumerate() {
        let trail = &list.item(index);
        let known = one(constraint, trail, findings);
        if known.is_some_and(Operator::is_distinct) && level == Level::Task {
            findings
                .problem(trail, "a task's constraint can't be about other allocations; move it to the group");
        }
    }
    let list = trail.field("affinities");
    if affinities.is_some_and(|affinities| !affinities.is_empty()) && kind == JobType::System {
        return findings.of_type(&list, "a system job runs on every machine; remove `affinities`");
    }
    for (index, affinity) in affinities.into_iter().flatten().enumerate() {
        let trail = &list.item(index);
        let known = one(&affinity.to_constraint(), trail, findings);
        let is_about_others = |operator: Operator| {
            operator.is_distinct() || matches!(operator, Operator::IsSet | Operator::IsNotSet)
        };
        if let Some(operator) = known.filter(|operator| is_about_others(*operator)) {
            findings
                .problem(trail, format!("an affinity does not support the operator `{}`", operator.as_str()));
        }
        if affinity.weight == Some(0) {
            findings.problem(&trail.field("weight"), "must not be 0, which expresses no preference");
        }
    }
}

/// Validates the spreads of a job or group.
pub(super) fn spreads(
    spreads: Option<&[Spread]>,
    kind: JobType,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("spreads");
    if spreads.is_some_and(|spreads| !spreads.is_empty()) && kind == JobType::System {
        return findings.of_type(&list, "a system job runs on every machine; remove `spreads`");
    }
    for (index, spread) in spreads.into_iter().flatten().map(Spread::to_spread).enumerate() {
        let trail = &list.item(index);
        attributes::known(&spread.attribute, &trail.field("attribute"), findings);
        let targets = trail.field("targets");
        let sum: u32 = spread.targets.iter().map(|target| u32::from(target.percent)).sum();
        if sum > 100 {
            findings.problem(&targets, format!("add up to {sum} percent, which is more than 100"));
        }
        let mut values = BTreeSet::new();
        for (index, target) in spread.targets.iter().enumerate() {
            if !values.insert(&target.value) {
                findings.problem(
                    &targets.item(index).field("value"),
                    format!("\"{}\" is written twice", target.value),
                );
            }
        }
    }
}

/// Validates a constraint; returns its operator if it has one.
fn one(written: &Constraint, trail: &Trail<'_>, findings: &mut Findings<'_>) -> Option<Operator> {
    let short = written.short_forms();
    if written.distinct_hosts == Some(false) {
        findings.problem(&trail.field("distinct_hosts"), "has no effect; remove the constraint");
        return None;
    }
    if let [(name, _, _), (other, _, _), ..] = short.as_slice() {
        findings.problem(trail, format!("combines `{name}` and `{other}`; write two constraints"));
        return None;
    }
    if let [(name, operator, _)] = short.as_slice() {
        let takes_value = *operator == Operator::DistinctProperty;
        if written.operator.is_some() || written.value.is_some() && !takes_value {
            findings.problem(trail, format!("`{name}` already sets operator and value; remove those"));
            return None;
        }
        if takes_value && written.attribute.is_some() {
            findings.problem(trail, "`distinct_property` names the attribute; remove `attribute`");
            return None;
        }
    }
    // Without a readable operator, nothing is known about the values.
    if findings.is_unread(&trail.field("operator")) {
        return None;
    }
    let constraint = written.to_constraint();
    let operator = constraint.operator;
    if constraint.attribute.is_empty() && operator != Operator::DistinctHosts {
        findings.absent(
            &trail.field("attribute"),
            trail,
            "`attribute` is missing, for instance ${attr.kernel.name}",
        );
    }
    if operator == Operator::DistinctHosts && !constraint.attribute.is_empty() {
        let message = "`distinct_hosts` compares machines, not attributes; remove `attribute`, or write `distinct_property`";
        findings.problem(&trail.field("attribute"), message);
        return None;
    }
    let attribute = if operator == Operator::DistinctProperty && written.distinct_property.is_some() {
        "distinct_property"
    } else {
        "attribute"
    };
    attributes::known(&constraint.attribute, &trail.field(attribute), findings);
    let value = &constraint.value;
    if !operator.is_distinct() {
        let field = short.first().map_or("value", |(name, _, _)| name);
        attributes::known(value, &trail.field(field), findings);
    }
    // The value of an attribute is not known yet.
    let is_literal = !value.starts_with("${");
    let problem = match operator {
        _ if value.len() > VALUE_BYTES_MAX => Some(format!("must be at most {VALUE_BYTES_MAX} bytes")),
        Operator::IsSet | Operator::IsNotSet => {
            (!value.is_empty()).then(|| format!("`{}` takes no value", operator.as_str()))
        }
        Operator::DistinctHosts => {
            (!value.is_empty()).then(|| "`distinct_hosts` takes no value but true".to_owned())
        }
        Operator::DistinctProperty => {
            let is_count = value.is_empty() || value.parse::<u32>().is_ok_and(|count| count > 0);
            (!is_count).then(|| format!("must be a number of allocations, at least 1, found \"{value}\""))
        }
        _ if value.is_empty() && findings.is_unread(&trail.field("value")) => None,
        _ if value.is_empty() => Some(format!("`{}` needs a value", operator.as_str())),
        Operator::Regexp if is_literal => {
            regexp(value).err().map(|error| format!("is not a regular expression: {error}"))
        }
        Operator::Version if is_literal => (Conditions::parse(value, Rules::Version).is_none())
            .then(|| format!("is not a list of conditions such as `>= 1.2, < 2.0`, found \"{value}\"")),
        Operator::Semver if is_literal => (Conditions::parse(value, Rules::Semver).is_none()).then(|| {
            format!("is not a list of conditions with full versions such as `>= 1.2.0`, found \"{value}\"")
        }),
        Operator::Equal
        | Operator::NotEqual
        | Operator::Less
        | Operator::LessOrEqual
        | Operator::Greater
        | Operator::GreaterOrEqual
        | Operator::Regexp
        | Operator::Version
        | Operator::Semver
        | Operator::SetContains
        | Operator::SetContainsAny => None,
    };
    if let Some(message) = problem {
        let field = short.first().map_or("value", |(name, _, _)| name);
        findings.problem(&trail.field(field), message);
    }
    Some(operator)
}
