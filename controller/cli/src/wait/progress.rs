//! Progress on stderr: a line per task, redrawn on a terminal, else a line for each change.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use herdlet_api_types::{
    AllocId,
    task::TaskPhase,
    view::{AllocView, ConvergenceState, JobView, Reason, TaskView},
};
use tokio::time::Instant;

use super::super::{
    show::{self, styled},
    style,
    table::plain,
};

/// Interval of redraws, because times change.
const TICK: Duration = Duration::from_secs(1);
/// At most this many tasks are drawn, so that the lines fit on the screen; the others are counted.
const LINES_LEN_MAX: usize = 20;

/// The progress that was shown so far.
pub(super) struct Progress {
    place: Sink,
    /// The last state of each task, and its time.
    said: BTreeMap<Line, (String, Instant)>,
    /// Lines on the screen that the next drawing replaces.
    drawn: usize,
}

/// Allocation and task name, since an allocation and its successor have the same name. For a job, only its
/// name.
type Line = (Option<AllocId>, String);

enum Sink {
    Terminal { columns: usize },
    Lines,
}

impl Progress {
    pub(super) fn begin() -> Self {
        let stderr = std::io::stderr();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let place = match rustix::termios::tcgetwinsize(&stderr) {
            Ok(size) if stderr.is_terminal() && !dumb && size.ws_col > 0 => {
                Sink::Terminal { columns: usize::from(size.ws_col) }
            }
            Ok(_) | Err(_) => Sink::Lines,
        };
        Self { place, said: BTreeMap::new(), drawn: 0 }
    }

    /// Resolves when the lines should be redrawn without a change.
    pub(super) async fn tick(&self) {
        match self.place {
            Sink::Terminal { .. } => tokio::time::sleep(TICK).await,
            Sink::Lines => std::future::pending().await,
        }
    }

    pub(super) fn show(&mut self, jobs: &[&JobView], allocs: &[&AllocView]) {
        let tasks = allocs.iter().flat_map(|view| view.tasks.iter().map(move |task| (*view, task)));
        let of_tasks = tasks.map(|(view, task)| {
            let (name, state) = state_of(view, task);
            ((Some(view.spec.id), name), state)
        });
        let of_jobs = jobs.iter().filter_map(|view| Some(((None, view.key.to_string()), waits_for(view)?)));
        let states: Vec<(Line, String)> = of_tasks.chain(of_jobs).collect();
        let mut changed = Vec::new();
        for (line, state) in &states {
            let said = self.said.get(line);
            if said.is_none_or(|(said, _)| said != state) {
                // If a replaced allocation had ended before the wait began, its state is not worth a line.
                let stale = said.is_none() && line.0.is_some_and(|id| is_replaced(allocs, id));
                self.said.insert(line.clone(), (state.clone(), Instant::now()));
                if !stale {
                    changed.push(format!("{}: {state}", line.1));
                }
            }
        }
        match self.place {
            Sink::Lines => changed.iter().for_each(|line| herdlet_base::tell!("{line}")),
            Sink::Terminal { columns } => self.draw(&states, columns),
        }
    }

    fn draw(&mut self, states: &[(Line, String)], columns: usize) {
        let mut lines: Vec<String> = Vec::new();
        for (line, state) in states.iter().take(LINES_LEN_MAX) {
            let since = self.said.get(line).map_or(0, |(_, at)| at.elapsed().as_secs());
            let line: String =
                format!("{}: {state} ({since}s)", line.1).chars().take(columns.saturating_sub(1)).collect();
            lines.push(line);
        }
        if states.len() > LINES_LEN_MAX {
            lines.push(styled(style::DIM, format!("and {} more", states.len() - LINES_LEN_MAX)));
        }
        self.wipe();
        self.drawn = lines.len();
        for line in lines {
            herdlet_base::tell!("{line}");
        }
    }

    /// Clears the lines, before the last one is printed.
    pub(super) fn end(&mut self) {
        if let Sink::Terminal { .. } = self.place {
            self.wipe();
        }
    }

    fn wipe(&mut self) {
        if self.drawn > 0 {
            // Moves to the first of our lines, and clears to the end of the screen.
            let _ = write!(std::io::stderr(), "\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
        }
    }
}

/// Whether it has ended and was replaced.
fn is_replaced(allocs: &[&AllocView], id: AllocId) -> bool {
    allocs.iter().any(|view| view.spec.id == id && show::is_replaced(view, allocs.iter().copied()))
}

/// What the job waits for, if no task shows it.
fn waits_for(view: &JobView) -> Option<String> {
    let verdict = &view.convergence;
    let is_of_job = verdict.reason == Some(Reason::Promotion) || !view.unplaced.is_empty();
    let waits = verdict.state == ConvergenceState::Waiting && is_of_job;
    waits.then(|| format!("waiting, {}", plain(&verdict.message)))
}

fn state_of(view: &AllocView, task: &TaskView) -> (String, String) {
    let name = view.spec.task_title(&task.name);
    let mut state = show::phase(task);
    if !view.convergence.message.is_empty() && task.phase != TaskPhase::Dead {
        let verdict = plain(&view.convergence.message);
        // A verdict about one task is added only to that task, without its name.
        let of_this = verdict.strip_prefix(&format!("task {}: ", task.name));
        if let Some(reason) = of_this.or_else(|| (!verdict.starts_with("task ")).then_some(verdict.as_str()))
        {
            state.push_str(&format!(", {reason}"));
        }
    }
    (name, state)
}
