//! `herdlet top` and `herdlet status --watch`: repaint the status screen on every change.
//!
//! In: the agent's stream of changes, for `top` the usage of tasks, and the keys of a terminal. Out: an up-to-date screen until
//! Ctrl-C; if the output is not a terminal, one screen after the other.

mod keys;

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use futures_util::{Stream, StreamExt as _, stream};
use herdlet_api_types::{
    JobKey,
    alloc::ClientStatus,
    api::Change,
    overview::{JobRow, Overview},
};
use tokio::sync::mpsc;

use super::{
    Connection,
    client::{Client, ClientError, ResourceUsage},
    failure::Failure,
    screen::{self, Canvas, Load, Screen, TaskRow, TopRows},
    show,
    terminal::Raw,
};
use keys::{Choice, Flow, Key};

/// Arguments of `herdlet top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub connection: Connection,
}

/// The content of the screen besides the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    Jobs,
    /// The resource usage of tasks.
    Loads,
}

/// Interval of repaints, because times change.
const TICK: Duration = Duration::from_secs(1);
/// Delay before a reconnect.
const AGAIN: Duration = Duration::from_secs(1);
/// Concurrent measurements of allocations; each takes about a second.
const MEASURED_AT_A_TIME: usize = 32;

pub async fn run(args: TopArgs) -> Result<u8, Failure> {
    follow(&args.connection.client()?, With::Loads).await
}

/// Paints until Ctrl-C, or until `q` is pressed.
pub(super) async fn follow(client: &Client, with: With) -> Result<u8, Failure> {
    let canvas = Canvas::of_stdout();
    // Without a terminal for both there are no keys.
    let raw = if canvas.is_terminal() && with == With::Loads { Raw::enter_for_keys()? } else { None };
    let keys = raw.as_ref().map(|_| keys::pressed());
    let mut top = Top { client, with, canvas, choice: Choice::default(), keys, seen: None };
    let ended = tokio::select! {
        ended = top.paint() => ended,
        () = herdlet_base::interrupt::interrupted() => Ok(0),
    };
    drop(raw);
    ended
}

/// The screen with what the user has chosen.
struct Top<'c> {
    client: &'c Client,
    with: With,
    canvas: Canvas,
    choice: Choice,
    /// None without a terminal.
    keys: Option<mpsc::Receiver<Key>>,
    /// What was painted last.
    seen: Option<Seen>,
}

/// The data of a screen.
struct Seen {
    overview: Overview,
    problems: Vec<String>,
    loads: Option<Loads>,
}

/// The usage of jobs and of their running tasks.
#[derive(Default)]
struct Loads {
    jobs: BTreeMap<JobKey, Load>,
    tasks: BTreeMap<JobKey, Vec<TaskRow>>,
}

impl Top<'_> {
    async fn paint(&mut self) -> Result<u8, Failure> {
        // The first time, a missing agent is an error, as for any command.
        self.seen = Some(read(self.client, self.with).await?);
        self.show();
        loop {
            match self.keep_painting().await {
                Ok(Flow::Quit) => return Ok(0),
                Ok(Flow::GoOn) => {}
                Err(error) => self.canvas.paint(&format!("{error}\n")),
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                Some(Key::Quit) = next_key(&mut self.keys) => return Ok(0),
            }
        }
    }

    /// Repaints after each commit and key, and while times change, until the agent disconnects.
    async fn keep_painting(&mut self) -> Result<Flow, ClientError> {
        let mut changes = self.client.events().await?;
        loop {
            let reading = read(self.client, self.with);
            tokio::pin!(reading);
            // A measurement takes a second; keys do not wait for it.
            let seen = loop {
                tokio::select! {
                    seen = &mut reading => break seen?,
                    Some(key) = next_key(&mut self.keys) => {
                        if press(&mut self.choice, key, self.seen.as_ref()) == Flow::Quit {
                            return Ok(Flow::Quit);
                        }
                        show_screen(&mut self.canvas, &self.choice, self.seen.as_ref(), self.keys.is_some());
                    }
                }
            };
            let goes_on = seen.overview.lag > herdlet_api_types::Duration::ZERO;
            self.seen = Some(seen);
            self.show();
            let ticks = self.canvas.is_terminal() && (goes_on || self.with == With::Loads);
            tokio::select! {
                change = next_commit(&mut changes) => match change {
                    Some(change) => change?,
                    None => return Ok(Flow::GoOn),
                },
                Some(key) = next_key(&mut self.keys) => {
                    if press(&mut self.choice, key, self.seen.as_ref()) == Flow::Quit {
                        return Ok(Flow::Quit);
                    }
                    self.show();
                }
                () = tokio::time::sleep(TICK), if ticks => {}
            }
        }
    }

    fn show(&mut self) {
        show_screen(&mut self.canvas, &self.choice, self.seen.as_ref(), self.keys.is_some());
    }
}

async fn next_key(keys: &mut Option<mpsc::Receiver<Key>>) -> Option<Key> {
    match keys {
        Some(keys) => match keys.recv().await {
            Some(key) => Some(key),
            // The terminal is gone.
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

fn press(choice: &mut Choice, key: Key, seen: Option<&Seen>) -> Flow {
    let jobs = seen.map(|seen| sorted(choice, seen)).unwrap_or_default();
    choice.apply(key, &jobs)
}

fn sorted(choice: &Choice, seen: &Seen) -> Vec<JobRow> {
    let mut jobs = seen.overview.jobs.clone();
    if let Some(loads) = &seen.loads {
        choice.sort.sort(&mut jobs, &loads.jobs);
    }
    jobs
}

fn show_screen(canvas: &mut Canvas, choice: &Choice, seen: Option<&Seen>, has_keys: bool) {
    let Some(seen) = seen else { return };
    let overview = Overview { jobs: sorted(choice, seen), ..seen.overview.clone() };
    let is_open = |key: &JobKey| choice.open.contains(key);
    let top = seen.loads.as_ref().map(|loads| TopRows {
        tasks: loads
            .tasks
            .iter()
            .filter(|(key, _)| is_open(key))
            .map(|(key, rows)| (key.clone(), rows.clone()))
            .collect(),
        chosen: choice.chosen.clone(),
        help: if has_keys { format!("{}{}", keys::HELP, choice.sort.as_str()) } else { String::new() },
    });
    let screen = Screen {
        overview: &overview,
        problems: &seen.problems,
        loads: seen.loads.as_ref().map(|loads| &loads.jobs),
        top: top.as_ref(),
        now: herdlet_base::clock::wall_now(),
    };
    canvas.paint(&screen.render(screen::columns()));
}

async fn next_commit(
    changes: &mut (impl Stream<Item = Result<Change, ClientError>> + Unpin),
) -> Option<Result<(), ClientError>> {
    loop {
        match changes.next().await? {
            Ok(Change::Index(_)) => return Some(Ok(())),
            Ok(_) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

async fn read(client: &Client, with: With) -> Result<Seen, ClientError> {
    let loads = match with {
        With::Jobs => None,
        With::Loads => Some(loads(client).await?),
    };
    let (overview, agent) = tokio::try_join!(client.overview(), client.status())?;
    Ok(Seen { overview, problems: screen::problems(&agent), loads })
}

/// The usage of each job's running tasks. A task that ends during the measurement counts as 0.
async fn loads(client: &Client) -> Result<Loads, ClientError> {
    let allocs = client.allocs().await?.into_iter().filter(|view| view.status == ClientStatus::Running);
    let measured = stream::iter(allocs.map(|view| async move {
        let usage = client.usage(view.spec.id).await.ok()?;
        Some((view, usage))
    }));
    let measured: Vec<_> = measured.buffer_unordered(MEASURED_AT_A_TIME).collect().await;
    let mut loads = Loads::default();
    for (view, usage) in measured.into_iter().flatten() {
        let key = view.spec.job_key.clone();
        let of_alloc = load(&usage.resource_usage);
        let sum = loads.jobs.entry(key.clone()).or_default();
        sum.cpu_percent += of_alloc.cpu_percent;
        sum.memory += of_alloc.memory;
        let place = format!("{}[{}]", view.spec.group, view.spec.index);
        let rows = view.tasks.iter().map(|task| TaskRow {
            name: format!("{place}/{}", task.name),
            phase: show::phase(task),
            load: usage.tasks.get(&*task.name).map(|usage| load(&usage.resource_usage)).unwrap_or_default(),
            last: task.events.last().map(|event| event.message.clone()).unwrap_or_default(),
        });
        loads.tasks.entry(key).or_default().extend(rows);
    }
    loads.tasks.values_mut().for_each(|rows| rows.sort_by(|a, b| a.name.cmp(&b.name)));
    Ok(loads)
}

fn load(usage: &ResourceUsage) -> Load {
    let memory = if usage.memory_stats.usage > 0 { usage.memory_stats.usage } else { usage.memory_stats.rss };
    Load { cpu_percent: usage.cpu_stats.percent, memory }
}
