//! `herdlet logs`: the logs of all tasks of some targets, or of all jobs, each line with the name of its task. Existing logs are printed stream by stream, in the order of their last writes. Followed logs are merged line by line as they come. An
//! unfinished line, such as a prompt, is printed too, and no other stream continues it ([`merged`]).

mod merged;
mod scope;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use clap::{Args, ValueEnum};
use futures_util::{Stream, StreamExt};
use herdlet_api_types::{
    AllocId, UnixNanos,
    names::shell_word,
    nomad::FileInfo,
    parse_duration,
    task::TaskStatus,
    view::{AllocView, ConvergenceState, TaskView},
};
use herdlet_base::clock;
use jiff::Timestamp;
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::{
    Connection,
    client::{Client, ClientError, LogRequest},
    failure::Failure,
    selection::{Absent, SelectorFlag},
    show, stdout,
    table::plain,
    target::Target,
    watch::{ChangeStep, Shown},
};
use merged::{Labels, print};
use scope::{Scopes, Source, chosen, sources};

/// Arguments of `herdlet logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Jobs, allocations, or tasks [default: all jobs]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// Continue as more is written
    #[arg(short, long)]
    follow: bool,
    /// Standard error only [default: both streams]
    #[arg(long, conflicts_with = "stdout")]
    stderr: bool,
    /// Standard output only
    #[arg(long)]
    stdout: bool,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    /// Only the last lines of each stream
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Only what was written since then: 10m (ago), or 2026-01-02T15:04:05Z; may include lines up to 10 s older
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<u64>,
    /// Print before each line the last recorded time: the line was written then, or up to 10 s later
    #[arg(short = 't', long)]
    timestamps: bool,
    /// Print no task names before the lines [default for one task without --follow]
    #[arg(long)]
    no_prefix: bool,
    /// Output format: as it was written, or a JSON object per line, all on standard output
    #[arg(short = 'o', long = "output", value_enum, default_value = "text", value_name = "FORM")]
    form: Form,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// A line of a log, or a piece of a very long one, as JSON.
#[derive(Serialize)]
struct JsonLine<'l> {
    alloc: AllocId,
    /// `JOB.GROUP[N]/TASK`, with ` (canary)` for a canary.
    name: &'l str,
    /// `stdout` or `stderr`.
    stream: &'l str,
    /// With `--timestamps`, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'l str>,
    /// Without the line end. Invalid UTF-8 is replaced.
    line: &'l str,
}

/// A longer line is printed in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The directory of an allocation's log files.
const LOGS: &str = "alloc/logs";
/// Lines between the readers and the printer.
const LINES_LEN: usize = 64;
/// After this time without more, an unfinished line is printed as it is, if several streams are followed. Most lines that come in
/// two writes are complete by then, and a user at a prompt hardly notices the delay.
const REST: Duration = Duration::from_millis(200);

pub async fn run(args: LogsArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let names = args.selector.targets(&client, args.targets.clone(), Absent::All).await?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let targets = chosen(&client, &names, (&jobs, &allocs), args.task.as_deref()).await?;
    let what = if names.is_empty() { "all jobs".to_owned() } else { names.join(" ") };
    let sources: Vec<Source> = sources(targets.iter());
    if sources.is_empty() && targets.iter().flat_map(|target| &target.allocs).any(|view| view.collected) {
        return Err(Failure::new(format!("the logs of {what} are gone: it ended, and was collected"))
            .hint("see what is collected when: herdlet gc --dry-run; gc_max_allocs in the agent's config limits how long logs stay"));
    }
    for target in &targets {
        unbegun(target, sources.is_empty())
            .iter()
            .for_each(|message| herdlet_base::stderr_line!("{message}"));
    }
    if sources.is_empty() && !args.follow {
        let hint = match names.first() {
            Some(name) => format!("see why: herdlet explain {}", shell_word(name.clone())),
            None => "list the jobs: herdlet get jobs".to_owned(),
        };
        return Err(Failure::new(format!("no task of {what} has been started yet")).hint(hint));
    }
    let streams: &'static [&'static str] = match (args.stdout, args.stderr) {
        (true, _) => &["stdout"],
        (_, true) => &["stderr"],
        (false, false) => &["stdout", "stderr"],
    };
    let scopes =
        if args.follow { Scopes::of(&names, &targets, args.task.as_deref()) } else { Scopes::default() };
    let tasks: usize = targets.iter().map(|target| target.tasks().count()).sum();
    let titles =
        targets.iter().flat_map(Target::tasks).map(|(view, task)| view.spec.task_title(&task.name).len());
    let prefix = (!args.no_prefix && (scopes.can_grow() || tasks > 1))
        .then(|| Labels::of_width(titles.max().unwrap_or_default()));
    let (sender, receiver) = mpsc::channel(LINES_LEN);
    let is_alone = !scopes.can_grow() && sources.len() == 1 && streams.len() == 1;
    let patience = match args.form {
        Form::Text if args.follow => Some(if is_alone { Duration::ZERO } else { REST }),
        // Programs get whole lines. Without `--follow`, every line is complete.
        Form::Text | Form::Json => None,
    };
    let merge = Merge {
        client: client.clone(),
        streams,
        follow: args.follow,
        tail: args.tail,
        since: args.since,
        timestamps: args.timestamps,
        patience,
        sender,
    };
    let printing = async {
        match args.form {
            Form::Text => print(receiver, prefix).await,
            Form::Json => print_json(receiver, args.timestamps).await,
        }
    };
    let reading = async {
        if scopes.can_grow() { merge.follow_all(&scopes, sources).await } else { merge.these(sources).await }
    };
    tokio::select! {
        (read, ()) = async { tokio::join!(reading, printing) } => match read {
            Ok(()) => Ok(0),
            Err(Unread::Request(error @ ClientError::Broken { .. })) => Err(lost(&client, error, &names.join(" ")).await),
            Err(Unread::Request(error)) => Err(error.into()),
            Err(Unread::AgentEnded) => Err(gone(&names.join(" "))),
            Err(Unread::Reader(error)) => Err(Failure::new(format!("failed to read a log: {error}"))),
        },
        _ = tokio::signal::ctrl_c() => Ok(0),
    }
}

/// Prints the output of one task as it was written, until the task has ended.
pub(super) async fn follow_task(client: &Client, view: &AllocView, task: &str) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel(LINES_LEN);
    let merge = Merge {
        client: client.clone(),
        streams: &["stdout", "stderr"],
        follow: true,
        tail: None,
        since: None,
        timestamps: false,
        patience: Some(REST),
        sender,
    };
    let source = Source { alloc: view.spec.id, task: task.to_owned(), name: view.spec.task_title(task) };
    let (read, ()) = tokio::join!(merge.these(vec![source]), print(receiver, None));
    match read {
        Ok(()) => Ok(()),
        Err(Unread::Request(error)) => Err(error.into()),
        Err(Unread::AgentEnded) => Err(Failure::new("the agent ended")),
        Err(Unread::Reader(error)) => Err(Failure::new(format!("failed to read a log: {error}"))),
    }
}

/// Why a log was not read to its end.
enum Unread {
    Request(ClientError),
    /// The stream of changes ended, which happens only when the agent ends.
    AgentEnded,
    /// A reader task failed.
    Reader(tokio::task::JoinError),
}

impl From<ClientError> for Unread {
    fn from(error: ClientError) -> Self {
        Self::Request(error)
    }
}

/// Determines why a connection has ended before the log did, by another request.
async fn lost(client: &Client, error: ClientError, target: &str) -> Failure {
    let asked = match client.status().await {
        // An agent that is about to end accepts connections until then.
        Err(ClientError::Silent { .. }) => client.status().await,
        answer => answer,
    };
    match asked {
        Ok(_) => {
            Failure::new("the connection to the agent ended before the log did, but the agent still runs")
                .hint(format!("continue: herdlet logs -f {}", shell_word(target.to_owned())))
        }
        Err(ClientError::Unreachable { .. } | ClientError::Broken { .. }) => gone(target),
        // The agent is there but does not answer, or there is another problem.
        Err(
            ClientError::Setup(_)
            | ClientError::Silent { .. }
            | ClientError::Status { .. }
            | ClientError::Open(_)
            | ClientError::Problems(_)
            | ClientError::Answer { .. },
        ) => error.into(),
    }
}

fn gone(target: &str) -> Failure {
    Failure::new("the agent ended while its logs were being read").hint(format!(
        "its tasks continue without it, and so do their logs; once it is back: herdlet logs -f {}",
        shell_word(target.to_owned())
    ))
}

/// Parses a duration before now, or a time, to seconds since 1970.
fn since(text: &str) -> Result<u64, String> {
    let at_s = match (text.parse::<Timestamp>(), parse_duration(text)) {
        (Ok(at), _) => at.as_second(),
        (Err(_), Ok(ago)) => clock::wall_now().0.saturating_sub(ago) / 1_000_000_000,
        (Err(_), Err(_)) => {
            return Err(
                "expected how long ago (10m, 2h30m) or a time such as 2026-01-02T15:04:05Z".to_owned()
            );
        }
    };
    if at_s > clock::wall_now().0 / 1_000_000_000 {
        return Err("is in the future".to_owned());
    }
    u64::try_from(at_s).map_err(|_| "is before 1970".to_owned())
}

/// At most this many tasks are named.
const UNBEGUN_LEN_MAX: usize = 10;

/// Explains the missing logs of tasks that have not started. If the target is a job, waiting tasks of a converged allocation are
/// skipped: they run when others have ended.
fn unbegun(target: &Target, is_all: bool) -> Vec<String> {
    let is_meant = |view: &AllocView| {
        is_all || target.task.is_some() || view.convergence.state != ConvergenceState::Converged
    };
    // An attempt whose program could not be executed has no output either.
    let never_ran = |task: &TaskView| task.attempt == 0 || task.started_at == UnixNanos(0);
    let unbegun = target.tasks().filter(|(view, task)| never_ran(task) && !view.collected && is_meant(view));
    let mut messages: Vec<String> = unbegun
        .map(|(view, task)| {
            let title = view.spec.task_title(&task.name);
            let word = if task.state == TaskStatus::Dead { "never started" } else { "has not started" };
            let last = task.events.last().map(|event| plain(&event.message)).unwrap_or_default();
            let why = match (view.convergence.state, last.as_str()) {
                (ConvergenceState::Converged, "") => show::phase(task),
                (ConvergenceState::Converged, last) => last.to_owned(),
                (ConvergenceState::Progressing | ConvergenceState::Waiting | ConvergenceState::Failed, _) => {
                    show::convergence(&view.convergence)
                }
            };
            format!("{title} {word}: {why}")
        })
        .collect();
    let more = messages.len().saturating_sub(UNBEGUN_LEN_MAX);
    messages.truncate(UNBEGUN_LEN_MAX);
    messages.extend((more > 0).then(|| format!("and {more} more")));
    messages
}

struct Line {
    alloc: AllocId,
    name: String,
    stream: &'static str,
    bytes: Vec<u8>,
    end: End,
}

/// What follows the bytes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The line ends; the last one of a log may have no line end.
    Line,
    /// More of the line may come.
    Open,
}

#[derive(Clone)]
struct Merge {
    client: Client,
    streams: &'static [&'static str],
    follow: bool,
    tail: Option<u64>,
    since: Option<u64>,
    timestamps: bool,
    /// Delay before an unfinished line is printed; none to print whole lines only.
    patience: Option<Duration>,
    sender: mpsc::Sender<Line>,
}

impl Merge {
    async fn these(self, sources: Vec<Source>) -> Result<(), Unread> {
        if !self.follow {
            return self.one_after_another(sources).await;
        }
        let mut readers = JoinSet::new();
        for source in sources {
            self.read(&mut readers, &source);
        }
        drop(self.sender);
        while let Some(read) = readers.join_next().await {
            read.map_err(Unread::Reader)??;
        }
        Ok(())
    }

    /// Prints existing logs in the order of the streams' last writes, the only time that their files have.
    async fn one_after_another(self, sources: Vec<Source>) -> Result<(), Unread> {
        let mut files: BTreeMap<AllocId, Vec<FileInfo>> = BTreeMap::new();
        let mut found = Vec::new();
        for source in sources {
            let files = match files.entry(source.alloc) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(match self.client.list_files(source.alloc, LOGS).await {
                        // Just removed; the request below reports the same.
                        Err(ClientError::Status { status: 404, .. }) => Vec::new(),
                        listed => listed?,
                    })
                }
            };
            for stream in self.streams {
                found.push((last_written(files, &source.task, stream).to_owned(), source.clone(), *stream));
            }
        }
        found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        for (_, source, stream) in found {
            self.stream(&source, stream).await?;
        }
        Ok(())
    }

    /// Follows present and future tasks: of new allocations, and those that start later. Ends when nothing more can come.
    async fn follow_all(self, scopes: &Scopes, sources: Vec<Source>) -> Result<(), Unread> {
        let mut readers = JoinSet::new();
        let mut known: BTreeSet<(AllocId, String)> = BTreeSet::new();
        for source in sources {
            self.read(&mut readers, &source);
            known.insert((source.alloc, source.task));
        }
        let mut shown = Shown::default();
        let mut events = self.client.events().await?;
        loop {
            tokio::select! {
                change = events.next() => {
                    let change = change.ok_or(Unread::AgentEnded)?;
                    if shown.apply(change?) == ChangeStep::Part { continue }
                    for source in scope::sources(scopes.live(&shown).iter()) {
                        if known.insert((source.alloc, source.task.clone())) {
                            self.read(&mut readers, &source);
                        }
                    }
                }
                Some(read) = readers.join_next() => read.map_err(Unread::Reader)??,
            }
            if readers.is_empty() && shown.index > 0 && scopes.are_over(&shown) {
                return Ok(());
            }
        }
    }

    fn read(&self, readers: &mut JoinSet<Result<(), ClientError>>, source: &Source) {
        for stream in self.streams {
            let (merge, source) = (self.clone(), source.clone());
            readers.spawn(async move { merge.stream(&source, stream).await });
        }
    }

    /// Forwards the lines of one stream.
    async fn stream(&self, source: &Source, stream: &'static str) -> Result<(), ClientError> {
        let Self { follow, tail, since, timestamps, .. } = *self;
        let request = LogRequest { task: source.task.clone(), stream, follow, tail, since, timestamps };
        let pieces = match self.client.logs(source.alloc, &request).await {
            // The task wrote nothing, or its allocation was just removed.
            Err(ClientError::Status { status: 404, .. }) => return Ok(()),
            pieces => pieces?,
        };
        into_lines(pieces, self.patience, |bytes, end| {
            let line = Line { alloc: source.alloc, name: source.name.clone(), stream, bytes, end };
            async move { self.sender.send(line).await.is_ok() }
        })
        .await
    }
}

/// The time of a stream's last write, as text that sorts by time; empty if it has no file.
fn last_written<'f>(files: &'f [FileInfo], task: &str, stream: &str) -> &'f str {
    let is_of_it = |file: &&FileInfo| {
        let number = file.name.strip_prefix(task).and_then(|rest| rest.strip_prefix('.'));
        let number =
            number.and_then(|rest| rest.strip_prefix(stream)).and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    // All times are in UTC; without the Z, fractions of different lengths sort correctly.
    let times = files.iter().filter(is_of_it).filter_map(|file| file.mod_time.as_deref());
    times.map(|time| time.trim_end_matches('Z')).max().unwrap_or_default()
}

/// Splits a log into lines. An unfinished line is passed on after `patience` without more, at [`LINE_BYTES_MAX`], and at the end
/// of the log.
async fn into_lines<F: Future<Output = bool>>(
    mut pieces: impl Stream<Item = Result<Vec<u8>, ClientError>> + Unpin,
    patience: Option<Duration>,
    mut line: impl FnMut(Vec<u8>, End) -> F,
) -> Result<(), ClientError> {
    let mut rest: Vec<u8> = Vec::new();
    let mut last = End::Line;
    loop {
        let piece = match patience.filter(|_| !rest.is_empty()) {
            None => pieces.next().await,
            Some(patience) => match timeout(patience, pieces.next()).await {
                Ok(piece) => piece,
                Err(_) => {
                    last = End::Open;
                    if !line(std::mem::take(&mut rest), End::Open).await {
                        return Ok(());
                    }
                    continue;
                }
            },
        };
        let Some(piece) = piece else { break };
        rest.extend_from_slice(&piece?);
        loop {
            let (length, end) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, End::Line),
                None if rest.len() >= LINE_BYTES_MAX => (LINE_BYTES_MAX, End::Open),
                None => break,
            };
            let bytes: Vec<u8> = rest.drain(..length).collect();
            last = end;
            if !line(bytes, end).await {
                return Ok(());
            }
        }
    }
    // The end of the log also ends an unfinished line that was already passed on.
    if !rest.is_empty() || last == End::Open {
        line(rest, End::Line).await;
    }
    Ok(())
}

async fn print_json(mut lines: mpsc::Receiver<Line>, timestamps: bool) {
    while let Some(line) = lines.recv().await {
        // Only the end of a line whose parts are already printed.
        if line.bytes.is_empty() {
            continue;
        }
        let Ok(text) = json_line(&line, timestamps) else { continue };
        stdout::bytes(text.as_bytes());
    }
}

fn json_line(line: &Line, timestamps: bool) -> serde_json::Result<String> {
    let text = String::from_utf8_lossy(line.bytes.strip_suffix(b"\n").unwrap_or(&line.bytes));
    let (time, text) = if timestamps { split_time(&text) } else { (None, &*text) };
    let shown = JsonLine { alloc: line.alloc, name: &line.name, stream: line.stream, time, line: text };
    Ok(format!("{}\n", serde_json::to_string(&shown)?))
}

/// Splits a line into the time that the agent put before it, if that is known, and the rest.
fn split_time(line: &str) -> (Option<&str>, &str) {
    const UNKNOWN: &str = "-                    ";
    match (line.strip_prefix(UNKNOWN), line.split_once(' ')) {
        (Some(rest), _) => (None, rest),
        (None, Some((time, rest))) if time.parse::<Timestamp>().is_ok() => (Some(time), rest),
        // The rest of a very long line.
        (None, _) => (None, line),
    }
}
