//! `PUT /v1/herdlet/job/ID/hold`: a job for one command, which lives as long as the connection of its client.
//!
//! In: the id of a job, which may not exist yet: a client that holds it before it creates it cannot leave it behind. Out: an answer
//! without an end. When the client is gone, however it ended, the agent deletes the job. A shutdown of the agent deletes nothing:
//! the job may run on, as all jobs do. Jobs without the label of such a job are never deleted.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{JobKey, job::RUN_OF};
use herdlet_plan::event::Command;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, Read},
    stream::{Gone, Pieces, streamed},
};

/// An idle answer sends a line this often, to detect a lost connection.
const IDLE: Duration = Duration::from_secs(15);

/// A job that its client has just asked for is in the state after this time.
const CREATION_TIME_MAX: Duration = Duration::from_secs(10);

/// A job with a client. Dropped when the client is gone or the agent shuts down.
struct Held {
    shared: Arc<Shared>,
    job: JobKey,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.shared.closing.is_cancelled() {
            return;
        }
        let (shared, job) = (Arc::clone(&self.shared), self.job.clone());
        tokio::spawn(async move {
            // The client may have been killed while the job was being accepted.
            let _ = tokio::time::timeout(CREATION_TIME_MAX, delete(&shared, &job)).await;
        });
    }
}

/// Deletes the job once it exists.
async fn delete(shared: &Shared, job: &JobKey) {
    let view = loop {
        let version = shared.model.version();
        match shared.known_job(job) {
            Ok(view) => break view,
            Err(_) => shared.model.changed(version).await,
        }
    };
    if view.deleting || !view.job.is_one_off() || shared.closing.is_cancelled() {
        return;
    }
    let delete = Command::DeleteVersion { job: job.clone(), version: view.version };
    if let Err(error) = shared.accepted(delete).await {
        tracing::warn!(%job, ?error, "a job whose client is gone was not deleted");
    }
}

pub(super) async fn hold(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let job = read.job(id);
    if shared.known_job(&job).is_ok_and(|view| !view.job.is_one_off()) {
        return Err(ApiError::BadRequest(format!(
            "job {job} has no label {RUN_OF}: only a job of `herdlet run JOB -- COMMAND` ends with its client"
        )));
    }
    let held = Held { shared: Arc::clone(&shared), job };
    Ok(streamed(&shared, "text/plain; charset=utf-8", |pieces| until_gone(held, pieces)))
}

async fn until_gone(_held: Held, pieces: Pieces) -> Result<(), Gone> {
    loop {
        pieces.send(b"\n".to_vec()).await?;
        tokio::time::sleep(IDLE).await;
    }
}
