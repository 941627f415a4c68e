//! What a task may read with its workload identity: the variables of its job, and nothing else.
//!
//! In: the identity of a task, a namespace and a path. Out: whether the task may read that variable. A pure function; the
//! caller has verified the identity. Facts: <https://developer.hashicorp.com/nomad/docs/concepts/variables>, "Task access".

use herdlet_api_types::variable::VariableKey;

/// The directory of variables of jobs.
const JOBS: &str = "nomad/jobs";

/// A verified workload identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskIdentity<'i> {
    pub namespace: &'i str,
    /// The job; for a child, its parent, as in the claim `nomad_job_id`.
    pub job: &'i str,
    pub group: &'i str,
    pub task: &'i str,
}

/// Whether the task may read the variable: `nomad/jobs`, `nomad/jobs/JOB`, `nomad/jobs/JOB/GROUP` or
/// `nomad/jobs/JOB/GROUP/TASK` of its own namespace.
///
/// A name with a slash matches no part of a path, as in Nomad: the variables of the job `a/b` would also be those of the
/// group `b` of the job `a`.
#[must_use]
pub fn may_read(identity: TaskIdentity<'_>, namespace: &str, path: &str) -> bool {
    let TaskIdentity { namespace: own, job, group, task } = identity;
    if namespace != own {
        return false;
    }
    let Some(rest) = path.strip_prefix(JOBS) else { return false };
    if rest.is_empty() {
        return true;
    }
    let Some(rest) = rest.strip_prefix('/') else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    let names = [job, group, task];
    parts.len() <= names.len()
        && parts.iter().zip(names).all(|(part, name)| *part == name && !part.is_empty())
}

/// The keys of all variables that the task may read, whether they exist or not.
pub fn readable(identity: TaskIdentity<'_>) -> Vec<VariableKey> {
    let TaskIdentity { namespace, job, group, task } = identity;
    let paths = [
        JOBS.to_owned(),
        format!("{JOBS}/{job}"),
        format!("{JOBS}/{job}/{group}"),
        format!("{JOBS}/{job}/{group}/{task}"),
    ];
    let own = paths.into_iter().filter(|path| may_read(identity, namespace, path));
    own.map(|path| VariableKey { namespace: namespace.to_owned(), path }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: TaskIdentity<'_> =
        TaskIdentity { namespace: "prod", job: "web", group: "front", task: "httpd" };

    #[test]
    fn a_task_reads_the_variables_of_its_job_group_and_task() {
        for path in ["nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/front", "nomad/jobs/web/front/httpd"] {
            assert!(may_read(IDENTITY, "prod", path), "{path}");
            assert!(!may_read(IDENTITY, "default", path), "another namespace: {path}");
            assert!(!may_read(IDENTITY, "*", path), "all namespaces: {path}");
        }
    }

    #[test]
    fn a_task_reads_nothing_else() {
        for path in [
            "",
            "nomad",
            "nomad/",
            "nomad/jobs/",
            "nomad/jobsite",
            "nomad/job-templates/web",
            "nomad/jobs/we",
            "nomad/jobs/web2",
            "nomad/jobs/web/",
            "nomad/jobs/web//httpd",
            "nomad/jobs//front",
            "nomad/jobs/other",
            "nomad/jobs/web/back",
            "nomad/jobs/web/front/sidecar",
            "nomad/jobs/web/front/httpd/",
            "nomad/jobs/web/front/httpd/more",
            "nomad/jobs/front",
            "nomad/jobs/web/httpd",
            "/nomad/jobs/web",
            "secret/web",
            "nomad/jobs/../jobs/web",
        ] {
            assert!(!may_read(IDENTITY, "prod", path), "{path}");
        }
    }

    #[test]
    fn names_with_slashes_open_no_variable_of_another_job() {
        let job = TaskIdentity { job: "web/front", group: "g", task: "t", ..IDENTITY };
        assert!(!may_read(job, "prod", "nomad/jobs/web/front"), "it is the group of another job");
        assert!(may_read(job, "prod", "nomad/jobs"));
        let paths = |identity| readable(identity).into_iter().map(|key| key.path).collect::<Vec<_>>();
        assert_eq!(paths(job), ["nomad/jobs"]);
        let own = ["nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/front", "nomad/jobs/web/front/httpd"];
        assert_eq!(paths(IDENTITY), own);
        let group = TaskIdentity { group: "front/httpd", ..IDENTITY };
        assert!(!may_read(group, "prod", "nomad/jobs/web/front/httpd"));
        let nameless = TaskIdentity { job: "", group: "", task: "", ..IDENTITY };
        assert!(!may_read(nameless, "prod", "nomad/jobs/"));
        assert!(!may_read(nameless, "prod", "nomad/jobs//"));
    }
}
