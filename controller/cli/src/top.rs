//! `herdlet top` and `herdlet status --watch`: repaint the status screen on every change.
//!
//! In: the agent's stream of changes, and for `top` the usage of tasks. Out: an up-to-date screen until Ctrl-C; if the output
//! is not a terminal, one screen after the other.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use futures_util::{Stream, StreamExt as _, stream};
use herdlet_api_types::{JobKey, alloc::ClientStatus, api::Change};

use super::{
    Connection,
    client::{Client, ClientError},
    failure::Failure,
    screen::{self, Canvas, Load, Screen},
};

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

/// Paints until Ctrl-C.
pub(super) async fn follow(client: &Client, with: With) -> Result<u8, Failure> {
    let mut canvas = Canvas::of_stdout();
    tokio::select! {
        never = paint(client, with, &mut canvas) => never,
        () = herdlet_base::interrupt::interrupted() => Ok(0),
    }
}

async fn paint(client: &Client, with: With, canvas: &mut Canvas) -> Result<u8, Failure> {
    // The first time, a missing agent is an error, as for any command.
    paint_once(client, with, canvas).await?;
    loop {
        if let Err(error) = keep_painting(client, with, canvas).await {
            canvas.paint(&format!("{error}\n"));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Repaints after each commit, and while times change, until the agent disconnects.
async fn keep_painting(client: &Client, with: With, canvas: &mut Canvas) -> Result<(), ClientError> {
    let mut changes = client.events().await?;
    loop {
        let goes_on = paint_once(client, with, canvas).await?;
        tokio::select! {
            change = next_commit(&mut changes) => match change {
                Some(change) => change?,
                None => return Ok(()),
            },
            () = tokio::time::sleep(TICK), if canvas.is_terminal() && (goes_on || with == With::Loads) => {}
        }
    }
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

/// Returns whether something on the screen changes with time alone.
async fn paint_once(client: &Client, with: With, canvas: &mut Canvas) -> Result<bool, ClientError> {
    let loads = match with {
        With::Jobs => None,
        With::Loads => Some(loads(client).await?),
    };
    let (overview, agent) = tokio::try_join!(client.overview(), client.status())?;
    let wrongs = screen::wrongs(&agent);
    let screen = Screen {
        overview: &overview,
        wrongs: &wrongs,
        loads: loads.as_ref(),
        now: herdlet_base::clock::wall_now(),
    };
    canvas.paint(&screen.render(screen::columns()));
    Ok(overview.lag > herdlet_api_types::Duration::ZERO)
}

/// The usage of each job's running tasks. A task that ends during the measurement counts as 0.
async fn loads(client: &Client) -> Result<BTreeMap<JobKey, Load>, ClientError> {
    let allocs = client.allocs().await?.into_iter().filter(|view| view.status == ClientStatus::Running);
    let measured = stream::iter(allocs.map(|view| async move {
        let usage = client.usage(view.spec.id).await.ok()?.resource_usage;
        let memory =
            if usage.memory_stats.usage > 0 { usage.memory_stats.usage } else { usage.memory_stats.rss };
        Some((view.spec.job_key.clone(), Load { cpu_percent: usage.cpu_stats.percent, memory }))
    }));
    let measured: Vec<_> = measured.buffer_unordered(MEASURED_AT_A_TIME).collect().await;
    let mut loads: BTreeMap<JobKey, Load> = BTreeMap::new();
    for (key, load) in measured.into_iter().flatten() {
        let sum = loads.entry(key).or_default();
        sum.cpu_percent += load.cpu_percent;
        sum.memory += load.memory;
    }
    Ok(loads)
}
