//! The settings of templates, from the agent's config, and the reports of new data to the planner.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdlet_api_types::Duration as Span;
use herdlet_config::template::Template;
use herdlet_plan::{
    event::Event,
    op::{Part, TaskPart},
};
use herdlet_render::{ConsulData, ConsulRegion, Consumer, DataChange, Following, Region, Settings, Wait};
use herdlet_runtime::Inbox;
use herdlet_services::catalog::{ConsulConfig, ConsulError, ConsulReader};
use tokio::sync::mpsc;

use crate::planner::Input;

pub(super) fn settings(config: Template) -> Settings {
    let mut following = Following::default();
    let set = |setting: &mut Duration, value: Option<Span>| {
        if let Some(value) = value {
            *setting = value.to_std();
        }
    };
    set(&mut following.block, config.block_query_wait);
    set(&mut following.retry_first, config.retry_backoff);
    set(&mut following.retry_longest, config.retry_backoff_max);
    set(&mut following.max_stale, config.max_stale);
    set(&mut following.retry_of_consul.0, config.consul_retry_backoff);
    set(&mut following.retry_of_consul.1, config.consul_retry_backoff_max);
    Settings {
        denied: config.function_denylist,
        wait: Wait { min: config.wait.min.to_std(), max: config.wait.max.to_std() },
        wait_min: config.wait_min.to_std(),
        wait_max: config.wait_max.map(Span::to_std),
        following,
    }
}

/// Each Consul as a source of templates, by its name. No request is sent before a template needs it.
///
/// # Errors
/// If the HTTP client can't be created.
pub(super) fn consuls(
    configs: &BTreeMap<String, ConsulConfig>,
) -> Result<BTreeMap<String, Arc<dyn Region>>, ConsulError> {
    let region = |(name, config): (&String, &ConsulConfig)| {
        let data = ConsulData::new(ConsulReader::new(config)?, config.namespace().to_owned());
        let region: Arc<dyn Region> = Arc::new(ConsulRegion(Arc::new(data)));
        Ok((name.clone(), region))
    };
    configs.iter().map(region).collect()
}

/// Passes on which tasks have templates with new data.
pub(super) async fn report_changes(mut changes: mpsc::Receiver<DataChange>, inbox: Inbox<Input>) {
    let part = |index, consumer| match consumer {
        Consumer::Secrets => Part::Task(index, TaskPart::Secrets),
        Consumer::Templates => Part::Task(index, TaskPart::Templates),
    };
    while let Some(change) = changes.recv().await {
        let event = match change {
            DataChange::Begun((alloc, index, consumer)) => {
                Event::SourceChanging { alloc, part: part(index, consumer) }
            }
            DataChange::Due((alloc, index, consumer)) => {
                Event::SourceChanged { alloc, part: part(index, consumer) }
            }
            DataChange::Flushed(done) => {
                // The caller may have gone away.
                let _ = done.send(());
                continue;
            }
        };
        if inbox.send(Input::Event(event)).await.is_err() {
            return;
        }
    }
}
