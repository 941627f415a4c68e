//! Progress on stderr: a line per task, redrawn on a terminal, else a line for each change.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use herdlet_api_types::{
    AllocId,
    alloc::Desired,
    task::TaskPhase,
    view::{AllocView, Convergence, ConvergenceState, JobView, Reason, TaskView},
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
    printed: BTreeMap<Line, (String, Instant)>,
    /// The allocations that were seen, and whether they had been stopped and had ended before.
    seen: BTreeMap<AllocId, bool>,
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
        Self { place, printed: BTreeMap::new(), seen: BTreeMap::new(), drawn: 0 }
    }

    /// Resolves when the lines should be redrawn without a change.
    pub(super) async fn tick(&self) {
        match self.place {
            Sink::Terminal { .. } => tokio::time::sleep(TICK).await,
            Sink::Lines => std::future::pending().await,
        }
    }

    pub(super) fn show(&mut self, jobs: &[&JobView], allocs: &[&AllocView]) {
        let allocs = &self.of_this_wait(allocs);
        match self.place {
            Sink::Lines => {
                for line in self.transitions(jobs, allocs) {
                    herdlet_base::stderr_line!("{line}");
                }
            }
            Sink::Terminal { columns } => {
                let states = self.states(jobs, allocs);
                self.draw(&states, columns);
            }
        }
    }

    /// The allocations without those that had been stopped and had ended before the wait began.
    fn of_this_wait<'v>(&mut self, allocs: &[&'v AllocView]) -> Vec<&'v AllocView> {
        let mut current = Vec::new();
        for view in allocs {
            let had_ended = view.status.is_terminal() && view.spec.desired != Desired::Run;
            if !*self.seen.entry(view.spec.id).or_insert(had_ended) {
                current.push(*view);
            }
        }
        current
    }

    /// A line for each change of a phase of a task, of a verdict on an allocation, and of what a job waits for. Messages that only
    /// describe progress, and those of a whole allocation with each of its tasks, are left out.
    fn transitions(&mut self, jobs: &[&JobView], allocs: &[&AllocView]) -> Vec<String> {
        let mut lines = Vec::new();
        for view in allocs {
            // If it had ended and was replaced before the wait began, its state is not worth a line.
            let is_old = is_replaced(allocs, view.spec.id);
            for task in &view.tasks {
                let key = (Some(view.spec.id), view.spec.task_title(&task.name));
                let state = show::phase(task);
                let news = self.news(key, &state, &state);
                lines.extend(news.filter(|_| !is_old));
            }
            let Convergence { state, reason, message, .. } = &view.convergence;
            let key = (Some(view.spec.id), view.spec.title());
            let verdict = format!("{} {reason:?}", state.as_str());
            let text = match state {
                ConvergenceState::Progressing => String::new(),
                ConvergenceState::Converged => state.as_str().to_owned(),
                ConvergenceState::Waiting | ConvergenceState::Failed => {
                    format!("{}, {}", state.as_str(), plain(message))
                }
            };
            // A further try between two equal reasons to wait is not printed.
            let is_try = *state == ConvergenceState::Progressing && self.is_waiting(&key);
            if !is_try {
                let news = self.news(key, &verdict, &text);
                lines.extend(news.filter(|_| !is_old && *state != ConvergenceState::Progressing));
            }
        }
        for view in jobs {
            let text = waits_for(view).unwrap_or_default();
            let news = self.news((None, view.key.to_string()), &text, &text);
            lines.extend(news.filter(|_| !text.is_empty()));
        }
        lines
    }

    fn is_waiting(&self, line: &Line) -> bool {
        let waiting = ConvergenceState::Waiting.as_str();
        self.printed.get(line).is_some_and(|(state, _)| state.starts_with(waiting))
    }

    /// The line for a state that differs from the last one.
    fn news(&mut self, key: Line, state: &str, text: &str) -> Option<String> {
        let is_new = self.printed.get(&key).is_none_or(|(printed, _)| printed != state);
        let line = is_new.then(|| format!("{}: {text}", key.1));
        if is_new {
            self.printed.insert(key, (state.to_owned(), Instant::now()));
        }
        line
    }

    fn states(&mut self, jobs: &[&JobView], allocs: &[&AllocView]) -> Vec<(Line, String)> {
        let tasks = allocs.iter().flat_map(|view| view.tasks.iter().map(move |task| (*view, task)));
        let of_tasks = tasks.map(|(view, task)| {
            let (name, state) = state_of(view, task);
            ((Some(view.spec.id), name), state)
        });
        let of_jobs = jobs.iter().filter_map(|view| Some(((None, view.key.to_string()), waits_for(view)?)));
        let states: Vec<(Line, String)> = of_tasks.chain(of_jobs).collect();
        for (line, state) in &states {
            if self.printed.get(line).is_none_or(|(printed, _)| printed != state) {
                self.printed.insert(line.clone(), (state.clone(), Instant::now()));
            }
        }
        states
    }

    fn draw(&mut self, states: &[(Line, String)], columns: usize) {
        let mut lines: Vec<String> = Vec::new();
        for (line, state) in states.iter().take(LINES_LEN_MAX) {
            let since = self.printed.get(line).map_or(0, |(_, at)| at.elapsed().as_secs());
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
            herdlet_base::stderr_line!("{line}");
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

#[cfg(test)]
mod tests {
    use herdlet_api_types::view::Convergence;

    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job};

    fn view(phase: TaskPhase, state: ConvergenceState, message: &str) -> AllocView {
        let mut view = alloc_view(&job("web", "g", "t"), 0, 1);
        let mut second = view.tasks[0].clone();
        second.name = "u".into();
        view.tasks.push(second);
        view.tasks.iter_mut().for_each(|task| (task.phase, task.exit) = (phase, None));
        let reason = (state != ConvergenceState::Converged).then_some(Reason::Health);
        view.convergence = Convergence { state, reason, message: message.to_owned(), ..view.convergence };
        view
    }

    /// `scale --wait` listed what an earlier change had stopped.
    #[test]
    fn allocations_ended_before_the_wait_are_omitted() {
        let mut progress = Progress::begin();
        let running = view(TaskPhase::Running, ConvergenceState::Converged, "");
        let mut stopped =
            herdlet_manifest::fixture::ended(view(TaskPhase::Dead, ConvergenceState::Converged, ""));
        let spec = std::sync::Arc::make_mut(&mut stopped.spec);
        (spec.desired, spec.id) = (Desired::Stop, AllocId::from_hash([9; 16]));
        let shown = |progress: &mut Progress, views: &[&AllocView]| progress.of_this_wait(views).len();
        assert_eq!(shown(&mut progress, &[&running, &stopped]), 1);
        let mut running = running;
        running.status = stopped.status;
        std::sync::Arc::make_mut(&mut running.spec).desired = Desired::Stop;
        assert_eq!(shown(&mut progress, &[&running, &stopped]), 1, "it has ended during the wait");
    }

    /// The state of the group used to be repeated for each task, and each change of its message was a line.
    #[test]
    fn progress_without_a_terminal_prints_transitions() {
        let mut progress =
            Progress { place: Sink::Lines, printed: BTreeMap::new(), seen: BTreeMap::new(), drawn: 0 };
        let mut lines = |view: AllocView| progress.transitions(&[], &[&view]);
        use ConvergenceState::{Converged, Progressing, Waiting};
        assert_eq!(
            lines(view(TaskPhase::Starting, Progressing, "a")),
            ["web.g[0]/t: starting", "web.g[0]/u: starting"]
        );
        assert_eq!(
            lines(view(TaskPhase::Running, Progressing, "checks: ending them")),
            ["web.g[0]/t: running", "web.g[0]/u: running"]
        );
        assert!(lines(view(TaskPhase::Running, Progressing, "other words")).is_empty());
        assert_eq!(
            lines(view(TaskPhase::Running, Waiting, "waits for passing checks")),
            ["web.g[0]: waiting, waits for passing checks"]
        );
        assert!(lines(view(TaskPhase::Running, Waiting, "still waits")).is_empty());
        assert!(lines(view(TaskPhase::Running, Progressing, "tries it again")).is_empty());
        assert!(lines(view(TaskPhase::Running, Waiting, "still waits")).is_empty());
        assert_eq!(lines(view(TaskPhase::Running, Converged, "")), ["web.g[0]: converged"]);
        assert!(lines(view(TaskPhase::Running, Converged, "")).is_empty());
    }
}
