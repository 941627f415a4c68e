//! The agent's readiness, and notifications to the service manager.
//!
//! In: the gates of what must happen first. Out: why the agent is not ready, for `/readyz`; `READY=1`; and `STATUS=` with the
//! number of converged jobs, or a problem.
//!
//! Ready means that the state is restored, and that every folder of manifests was read or found unreadable. READY=1 is sent
//! then, or when the state can't be written, or after a while: by then the agent serves and knows what runs, and a service
//! that is killed for a slow start would not get further the next time.

use std::{path::PathBuf, sync::Arc, time::Duration};

use herdlet_agent::{agent::folder::FolderSource, publish::ReadModel, requests::Requests, telemetry::Gauges};
use herdlet_runtime::{BootClock, Clock as _, Gate};
use sd_notify::NotifyState;

use super::systemd::notify;

/// Longest delay of READY=1. systemd waits 90 s by default.
const READY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Shortest interval of status messages, because many changes may come at once.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// What must happen before the agent is ready; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Readiness {
    restored: Gate,
    folders: Vec<(PathBuf, Gate)>,
}

impl Readiness {
    pub(super) fn new(restored: Gate, folders: &[FolderSource]) -> Self {
        let folders = folders.iter().map(|folder| (folder.dir().to_owned(), folder.tried())).collect();
        Self { restored, folders }
    }

    /// Why the agent is not ready; none if it is.
    pub(super) fn why_not(&self) -> Option<String> {
        if !self.restored.is_open() {
            return Some("the state is being restored".to_owned());
        }
        let unread = self.folders.iter().filter(|(_, tried)| !tried.is_open());
        let unread: Vec<String> = unread.map(|(dir, _)| dir.display().to_string()).collect();
        (!unread.is_empty()).then(|| format!("manifests are being read and applied: {}", unread.join(", ")))
    }

    /// Resolves when every folder was read or found unreadable.
    pub(super) async fn until_folders_read(self) {
        for (_, tried) in &self.folders {
            if tried.opened().await.is_err() {
                // The folder's task is gone, and with it the agent.
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) async fn reached(self) {
        if self.restored.opened().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.until_folders_read().await;
    }

    /// Sends READY=1 once, and then the status whenever it changes.
    pub(super) async fn notify_service_manager(
        self,
        requests: Requests,
        model: Arc<ReadModel>,
        socket: PathBuf,
    ) {
        notify(&[NotifyState::Status("restoring the state, reading manifests")]);
        tokio::select! {
            biased;
            () = self.clone().reached() => {}
            () = requests.until_degraded() => {}
            () = tokio::time::sleep(READY_WAIT_MAX) => {}
        }
        let mut reported = self.status(&requests, &model);
        notify(&[NotifyState::Status(&reported), NotifyState::Ready]);
        match requests.degraded().or_else(|| self.why_not()) {
            None => tracing::info!(socket = %socket.display(), "ready"),
            Some(why) => tracing::warn!(socket = %socket.display(), why, "serving, but with a problem"),
        }
        // Without systemd, the status has no reader.
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return;
        }
        loop {
            let version = model.version();
            let status = self.status(&requests, &model);
            if status != reported {
                notify(&[NotifyState::Status(&status)]);
                reported = status;
            }
            tokio::time::sleep(STATUS_EVERY).await;
            let other = async {
                match requests.degraded() {
                    None => requests.until_degraded().await,
                    Some(_) => requests.until_able().await,
                }
            };
            tokio::select! {
                () = model.changed(version) => {}
                () = other => {}
                () = self.clone().reached(), if self.why_not().is_some() => {}
            }
        }
    }

    /// A problem, else the number of converged jobs, in a line.
    fn status(&self, requests: &Requests, model: &ReadModel) -> String {
        let degraded = requests.degraded().map(|why| format!("degraded: {why}"));
        degraded.or_else(|| self.why_not()).unwrap_or_else(|| {
            let gauges = Gauges::of(model, BootClock.now().boot_ns);
            let ((converged, jobs), overdue) = (gauges.jobs(), gauges.overdue.values().sum::<u64>());
            let line = format!("{converged}/{jobs} converged");
            if overdue > 0 { format!("{line}, {overdue} overdue") } else { line }
        })
    }
}
