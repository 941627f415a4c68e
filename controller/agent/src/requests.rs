//! Requests to the planner, answered in bounded time.
//!
//! In: a command. Out: the planner's answer once it is durable, or why there is none. While the store cannot write, a
//! request is held and is refused after [`STORE_WAIT_MAX`]; the planner never receives it. Stops are not held, because
//! they may free the disk. A request that was accepted and cannot be stored cannot be withdrawn; its error states that
//! the outcome is unknown. A job
//! that a folder of manifests owns is refused here. Beyond that, this module must not know what a command means.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use herdlet_api_types::AllocId;
use herdlet_manifest::owners::{Owner, Owners};
use herdlet_plan::event::Command;
use herdlet_runtime::{Handle, Inbox, StoreHealth};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use crate::{
    networks::AllocNetworks,
    planner::{Answer, Input},
    watch::ports::PortReporter,
};

/// How long a request waits for a store that cannot write: longer than a disk stalls briefly, shorter than the time
/// after which people give up.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Sends requests; cheap to clone.
#[derive(Clone)]
pub struct Requests {
    inbox: Inbox<Input>,
    store: watch::Receiver<StoreHealth>,
    state: Arc<Path>,
    owners: Arc<Owners>,
    /// Reports the ports in use before allocations may be placed or explained.
    ports: Option<Arc<PortReporter>>,
}

/// Why a request has no answer. Each message is a sentence of its own.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It was not accepted and never will be.
    #[error("not accepted, and nothing was changed: {0}; then send the request again")]
    Withheld(String),
    /// It was accepted and is not durable: whether it ever takes effect is unknown.
    #[error(
        "accepted, but not stored yet: it takes effect, possibly in part already, if the state can be written before \
         the agent ends, and is lost otherwise: {0}; then check the result: herdlet status"
    )]
    Open(String),
    /// It was not accepted: a folder of manifests owns the object.
    #[error(transparent)]
    Owned(#[from] Owner),
    /// The loop has ended.
    #[error("the agent is shutting down")]
    Down,
    /// The loop continues without having answered. This is a bug, which it has logged.
    #[error(
        "the agent failed to process the request because of a bug, and nothing was changed; see the agent's log"
    )]
    Lost,
}

impl Requests {
    /// Creates requests to the loop behind `inbox`, whose state is in the directory `state`.
    pub fn new(inbox: Inbox<Input>, handle: &Handle, state: PathBuf, networks: Arc<AllocNetworks>) -> Self {
        let ports = Some(Arc::new(PortReporter::new(inbox.clone(), networks)));
        Self { ports, ..Self::to(inbox, handle.store_health.clone(), state) }
    }

    /// Reports the ports in use; none if requests are made without an agent.
    pub fn ports(&self) -> Option<Arc<PortReporter>> {
        self.ports.clone()
    }

    pub fn to(inbox: Inbox<Input>, store: watch::Receiver<StoreHealth>, state: PathBuf) -> Self {
        Self { inbox, store, state: state.into(), owners: Arc::default(), ports: None }
    }

    /// What folders of manifests own; conflicting requests are refused.
    pub fn owners(&self) -> Arc<Owners> {
        Arc::clone(&self.owners)
    }

    /// Sends a command and waits until its result is durable; while the store cannot write, at most
    /// [`STORE_WAIT_MAX`].
    ///
    /// # Errors
    /// [`RequestError`], which states what is known about the request's effect.
    pub async fn ask(&self, command: Command) -> Result<Answer, RequestError> {
        self.owners.allow(&command)?;
        let mut store = self.store.clone();
        let mut late = Box::pin(sleep(STORE_WAIT_MAX));
        if !is_accepted_while_degraded(&command) {
            tokio::select! {
                biased;
                able = store.wait_for(|health| *health == StoreHealth::Ok) => {
                    able.map(drop).map_err(|_| RequestError::Down)?;
                }
                () = &mut late => return Err(RequestError::Withheld(self.trouble())),
            }
        }
        if let Some(ports) = &self.ports {
            ports.report().await;
        }
        let (sender, answer) = oneshot::channel();
        let sent = self.inbox.send(Input::Request(command, sender)).await;
        sent.map_err(|_| RequestError::Down)?;
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(answer) => Ok(answer),
                Err(_) if self.inbox.is_closed() => Err(RequestError::Down),
                Err(_) => Err(RequestError::Lost),
            },
            () = async { late.await; self.until_degraded().await } => Err(RequestError::Open(self.trouble())),
        }
    }

    /// Waits until the planner has processed everything that it was sent before, and the result is published.
    ///
    /// # Errors
    /// See [`Self::ask`].
    pub async fn settled(&self) -> Result<(), RequestError> {
        // Refused after the commit of its turn, because there is no such allocation.
        self.ask(Command::Explain { alloc: AllocId::from_hash([0; 16]) }).await.map(drop)
    }

    /// Waits until the state cannot be written; never resolves once the loop has ended.
    pub async fn until_degraded(&self) {
        let mut store = self.store.clone();
        if store.wait_for(|health| *health != StoreHealth::Ok).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the state can be written; never resolves once the loop has ended.
    pub async fn until_able(&self) {
        let mut store = self.store.clone();
        if store.wait_for(|health| *health == StoreHealth::Ok).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Why the state cannot be written, and what to do about it; `None` while it can be.
    pub fn degraded(&self) -> Option<String> {
        match &*self.store.borrow() {
            StoreHealth::Ok => None,
            StoreHealth::Degraded { failures, error, .. } => Some(trouble(&self.state, *failures, error)),
        }
    }

    fn trouble(&self) -> String {
        self.degraded().unwrap_or_else(|| "the state could not be written for a moment".to_owned())
    }
}

/// Whether the planner receives the command although the state cannot be written: it changes nothing, or it ends tasks
/// (which does not wait for the commit), perhaps those that fill the disk.
fn is_accepted_while_degraded(command: &Command) -> bool {
    match command {
        Command::Explain { .. } | Command::Stop { .. } | Command::StopAlloc { .. } => true,
        Command::StopFast { stop, .. } => is_accepted_while_degraded(stop),
        Command::Apply { .. }
        | Command::ApplyFolder { .. }
        | Command::Start { .. }
        | Command::Delete { .. }
        | Command::DeleteVersion { .. }
        | Command::Dispatch { .. }
        | Command::ForceLaunch { .. }
        | Command::Revert { .. }
        | Command::Register { .. }
        | Command::Scale { .. }
        | Command::DeleteVolume { .. }
        | Command::SkipShutdownDelay { .. }
        | Command::EndPoststop { .. }
        | Command::Collect { .. }
        | Command::Restart { .. }
        | Command::Signal { .. }
        | Command::SetEligibility { .. }
        | Command::Drain { .. }
        | Command::PauseDeployment { .. }
        | Command::TagVersion { .. }
        | Command::UntagVersion { .. }
        | Command::PromoteDeployment { .. }
        | Command::SetAllocHealth { .. }
        | Command::FailDeployment { .. } => false,
    }
}

fn trouble(state: &Path, failures: u32, error: &str) -> String {
    let tries = match failures {
        0 => String::new(),
        1 => " (1 failed attempt)".to_owned(),
        failures => format!(" ({failures} failed attempts)"),
    };
    format!(
        "the state in {} cannot be written{tries}: {error}; check that its disk has room, is writable and is not \
         damaged: the agent retries every few seconds",
        state.display()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use herdlet_api_types::JobKey;
    use herdlet_plan::event::{Ending, Reply};
    use herdlet_runtime::{Arrivals, CommitIndex, Now};
    use tokio::time::Instant;

    use super::*;

    struct TestEnv {
        requests: Requests,
        store: watch::Sender<StoreHealth>,
        arrivals: Arrivals<Input>,
    }

    fn test_env(health: StoreHealth) -> TestEnv {
        let (inbox, arrivals) = Inbox::with_capacity(4);
        let store = watch::Sender::new(health);
        TestEnv { requests: Requests::to(inbox, store.subscribe(), "/var/lib/x".into()), store, arrivals }
    }

    fn full() -> StoreHealth {
        let error = "write the state database: No space left on device (os error 28)".to_owned();
        StoreHealth::Degraded { since: Now { boot_ns: 0, wall_ns: 0 }, failures: 3, error }
    }

    fn delete_key() -> JobKey {
        JobKey { namespace: "default".into(), id: "web".into() }
    }

    fn delete() -> Command {
        Command::Delete { job: delete_key() }
    }

    #[tokio::test(start_paused = true)]
    async fn request_to_a_failed_store_is_withheld_with_the_cause() {
        let TestEnv { requests, store: _store, mut arrivals } = test_env(full());
        let began = Instant::now();
        let error = requests.ask(delete()).await.unwrap_err();
        assert_eq!(began.elapsed(), STORE_WAIT_MAX);
        let message = error.to_string();
        assert!(matches!(error, RequestError::Withheld(_)), "{message}");
        for part in ["nothing was changed", "/var/lib/x", "No space left on device", "has room"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(arrivals.take().is_none(), "the planner never receives it");
    }

    // While the disk was full, nothing could end the task that filled it.
    #[tokio::test(start_paused = true)]
    async fn a_stop_reaches_the_planner_although_the_store_cannot_write() {
        let stop = || Command::Stop { job: delete_key() };
        let skips = vec![Command::EndPoststop { of: Ending::Job(delete_key()) }];
        let stops = [
            stop(),
            Command::StopAlloc { alloc: AllocId::from_hash([1; 16]) },
            Command::StopFast { stop: Box::new(stop()), skips },
        ];
        for stop in stops {
            let TestEnv { requests, store: _store, mut arrivals } = test_env(full());
            let asked = tokio::spawn(async move { requests.ask(stop).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            let taken = arrivals.take();
            assert!(taken.is_some());
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, RequestError::Open(_)), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_before_a_store_failure_is_reported_as_open() {
        let TestEnv { requests, store, mut arrivals } = test_env(StoreHealth::Ok);
        let began = Instant::now();
        let asked = tokio::spawn(async move { requests.ask(delete()).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = arrivals.take();
        assert!(taken.is_some());
        store.send_replace(full());
        let error = asked.await.unwrap().unwrap_err();
        assert!(matches!(error, RequestError::Open(_)), "{error}");
        assert_eq!(began.elapsed(), STORE_WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_commit_of_a_sound_store_is_waited_for() {
        let TestEnv { requests, store: _store, mut arrivals } = test_env(StoreHealth::Ok);
        let asked = tokio::spawn(async move { requests.ask(delete()).await });
        tokio::time::sleep(STORE_WAIT_MAX * 3).await;
        let Some(Input::Request(_, sender)) = arrivals.take() else { panic!("no request arrived") };
        sender.send(Answer { reply: Reply::Accepted { index: 7 }, index: CommitIndex(7) }).unwrap();
        assert_eq!(asked.await.unwrap().unwrap().index, CommitIndex(7));
    }

    #[tokio::test(start_paused = true)]
    async fn query_is_answered_without_a_store() {
        let TestEnv { requests, store: _store, mut arrivals } = test_env(full());
        let explain = Command::Explain { alloc: AllocId::from_hash([1; 16]) };
        let asked = tokio::spawn(async move { requests.ask(explain).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(arrivals.take());
        let error = asked.await.unwrap().unwrap_err();
        assert!(matches!(error, RequestError::Lost), "{error}");
    }
}
