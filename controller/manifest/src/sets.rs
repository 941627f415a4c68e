//! Sets of jobs: the jobs of an `apply --prune SET`, which deletes those that the set no longer contains.
//!
//! In: jobs applied together under a name, and the existing jobs. Out: the same jobs with the set's label,
//! and the jobs that are no longer in the set. A job belongs to the set of its last apply, or to none if that
//! apply named none. So pruning only deletes jobs whose last apply named the set.

use std::borrow::Borrow;

use herdlet_api_types::{JobKey, job::Job, view::JobView};

/// The label with the name of a job's set.
pub const LABEL: &str = "herdlet/set";

const NAME_LEN_MAX: usize = 63;

/// Why jobs can't be applied as a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The name contains characters that would be ambiguous in a line of output.
    #[error("the name of a set must be 1 to {NAME_LEN_MAX} letters, digits, `.`, `-` and `_`, found {0:?}")]
    Name(String),
    /// More likely a mistake than the intention to delete the whole set.
    #[error(
        "the manifests contain no job, so set {0:?} would be empty; to delete its jobs, name them: herdlet delete JOB; nothing was changed"
    )]
    Empty(String),
    /// If one set could take over a job of another, each could delete the other's jobs.
    #[error(
        "job \"{job}\" belongs to the set \"{set}\"; apply it once without --prune to remove it from that set; nothing was changed"
    )]
    OfAnother { job: JobKey, set: String },
}

/// Validates the name of a set.
///
/// # Errors
/// [`SetError::Name`]
pub fn name(text: &str) -> Result<String, SetError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let fits = (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(is_fit);
    if fits { Ok(text.to_owned()) } else { Err(SetError::Name(text.to_owned())) }
}

/// Returns the set that a job belongs to.
pub fn of(job: &Job) -> Option<&str> {
    job.labels.get(LABEL).map(String::as_str)
}

/// Adds jobs to a set. `known` looks up the current state of a job.
///
/// # Errors
/// [`SetError::OfAnother`] for the first job of another set; [`SetError::Empty`] if there are no
/// jobs.
pub fn join<'j, V: Borrow<JobView>>(
    jobs: impl IntoIterator<Item = &'j mut Job>,
    set: &str,
    known: impl Fn(&JobKey) -> Option<V>,
) -> Result<(), SetError> {
    let mut jobs = jobs.into_iter().peekable();
    if jobs.peek().is_none() {
        return Err(SetError::Empty(set.to_owned()));
    }
    for job in jobs {
        let key = job.key();
        let other = known(&key)
            .and_then(|view| of(&view.borrow().job).filter(|other| *other != set).map(str::to_owned));
        if let Some(set) = other {
            return Err(SetError::OfAnother { job: key, set });
        }
        job.labels.insert(LABEL.to_owned(), set.to_owned());
    }
    Ok(())
}

/// Returns the jobs of a set that are not in `kept`, except children, which their parents own.
pub fn left<'v>(
    jobs: &'v [JobView],
    set: &'v str,
    kept: impl Fn(&JobKey) -> bool + 'v,
) -> impl Iterator<Item = &'v JobView> {
    jobs.iter()
        .filter(move |view| of(&view.job) == Some(set) && !view.deleting && view.job.parent_id().is_none())
        .filter(move |view| !kept(&view.key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::job::{Child, Origin};

    use super::*;
    use crate::fixture::{job, job_view};

    fn of_set(name: &str, set: &str) -> JobView {
        let mut jobs = [Job::clone(&job(name, "g", "t"))];
        join(&mut jobs, set, |_| None::<Arc<JobView>>).unwrap();
        let [job] = jobs;
        job_view(&Arc::new(job), 0)
    }

    #[test]
    fn jobs_missing_from_their_set_are_listed() {
        let (web, old, gone) = (of_set("web", "shop"), of_set("old", "shop"), of_set("gone", "shop"));
        let gone = JobView { deleting: true, ..gone };
        let mut child = of_set("old/dispatch-1-0a1b2c3d", "shop");
        let origin = Origin::Dispatch { payload: String::new(), idempotency_token: String::new() };
        Arc::make_mut(&mut child.job).child = Some(Child { parent: "old".to_owned(), origin });
        let jobs = [web, old, gone, child, of_set("post", "blog"), job_view(&job("free", "g", "t"), 0)];
        let left: Vec<String> =
            left(&jobs, "shop", |key| &*key.id == "web").map(|view| view.key.to_string()).collect();
        assert_eq!(left, ["old"]);
    }

    #[test]
    fn a_job_of_another_set_is_not_taken_over() {
        let post = Arc::new(of_set("post", "blog"));
        let mut jobs = [Job::clone(&job("web", "g", "t")), Job::clone(&job("post", "g", "t"))];
        let known = |key: &JobKey| (&*key.id == "post").then(|| Arc::clone(&post));
        let error = join(&mut jobs, "shop", known).unwrap_err();
        assert!(error.to_string().contains("job \"post\" belongs to the set \"blog\""), "{error}");
        assert_eq!(join(&mut jobs, "blog", known), Ok(()));
        assert_eq!(join(&mut [], "blog", known), Err(SetError::Empty("blog".to_owned())));
    }

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(name("shop-1.a_B").as_deref(), Ok("shop-1.a_B"));
        for bad in ["", "two words", "a/b", &"x".repeat(NAME_LEN_MAX + 1)] {
            assert_eq!(name(bad), Err(SetError::Name(bad.to_owned())));
        }
    }
}
