//! Logs: what is written to stderr, and in which format.
//!
//! In: directives, a format, and the type of stderr. Out: the process's subscriber. Events go to stderr and to the
//! API's listeners ([`super::monitor`]). If stderr is systemd's journal, text goes to the journal with its fields
//! ([`super::journal`]) or, if its socket is missing, as lines with priorities and without times, which the journal
//! adds. It must not know what is logged.
//!
//! Directives are those of `RUST_LOG` (`info`, `info,herdlet=debug`, `herdlet[start{alloc=…}]=trace`), but a single
//! word must be a level: other programs take a typo (`inof`) for a module and silence everything else.

use std::{fmt, path::Path};

use herdlet_config::{
    LogFormat,
    log_filter::{check_directives, directives_from_env, env_set, parse},
};
use tracing::{Event, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer as _, Registry,
    filter::{FilterExt as _, filter_fn},
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    reload,
    util::{SubscriberInitExt as _, TryInitError},
};

use super::{
    journal::{self, Journal, priority},
    monitor::{self, has_no_bodies},
};

/// The default directives of commands. `simulate` has thousands of sessions with servers and reports by itself what
/// prevents them.
const COMMAND_DIRECTIVES: &str = "warn,herdlet_nomad=error,herdlet_rpc=error";

/// The type of stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// A terminal with colours.
    Colours,
    /// A terminal without colours, a file, a pipe.
    Plain,
    /// The journal of systemd.
    Journal,
}

/// Why logging cannot be set up. The messages continue "failed to".
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directives are invalid.
    #[error("read the log level: {0}")]
    Directives(String),
    /// The process has a subscriber already.
    #[error("set up logs")]
    Taken(#[source] TryInitError),
    /// The subscriber is gone.
    #[error("change the log level")]
    Gone(#[source] reload::Error),
}

/// The directives in force, which can be replaced.
#[derive(Debug, Clone)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Replaces the directives.
    ///
    /// # Errors
    /// When they are invalid; the previous ones stay in force.
    pub fn set(&self, directives: &str) -> Result<(), LogError> {
        let filter = parse(directives).map_err(LogError::Directives)?;
        self.0.reload(filter).map_err(LogError::Gone)
    }
}

/// Sets up logging to stderr. The result changes the level later.
///
/// # Errors
/// When the directives are invalid, or the process has a subscriber already.
pub fn init(directives: &str, format: LogFormat) -> Result<LogLevel, LogError> {
    let sink = Sink::of_stderr(variable);
    let (subscriber, level) =
        subscriber(directives, format, sink, Path::new(journal::SOCKET), std::io::stderr)?;
    subscriber.try_init().map_err(LogError::Taken)?;
    Ok(level)
}

/// Like [`init`], for commands, which have no config and whose own output matters more. It uses `HERDLET_LOG_FORMAT`
/// and [`directives_from_env`], and logs only warnings and errors by default. Invalid values are ignored.
///
/// # Errors
/// When the process has a subscriber already.
pub fn init_for_command() -> Result<(), LogError> {
    let directives = directives_from_env(variable).filter(|text| check_directives(text).is_ok());
    let format = variable("HERDLET_LOG_FORMAT").and_then(|name| name.parse().ok()).unwrap_or_default();
    init(directives.as_deref().unwrap_or(COMMAND_DIRECTIVES), format).map(drop)
}

/// Logs every panic of the process where it happens, even if it is caught.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(thread = thread.name(), %backtrace, "bug in the agent: {panic}");
    }));
}

impl Sink {
    /// The type of our stderr. `JOURNAL_STREAM` identifies the journal's stream (systemd.exec(5)). Children inherit
    /// the variable, so it is compared with the actual stderr.
    pub fn of_stderr(env: impl Fn(&str) -> Option<String>) -> Self {
        let stderr = std::io::stderr();
        let stat = rustix::fs::fstat(&stderr);
        let journal = stat.is_ok_and(|stat| {
            env("JOURNAL_STREAM").is_some_and(|named| named == format!("{}:{}", stat.st_dev, stat.st_ino))
        });
        if journal {
            return Self::Journal;
        }
        let set = env_set(&env);
        let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        let refused = set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb");
        if forced || (rustix::termios::isatty(&stderr) && !refused) { Self::Colours } else { Self::Plain }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

type BoxedSubscriber = Box<dyn Subscriber + Send + Sync>;

/// A subscriber that writes to `writer`, or to the journal at `socket`.
fn subscriber<W>(
    directives: &str,
    format: LogFormat,
    sink: Sink,
    socket: &Path,
    writer: W,
) -> Result<(BoxedSubscriber, LogLevel), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(directives).map_err(LogError::Directives)?);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(sink == Sink::Colours);
    let layer = match (format, sink) {
        // JSON always has the time among its fields, because its readers parse them whatever the sink is.
        (LogFormat::Json, Sink::Colours | Sink::Plain | Sink::Journal) => {
            layer.with_ansi(false).json().flatten_event(true).boxed()
        }
        (LogFormat::Text, Sink::Colours | Sink::Plain) => layer.boxed(),
        (LogFormat::Text, Sink::Journal) => match Journal::connect(socket) {
            Ok(journal) => journal.boxed(),
            Err(_) => {
                let line =
                    tracing_subscriber::fmt::format().without_time().with_level(false).with_ansi(false);
                layer.event_format(Prioritised(line)).boxed()
            }
        },
    };
    let filter = filter.and(filter_fn(has_no_bodies).with_max_level_hint(LevelFilter::TRACE));
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter)).with(monitor::layer());
    Ok((Box::new(subscriber), LogLevel(handle)))
}

/// Writes the priority before the line, as in sd-daemon(3): the journal removes it and stores it as a field.
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(directives: &str, format: LogFormat, sink: Sink) -> String {
        let written = LogBuffer::default();
        let writer = written.clone();
        let nobody = Path::new("/nonexistent/journal");
        let (subscriber, _) = subscriber(directives, format, sink, nobody, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(alloc = "a1", "started");
            tracing::warn!("\u{1b}[31mslow");
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn log_level_changes_at_once_and_invalid_one_is_ignored() {
        let written = LogBuffer::default();
        let writer = written.clone();
        let nobody = Path::new("/nonexistent/journal");
        let (subscriber, level) =
            subscriber("warn", LogFormat::Text, Sink::Plain, nobody, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("first");
            level.set("info").unwrap();
            tracing::info!("second");
            assert!(matches!(level.set("inof"), Err(LogError::Directives(_))));
            tracing::info!("third");
            level.set("error").unwrap();
            tracing::info!("fourth");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let logged: Vec<bool> = ["first", "second", "third", "fourth"].map(|line| text.contains(line)).into();
        assert_eq!(logged, [false, true, true, false], "{text}");
    }

    #[test]
    fn directives_choose_the_written_events() {
        let lines = |directives| written(directives, LogFormat::Text, Sink::Plain).lines().count();
        assert_eq!(lines("info"), 2);
        assert_eq!(lines(COMMAND_DIRECTIVES), 1);
        assert_eq!(lines("off"), 0);
        assert_eq!(lines("warn,other=trace"), 1);
    }

    /// All variables of a task were in the log and in each monitor at level debug.
    #[test]
    fn requests_to_engines_are_never_logged() {
        let written = LogBuffer::default();
        let writer = written.clone();
        let nobody = Path::new("/nonexistent/journal");
        let directives = "trace,bollard=trace,bollard::docker=trace,[start]=trace";
        let (subscriber, _) =
            subscriber(directives, LogFormat::Text, Sink::Plain, nobody, move || writer.clone()).unwrap();
        let mut monitored = monitor::listen();
        tracing::subscriber::with_default(subscriber, || {
            let _in = tracing::info_span!("start").entered();
            tracing::debug!(target: "bollard::docker", "Env: TOKEN=s3cr3t");
            tracing::trace!(target: "bollard::read", "Env: TOKEN=s3cr3t");
            tracing::info!(target: "bollard::docker", "no body");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("no body") && !text.contains("s3cr3t"), "{text}");
        let lines: Vec<String> =
            std::iter::from_fn(|| monitored.try_recv().ok()).map(|line| line.to_string()).collect();
        assert!(lines.iter().any(|line| line.contains("no body")), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains("s3cr3t")), "{lines:?}");
    }

    #[test]
    fn the_journal_gets_priorities_and_neither_times_nor_colours() {
        let text = written("info", LogFormat::Text, Sink::Journal);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "<6>herdlet_agent::telemetry::logs::tests: started alloc=\"a1\"");
        assert!(lines[1].starts_with("<4>"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn colors_are_for_terminals_and_escapes_are_removed() {
        assert!(!written("info", LogFormat::Text, Sink::Plain).contains('\u{1b}'));
        let coloured = written("info", LogFormat::Text, Sink::Colours);
        assert!(coloured.contains('\u{1b}'));
        assert!(!coloured.contains("\u{1b}[31mslow"), "{coloured}");
    }

    #[test]
    fn a_json_line_is_an_object_with_its_fields() {
        let text = written("info", LogFormat::Json, Sink::Journal);
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["alloc"], "a1");
        assert_eq!(line["message"], "started");
        assert_eq!(line["level"], "INFO");
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn misspelled_level_is_refused() {
        for good in ["info", "WARN", "info,herdlet=debug", "herdlet=off", "herdlet[start{task=web}]=trace"] {
            check_directives(good).unwrap();
        }
        let error = |text| check_directives(text).unwrap_err();
        assert!(error("inof").ends_with("\"inof\" is not a level, did you mean info?"), "{}", error("inof"));
        assert!(error("info,herdlet=loud").ends_with("\"loud\" is not a level"));
        assert!(check_directives("").is_err());
        assert!(check_directives("info,").is_err());
    }

    #[test]
    fn our_own_variables_come_before_the_one_of_everybody() {
        let env = |set: &'static [(&str, &str)]| {
            move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let read = |set| directives_from_env(env(set));
        assert_eq!(read(&[("RUST_LOG", "debug")]).as_deref(), Some("debug"));
        assert_eq!(read(&[("RUST_LOG", "debug"), ("HERDLET_LOG", "trace")]).as_deref(), Some("trace"));
        assert_eq!(read(&[("RUST_LOG", "debug"), ("HERDLET_LOG", "??")]).as_deref(), Some("??"));
        assert_eq!(read(&[("RUST_LOG", "serde")]), None);
    }
}
