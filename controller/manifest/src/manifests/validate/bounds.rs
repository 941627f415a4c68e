//! Limits on the lengths of lists. Real manifests are far below them. They are checked first, so that a
//! hostile manifest never reaches rules that compare items with each other.

use herdlet_api_types::job::{ALLOCATIONS_MAX, Job};
use herdlet_api_types::manifest::{Dns, GroupSpec, JobManifest, Spread, TaskSpec, service::Service};

use super::Findings;
use crate::yaml::Trail;

/// Per job.
const GROUPS_MAX: usize = 1_000;
/// Per group.
const TASKS_MAX: usize = 100;
/// Per group or task.
const SERVICES_MAX: usize = 1_000;
/// Per group, with those of its tasks: ports. Per group, task or service: volumes, mounts, identities, checks and all else.
const ITEMS_MAX: usize = 100;
/// Bytes of a variable with its name. Linux executes no program with a longer one: 32 pages with `=` and the final zero.
const VARIABLE_LEN_MAX: usize = 128 * 1024 - 2;

/// Reports every list that is too long; returns whether there is none.
pub(super) fn hold(manifest: &JobManifest, job: &Job, spec: &Trail<'_>, findings: &mut Findings<'_>) -> bool {
    let groups = &spec.field("groups");
    let mut bounds = Bounds { findings, hold: true };
    bounds.list("groups", job.groups.len(), GROUPS_MAX, groups);
    bounds.list("constraints", job.constraints.len(), ITEMS_MAX, &spec.field("constraints"));
    bounds.list("affinities", job.affinities.len(), ITEMS_MAX, &spec.field("affinities"));
    bounds.spreads(manifest.spec.spreads.as_deref(), &spec.field("spreads"));
    bounds.counts(job, groups);
    if bounds.hold {
        for (index, group) in manifest.spec.groups.iter().flatten().enumerate() {
            bounds.group(group, &groups.item(index));
        }
    }
    bounds.hold
}

struct Bounds<'f, 'd> {
    findings: &'f mut Findings<'d>,
    hold: bool,
}

impl Bounds<'_, '_> {
    fn list(&mut self, what: &str, length: usize, most: usize, trail: &Trail<'_>) {
        if length > most {
            self.hold = false;
            self.findings.problem(trail, format!("takes at most {most} {what}, has {length}"));
        }
    }

    fn group(&mut self, group: &GroupSpec, trail: &Trail<'_>) {
        let network = trail.field("network");
        let ports = group.network.as_ref().map_or(0, |network| length(network.ports.as_ref()));
        self.list("ports", ports, ITEMS_MAX, &network.field("ports"));
        let dns = group.network.as_ref().and_then(|network| network.dns.as_ref());
        for (name, list) in dns.into_iter().flat_map(|Dns { servers, searches, options }| {
            [("servers", servers), ("searches", searches), ("options", options)]
        }) {
            self.list(name, length(list.as_ref()), ITEMS_MAX, &network.field("dns").field(name));
        }
        self.list("volumes", length(group.volumes.as_ref()), ITEMS_MAX, &trail.field("volumes"));
        self.list("groups", length(group.depends_on.as_ref()), ITEMS_MAX, &trail.field("depends_on"));
        self.list("constraints", length(group.constraints.as_ref()), ITEMS_MAX, &trail.field("constraints"));
        self.list("affinities", length(group.affinities.as_ref()), ITEMS_MAX, &trail.field("affinities"));
        self.spreads(group.spreads.as_deref(), &trail.field("spreads"));
        self.services(group.services.as_deref(), &trail.field("services"));
        let tasks = trail.field("tasks");
        self.list("tasks", length(group.tasks.as_ref()), TASKS_MAX, &tasks);
        let mut all_ports = ports;
        for (index, task) in group.tasks.iter().flatten().enumerate() {
            let trail = tasks.item(index);
            self.task(task, &trail);
            let resources = trail.field("resources");
            let network = task.resources.as_ref().and_then(|resources| resources.network.as_ref());
            let ports = network.map_or(0, |network| length(network.ports.as_ref()));
            all_ports += ports;
            if ports > 0 {
                self.list(
                    "ports in a group",
                    all_ports,
                    ITEMS_MAX,
                    &resources.field("network").field("ports"),
                );
            }
        }
    }

    fn spreads(&mut self, spreads: Option<&[Spread]>, trail: &Trail<'_>) {
        self.list("spreads", spreads.map_or(0, <[Spread]>::len), ITEMS_MAX, trail);
        for (index, spread) in spreads.into_iter().flatten().enumerate() {
            self.list(
                "targets",
                length(spread.targets.as_ref()),
                ITEMS_MAX,
                &trail.item(index).field("targets"),
            );
        }
    }

    fn task(&mut self, task: &TaskSpec, trail: &Trail<'_>) {
        self.list("tasks", length(task.depends_on.as_ref()), TASKS_MAX, &trail.field("depends_on"));
        self.list("constraints", length(task.constraints.as_ref()), ITEMS_MAX, &trail.field("constraints"));
        self.list("affinities", length(task.affinities.as_ref()), ITEMS_MAX, &trail.field("affinities"));
        self.list("mounts", length(task.volume_mounts.as_ref()), ITEMS_MAX, &trail.field("volume_mounts"));
        self.list("identities", length(task.identities.as_ref()), ITEMS_MAX, &trail.field("identities"));
        self.list("templates", length(task.templates.as_ref()), ITEMS_MAX, &trail.field("templates"));
        self.list("actions", length(task.actions.as_ref()), ITEMS_MAX, &trail.field("actions"));
        self.list("secrets", length(task.secrets.as_ref()), ITEMS_MAX, &trail.field("secrets"));
        self.services(task.services.as_deref(), &trail.field("services"));
        let env = trail.field("env");
        for (name, value) in task.env.iter().flatten() {
            let length = name.len() + value.0.len();
            if length > VARIABLE_LEN_MAX {
                self.hold = false;
                self.findings.problem(
                    &env.field(name),
                    format!(
                        "has {length} bytes with its name; Linux passes at most {VARIABLE_LEN_MAX} to a program: put the value \
                         into a file (a template, an artifact)"
                    ),
                );
            }
        }
    }

    fn services(&mut self, services: Option<&[Service]>, trail: &Trail<'_>) {
        self.list("services", services.unwrap_or_default().len(), SERVICES_MAX, trail);
        for (index, service) in services.into_iter().flatten().enumerate() {
            let trail = trail.item(index);
            self.list("checks", length(service.checks.as_ref()), ITEMS_MAX, &trail.field("checks"));
        }
    }

    fn counts(&mut self, job: &Job, groups: &Trail<'_>) {
        // The structural check already reported a count that is too large by itself.
        if job.groups.iter().any(|group| u64::from(group.count) > ALLOCATIONS_MAX) {
            return;
        }
        if let Some(message) = job.too_many() {
            self.findings.problem(groups, message);
        }
    }
}

fn length<I: IntoIterator>(items: Option<I>) -> usize {
    items.into_iter().flatten().count()
}

#[cfg(test)]
mod tests {
    use super::VARIABLE_LEN_MAX;
    use crate::manifests::{Drivers, parse};

    #[test]
    fn a_variable_longer_than_a_program_can_get_is_refused() {
        let manifest = |length: usize| {
            format!(
                "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{groups: [{{name: g, tasks: [{{name: t, \
                 driver: mock, env: {{BIG: {}}}}}]}}]}}\n",
                "x".repeat(length)
            )
        };
        let read = |length| parse("a.yaml", manifest(length).as_bytes(), &Drivers::built_in());
        assert!(read(VARIABLE_LEN_MAX - 3).is_ok());
        let problems = read(VARIABLE_LEN_MAX - 2).unwrap_err().to_string();
        let expected = "a.yaml:4:70: spec.groups[0].tasks[0].env.BIG: has 131071 bytes with its name; Linux passes at most 131070 \
                        to a program: put the value into a file (a template, an artifact)";
        assert_eq!(problems, expected);
    }
}
