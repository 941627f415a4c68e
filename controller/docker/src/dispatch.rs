//! The driver `docker` over two kinds of engines: daemons that are reached by Docker's API, and the one in the agent.
//!
//! In: attempts. Out: calls of the engine that has the attempt. An attempt and its allocation keep their engine: where one of
//! them exists already, its engine is used. The config only decides for new ones.

use std::{collections::BTreeSet, os::fd::OwnedFd, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{AllocId, driver::EngineChoice, job::Task};
use herdlet_driver::{
    AttemptId, DriverInfo, DriverResult, ExecRequest, ExecSession, Exited, Fingerprint, ImageStore,
    ImageView, Leftover, Recovered, Recovery, Started, StopRequest, TaskConfig, TaskDriver, TaskEvent, Usage,
};
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::{
    builtin::{Builtin, ContainerSetup, Opening, refusal},
    driver::{Containers, OpenError, Setup},
    engine::uses_builtin,
    policy::Policy,
};

/// How often an engine is looked for on a machine that has none.
const SEARCH_PERIOD: Duration = Duration::from_secs(60);

/// The directory of containers of the engine in the agent, in the directory of the driver's records. Its name is no attempt's.
const BUILTIN: &str = "builtin";

/// The driver.
pub struct DockerDriver {
    daemons: Arc<Containers>,
    builtin: Builtin,
    policy: Policy,
}

impl DockerDriver {
    /// Opens the driver. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If an option can't be honoured, or the records can't be read.
    pub fn open(setup: Setup, isolated: ContainerSetup) -> Result<Self, OpenError> {
        let (dir, compute) = (setup.dir.join(BUILTIN), setup.compute());
        let instance = setup.instance.clone();
        let daemons = Arc::new(Containers::open(setup)?);
        let policy = daemons.policy().clone();
        let info = DriverInfo::clone(&daemons.info());
        let opening = Opening { policy: policy.clone(), compute, instance, info, dir: &dir };
        let builtin =
            Builtin::open(opening, isolated).map_err(|source| OpenError::Records { dir, source })?;
        Ok(Self { daemons, builtin, policy })
    }

    /// Whether an attempt is, or would be, one of the engine in the agent.
    fn is_builtin(&self, id: &AttemptId) -> DriverResult<bool> {
        if self.builtin.has(id)? {
            return Ok(true);
        }
        if self.daemons.has(id)? {
            return Ok(false);
        }
        Ok(self.builtin.has_alloc(id.alloc)? || uses_builtin(&self.policy))
    }

    /// Whether daemons may have anything of this agent: one that is not used is not connected to.
    fn uses_daemons(&self) -> bool {
        !uses_builtin(&self.policy) || !self.daemons.is_unused()
    }
}

impl TaskDriver for DockerDriver {
    fn info(&self) -> Arc<DriverInfo> {
        self.daemons.info()
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let (daemons, policy) = (Arc::clone(&self.daemons), self.policy.clone());
        let own = self.builtin.engine.fingerprint();
        let of_builtin = stream::unfold((own, policy.clone()), |(mut own, policy)| async move {
            let next = async {
                if policy.engine == EngineChoice::Builtin {
                    return std::future::pending().await;
                }
                loop {
                    time::sleep(SEARCH_PERIOD).await;
                    if !uses_builtin(&policy) {
                        return;
                    }
                }
            };
            tokio::select! {
                found = own.next() => found.map(|found| (found, (own, policy))),
                // An engine was installed.
                () = next => None,
            }
        });
        let of_daemons = stream::once(async move { daemons.fingerprint() }).flatten();
        match uses_builtin(&policy) {
            true => of_builtin.chain(of_daemons).boxed(),
            false => of_daemons.boxed(),
        }
    }

    fn exits(&self) -> BoxStream<'static, Exited> {
        stream::select(self.daemons.exits(), self.builtin.engine.exits()).boxed()
    }

    fn events(&self) -> BoxStream<'static, TaskEvent> {
        stream::select(self.daemons.events(), self.builtin.events()).boxed()
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        let of_builtin = uses_builtin(&self.policy).then(|| refusal(task)).flatten();
        of_builtin.or_else(|| self.daemons.refusal(task))
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.builtin.engine.set_earlier(known);
        if self.uses_daemons() {
            self.daemons.set_earlier(known);
        }
    }

    fn prepare<'a>(
        &'a self,
        config: &'a TaskConfig,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            match self.is_builtin(&config.id)? {
                true => self.builtin.prepare(config, cancel).await,
                false => self.daemons.prepare(config, cancel).await,
            }
        }
        .boxed()
    }

    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>> {
        async move {
            match self.is_builtin(&config.id)? {
                true => self.builtin.start(config).await,
                false => self.daemons.start(config).await,
            }
        }
        .boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        async move {
            match self.is_builtin(&recovery.id)? {
                true => self.builtin.recover(recovery).await,
                false => self.daemons.recover(recovery).await,
            }
        }
        .boxed()
    }

    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            match self.is_builtin(id)? {
                true => self.builtin.stop(id, how).await,
                false => self.daemons.stop(id, how).await,
            }
        }
        .boxed()
    }

    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            match self.is_builtin(id)? {
                true => self.builtin.destroy(id, leftover).await,
                false => self.daemons.destroy(id, leftover).await,
            }
        }
        .boxed()
    }

    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async move {
            let mut found = self.builtin.list().await?;
            if self.uses_daemons() {
                found.extend(self.daemons.list_attempts().await?);
                found.sort();
                found.dedup();
            }
            Ok(found)
        }
        .boxed()
    }

    fn images(&self) -> BoxFuture<'_, DriverResult<Vec<ImageView>>> {
        async move {
            let mut found = self.builtin.images(&self.info().name).await?;
            if self.uses_daemons() {
                found.extend(self.daemons.images().await?);
            }
            Ok(found)
        }
        .boxed()
    }

    fn image_store(&self) -> Option<Arc<dyn ImageStore>> {
        uses_builtin(&self.policy).then(|| self.builtin.image_store())
    }

    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        async move { self.engine_driver(id)?.stats(id, interval).await }.boxed()
    }

    fn root<'a>(&'a self, alloc: AllocId, task: &'a str) -> BoxFuture<'a, DriverResult<Option<OwnedFd>>> {
        // Files of the agent are in directories that containers share.
        self.builtin.engine.root(alloc, task)
    }

    fn signal<'a>(&'a self, id: &'a AttemptId, signal: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        async move { self.engine_driver(id)?.signal(id, signal).await }.boxed()
    }

    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        async move { self.engine_driver(id)?.exec_streaming(id, request).await }.boxed()
    }
}

impl DockerDriver {
    /// The driver of an attempt's engine, for calls that both have in the same form.
    fn engine_driver(&self, id: &AttemptId) -> DriverResult<&dyn TaskDriver> {
        Ok(if self.is_builtin(id)? { &self.builtin.engine } else { &*self.daemons })
    }
}
