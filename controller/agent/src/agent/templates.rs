//! The settings of templates, from the agent's config.

use std::time::Duration;

use herdlet_api_types::Duration as Span;
use herdlet_config::template::Template;
use herdlet_render::{Following, Settings, Wait};

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
    Settings {
        denied: config.function_denylist,
        wait: Wait { min: config.wait.min.to_std(), max: config.wait.max.to_std() },
        wait_min: config.wait_min.to_std(),
        wait_max: config.wait_max.map(Span::to_std),
        following,
    }
}
