//! A driver for tests of code that calls drivers. It runs nothing; tests supply its behaviour as functions.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, ready},
    stream::BoxStream,
};

use tokio_util::sync::CancellationToken;

use super::{
    AttemptId, DriverError, DriverInfo, DriverResult, ExecRequest, ExecSession, Exited, Fingerprint,
    Leftover, Outlet, Recovered, Recovery, Started, StopRequest, TaskConfig, TaskDriver, Usage,
};

/// A stream of measurements.
pub type Measurements = BoxStream<'static, DriverResult<Usage>>;

type Stats = dyn Fn(&AttemptId) -> DriverResult<Measurements> + Send + Sync;
type Recover = dyn Fn(&AttemptId) -> DriverResult<Recovered> + Send + Sync;
type Exec = dyn Fn(ExecRequest) -> DriverResult<ExecSession> + Send + Sync;
type BeforeList = dyn Fn() -> BoxFuture<'static, DriverResult<()>> + Send + Sync;

/// The driver.
pub struct StandIn {
    info: Arc<DriverInfo>,
    stats: Option<Box<Stats>>,
    exec: Option<Box<Exec>>,
    recover: Option<Box<Recover>>,
    preparation: SlowPreparation,
    before_list: Option<Box<BeforeList>>,
    /// Fingerprints it reports.
    pub fingerprints: Outlet<Fingerprint>,
    /// Exits it reports.
    pub exits: Outlet<Exited>,
    /// The attempts it was handed over, and those that it lists.
    pub earlier: Mutex<BTreeSet<AttemptId>>,
}

/// Whether preparations last until they are cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlowPreparation {
    No,
    Yes,
}

impl StandIn {
    /// A driver with this description.
    pub fn new(info: DriverInfo) -> Self {
        let (fingerprints, exits) = (Outlet::default(), Outlet::default());
        Self {
            info: Arc::new(info),
            stats: None,
            exec: None,
            recover: None,
            preparation: SlowPreparation::No,
            before_list: None,
            fingerprints,
            exits,
            earlier: Mutex::default(),
        }
    }

    /// Sets the function that measures attempts.
    #[must_use]
    pub fn with_stats(
        self,
        stats: impl Fn(&AttemptId) -> DriverResult<Measurements> + Send + Sync + 'static,
    ) -> Self {
        Self { stats: Some(Box::new(stats)), ..self }
    }

    /// Sets the function that recovers attempts.
    #[must_use]
    pub fn with_recover(
        self,
        recover: impl Fn(&AttemptId) -> DriverResult<Recovered> + Send + Sync + 'static,
    ) -> Self {
        Self { recover: Some(Box::new(recover)), ..self }
    }

    /// Sets what each list of attempts waits for first. If it fails, the list fails.
    #[must_use]
    pub fn with_lists_after(
        self,
        before: impl Fn() -> BoxFuture<'static, DriverResult<()>> + Send + Sync + 'static,
    ) -> Self {
        Self { before_list: Some(Box::new(before)), ..self }
    }

    /// Lets preparations last until they are cancelled.
    #[must_use]
    pub fn with_slow_preparation(self) -> Self {
        Self { preparation: SlowPreparation::Yes, ..self }
    }

    /// Sets the function that executes commands.
    #[must_use]
    pub fn with_exec(
        self,
        exec: impl Fn(ExecRequest) -> DriverResult<ExecSession> + Send + Sync + 'static,
    ) -> Self {
        Self { exec: Some(Box::new(exec)), ..self }
    }
}

impl Default for StandIn {
    fn default() -> Self {
        Self::new(DriverInfo { name: "stand_in".to_owned(), ..DriverInfo::mock() })
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandIn").field(&self.info.name).finish()
    }
}

impl TaskDriver for StandIn {
    fn info(&self) -> Arc<DriverInfo> {
        Arc::clone(&self.info)
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let fingerprints = self.fingerprints.stream();
        // A fingerprint without a description ends the stream.
        fingerprints.take_while(|fingerprint| ready(!fingerprint.description.is_empty())).boxed()
    }

    fn exits(&self) -> BoxStream<'static, Exited> {
        // An exit of attempt 0 ends the stream.
        self.exits.stream().take_while(|exited| ready(exited.id.attempt > 0)).boxed()
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner).clone_from(known);
    }

    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        let before = self.before_list.as_ref().map(|before| before());
        async {
            if let Some(before) = before {
                before.await?;
            }
            Ok(self.earlier.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect())
        }
        .boxed()
    }

    fn prepare<'a>(
        &'a self,
        _: &'a TaskConfig,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            if self.preparation == SlowPreparation::Yes {
                cancel.cancelled().await;
                return Err(DriverError::retry("prepare it: it was withdrawn"));
            }
            Ok(())
        }
        .boxed()
    }

    fn start(&self, _: TaskConfig) -> BoxFuture<'_, DriverResult<Started>> {
        async { Ok(Started::default()) }.boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        let known = self.recover.as_ref().map(|recover| recover(&recovery.id));
        async { known.unwrap_or(Ok(Recovered::Running(Started::default()))) }.boxed()
    }

    fn stop<'a>(&'a self, _: &'a AttemptId, _: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        async { Ok(()) }.boxed()
    }

    fn destroy<'a>(&'a self, _: &'a AttemptId, _: Leftover) -> BoxFuture<'a, DriverResult<()>> {
        async { Ok(()) }.boxed()
    }

    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        _: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        async move {
            match &self.stats {
                Some(stats) => stats(id),
                None => Err(DriverError::Unsupported { ability: "statistics" }),
            }
        }
        .boxed()
    }

    fn exec_streaming<'a>(
        &'a self,
        _: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        async move {
            match &self.exec {
                Some(exec) => exec(request),
                None => Err(DriverError::Unsupported { ability: "executing commands" }),
            }
        }
        .boxed()
    }
}
