//! Regions of jobs. A job runs on the agent that it is given to, regardless of its region: the author gets a warning if that is
//! another one.
//!
//! In: a job, and the agent's region if it is known. Out: a warning.

use herdlet_api_types::{job::Job, manifest::defaults::REGION};

/// The warning about a job of another region than the agent's. `global` is what a job has that names none. Without an agent each
/// other region gets one.
pub fn warning(job: &Job, own: Option<&str>) -> Option<String> {
    let is_own = own == Some(&*job.region) || job.region == REGION || job.region.is_empty();
    let place = match own {
        Some(own) => format!("the job runs here, in region \"{own}\""),
        None => "the job runs where it is applied, whatever region the agent is in".to_owned(),
    };
    (!is_own).then(|| {
        format!(
            "region \"{}\" has no effect: {place}; apply it to an agent of that region, or remove `region`",
            job.region
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::job;

    /// A job of another region ran here without a word.
    #[test]
    fn another_region_is_reported() {
        let of = |region: &str, own: Option<&str>| {
            warning(&Job { region: region.to_owned(), ..Job::clone(&job("web", "g", "t")) }, own)
        };
        for own in ["", "global", "eu"] {
            assert_eq!(of(own, Some("eu")), None, "{own}");
        }
        for own in ["", "global"] {
            assert_eq!(of(own, None), None, "{own}");
        }
        let warned = of("us", Some("eu"));
        assert!(
            warned.is_some_and(|text| text.starts_with("region \"us\" has no effect: the job runs here"))
        );
        assert!(of("us", None).is_some_and(|text| text.contains("runs where it is applied")));
    }
}
