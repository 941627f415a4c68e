//! The agent's log lines for API clients (`GET /v1/agent/monitor`).
//!
//! In: the process's log events, as a layer beside the one that writes to stderr. Out: lines with their level, to all
//! listeners. Without listeners an event costs one read of a counter. A listener that is too slow misses lines; the
//! agent never waits for it.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, LazyLock},
};

use herdlet_api_types::rfc3339::rfc3339;
use tokio::sync::broadcast;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    layer::{Context, Filter, Layer},
    registry::LookupSpan,
};

/// How many lines a slow listener may lag behind.
const LINES_LEN: usize = 1_024;

/// A longer line is cut, because people read it.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// The lowest level that listeners get; anything below is for developers, who read stderr.
pub const LOWEST: LevelFilter = LevelFilter::DEBUG;

static LINES: LazyLock<broadcast::Sender<Arc<Line>>> = LazyLock::new(|| broadcast::Sender::new(LINES_LEN));

/// A log line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub level: Level,
    /// When, RFC 3339.
    pub time: String,
    pub target: String,
    /// The message with its fields.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, time, target, text } = self;
        write!(out, "{time} [{level}] {target}: {text}")
    }
}

/// Subscribes to all further lines.
pub fn listen() -> broadcast::Receiver<Arc<Line>> {
    LINES.subscribe()
}

/// The layer that sends lines to the listeners.
pub(super) fn layer<S: Subscriber + for<'s> LookupSpan<'s>>() -> impl Layer<S> {
    Monitor.with_filter(Listened)
}

struct Monitor;

impl<S: Subscriber> Layer<S> for Monitor {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let Text { mut message, fields, logged_by } = text;
        message.push_str(&fields);
        if message.len() > LINE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(LINE_BYTES_MAX));
        }
        let line = Line {
            level: *about.level(),
            time: rfc3339(herdlet_base::clock::wall_now()).unwrap_or_default(),
            target: logged_by.unwrap_or_else(|| about.target().to_owned()),
            text: message,
        };
        // The last listener may be gone.
        let _ = LINES.send(Arc::new(line));
    }
}

/// Whether an event may be logged by any directives. The client of engines logs whole requests and answers for its developers: they
/// contain the environment of tasks and registries' passwords.
pub(super) fn has_no_bodies(about: &Metadata<'_>) -> bool {
    !about.target().starts_with("bollard") || *about.level() <= Level::INFO
}

/// Whether there are listeners; evaluated for every event.
struct Listened;

impl<S> Filter<S> for Listened {
    fn enabled(&self, about: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        let is_seen = about.is_event() && *about.level() <= LOWEST && has_no_bodies(about);
        is_seen && LINES.receiver_count() > 0
    }

    fn callsite_enabled(&self, about: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        if about.is_event() && *about.level() <= LOWEST {
            tracing::subscriber::Interest::sometimes()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LOWEST)
    }
}

/// An event's message, and its fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    /// The origin of an event of the crate `log`. `tracing-log` passes it in fields, with others that are not needed
    /// here.
    logged_by: Option<String>,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.logged_by = Some(value.to_owned()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn log_lines_reach_subscribers() {
        let subscriber = tracing_subscriber::registry().with(layer());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "monitor-test", "without a listener");
            let mut lines = listen();
            tracing::warn!(target: "monitor-test", alloc = "a1", left = 3, "slow");
            tracing::trace!(target: "monitor-test", "too much");
            tracing::info!(target: "monitor-test", "{}", "ü".repeat(LINE_BYTES_MAX));
            let mut own =
                std::iter::from_fn(|| lines.try_recv().ok()).filter(|line| line.target == "monitor-test");
            let line = own.next().unwrap();
            assert_eq!((line.level, line.text.as_str()), (Level::WARN, "slow alloc=\"a1\" left=3"));
            assert!(line.to_string().ends_with(" [WARN] monitor-test: slow alloc=\"a1\" left=3"), "{line}");
            assert_eq!(own.next().unwrap().text.len(), LINE_BYTES_MAX);
            tracing::info!(target: "log", { log.target = "monitor-test", log.line = 3, left = 3 }, "of a crate");
            assert_eq!(own.next().unwrap().text, "of a crate left=3");
            assert!(own.next().is_none());
        });
    }
}
