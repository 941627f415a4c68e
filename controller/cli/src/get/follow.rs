//! `herdlet get … --watch`: prints the present objects, then every change, until Ctrl-C or until the reader of the output is
//! gone.
//!
//! In: notifications from the agent that something has changed, and lists. Out: on a terminal the present table; otherwise a row
//! or a document for each new or changed object. Lists are requested only after a notification.

use std::{collections::BTreeMap, convert::Infallible, pin::pin, time::Duration};

use herdlet_manifest::yaml;
use serde::Serialize;

use super::{
    Form, ListRequest, ObjectKind,
    listing::{Cell, Document, Listing, Row},
};
use crate::{
    client::ClientError,
    failure::Failure,
    missing::Missing,
    output,
    screen::{self, Canvas},
    show,
    table::{Heading, Table},
};

/// Interval of repainting a terminal, because ages change.
const TICK: Duration = Duration::from_secs(1);
/// Delay before a reconnect.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn follow(wanted: &ListRequest<'_>) -> Result<u8, Failure> {
    tokio::select! {
        ended = watch(wanted) => ended,
        () = herdlet_base::interrupt::interrupted() => Ok(0),
    }
}

async fn watch(wanted: &ListRequest<'_>) -> Result<u8, Failure> {
    let mut view = View::of_stdout(wanted);
    loop {
        match view.keep_showing().await {
            Ok(never) => match never {},
            // Before the first list, a missing agent or an unknown target is an error, as for any command.
            Err(failure) if view.is_new => return Err(failure),
            Err(failure) => view.last_failure(&failure),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct View<'w> {
    wanted: &'w ListRequest<'w>,
    place: Sink,
    /// Whether nothing was printed yet.
    is_new: bool,
    /// The last error; printed once, however often the reconnect fails.
    last_failure: String,
}

/// The kind of output.
enum Sink {
    /// A terminal with the present table.
    Screen { canvas: Canvas, last: Listing },
    /// One change after the other.
    Lines(Lines),
}

impl<'w> View<'w> {
    fn of_stdout(wanted: &'w ListRequest<'w>) -> Self {
        let canvas = Canvas::of_stdout();
        let place = match wanted.form {
            Form::Table | Form::Wide if canvas.is_terminal() => {
                Sink::Screen { canvas, last: Listing::new(&[]) }
            }
            Form::Table | Form::Wide | Form::Json | Form::Yaml | Form::Name | Form::Custom => {
                Sink::Lines(Lines { known: BTreeMap::new(), wide: Vec::new(), heading: wanted.heading })
            }
        };
        Self { wanted, place, is_new: true, last_failure: String::new() }
    }

    /// Prints the list and its changes until the agent disconnects.
    async fn keep_showing(&mut self) -> Result<Infallible, Failure> {
        // Read before the list: a concurrent change is listed twice rather than not at all.
        let mut index = self.wanted.client.changed(0).await?;
        loop {
            let missing = if self.is_new { Missing::IsWrong } else { Missing::IsGone };
            let listing = self.wanted.list(missing).await?;
            self.show(listing).await?;
            index = self.until_changed(index).await?;
        }
    }

    async fn show(&mut self, listing: Listing) -> Result<(), Failure> {
        match &mut self.place {
            Sink::Screen { last, .. } => {
                *last = listing;
                self.paint();
            }
            Sink::Lines(lines) => {
                if self.is_new && listing.rows.is_empty() {
                    herdlet_base::stderr_line!("{}", self.wanted.kind.none());
                }
                let news = lines.news(self.wanted, listing).await?;
                show::out(&news);
            }
        }
        self.is_new = false;
        self.last_failure.clear();
        Ok(())
    }

    async fn until_changed(&mut self, index: u64) -> Result<u64, ClientError> {
        let mut changed = pin!(self.wanted.client.changed(index));
        loop {
            tokio::select! {
                changed = &mut changed => return changed,
                () = tokio::time::sleep(TICK), if matches!(self.place, Sink::Screen { .. }) => self.paint(),
            }
        }
    }

    /// Repaints the last list with present ages.
    fn paint(&mut self) {
        if let Sink::Screen { canvas, last } = &mut self.place {
            let columns = screen::columns();
            let whole = last.whole(self.wanted.kind, self.wanted.heading);
            canvas.paint(
                &whole.lines().map(|line| format!("{}\n", screen::cut(line, columns))).collect::<String>(),
            );
        }
    }

    fn last_failure(&mut self, failure: &Failure) {
        let previous = std::mem::replace(&mut self.last_failure, failure.to_string());
        match &mut self.place {
            Sink::Screen { canvas, .. } => canvas.paint(&format!("{failure}\n")),
            Sink::Lines(_) if previous != self.last_failure => {
                herdlet_base::stderr_line!("{failure}; retrying")
            }
            Sink::Lines(_) => {}
        }
    }
}

/// Output line by line.
struct Lines {
    known: BTreeMap<String, PrintedRow>,
    /// The widths that the columns have reached.
    wide: Vec<usize>,
    /// Whether the next table has a heading.
    heading: Heading,
}

/// An object as it was last printed.
#[derive(PartialEq, Eq)]
struct PrintedRow {
    name: String,
    cells: Vec<Cell>,
    /// The whole document, if documents are printed.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Added,
    Changed,
    Removed,
}

#[derive(Serialize)]
struct ObjectChange<'n> {
    change: Change,
    name: &'n str,
    /// The new state; null if it was removed.
    object: Option<Document>,
}

impl Lines {
    /// The text about this list for a reader of all previous ones.
    async fn news(&mut self, wanted: &ListRequest<'_>, listing: Listing) -> Result<String, Failure> {
        let mut changes = Telling { wanted, table: Table::new(&listing.columns), text: String::new() };
        let mut known = BTreeMap::new();
        let mut rows = listing.rows;
        if matches!(wanted.kind, ObjectKind::Events | ObjectKind::Drift) {
            rows.reverse();
        }
        for row in rows {
            let now = PrintedRow::of(&row, wanted.form)?;
            match self.known.get(&row.key) {
                Some(before) if *before == now => {}
                Some(_) => changes.print_changes(Change::Changed, &now, Some(row.document)).await?,
                None => changes.print_changes(Change::Added, &now, Some(row.document)).await?,
            }
            known.insert(row.key, now);
        }
        for (_, before) in self.known.iter().filter(|(key, _)| !known.contains_key(*key)) {
            match wanted.kind {
                // Events that are no longer stored were not removed.
                ObjectKind::Events | ObjectKind::Drift => {}
                ObjectKind::Jobs
                | ObjectKind::Allocs
                | ObjectKind::Tasks
                | ObjectKind::Services
                | ObjectKind::Volumes
                | ObjectKind::Networks
                | ObjectKind::Plugins
                | ObjectKind::Deployments
                | ObjectKind::Versions
                | ObjectKind::Node => changes.print_changes(Change::Removed, before, None).await?,
            }
        }
        self.known = known;
        let Telling { table, text, .. } = changes;
        if table.is_empty() {
            return Ok(text);
        }
        let heading = std::mem::replace(&mut self.heading, Heading::Hidden);
        Ok(table.render_below(heading, &mut self.wide))
    }
}

impl PrintedRow {
    fn of(row: &Row, form: Form) -> Result<Self, Failure> {
        let text = match form {
            Form::Json | Form::Yaml => one_line(&row.document)?,
            Form::Table | Form::Wide | Form::Name | Form::Custom => String::new(),
        };
        Ok(Self { name: row.name.clone(), cells: row.cells.clone(), text })
    }
}

/// Changes to be printed: rows, or lines.
struct Telling<'w> {
    wanted: &'w ListRequest<'w>,
    table: Table,
    text: String,
}

impl Telling<'_> {
    async fn print_changes(
        &mut self,
        change: Change,
        known: &PrintedRow,
        document: Option<Document>,
    ) -> Result<(), Failure> {
        match self.wanted.form {
            Form::Table | Form::Wide => {
                let mut cells: Vec<String> = known.cells.iter().map(Cell::text).collect();
                if let (Change::Removed, Some(last)) = (change, cells.last_mut()) {
                    *last = format!("{last} (removed)").trim_start().to_owned();
                }
                self.table.row(cells);
            }
            // Refused with `--watch`.
            Form::Custom => {}
            Form::Name => self.text.push_str(&format!("{}\n", known.name)),
            Form::Json => {
                let news = self.news(change, known, document).await?;
                self.text.push_str(&format!("{}\n", one_line(&output::versioned(&news))?));
            }
            Form::Yaml => {
                let news = self.news(change, known, document).await?;
                let text = yaml::to_yaml(&output::versioned(&news));
                let text = text.map_err(|error| Failure::new(format!("failed to {error}")))?;
                self.text.push_str(&format!("---\n{text}"));
            }
        }
        Ok(())
    }

    async fn news<'k>(
        &self,
        change: Change,
        known: &'k PrintedRow,
        document: Option<Document>,
    ) -> Result<ObjectChange<'k>, Failure> {
        let object = match document {
            Some(document) => document.printed(self.wanted.client).await?,
            None => None,
        };
        Ok(ObjectChange { change, name: &known.name, object })
    }
}

fn one_line<T: Serialize>(data: &T) -> Result<String, Failure> {
    serde_json::to_string(data).map_err(|error| Failure::new(format!("failed to write JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use herdlet_api_types::{UnixNanos, view::ConvergenceState};

    use super::*;
    use crate::{Address, client::Client};
    use herdlet_manifest::fixture::{job, job_view, verdict};

    /// A list of jobs, each with a name and a message.
    fn listing(jobs: &[(&str, &str)]) -> Listing {
        let mut listing = Listing::new(&["JOB", "AGE", "MESSAGE"]);
        for (name, message) in jobs {
            let mut view = job_view(&job(name, "g", "t"), 0);
            view.convergence = verdict(ConvergenceState::Waiting, message);
            let cells =
                vec![(*name).to_owned().into(), Cell::Age(UnixNanos(0)), (*message).to_owned().into()];
            let (key, name) = ((*name).to_owned(), (*name).to_owned());
            listing.rows.push(Row { key, name, cells, document: Document::Job(Box::new(view)) });
        }
        listing
    }

    /// The output for each of these lists.
    async fn printed(form: Form, lists: &[&[(&str, &str)]]) -> Vec<String> {
        let client = Client::new(Address::Unix(Path::new("/nowhere").to_owned()), None).unwrap();
        let wanted = ListRequest {
            client: &client,
            kind: ObjectKind::Jobs,
            targets: &[],
            ended: crate::get::EndedAllocs::Listed,
            form,
            shape: &super::super::Shape::Plain(form),
            heading: Heading::Shown,
        };
        let mut lines = Lines { known: BTreeMap::new(), wide: Vec::new(), heading: Heading::Shown };
        let mut printed = Vec::new();
        for list in lists {
            printed.push(lines.news(&wanted, listing(list)).await.unwrap());
        }
        printed
    }

    #[tokio::test]
    async fn new_changed_and_removed_rows_are_printed() {
        let lists: [&[_]; 4] =
            [&[("web", "a")], &[("web", "a")], &[("database", ""), ("web", "b")], &[("web", "b")]];
        assert_eq!(
            printed(Form::Table, &lists).await,
            [
                "JOB  AGE  MESSAGE\nweb  -    a\n",
                "",
                "database  -\nweb       -    b\n",
                "database  -    (removed)\n",
            ]
        );
        assert_eq!(printed(Form::Name, &lists).await, ["web\n", "", "database\nweb\n", "database\n"]);
    }

    #[tokio::test]
    async fn programs_get_a_document_for_each_change() {
        let lists: [&[_]; 3] = [&[("web", "a")], &[("web", "b")], &[]];
        let lines = printed(Form::Json, &lists).await;
        let documents: Vec<serde_json::Value> =
            lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let changes: Vec<_> = documents.iter().map(|one| one["change"].as_str().unwrap()).collect();
        assert_eq!(changes, ["added", "changed", "removed"]);
        assert!(lines.iter().all(|line| line.lines().count() == 1 && line.starts_with(r#"{"apiVersion":"#)));
        assert_eq!(documents[1]["object"]["convergence"]["message"], "b");
        assert_eq!((&documents[2]["name"], documents[2]["object"].is_null()), (&"web".into(), true));
    }
}
