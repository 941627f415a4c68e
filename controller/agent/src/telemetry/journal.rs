//! Logs for systemd's journal, in its own protocol: each event with its fields.
//!
//! In: events and their spans. Out: a datagram for each event, with the journal's fields `MESSAGE`, `PRIORITY`,
//! `SYSLOG_IDENTIFIER` and `TARGET`, and a field for each of ours: `alloc` becomes `HERDLET_ALLOC`. The protocol is
//! <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>. While the journal restarts, an event is written as a line to
//! stderr, which waits for it. A journal that hangs blocks nothing: the events that it does not accept are counted,
//! and their number is the first message that it accepts again.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
    os::unix::net::UnixDatagram,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, Scope},
};

/// The journal's socket.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

const IDENTIFIER: &str = "herdlet";

/// The number of this level in syslog(3).
const WARNING: u8 = 4;

/// The longest value; the rest is cut, because datagrams are limited in size.
const VALUE_BYTES_MAX: usize = 16 * 1024;
/// The most named fields of an event with its spans; the message is kept in any case.
const FIELDS_LEN_MAX: usize = 32;

/// The layer that writes to a journal.
#[derive(Debug)]
pub(super) struct Journal {
    datagrams: UnixDatagram,
    /// The number of events that the journal has rejected since it accepted the last one.
    lost: AtomicU64,
}

impl Journal {
    /// Connects to the journal that listens at this socket.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let datagrams = UnixDatagram::unbound()?;
        datagrams.connect(socket)?;
        datagrams.set_nonblocking(true)?;
        Ok(Self { datagrams, lost: AtomicU64::default() })
    }

    fn send(&self, priority: u8, line: &str, target: &str, fields: &Fields) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let warning = format!("{lost} log events were lost while the journal accepted none");
            if self.datagrams.send(&datagram(&warning, WARNING, target, &Fields::default())).is_err() {
                self.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
        match self.datagrams.send(&datagram(line, priority, target, fields)) {
            Ok(_) => {}
            // Stderr leads to the same journal and would block.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                // There is no other place to report this failure.
                let _ = writeln!(io::stderr(), "<{priority}>{line}");
            }
        }
    }
}

/// Fields of an event or a span, in order.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    named: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.to_owned());
    }
}

impl Fields {
    fn keep(&mut self, field: &Field, mut value: String) {
        value.truncate(value.floor_char_boundary(VALUE_BYTES_MAX));
        if field.name() == "message" {
            self.message = value;
        } else if self.named.len() < FIELDS_LEN_MAX {
            self.named.push((field.name(), value));
        }
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Journal {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let scope = context.event_scope(event).into_iter().flat_map(Scope::from_root);
        for span in scope {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                let room = FIELDS_LEN_MAX.saturating_sub(fields.named.len());
                fields.named.extend(of_span.named.iter().take(room).cloned());
            }
        }
        let line = line(&fields);
        let priority = priority(*event.metadata().level());
        self.send(priority, &line, event.metadata().target(), &fields);
    }
}

/// The text for readers who do not query fields.
fn line(fields: &Fields) -> String {
    let mut line = fields.message.clone();
    for (name, value) in &fields.named {
        let _ = write!(line, " {name}={value}");
    }
    line
}

/// The number of a level in syslog(3).
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn datagram(line: &str, priority: u8, target: &str, fields: &Fields) -> Vec<u8> {
    let mut datagram = Vec::new();
    put(&mut datagram, "MESSAGE", line);
    put(&mut datagram, "PRIORITY", &priority.to_string());
    put(&mut datagram, "SYSLOG_IDENTIFIER", IDENTIFIER);
    put(&mut datagram, "TARGET", target);
    for (name, value) in &fields.named {
        put(&mut datagram, &name_of(name), value);
    }
    datagram
}

/// Writes `NAME=value`, or for a value of several lines the name, the value's length and the value.
fn put(datagram: &mut Vec<u8>, name: &str, value: &str) {
    datagram.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        datagram.push(b'\n');
        datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        datagram.push(b'=');
    }
    datagram.extend_from_slice(value.as_bytes());
    datagram.push(b'\n');
}

/// The journal accepts names of capitals, digits and underscores, up to 64 bytes.
fn name_of(field: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_uppercase() } else { '_' };
    let mut name = format!("HERDLET_{}", field.chars().map(plain).collect::<String>());
    name.truncate(64);
    name
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Returns the datagrams that a test's own journal receives.
    fn sent(log: impl FnOnce()) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journal::connect(&path).unwrap());
        tracing::subscriber::with_default(subscriber, log);
        let mut bytes = vec![0; 1 << 18];
        std::iter::from_fn(|| {
            let len = journal.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
        })
        .collect()
    }

    #[test]
    fn an_event_has_its_fields_and_those_of_its_spans() {
        let sent = sent(|| {
            let span = tracing::info_span!("start", alloc = "a1", task = tracing::field::Empty);
            let _in = span.enter();
            span.record("task", "web");
            tracing::warn!(job = %"shop", exit_code = 3, "it has ended");
        });
        assert_eq!(
            sent,
            [
                "MESSAGE=it has ended job=shop exit_code=3 alloc=a1 task=web\nPRIORITY=4\nSYSLOG_IDENTIFIER=herdlet\n\
              TARGET=herdlet_agent::telemetry::journal::tests\nHERDLET_JOB=shop\nHERDLET_EXIT_CODE=3\nHERDLET_ALLOC=a1\n\
              HERDLET_TASK=web\n"
            ]
        );
    }

    #[test]
    fn several_lines_are_one_bounded_message() {
        let sent = sent(|| {
            tracing::error!("one\ntwo");
            tracing::info!(long = "x".repeat(1 << 20), "more");
        });
        assert!(sent[0].starts_with("MESSAGE\n\u{7}\0\0\0\0\0\0\0one\ntwo\nPRIORITY=3\n"), "{}", sent[0]);
        assert!(sent[1].len() < 3 * VALUE_BYTES_MAX, "{}", sent[1].len());
        assert_eq!(name_of("a.b-c"), "HERDLET_A_B_C");
    }

    #[test]
    fn hanging_journal_does_not_block_and_losses_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listens = UnixDatagram::bind(&path).unwrap();
        listens.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; 4_096];
        let mut heard = || {
            let len = listens.recv(&mut bytes).ok()?;
            String::from_utf8_lossy(&bytes[..len]).lines().next().map(str::to_owned)
        };
        let subscriber = tracing_subscriber::registry().with(Journal::connect(&path).unwrap());
        tracing::subscriber::with_default(subscriber, || {
            const SAID: usize = 5_000;
            (0..SAID).for_each(|_| tracing::info!("said"));
            let taken = std::iter::from_fn(&mut heard).count();
            assert!(taken < SAID, "its queue is bounded");
            tracing::info!("again");
            let expected =
                format!("MESSAGE={} log events were lost while the journal accepted none", SAID - taken);
            assert_eq!((heard(), heard()), (Some(expected), Some("MESSAGE=again".to_owned())));
        });
    }

    #[test]
    fn missing_journal_socket_means_no_journal() {
        assert!(Journal::connect(Path::new("/nonexistent/socket")).is_err());
    }
}
