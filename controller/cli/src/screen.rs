//! The status page as text: a summary line, then a row for each job. Painted once or repeatedly.
//!
//! In: an [`Overview`], the width of the terminal, and optionally the usage of each job. Out: lines, with the last column
//! cut to fit.

use std::{collections::BTreeMap, io::IsTerminal as _};

use anstream::ColorChoice;
use anstyle::Style;
use herdlet_api_types::{
    JobKey, UnixNanos,
    api::{AgentStatus, ManifestProblem},
    overview::{JobRow, Overview},
    view::HELD,
};

use super::{
    show::{self, styled},
    stdout, style,
    table::plain,
};

/// The resource usage of a job's tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    /// In percent of one core.
    pub(super) cpu_percent: f64,
    /// Resident memory in bytes.
    pub(super) memory: u64,
}

/// The content of the screen.
#[derive(Debug)]
pub(super) struct Screen<'o> {
    pub(super) overview: &'o Overview,
    /// Problems of the agent, one line each.
    pub(super) problems: &'o [String],
    /// Usage by job; none if it was not requested.
    pub(super) loads: Option<&'o BTreeMap<JobKey, Load>>,
    /// What only `top` shows.
    pub(super) top: Option<&'o TopRows>,
    pub(super) now: UnixNanos,
}

/// What `top` shows besides the jobs.
#[derive(Debug, Default)]
pub(super) struct TopRows {
    /// The tasks of the jobs that are open.
    pub(super) tasks: BTreeMap<JobKey, Vec<TaskRow>>,
    pub(super) chosen: Option<JobKey>,
    /// A line about the keys; empty if there are none.
    pub(super) help: String,
}

/// A task of a running allocation.
#[derive(Debug, Clone)]
pub(super) struct TaskRow {
    /// `group[0]/task`.
    pub(super) name: String,
    pub(super) phase: String,
    pub(super) load: Load,
    /// Its last event.
    pub(super) last: String,
}

struct Cell {
    style: Style,
    text: String,
    side: Side,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Screen<'_> {
    /// The lines; none is longer than `columns`, if that is known.
    pub(super) fn render(&self, columns: Option<usize>) -> String {
        let Overview { converged, lag, overdue, jobs, .. } = self.overview;
        let late = if *overdue > 0 { style::ERROR } else { Style::new() };
        let mut text = format!(
            "{}   lag {}   {}   {}\n",
            styled(style::HEADING, format!("{converged}/{} converged", self.overview.job_count())),
            lag.rounded(),
            styled(late, format!("overdue {overdue}")),
            self.overview.drift(),
        );
        for problem in self.problems {
            text.push_str(&format!("{}\n", styled(style::ERROR, cut(problem, columns))));
        }
        if let Some(loads) = self.loads.filter(|_| self.top.is_some()) {
            let total = loads.values().fold(Load::default(), |sum, load| Load {
                cpu_percent: sum.cpu_percent + load.cpu_percent,
                memory: sum.memory + load.memory,
            });
            let (cpu, memory) = (total.cpu_percent, show::bytes(total.memory));
            text.push_str(&format!("all jobs: cpu {cpu:.1}%   memory {memory}\n"));
        }
        if let Some(help) = self.top.map(|top| &top.help).filter(|help| !help.is_empty()) {
            text.push_str(&format!("{}\n", styled(style::DIM, cut(help, columns))));
        }
        if jobs.is_empty() {
            text.push_str("no jobs\n");
            return text;
        }
        let heading =
            self.cells(["JOB", "VERSION", "STATE", "HEALTHY", "CPU", "MEMORY", "NEXT"].map(str::to_owned));
        let mut rows = vec![heading];
        for row in jobs {
            rows.push(self.row(row));
            let tasks = self.top.and_then(|top| top.tasks.get(&row.key));
            rows.extend(tasks.into_iter().flatten().map(|task| self.task(task)));
        }
        text.push_str(&render_rows(&rows, columns));
        text
    }

    fn row(&self, row: &JobRow) -> Vec<Cell> {
        let load = self.loads.and_then(|loads| loads.get(&row.key)).copied().unwrap_or_default();
        let mut cells = self.cells([
            if row.placed { format!("{} (servers)", row.key) } else { row.key.to_string() },
            row.versions(),
            row.progress_text(),
            format!("{}/{}", row.healthy, row.wanted),
            format!("{:.1}%", load.cpu_percent),
            show::bytes(load.memory),
            row.outlook(self.now),
        ]);
        if self.top.is_some_and(|top| top.chosen.as_ref() == Some(&row.key))
            && let Some(cell) = cells.first_mut()
        {
            cell.style = Style::new().invert();
        }
        if let Some(cell) = cells.get_mut(2) {
            cell.style = if row.state_text() == HELD { style::WARNING } else { style::of(row.state) };
        }
        cells
    }

    fn task(&self, task: &TaskRow) -> Vec<Cell> {
        let TaskRow { name, phase, load, last } = task;
        let (cpu, memory) = (format!("{:.1}%", load.cpu_percent), show::bytes(load.memory));
        let nothing = String::new;
        self.cells([format!("  {name}"), nothing(), phase.clone(), nothing(), cpu, memory, last.clone()])
    }

    fn cells(&self, texts: [String; 7]) -> Vec<Cell> {
        let shown = |column: usize| self.loads.is_some() || !(4..=5).contains(&column);
        let side = |column| if (3..=5).contains(&column) { Side::Right } else { Side::Left };
        let cell = |(column, text): (usize, String)| Cell {
            style: Style::new(),
            text: plain(&text),
            side: side(column),
        };
        texts.into_iter().enumerate().filter(|(column, _)| shown(*column)).map(cell).collect()
    }
}

fn render_rows(rows: &[Vec<Cell>], columns: Option<usize>) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].text.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let before_last: usize = widths.iter().take(count.saturating_sub(1)).map(|width| width + 2).sum();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let is_last = column + 1 == count;
            let shown = if is_last {
                cut(&cell.text, columns.map(|columns| columns.saturating_sub(before_last)))
            } else {
                cell.text.clone()
            };
            let padding = " ".repeat(width.saturating_sub(cell.text.chars().count()));
            let shown = styled(cell.style, shown);
            match cell.side {
                _ if is_last => line.push_str(&shown),
                Side::Left => line.push_str(&format!("{shown}{padding}  ")),
                Side::Right => line.push_str(&format!("{padding}{shown}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Truncates a text to the width.
pub(super) fn cut(text: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if text.chars().count() > columns => {
            let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
        Some(_) | None => text.to_owned(),
    }
}

/// Where a screen is painted repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Canvas {
    /// A terminal: each frame replaces the previous one.
    Terminal { painted: bool },
    /// An output that keeps every line.
    Lines,
}

impl Canvas {
    pub(super) fn of_stdout() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if std::io::stdout().is_terminal() && !dumb { Self::Terminal { painted: false } } else { Self::Lines }
    }

    pub(super) fn is_terminal(self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    pub(super) fn paint(&mut self, text: &str) {
        match self {
            Self::Lines => show::out(text),
            Self::Terminal { painted } => {
                // Overwrites line by line and clears the rest, so that the screen never flickers.
                let clear = if *painted { "\x1b[H" } else { "\x1b[2J\x1b[H" };
                *painted = true;
                let rows = size().map_or(usize::MAX, |(rows, _)| rows.saturating_sub(1));
                let lines = text.lines().take(rows);
                // Moving the cursor is not colour: NO_COLOR must not turn the screen into a scroll.
                let shown = |line: &str| match anstream::AutoStream::choice(&std::io::stdout()) {
                    ColorChoice::Never => anstream::adapter::strip_str(line).to_string(),
                    ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => line.to_owned(),
                };
                let lines: String = lines.map(|line| format!("{}\x1b[K\n", shown(line))).collect();
                stdout::bytes(format!("{clear}{lines}\x1b[J").as_bytes());
            }
        }
    }
}

/// Columns of the terminal on standard output; none if it is not a terminal.
pub(super) fn columns() -> Option<usize> {
    if std::io::stdout().is_terminal() { size().map(|(_, columns)| columns) } else { None }
}

fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then(|| (usize::from(size.ws_row), usize::from(size.ws_col)))
}

/// Problems of the agent itself and of its manifests, one line each.
pub(super) fn problems(status: &AgentStatus) -> Vec<String> {
    let of_agent = [&status.not_ready, &status.degraded, &status.disk_full];
    let of_agent = of_agent.into_iter().flatten().map(|text| plain(text));
    let of_manifests = status.manifest_problems.iter().map(|problem| {
        let ManifestProblem { source, line, column, path, message } = problem;
        let place = if *line > 0 { format!("{source}:{line}:{column}") } else { source.clone() };
        let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
        plain(&format!("not in force: {place}: {path}{message}"))
    });
    of_agent.chain(of_manifests).collect()
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{Duration, view::ConvergenceState};

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn row(name: &str, state: ConvergenceState, next: &str) -> JobRow {
        JobRow {
            key: JobKey { namespace: "default".into(), id: name.into() },
            version: 8,
            from_version: None,
            deleting: false,
            stopped: false,
            placed: false,
            held: None,
            state,
            since: UnixNanos(1),
            healthy: 1,
            wanted: 1,
            next: next.to_owned(),
            next_alloc: None,
            due: None,
        }
    }

    fn overview() -> Overview {
        let web = JobRow {
            from_version: Some(7),
            wanted: 2,
            due: Some(UnixNanos(100 * SECOND + SECOND / 5)),
            ..row("web", ConvergenceState::Progressing, "web.web[1]: task httpd: process: stopping it")
        };
        let db = row(
            "database",
            ConvergenceState::Failed,
            "database.db[0]: task db: failed: exceeded 2 restarts in 30s",
        );
        let old = JobRow { deleting: true, wanted: 0, ..row("old", ConvergenceState::Waiting, "") };
        let cron = row("backup", ConvergenceState::Converged, "");
        let jobs = vec![web, db, old, cron];
        Overview {
            index: 3,
            converged: 1,
            lag: Duration(4_090_000_000),
            overdue: 1,
            drift_repaired: 2,
            drift_known: Duration::from_secs(24 * 3600),
            jobs,
            complete_children: 0,
        }
    }

    fn rendered(columns: Option<usize>, loads: Option<&BTreeMap<JobKey, Load>>) -> String {
        let problems = ["not in force: jobs.d/a.yaml:4:8: spec.typ: unknown field".to_owned()];
        let now = UnixNanos(99 * SECOND);
        let screen = Screen { overview: &overview(), problems: &problems, loads, top: None, now };
        screen.render(columns)
    }

    fn without_colour(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn on_eighty_columns_what_happens_next_is_cut() {
        assert_eq!(
            without_colour(&rendered(Some(80), None)),
            "\
1/4 converged   lag 4.1s   overdue 1   drift 2 repaired (24h)
not in force: jobs.d/a.yaml:4:8: spec.typ: unknown field
JOB       VERSION  STATE              HEALTHY  NEXT
web       7→8      progressing            1/2  web.web[1]: task httpd: process:…
database  8        failed                 1/1  database.db[0]: task db: failed:…
old       8        deleting, waiting      1/0
backup    8        converged              1/1
"
        );
    }

    #[test]
    fn on_more_columns_nothing_is_cut_and_colours_are_of_the_state() {
        let text = rendered(Some(160), None);
        assert!(without_colour(&text).contains(
            "progressing            1/2  web.web[1]: task httpd: process: stopping it (at most 1.2s)\n"
        ));
        assert!(text.contains(&styled(style::ERROR, "failed")), "{text:?}");
        assert!(text.contains(&styled(style::GOOD, "converged")), "{text:?}");
        assert!(text.contains(&styled(style::ERROR, "overdue 1")), "{text:?}");
        assert_eq!(without_colour(&text), without_colour(&rendered(None, None)));
    }

    #[test]
    fn resource_usage_has_its_own_columns() {
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        let loads = BTreeMap::from([(key, Load { cpu_percent: 12.34, memory: 200 * 1024 * 1024 })]);
        let text = without_colour(&rendered(Some(80), Some(&loads)));
        let lines: Vec<&str> = text.lines().skip(2).take(2).collect();
        assert_eq!(
            lines,
            [
                "JOB       VERSION  STATE              HEALTHY    CPU   MEMORY  NEXT",
                "web       7→8      progressing            1/2  12.3%  200 MiB  web.web[1]: task…",
            ]
        );
    }

    #[test]
    fn top_shows_totals_and_the_tasks_of_open_jobs() {
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        let load = Load { cpu_percent: 12.34, memory: 200 * 1024 * 1024 };
        let loads = BTreeMap::from([(key.clone(), load)]);
        let task = TaskRow {
            name: "web[0]/httpd".to_owned(),
            phase: "running".to_owned(),
            load,
            last: "Task started".to_owned(),
        };
        let top = TopRows {
            tasks: BTreeMap::from([(key.clone(), vec![task])]),
            chosen: Some(key),
            help: "q quit".to_owned(),
        };
        let (overview, now) = (overview(), UnixNanos(99 * SECOND));
        let screen = Screen { overview: &overview, problems: &[], loads: Some(&loads), top: Some(&top), now };
        let text = without_colour(&screen.render(Some(100)));
        let lines: Vec<&str> = text.lines().skip(1).take(5).collect();
        assert_eq!(lines[..2], ["all jobs: cpu 12.3%   memory 200 MiB", "q quit"]);
        assert!(lines[3].starts_with("web ") && lines[4].starts_with("  web[0]/httpd"), "{text}");
        assert!(lines[4].contains("running") && lines[4].ends_with("12.3%  200 MiB  Task started"), "{text}");
    }
}
