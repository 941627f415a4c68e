//! The source texts of jobs, which `nomad job run` sends with a job: `GET /v1/job/ID/submission`.
//!
//! In: the source in a registration. Out: the source of a version. There is one file for each version, 0600, because variables
//! may be secret. The planner does not know them: nothing that runs depends on a source.
//!
//! ```text
//! <state>/submissions/<hash of namespace and job>.<version>.<time of its submission>.json
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io, iter,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_agent::publish::{Object, ReadModel};
use herdlet_api_types::{
    JobKey,
    job::Job,
    view::{JobVersion, JobView},
};
use herdlet_base::{durable, paths::hashed};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, Read, Source, answered},
    versions::newest_first,
};

/// Minimum time between two searches for sources that are no longer needed.
const PRUNE_PAUSE: Duration = Duration::from_secs(5);
/// The default of Nomad's `job_max_source_size`.
const BYTES_MAX: usize = 1_000_000;

/// The source of a job, as Nomad names its fields.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Submission {
    source: String,
    /// `hcl2` or `json`.
    format: String,
    /// Variables from the command line.
    variable_flags: BTreeMap<String, String>,
    /// The text of files with variables.
    variables: String,
}

impl Submission {
    fn len(&self) -> usize {
        let flags = self.variable_flags.iter().map(|(name, value)| name.len() + value.len());
        self.source.len() + self.variables.len() + flags.sum::<usize>()
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Submission({} bytes)", self.len())
    }
}

/// The files with sources.
#[derive(Debug)]
pub struct Submissions {
    dir: PathBuf,
    /// Held while files are written and removed: the removal must know each version that has a file.
    writing: Mutex<()>,
}

impl Submissions {
    /// The sources in a state directory.
    pub fn below(state: &std::path::Path) -> Self {
        Self { dir: state.join("submissions"), writing: Mutex::default() }
    }

    /// Stores the source of a version.
    fn put(&self, model: &ReadModel, place: &VersionKey, submission: &Submission) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a version, the job was deleted meanwhile.
        let Some(view) = model.job(&place.job) else { return Ok(()) };
        let versions = newest_first(&view);
        let Some(version) = versions.iter().find(|version| version.version == place.version) else {
            return Ok(());
        };
        durable::make_dir(&self.dir)?;
        durable::write(&self.dir.join(file_name(&view.key, version)), &serde_json::to_vec(submission)?)
    }

    /// Removes the sources of versions that are no longer kept.
    fn prune(&self, model: &ReadModel) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = BTreeSet::new();
        for view in model.jobs() {
            kept.extend(newest_first(&view).iter().map(|version| file_name(&view.key, version)));
        }
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| kept.contains(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The version with this number, and its source. A version that was made from another one without a new source, by a stop, a start
    /// or a revert, has the source of a version with the same content.
    fn find(&self, view: &JobView, number: u64) -> io::Result<Option<(JobVersion, Submission)>> {
        let versions = newest_first(view);
        let Some(wanted) = versions.iter().find(|version| version.version == number) else {
            return Ok(None);
        };
        let same = versions.iter().filter(|version| is_same(&version.job, &wanted.job));
        for version in iter::once(wanted).chain(same) {
            match fs::read(self.dir.join(file_name(&view.key, version))) {
                Ok(bytes) => return Ok(Some((wanted.clone(), serde_json::from_slice(&bytes)?))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// A version of a job.
struct VersionKey {
    job: JobKey,
    version: u64,
}

/// The time distinguishes a version from the one with the same number of an earlier job with this name.
fn file_name(key: &JobKey, version: &JobVersion) -> String {
    let JobKey { namespace, id } = key;
    format!("{}.{}.{}.json", hashed(&format!("{namespace}/{id}")), version.version, version.submit_time.0)
}

/// Whether the jobs differ at most in whether they are stopped.
fn is_same(one: &Job, other: &Job) -> bool {
    one == other || *other == Job { stop: other.stop, ..one.clone() }
}

impl Shared {
    /// Stores the source of a version that was accepted. The job runs without its source too: a failure is a warning.
    pub(super) async fn keep_source(
        self: &Arc<Self>,
        job: &JobKey,
        version: u64,
        submission: Submission,
    ) -> Option<String> {
        let len = submission.len();
        if len > BYTES_MAX {
            return Some(format!(
                "the source of the job is not stored: it has {len} bytes, more than {BYTES_MAX}"
            ));
        }
        let shared = Arc::clone(self);
        let place = VersionKey { job: job.clone(), version };
        let writing =
            herdlet_runtime::off_thread(move || shared.submissions.put(&shared.model, &place, &submission));
        let why = match writing.await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("the source of the job is not stored: {why}"))
    }
}

/// Removes sources that are no longer needed, until the agent ends: when an agent has restored its jobs, and when a job has a new
/// version or is deleted.
pub async fn prune_sources(shared: Arc<Shared>) {
    let mut changes = shared.model.changes();
    if shared.restored.opened().await.is_err() {
        return;
    }
    loop {
        let now = Arc::clone(&shared);
        match herdlet_runtime::off_thread(move || now.submissions.prune(&now.model)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to remove sources of jobs that are gone"),
            Err(error) => tracing::warn!(%error, "failed to remove sources of jobs that are gone"),
        }
        loop {
            match changes.recv().await {
                Ok(change) if matches!(change.object, Object::Job(_)) => break,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
        // A change of many jobs is one removal.
        tokio::time::sleep(PRUNE_PAUSE).await;
    }
}

/// Parameters of a request for a source.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SourceQuery {
    /// The current version if absent.
    version: Option<u64>,
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    Params(query): Params<SourceQuery>,
) -> ApiResult<Response> {
    let missing = || ApiError::NotFound("job source not found".to_owned());
    let index = shared.index(Source::Model);
    let view = shared.known_job(&read.job(id)).map_err(|_| missing())?;
    let number = query.version.unwrap_or(view.version);
    let key = view.key.clone();
    let found = herdlet_runtime::off_thread(move || shared.submissions.find(&view, number)).await;
    let failed = |why: String| ApiError::Failed(format!("read the source of job \"{key}\": {why}"));
    let found = found.map_err(|error| failed(error.to_string()))?;
    let (version, submission) = found.map_err(|error| failed(error.to_string()))?.ok_or_else(missing)?;
    let Submission { source, format, variable_flags, variables } = submission;
    answered(
        &read,
        index,
        json!({
            "Source": source, "Format": format, "VariableFlags": variable_flags, "Variables": variables,
            "Namespace": &*key.namespace, "JobID": &*key.id, "Version": version.version, "JobModifyIndex": version.index,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of the file and its content are stored: they never change.
    #[test]
    fn file_has_a_stable_name_and_content() {
        let job = herdlet_manifest::fixture::job("web", "front", "httpd");
        let submit_time = herdlet_api_types::UnixNanos(7);
        let version = JobVersion { version: 3, index: 9, submit_time, job: Arc::clone(&job), tag: None };
        let name = file_name(&job.key(), &version);
        assert_eq!(name, format!("{}.3.7.json", hashed("default/web")));
        let submission = Submission {
            source: "job \"web\" {}".to_owned(),
            format: "hcl2".to_owned(),
            variable_flags: [("a".to_owned(), "1".to_owned())].into(),
            variables: "b = 2".to_owned(),
        };
        let text =
            r#"{"Source":"job \"web\" {}","Format":"hcl2","VariableFlags":{"a":"1"},"Variables":"b = 2"}"#;
        assert_eq!(serde_json::to_string(&submission).unwrap(), text);
        assert_eq!(format!("{submission:?}"), "Submission(19 bytes)");
    }
}
