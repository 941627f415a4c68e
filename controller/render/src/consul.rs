//! Keys, services, nodes and certificates of a Consul, for templates.
//!
//! In: one read, with the token of a task or the agent's own. Out: the data as templates see it, with its index. Watches
//! nothing by itself: see [`crate::servers`].

mod answer;
mod query;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_services::catalog::{ConsulReader, DataError, DataRequest, DataResponse};
use herdlet_template::{Answer, Query, source::unavailable};

use self::query::{ConsulQuery, NODE_NAME};
use crate::region::{Newer, Region, RegionAnswer, RegionError, RegionRequest};

/// Time limit for an answer that does not block: a little less than that of an operation.
const WITHIN: Duration = Duration::from_secs(8);

/// Paths without an index are read again in this period.
const PERIOD: Duration = Duration::from_secs(60);

/// A Consul as a source of templates.
#[derive(Debug)]
pub struct ConsulData {
    reader: ConsulReader,
    /// The namespace of queries that name none; empty for the token's.
    namespace: String,
}

impl ConsulData {
    /// Sends no request.
    pub fn new(reader: ConsulReader, namespace: String) -> Self {
        Self { reader, namespace }
    }

    async fn answer(&self, request: &RegionRequest) -> Result<RegionAnswer, RegionError> {
        let Query::Consul { function, arguments } = &request.query else {
            return Err(RegionError::Failed(unavailable(&request.query)));
        };
        let query = ConsulQuery::parse(function, arguments).map_err(RegionError::Failed)?;
        let path = match query.path(NODE_NAME) {
            path if query.needs_node_name() => {
                let name = self.node_name(request).await?;
                query.path(&name).or(path)
            }
            path => path,
        };
        let path = path.ok_or_else(|| RegionError::Failed("`.` and `..` can't be parts of it".to_owned()))?;
        let mut given = query.arguments();
        let namespace = Some(&request.namespace).filter(|own| !own.is_empty()).unwrap_or(&self.namespace);
        if !namespace.is_empty() && given.iter().all(|(name, _)| *name != "ns") {
            given.push(("ns", namespace.clone()));
        }
        if !request.partition.is_empty() && given.iter().all(|(name, _)| *name != "partition") {
            given.push(("partition", request.partition.clone()));
        }
        let within = match request.newer {
            Newer::Now => WITHIN,
            Newer::Than { block, .. } if !query.blocks() => {
                tokio::time::sleep(block.min(PERIOD)).await;
                WITHIN
            }
            Newer::Than { index, block } => {
                given.push(("index", index.to_string()));
                given.push(("wait", format!("{}ms", block.as_millis())));
                if query.may_be_stale() {
                    given.push(("stale", String::new()));
                }
                // Consul adds up to a sixteenth.
                block + block / 16 + WITHIN
            }
        };
        let token = request.token.reveal();
        let asked = self.reader.data(DataRequest { path: &path, arguments: &given, token, within });
        match asked.await {
            Ok(found) => known(&query, found),
            Err(DataError::Absent { index: Some(index) }) if query.kind.may_be_absent() => {
                Ok(RegionAnswer { index, answer: Answer::Absent, last_contact: Duration::ZERO })
            }
            Err(error) => Err(meaning(error)),
        }
    }

    /// The name of the node at which Consul's agent runs.
    async fn node_name(&self, request: &RegionRequest) -> Result<String, RegionError> {
        let token = request.token.reveal();
        let own = DataRequest { path: "/v1/agent/self", arguments: &[], token, within: WITHIN };
        let found = self.reader.data(own).await.map_err(meaning)?;
        answer::node_name(&found.body).ok_or_else(|| RegionError::Failed("it has no name".to_owned()))
    }
}

/// The port to a Consul for the watches of templates.
#[derive(Debug, Clone)]
pub struct ConsulRegion(pub Arc<ConsulData>);

impl Region for ConsulRegion {
    fn read(&self, request: RegionRequest) -> BoxFuture<'static, Result<RegionAnswer, RegionError>> {
        let data = Arc::clone(&self.0);
        async move { data.answer(&request).await }.boxed()
    }
}

fn known(query: &ConsulQuery, found: DataResponse) -> Result<RegionAnswer, RegionError> {
    if !found.has_leader {
        // A server that has just started may not have loaded its data.
        return Err(RegionError::Away("its servers have no leader".to_owned()));
    }
    let DataResponse { body, index, last_contact, .. } = found;
    let wrong = |why: String| RegionError::Failed(format!("it answers {why}"));
    let index = match index {
        None if query.blocks() => return Err(wrong("without an index".to_owned())),
        // The time grows too.
        None => now(),
        Some(index) => index,
    };
    Ok(RegionAnswer { index, answer: answer::read(query, &body).map_err(wrong)?, last_contact })
}

fn meaning(error: DataError) -> RegionError {
    match error {
        DataError::Unreachable(why) => RegionError::Away(why),
        DataError::Absent { .. } => RegionError::Failed("it does not exist".to_owned()),
        DataError::Denied(why) => RegionError::Denied(why),
        DataError::Failed(why) => RegionError::Failed(why),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
