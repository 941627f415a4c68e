//! Starts an attempt.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::fd::AsFd,
    sync::Arc,
};

use herdlet_api_types::job::LogMode;
use herdlet_base::safe_fs::open_logs;
use herdlet_driver::{AttemptId, DriverError, DriverResult, Started, TaskConfig, limits::Limits};
use rustix::fs::{Mode, OFlags};

use super::{
    Shared, Translated,
    failure::{Place, start_error, without_record},
    off_thread,
    supervise::{Cause, NeverRan},
};
use crate::supervisor::{Child, Invocation, Launch, LaunchError, LogFiles, Logs, State, WhenFull, launch};

const MIB: u64 = 1024 * 1024;
/// Attempts that share a lock wait for each other's launch, some milliseconds.
pub(super) const TURNS: usize = 64;
/// An attempt's name is also the name of a file and a directory.
const NAME_LEN_MAX: usize = 255;
/// Log files have a suffix such as `.stdout.4294967295`.
const LOG_NAME_LEN_MAX: usize = NAME_LEN_MAX - 18;

/// An attempt whose supervisor was started.
struct LaunchedAttempt {
    child: Child,
    place: Place,
    messages: Vec<String>,
}

impl Shared {
    pub(super) async fn start(self: &Arc<Self>, config: TaskConfig) -> DriverResult<Started> {
        let id = config.id.clone();
        if id.name().len() > NAME_LEN_MAX || config.dirs.log_name.len() > LOG_NAME_LEN_MAX {
            return Err(DriverError::fatal(format!("start {id}: the task's name is too long")));
        }
        let config = Arc::new(config);
        let place = self.launch_unless_known(&id, &config).await?;
        self.adopt(&id, config, place).await
    }

    /// Launches an attempt that has no supervisor yet. The same attempt has one turn at a time: the second would find its root in use.
    async fn launch_unless_known(
        self: &Arc<Self>,
        id: &AttemptId,
        config: &Arc<TaskConfig>,
    ) -> DriverResult<Option<Place>> {
        let _turn = self.turn_of(id).lock().await;
        if self.find(id).is_some() || self.attempts().record(id)?.is_some() {
            return Ok(None);
        }
        let launched = off_thread({
            let (shared, config) = (Arc::clone(self), Arc::clone(config));
            move || shared.launch(&config)
        })
        .await;
        let LaunchedAttempt { child, place, messages } = match launched {
            Ok(launched) => launched,
            Err(error) => {
                self.remove_unused_cgroup(id).await;
                let (shared, torn_down) = (Arc::clone(self), id.clone());
                if let Err(error) = off_thread(move || shared.translate.tear_down(&torn_down)).await {
                    tracing::warn!(%id, error = error.why(), "failed to remove what was made for a start");
                }
                return Err(error);
            }
        };
        self.begun(id, child).await?;
        for message in messages {
            self.reports().add_message(id.clone(), message);
        }
        Ok(Some(place))
    }

    fn turn_of(&self, id: &AttemptId) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        &self.turns[hasher.finish() as usize % TURNS]
    }

    /// Waits until the attempt is claimed, by this supervisor or by another that came first.
    async fn begun(self: &Arc<Self>, id: &AttemptId, child: Child) -> DriverResult<()> {
        // Always wait for it, or it would remain a zombie.
        let reaped = tokio::spawn(child.wait());
        let claimed = self.attempts().until(id, |record| record.map(|_| ()));
        tokio::select! {
            biased;
            claimed = claimed => Ok(claimed?),
            end = reaped => {
                if self.attempts().record(id)?.is_some() {
                    return Ok(());
                }
                self.remove_unused_cgroup(id).await;
                let why = match end {
                    Ok(Ok(end)) => without_record(end, self.attempts().path()),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                Err(DriverError::retry(format!("start the supervisor of {id}: {why}")))
            }
        }
    }

    /// Supervises a claimed attempt; returns when its process runs. `place`: if this call has launched it.
    async fn adopt(
        self: &Arc<Self>,
        id: &AttemptId,
        config: Arc<TaskConfig>,
        place: Option<Place>,
    ) -> DriverResult<Started> {
        let live = match self.find(id) {
            Some(live) => live,
            None => self.supervise(id, Some(Arc::clone(&config))).await?,
        };
        live.set_config(config);
        let begun = live.begun().await;
        let record = self.attempts().record(id)?;
        match (begun, record.map(|record| record.state)) {
            (_, Some(State::StartFailed { step, errno, .. })) => {
                self.live().remove(id);
                self.remove_unused_cgroup(id).await;
                let place = place.map(|place| place.of_step(step)).unwrap_or_default();
                let error = start_error(step, i32::from(errno), &place);
                if matches!(error, DriverError::Retry(_)) {
                    self.attempts().retract(id)?;
                }
                Err(error)
            }
            (_, Some(State::Tombstone)) => {
                self.live().remove(id);
                Err(DriverError::fatal(format!("start {id}: it was cancelled earlier")))
            }
            (Ok(()), _) => Ok(Started::default()),
            (Err(NeverRan { why, cause }), _) => {
                self.live().remove(id);
                let why = format!("start {id}: {why}");
                match cause {
                    Cause::Machine => {
                        self.attempts().retract(id)?;
                        Err(DriverError::retry(why))
                    }
                    Cause::Task | Cause::Unknown => Err(DriverError::recoverable(why)),
                }
            }
        }
    }

    /// Blocking: name services, files, the clone itself.
    fn launch(&self, task: &TaskConfig) -> DriverResult<LaunchedAttempt> {
        let Translated { mut invocation, processes, user, messages } = self.translate.task(task)?;
        invocation.network = self.translate.network(task)?;
        if let Some(cgroups) = self.setup.isolation.cgroups() {
            let limits = Limits { processes, ..self.translate.limits(task) };
            let cgroup = cgroups.create(&task.id, &limits).map_err(DriverError::retry)?;
            invocation.tasks_files = cgroup.tasks_files();
            invocation.cgroup = Some(cgroup.dir().to_owned());
        }
        let open = |path: &std::path::Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .map_err(|errno| DriverError::retry(format!("open {}: {errno}", path.display())))
        };
        // The supervisor may write where the task may not, so no link in the task's directories is followed.
        let logs_dir = open_logs(&task.dirs.logs).map_err(DriverError::retry)?;
        let runtime_dir = self.attempts().present()?;
        let shims = self.setup.isolation.cgroups().map(|cgroups| open(&cgroups.shims())).transpose()?;
        let child = launch(&Launch {
            program: &self.setup.program,
            record: &task.id.name(),
            driver: self.number.value(),
            runtime_dir: runtime_dir.as_fd(),
            logs_dir: logs_dir.as_fd(),
            invocation: &invocation,
            logs: &logs(task),
            shims_cgroup: shims.as_ref().map(AsFd::as_fd),
            leash: self.setup.leash.as_ref().map(AsFd::as_fd),
        })
        .map_err(launch_error)?;
        let Invocation { program, directory, .. } = invocation;
        Ok(LaunchedAttempt { child, place: Place { program, directory, user }, messages })
    }

    /// Removes the cgroup of a failed start, unless processes run in it.
    async fn remove_unused_cgroup(&self, id: &AttemptId) {
        let Some(cgroup) =
            self.cgroup(id).filter(|cgroup| cgroup.is_populated().is_ok_and(|is_populated| !is_populated))
        else {
            return;
        };
        if let Err(error) = cgroup.remove().await {
            tracing::debug!(%id, %error, "failed to remove the cgroup of a failed start");
        }
    }
}

fn logs(task: &TaskConfig) -> Logs {
    if task.logs.disabled {
        return Logs::Disabled;
    }
    Logs::Files(LogFiles {
        name: task.dirs.log_name.clone(),
        files_max: task.logs.max_files.max(1),
        file_size_max: task.logs.max_file_size_mib.max(1).saturating_mul(MIB),
        when_full: match task.logs.mode {
            LogMode::Drop => WhenFull::Drop,
            LogMode::Block => WhenFull::Block,
        },
    })
}

/// A supervisor that could not be spawned has started nothing. Only a task whose spec can't be encoded is at fault itself.
fn launch_error(error: LaunchError) -> DriverError {
    match error {
        LaunchError::Spec { .. } => DriverError::recoverable(error),
        LaunchError::Handover { .. } | LaunchError::Program { .. } | LaunchError::Spawn { .. } => {
            DriverError::retry(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Step;
    use herdlet_driver::FailureClass as Class;

    #[test]
    fn machine_errors_are_retried() {
        let class = |step, errno| start_error(step, errno, "").class();
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            assert_eq!(class(Step::Exec, errno), Class::Retry);
        }
        // A cgroup that was removed, or that accepts no process.
        assert_eq!(class(Step::Cgroup, libc::ENOENT), Class::Retry);
        assert_eq!(class(Step::Clone, libc::EBUSY), Class::Retry);
        assert_eq!(class(Step::Exec, libc::EIO), Class::Recoverable);
        assert_eq!(class(Step::Directory, libc::ENOENT), Class::Fatal);
        assert_eq!(class(Step::Namespaces, libc::ENOSPC), Class::Retry);
        assert_eq!(class(Step::Namespaces, libc::EPERM), Class::Fatal);
        let source = std::io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(launch_error(LaunchError::Spawn { name: "t".to_owned(), source }).class(), Class::Retry);
    }
}
