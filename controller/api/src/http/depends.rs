//! Warnings about groups of several jobs that wait for each other. Within one job a cycle is refused; jobs may be applied
//! one by one.
//!
//! In: the jobs of a request, and those that the agent knows. Out: one sentence for each cycle through a job of the request.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use herdlet_api_types::{
    JobKey,
    job::{Group, Job},
};

/// A group of a job.
type Node = (JobKey, String);

/// Returns a warning for each cycle of `depends_on` through the jobs. `known` finds a job that the agent has.
pub(super) fn warnings(jobs: &[Job], known: impl Fn(&JobKey) -> Option<Arc<Job>>) -> Vec<String> {
    let applied: BTreeMap<JobKey, &Job> = jobs.iter().map(|job| (job.key(), job)).collect();
    let next = |node: &Node| -> Vec<Node> {
        match applied.get(&node.0) {
            Some(job) => awaited(job, &node.1, |key| groups(key, applied.get(key).copied(), &known)),
            None => known(&node.0).map_or_else(Vec::new, |job| {
                awaited(&job, &node.1, |key| groups(key, applied.get(key).copied(), &known))
            }),
        }
    };
    let mut warnings = Vec::new();
    let mut reported = BTreeSet::new();
    for (key, job) in &applied {
        for group in job.groups.iter().filter(|group| !group.depends_on.is_empty()) {
            let start = (key.clone(), group.name.clone());
            if reported.contains(&start) {
                continue;
            }
            let Some(cycle) = cycle(&start, next) else { continue };
            let names: Vec<String> = cycle.iter().map(|(job, group)| format!("{}.{group}", job.id)).collect();
            let (first, others) =
                (names.first().map_or("", String::as_str), names.get(1..).unwrap_or_default());
            let way = others.iter().map(|name| format!("for {name}, which waits ")).collect::<String>();
            warnings.push(format!(
                "{first} waits {way}for {first}: none of them can start first; remove one depends_on"
            ));
            reported.extend(cycle);
        }
    }
    warnings
}

/// The groups that a group of the job waits for; `groups` returns those of another job.
fn awaited(job: &Job, group: &str, groups: impl Fn(&JobKey) -> Vec<String>) -> Vec<Node> {
    let own = job.key();
    let depends = job.group(group).map_or(&[][..], |group| &group.depends_on);
    let nodes = depends.iter().flat_map(|on| {
        let key = match &on.job {
            Some(id) => JobKey { namespace: Arc::clone(&own.namespace), id: id.as_str().into() },
            None => own.clone(),
        };
        let names = match &on.group {
            Some(name) => vec![name.clone()],
            None => groups(&key),
        };
        names.into_iter().map(move |name| (key.clone(), name))
    });
    nodes.collect()
}

fn groups(key: &JobKey, applied: Option<&Job>, known: impl Fn(&JobKey) -> Option<Arc<Job>>) -> Vec<String> {
    let names = |job: &Job| job.groups.iter().map(|group: &Group| group.name.clone()).collect();
    applied.map(names).or_else(|| known(key).map(|job| names(&job))).unwrap_or_default()
}

/// The shortest way from the group back to itself, without its repetition at the end.
fn cycle(start: &Node, next: impl Fn(&Node) -> Vec<Node>) -> Option<Vec<Node>> {
    let mut came_from: BTreeMap<Node, Node> = BTreeMap::new();
    let mut open = VecDeque::from([start.clone()]);
    while let Some(at) = open.pop_front() {
        for node in next(&at) {
            if node == *start {
                let mut way = vec![at.clone()];
                while let Some(before) = way.last().and_then(|node| came_from.get(node)) {
                    way.push(before.clone());
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(&node) {
                came_from.insert(node.clone(), at.clone());
                open.push_back(node);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        fixture,
        job::{DependencyCondition, GroupDependency, JobType},
    };

    use super::*;

    /// A job with one group `g` that waits for these jobs.
    fn job(id: &str, on: &[&str]) -> Job {
        let mut group = fixture::group("g", 1, vec![fixture::task("t")]);
        let depends = on.iter().map(|on| GroupDependency {
            job: Some((*on).to_owned()),
            group: None,
            condition: DependencyCondition::Started,
        });
        group.depends_on = depends.collect();
        fixture::job(id, JobType::Service, vec![group])
    }

    fn warned(applied: &[Job], known: &[Job]) -> Vec<String> {
        warnings(applied, |key| known.iter().find(|job| job.key() == *key).cloned().map(Arc::new))
    }

    #[test]
    fn cycles_of_jobs_are_named_once() {
        let none = Vec::<String>::new();
        let (a, b, c) = (job("a", &["b"]), job("b", &["c"]), job("c", &["a"]));
        assert_eq!(warned(std::slice::from_ref(&a), &[]), none, "b may be applied later");
        assert_eq!(warned(&[a.clone(), b.clone()], &[job("c", &[])]), none);
        let warning = "a.g waits for b.g, which waits for c.g, which waits for a.g: none of them can start first; remove one \
                       depends_on";
        assert_eq!(warned(&[a.clone(), b.clone(), c.clone()], &[]), [warning]);
        let from_c = "c.g waits for a.g, which waits for b.g, which waits for c.g: none of them can start first; remove one \
                      depends_on";
        assert_eq!(warned(std::slice::from_ref(&c), &[a.clone(), b.clone()]), [from_c]);
        assert_eq!(
            warned(&[job("c", &[])], &[a.clone(), b.clone(), c.clone()]),
            none,
            "the new version counts"
        );
        assert_eq!(warned(&[job("d", &["a"])], &[a, b, c]), none, "d is in no cycle");
    }
}
