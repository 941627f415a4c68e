//! `PUT /v1/herdlet/job/ID/hold`: a job that lives as long as the connection of its client.
//!
//! In: a job. Out: an answer without an end. When the client is gone, however it ended, the agent deletes the job. A shutdown of
//! the agent deletes nothing: the job may run on, as all jobs do.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::JobKey;
use herdlet_plan::event::Command;

use super::{
    Shared,
    error::ApiResult,
    query::{Params, Read},
    stream::{Gone, Pieces, streamed},
};

/// An idle answer sends a line this often, to detect a lost connection.
const IDLE: Duration = Duration::from_secs(15);

/// A job with a client. Dropped when the client is gone or the agent shuts down.
struct Held {
    shared: Arc<Shared>,
    job: JobKey,
}

impl Drop for Held {
    fn drop(&mut self) {
        let is_left = self.shared.known_job(&self.job).is_ok_and(|view| !view.deleting);
        if self.shared.closing.is_cancelled() || !is_left {
            return;
        }
        let (shared, job) = (Arc::clone(&self.shared), self.job.clone());
        tokio::spawn(async move {
            // The client may have deleted it at the same time.
            if let Err(error) = shared.accepted(Command::Delete { job: job.clone() }).await {
                tracing::debug!(%job, ?error, "a job whose client is gone was not deleted");
            }
        });
    }
}

pub(super) async fn hold(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let job = read.job(id);
    shared.known_job(&job)?;
    let held = Held { shared: Arc::clone(&shared), job };
    Ok(streamed(&shared, "text/plain; charset=utf-8", |pieces| until_gone(held, pieces)))
}

async fn until_gone(_held: Held, pieces: Pieces) -> Result<(), Gone> {
    loop {
        pieces.send(b"\n".to_vec()).await?;
        tokio::time::sleep(IDLE).await;
    }
}
