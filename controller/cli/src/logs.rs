//! `herdlet logs`: the logs of all tasks of some targets, or of all jobs, each line with the name of its task. Existing
//! logs are printed stream by stream, in the order of their last writes. Followed logs are merged line by line as they
//! come. An unfinished line, such as a prompt, is printed too, and no other stream continues it ([`merged`]).

mod json;
mod merged;
mod reading;
mod scope;
mod unbegun;
mod unkept;

use std::time::Duration;

use clap::{Args, ValueEnum};
use herdlet_api_types::{names::shell_word, parse_duration, view::AllocView};
use herdlet_base::clock;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{
    Connection,
    client::{Client, ClientError},
    failure::Failure,
    selection::{Absent, SelectorFlag},
    target::Target,
};
use json::{Timestamps, print_json};
use merged::{Labels, print};
use reading::{Merge, Unread};
use scope::{Scopes, Source, chosen, sources};
use unbegun::{Named, unbegun};

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
    // Without any logs, every task is explained.
    let named = if sources.is_empty() { Named::All } else { Named::Expected };
    for target in &targets {
        unbegun(target, named).iter().for_each(|message| herdlet_base::stderr_line!("{message}"));
    }
    unkept::unkept(&targets, &jobs).iter().for_each(|message| herdlet_base::stderr_line!("{message}"));
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
    let titles = titles.chain(sources.iter().map(|source| source.name.len()));
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
            Form::Json => {
                let timestamps = if args.timestamps { Timestamps::Included } else { Timestamps::Absent };
                print_json(receiver, timestamps).await;
            }
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
