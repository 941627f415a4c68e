//! The attributes that Consul's agents give to this node: `consul.version` and others, for constraints of jobs.
//!
//! In: the Consul agents, and the published jobs. Out: attributes under Nomad's names. They stay as they are while Consul does
//! not answer: an interruption does not change where a job may run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use herdlet_api_types::job::{ConsulAccess, Job};
use herdlet_services::catalog::{ConsulConfig, ConsulError, ConsulFingerprint, ConsulReader};
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time::{MissedTickBehavior, interval, timeout},
};

use crate::publish::{Object, ReadModel};

/// Interval of queries, as in Nomad. Consul reports no event when its version changes.
const PERIOD: Duration = Duration::from_secs(15);
/// Time limit for a query.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Attributes by name.
pub(super) type Attributes = BTreeMap<String, String>;

/// Queries Consul agents.
#[derive(Debug)]
pub(super) struct ConsulAttributes {
    readers: BTreeMap<String, (ConsulReader, bool)>,
    sender: watch::Sender<BTreeMap<String, Attributes>>,
}

impl ConsulAttributes {
    /// Sends no request yet. The receiver has the attributes by the name of the Consul.
    ///
    /// # Errors
    /// If an HTTP client can't be created.
    pub(super) fn new(
        configs: &BTreeMap<String, ConsulConfig>,
    ) -> Result<(Self, watch::Receiver<BTreeMap<String, Attributes>>), ConsulError> {
        let (sender, receiver) = watch::channel(BTreeMap::new());
        let reader = |(name, config): (&String, &ConsulConfig)| {
            Ok((name.clone(), (ConsulReader::new(config)?, config.is_named())))
        };
        let readers = configs.iter().map(reader).collect::<Result<_, ConsulError>>()?;
        Ok((Self { readers, sender }, receiver))
    }

    /// Queries the agents until this one ends. An agent whose address nobody has configured is queried only once a job
    /// needs Consul.
    pub(super) async fn follow(self, model: Arc<ReadModel>) {
        let Self { readers, sender } = &self;
        let others = readers.keys().filter(|name| *name != ConsulAccess::DEFAULT_CLUSTER);
        let others: Vec<String> = others.map(|name| format!("consul.{name}.")).collect();
        let all = readers.iter().map(async |(name, (reader, is_named))| {
            if !is_named {
                until_needed(&model, &others).await;
            }
            follow_one(name, reader, sender).await;
        });
        join_all(all).await;
    }
}

async fn follow_one(name: &str, reader: &ConsulReader, sender: &watch::Sender<BTreeMap<String, Attributes>>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(found) = timeout(ANSWER_MAX, ConsulFingerprint::query(reader)).await.ok().flatten() else {
            continue;
        };
        let found = found.of_cluster(name).attributes;
        sender.send_if_modified(|known| known.insert(name.to_owned(), found.clone()) != Some(found));
    }
}

/// Resolves once a job has a service in the Consul `default`, or a constraint on an attribute of Consul.
async fn until_needed(model: &ReadModel, others: &[String]) {
    let mut changes = model.changes();
    let needs_consul = |job: &Job| needs_consul(job, others);
    if model.jobs().iter().any(|view| needs_consul(&view.job)) {
        return;
    }
    loop {
        let is_needed = match changes.recv().await {
            Ok(change) => match change.object {
                Object::Job(key) => model.job(&key).is_some_and(|view| needs_consul(&view.job)),
                Object::Alloc(_) | Object::Volume(_) | Object::Node => false,
            },
            Err(RecvError::Lagged(_)) => model.jobs().iter().any(|view| needs_consul(&view.job)),
            Err(RecvError::Closed) => return std::future::pending().await,
        };
        if is_needed {
            return;
        }
    }
}

/// Whether a job needs the Consul `default`. The attributes of the others begin with the names in `others`.
fn needs_consul(job: &Job, others: &[String]) -> bool {
    let of_groups = job.groups.iter().flat_map(|group| {
        group.constraints.iter().chain(group.tasks.iter().flat_map(|task| &task.constraints))
    });
    job.consul_clusters().contains(ConsulAccess::DEFAULT_CLUSTER)
        || job.constraints.iter().chain(of_groups).any(|constraint| {
            let texts = [&*constraint.attribute, &*constraint.value];
            texts.iter().any(|text| has_attribute(text, others))
        })
}

/// Whether a text has an attribute of the Consul `default`.
fn has_attribute(text: &str, others: &[String]) -> bool {
    let names = ["attr.", "attr.unique."].into_iter().flat_map(|kind| text.split(kind).skip(1));
    let is_of_default = |name: &str| {
        name.starts_with("consul.") && !others.iter().any(|other| name.starts_with(other.as_str()))
    };
    names.into_iter().any(is_of_default)
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::constraint::{Constraint, Operator};
    use herdlet_manifest::fixture::job;

    use super::*;

    #[test]
    fn constraints_on_attributes_of_consul_need_it() {
        let needs = |attribute: &str| {
            let mut job = Job::clone(&job("web", "g", "t"));
            let (attribute, value) = (attribute.to_owned(), ">= 1.7.0".to_owned());
            job.groups[0].tasks[0].constraints =
                vec![Constraint { attribute, operator: Operator::Semver, value }];
            needs_consul(&job, &["consul.eu.".to_owned()])
        };
        assert!(needs("${attr.consul.version}") && needs("${attr.unique.consul.name}"));
        assert!(needs("${attr.consul.eu.version} ${attr.consul.version}") && needs("${attr.consul.europe}"));
        assert!(!needs("${attr.kernel.version}"));
        // The agent asked a Consul at the default address, which the machine does not have.
        assert!(!needs("${attr.consul.eu.version}") && !needs("${attr.unique.consul.eu.name}"));
    }
}
