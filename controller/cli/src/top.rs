//! `herdlet top` and `herdlet status --watch`: the one screen, painted anew when something changes.
//!
//! In: the agent's stream of changes, and for `top` what tasks use. Out: a screen that is true until Ctrl-C; on something that
//! is no terminal, one after the other.

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

/// What the screen has beside the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    Jobs,
    /// What their tasks use.
    Loads,
}

/// Times on the screen go on.
const TICK: Duration = Duration::from_secs(1);
/// An agent that went away is looked for again after so long.
const AGAIN: Duration = Duration::from_secs(1);
/// So many allocations are measured at a time: each takes about a second.
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
    // The first time, an agent that is not there is told of as by any command.
    paint_once(client, with, canvas).await?;
    loop {
        if let Err(error) = keep_painting(client, with, canvas).await {
            canvas.paint(&format!("{error}\n"));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Paints after each commit, and while times go on; until the agent goes away.
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

/// Whether something on the screen changes with time alone.
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

/// What the running tasks of each job use. What ends while it is measured uses nothing.
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
