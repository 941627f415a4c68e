//! Following an engine: whether it answers, and what becomes of an owner's containers.
//!
//! In: the engine's events, probes, the appearance of its socket. Out: reports for a [`Listener`], in order.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{
    errors::Error,
    models::{EventMessage, EventMessageTypeEnum},
    query_parameters::EventsOptionsBuilder,
};
use futures_util::{FutureExt as _, StreamExt as _};
use herdlet_base::directory::{DirectoryWatch, Interests};
use tokio::time;

use super::{Continuity, Engine, EngineReport, List, Listener, daemon::Last};
use crate::{failure, names::Owner};

/// How long a missing socket is waited for without looking for it.
const SEARCH_MAX: Duration = Duration::from_secs(60);
/// Nomad's period of fingerprints: a daemon that hangs sends no event, and Docker reloads its configuration without one of a container.
pub(super) const PROBE_PERIOD: Duration = Duration::from_secs(30);
/// Waits between connections to an engine that is down. A socket's directory can't always be watched.
const AGAIN_MIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(5);

impl Engine {
    /// Follows the engine until the future is dropped: whether it answers, and the containers of an owner. Each connection begins
    /// with a list, so that nothing between two connections is missed.
    ///
    /// `memory` is a file that identifies the daemon over restarts of the agent.
    pub(crate) async fn follow(self: Arc<Self>, owner: Owner, listener: Arc<dyn Listener>, memory: PathBuf) {
        let mut delay = AGAIN_MIN;
        let mut last = Last::read(memory);
        loop {
            let began = time::Instant::now();
            let why = match self.follow_once(&owner, listener.as_ref(), &mut last).await {
                // Podman ends a stream of events when it rotates their file, and still answers. An event that can't be read
                // ends the client's stream, although the engine still answers.
                Ok(_) if began.elapsed() > AGAIN_MIN => {
                    self.forget_client();
                    continue;
                }
                Ok(why) | Err(why) => why,
            };
            self.went_down(&why);
            if began.elapsed() > AGAIN_MAX {
                delay = AGAIN_MIN;
            }
            if self.place.socket.exists() {
                time::sleep(delay).await;
                delay = (delay * 2).min(AGAIN_MAX);
            } else {
                self.socket_may_appear().await;
            }
        }
    }

    /// Waits for a change of the deepest directory of the socket's path that exists.
    async fn socket_may_appear(&self) {
        let dir = self.place.socket.ancestors().skip(1).find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        // Before the socket is looked for again, so that its creation is not missed.
        match DirectoryWatch::open(dir, Interests::Names) {
            Ok(watch) if !self.place.socket.exists() => {
                let _ = time::timeout(SEARCH_MAX, watch.changed()).await;
            }
            Ok(_) => {}
            Err(_) => time::sleep(SEARCH_MAX).await,
        }
    }

    /// Follows one connection until its events end, and returns how.
    ///
    /// # Errors
    /// Why the engine does not answer; continues "failed to".
    async fn follow_once(
        self: &Arc<Self>,
        owner: &Owner,
        listener: &dyn Listener,
        last: &mut Last,
    ) -> Result<String, String> {
        if !self.place.socket.exists() {
            return Err(format!("reach {}: its socket does not exist; is it running?", self.place));
        }
        let client = self.client().await?;
        // Since before the list: what happens in between is reported twice rather than not at all. One second more, because the
        // engine rounds.
        let asked = herdlet_base::clock::wall_now();
        let since = asked.0 / 1_000_000_000 - 1;
        let mut filters: HashMap<String, Vec<String>> = HashMap::new();
        filters.insert("type".to_owned(), vec!["container".to_owned()]);
        let options = EventsOptionsBuilder::new().since(&since.to_string()).filters(&filters).build();
        // Both at once: an agent that starts waits for them.
        let (_, all) = tokio::try_join!(self.probe(), self.containers(owner))?;
        // Podman's containers have processes of their own that store their output.
        let stores = self.about().is_some_and(|about| about.is_docker());
        let was_restarted = last.is_another(&self.place.socket) && stores;
        let continuity = if was_restarted { Continuity::Restarted } else { Continuity::Kept };
        listener.report(self, EngineReport::Listed(List { all, asked }, continuity)).await;
        let mut events = std::pin::pin!(client.events(Some(options)));
        let mut probes = time::interval_at(time::Instant::now() + PROBE_PERIOD, PROBE_PERIOD);
        probes.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = probes.tick() => match self.ping_or_probe(&client).await {
                    Ok(()) => continue,
                    Err(why) => {
                        last.is_cut = matches!(events.next().now_or_never(), Some(None | Some(Err(_))));
                        return Err(why);
                    }
                },
            };
            match event {
                Some(Ok(event)) if is_ours(&event, owner) => {
                    listener.report(self, EngineReport::Changed(event)).await
                }
                Some(Ok(_)) => {}
                // An event that can't be read ends the client's stream. What it was about is in the next list.
                Some(Err(error @ (Error::JsonDataError { .. } | Error::JsonSerdeError { .. }))) => {
                    return Ok(format!("follow {}: {}", self.place, failure::sentence(&error)));
                }
                Some(Err(error)) => {
                    last.is_cut = failure::meaning(&error) == failure::Meaning::Unreachable
                        && !matches!(error, Error::RequestTimeoutError);
                    return Err(format!("follow {}: {}", self.place, failure::sentence(&error)));
                }
                None => {
                    last.is_cut = true;
                    return Ok(format!("follow {}: it closed the connection", self.place));
                }
            }
        }
    }
}

fn is_ours(event: &EventMessage, owner: &Owner) -> bool {
    let attributes = event.actor.as_ref().and_then(|actor| actor.attributes.as_ref());
    event.typ == Some(EventMessageTypeEnum::CONTAINER) && attributes.is_some_and(|all| owner.owns(all))
}
