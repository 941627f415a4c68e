//! Scaling: another count for one group, as a new version of its job.
//!
//! In: a job, a group's name, a count. Out: the job with that count, or why it can't have it.

use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::job::{Group, Job};

use crate::refusal::Refusal;

/// Returns the job with another count for one of its groups.
pub fn scaled(job: &Job, group: &str, count: u32) -> Result<Job, Refusal> {
    let mut scaled = job.clone();
    let Some(found) = scaled.groups.iter_mut().find(|known| known.name == group) else {
        let known: Vec<&str> = job.groups.iter().map(|group| group.name.as_str()).collect();
        let message = format!("job \"{}\" has no group \"{group}\"; it has: {}", job.key(), known.join(", "));
        return Err(Refusal::NotFound(message));
    };
    found.count = count;
    check(&scaled)?;
    Ok(scaled)
}

/// Returns the job with the counts of its groups in `current`; new groups keep their own.
pub fn with_counts_of(mut job: Job, current: &Job) -> Result<Job, Refusal> {
    for group in &mut job.groups {
        group.count = current.group(&group.name).map_or(group.count, |known| known.count);
    }
    check(&job)?;
    Ok(job)
}

/// Applies the rules that manifests are validated with.
fn check(job: &Job) -> Result<(), Refusal> {
    let of_group = |group: &Group| {
        let refused = group.scaling.as_ref().and_then(|scaling| scaling.refuses(group.count));
        let why = refused.or_else(|| fixed_port(group)).or_else(|| one_on_each(job, group))?;
        Some(format!("group \"{}\" of job \"{}\": {why}", group.name, job.key()))
    };
    let refused = job.groups.iter().find_map(of_group).or_else(|| job.too_many());
    refused.map_or(Ok(()), |why| Err(Refusal::Invalid(why)))
}

fn one_on_each(job: &Job, group: &Group) -> Option<String> {
    let is_more = job.kind.is_on_each_machine() && group.count > 1;
    is_more.then(|| format!("a {} job has one allocation of a group on a machine", job.kind.as_str()))
}

fn fixed_port(group: &Group) -> Option<String> {
    let port = group.fixed_ports().next().filter(|_| group.count > 1)?;
    Some(format!("port {port} exists once on this machine, so its count is 1 at most"))
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        fixture::{group, job, scaling, task},
        job::{ALLOCATIONS_MAX, JobType, Network, PortRequest},
    };
    use std_alloc::{borrow::ToOwned, vec};

    use super::*;

    fn web() -> Job {
        job("web", JobType::Service, vec![group("a", 2, vec![task("t")]), group("b", 1, vec![task("t")])])
    }

    #[test]
    fn one_group_gets_another_count() {
        let job = scaled(&web(), "a", 5).expect("an accepted count");
        assert_eq!((job.groups[0].count, job.groups[1].count), (5, 1));
        assert_eq!(scaled(&web(), "a", 0).map(|job| job.groups[0].count), Ok(0));
    }

    #[test]
    fn invalid_scaling_count_is_refused() {
        let mut job = web();
        job.groups[0].scaling = Some(scaling(1, 3));
        let port = PortRequest { fixed: Some(80), to: None };
        job.groups[1].network =
            Some(Network { ports: [("http".to_owned(), port)].into(), ..Network::default() });
        for (group, count, why) in [
            ("a", 0, "count 0 is less than scaling.min, which is 1"),
            ("a", 4, "count 4 is greater than scaling.max, which is 3"),
            ("b", 2, "port 80 exists once"),
            ("c", 1, "has no group \"c\"; it has: a, b"),
        ] {
            let Err(Refusal::Invalid(message) | Refusal::NotFound(message)) = scaled(&job, group, count)
            else {
                panic!("{group} {count}")
            };
            assert!(message.contains(why), "{message}");
        }
        assert!(scaled(&job, "b", 1).is_ok(), "a fixed port exists once");
        let most = u32::try_from(ALLOCATIONS_MAX).expect("a number that fits");
        assert!(scaled(&web(), "b", most - 2).is_ok());
        assert!(scaled(&web(), "b", most - 1).is_err());
        assert!(scaled(&web(), "b", u32::MAX).is_err());
    }

    #[test]
    fn a_system_job_is_not_scaled_beyond_one() {
        let system = job("each", JobType::System, vec![group("a", 1, vec![task("t")])]);
        assert!(scaled(&system, "a", 0).is_ok() && scaled(&system, "a", 1).is_ok());
        let refused = scaled(&system, "a", 2);
        assert!(
            matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("a system job has one")),
            "{refused:?}"
        );
    }

    #[test]
    fn counts_are_kept_for_the_groups_that_stay() {
        let (mut current, mut new) = (web(), web());
        current.groups[0].count = 7;
        new.groups[1].name = "c".to_owned();
        new.groups[1].count = 4;
        let kept = with_counts_of(new.clone(), &current).expect("an accepted count");
        assert_eq!((kept.groups[0].count, kept.groups[1].count), (7, 4));
        new.groups[0].scaling = Some(scaling(1, 3));
        assert!(with_counts_of(new, &current).is_err());
    }
}
