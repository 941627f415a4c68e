//! Rows of allocations and of their tasks.
//!
//! In: the agent's allocations, and targets. Out: rows in the order of the targets, or by job, group and index.

use std::collections::BTreeSet;

use herdlet_api_types::view::{AllocView, TaskView};

use super::{
    EndedAllocs, Form,
    listing::{Cell, Document, Listing, Row},
};
use crate::{client::Client, failure::Failure, missing::Missing, selection, show, target};

pub(super) async fn list(
    client: &Client,
    targets: &[String],
    form: Form,
    ended: EndedAllocs,
    missing: Missing,
) -> Result<Listing, Failure> {
    let mut columns = vec!["ID", "NAME", "VERSION", "STATUS", "HEALTHY", "STATE", "AGE"];
    if form == Form::Wide {
        columns.extend(["PORTS", "MESSAGE"]);
    }
    let mut listing = Listing::new(&columns);
    let mut unlisted = 0;
    for view in with_ended(client, targets, missing).await? {
        if ended == EndedAllocs::Counted && view.status.is_terminal() {
            unlisted += 1;
            continue;
        }
        let id = view.spec.id.to_string();
        let shown = if form == Form::Wide { id.clone() } else { view.spec.id.short() };
        let mut cells: Vec<Cell> = alloc_cells(&view, shown).into();
        if form == Form::Wide {
            let verdict = Some(&*view.convergence.message).filter(|message| !message.is_empty());
            let message = verdict.or(view.loss()).unwrap_or_default().to_owned();
            cells.extend([ports(&view).into(), message.into()]);
        }
        let document = Document::Alloc(Box::new(view));
        listing.rows.push(Row { key: id.clone(), name: id, cells, document });
    }
    let listed = if listing.rows.is_empty() { "nothing runs; " } else { "" };
    listing.unlisted = (unlisted > 0)
        .then(|| format!("{listed}ended allocations not listed: {unlisted} (herdlet ps --all)"));
    Ok(listing)
}

/// The allocations of the targets, with those of the same slots that have ended: earlier ones, and canaries that failed.
/// Without targets, all.
async fn with_ended(
    client: &Client,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<AllocView>, Failure> {
    let (named, all) = tokio::try_join!(chosen(client, targets, missing), async {
        client.allocs().await.map_err(Failure::from)
    })?;
    // An id names one allocation and not its slot.
    let names_place = |view: &AllocView| {
        targets.iter().any(|target| selection::after_job(target, &view.spec.job_key).is_some())
    };
    let mut found: Vec<AllocView> = Vec::new();
    for (view, _) in named {
        let slot = |view: &AllocView| (view.spec.job_key.clone(), view.spec.group.clone(), view.spec.index);
        let ended = all.iter().filter(|other| {
            other.spec.id != view.spec.id
                && names_place(&view)
                && other.status.is_terminal()
                && slot(other) == slot(&view)
        });
        found.extend(ended.cloned());
        found.push(view);
    }
    let mut known = BTreeSet::new();
    found.retain(|view| known.insert(view.spec.id));
    Ok(found)
}

fn alloc_cells(view: &AllocView, id: String) -> [Cell; 7] {
    [
        id.into(),
        view.spec.title().into(),
        view.spec.job_version.to_string().into(),
        view.status.as_str().to_owned().into(),
        show::healthy(view).to_owned().into(),
        view.convergence.state.as_str().to_owned().into(),
        Cell::Age(view.spec.create_time),
    ]
}

fn ports(view: &AllocView) -> String {
    let ports = view.spec.named_ports().map(|(name, port)| format!("{name}={}:{}", port.host_ip, port.value));
    ports.collect::<Vec<_>>().join(",")
}

pub(super) async fn list_tasks(
    client: &Client,
    targets: &[String],
    missing: Missing,
) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&["TASK", "ALLOC", "STATE", "PHASE", "RESTARTS", "AGE"]);
    for (view, wanted) in chosen(client, targets, missing).await? {
        let is_meant = |task: &&TaskView| wanted.as_deref().is_none_or(|wanted| *wanted == *task.name);
        listing.rows.extend(view.tasks.iter().filter(is_meant).map(|task| task_row(&view, task)));
    }
    Ok(listing)
}

fn task_row(view: &AllocView, task: &TaskView) -> Row {
    let alloc = view.spec.id;
    let name = format!("{}/{}", view.spec.name(), task.name);
    let cells = [
        view.spec.task_title(&task.name).into(),
        alloc.short().into(),
        task.state.as_str().to_owned().into(),
        show::phase(task).into(),
        task.restarts.to_string().into(),
        Cell::Age(task.started_at),
    ];
    let document = Document::Task { alloc, name: name.clone(), task: Box::new(task.clone()) };
    Row { key: format!("{alloc}/{}", task.name), name, cells: cells.into(), document }
}

/// The allocations of the targets, or all; each with the task that the target names.
async fn chosen(
    client: &Client,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<(AllocView, Option<String>)>, Failure> {
    if targets.is_empty() {
        let mut allocs = client.allocs().await?;
        allocs.sort_by_key(|view| {
            (view.spec.job_key.clone(), view.spec.group.clone(), view.spec.index, view.spec.create_index)
        });
        return Ok(allocs.into_iter().map(|view| (view, None)).collect());
    }
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let mut chosen = Vec::new();
    for text in targets {
        match (target::find_among(client, text, &jobs, &allocs).await, missing) {
            (Ok(target), _) => {
                chosen.extend(target.allocs.into_iter().map(|view| (view, target.task.clone())));
            }
            (Err(failure), Missing::IsWrong) => return Err(failure),
            (Err(_), Missing::IsGone) => {}
        }
    }
    Ok(chosen)
}
