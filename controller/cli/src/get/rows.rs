//! The rows that `get` lists: chooses the module of the kind. The columns of deployments are in [`crate::deployments`].
//!
//! In: a request. Out: rows, in the order of output.

use super::{
    Form, ListRequest, ObjectKind, allocs, drift, events, jobs,
    listing::{Cell, Document, Listing, Row},
    networks, plugins, services, versions, volumes,
};
use crate::{client::Client, deployments, failure::Failure, missing::Missing, target};

pub(super) async fn list(wanted: &ListRequest<'_>, missing: Missing) -> Result<Listing, Failure> {
    let ListRequest { client, targets, ended, form, .. } = *wanted;
    match wanted.kind {
        ObjectKind::Jobs => jobs::list(client, targets, missing).await,
        ObjectKind::Allocs => allocs::list(client, targets, form, ended, missing).await,
        ObjectKind::Tasks => allocs::list_tasks(client, targets, missing).await,
        ObjectKind::Services => services::list(client, targets, form, missing).await,
        ObjectKind::Volumes => volumes::list(client, targets).await,
        ObjectKind::Networks => {
            let views = client.networks().await?;
            let is_meant = |target: &String| {
                views.iter().any(|view| networks::is_meant(view, std::slice::from_ref(target)))
            };
            known(client, targets, missing, is_meant).await?;
            Ok(networks::list(views, targets, form))
        }
        ObjectKind::Plugins => plugins::list(client, targets, missing).await,
        ObjectKind::Deployments => deployments(client, targets, form, missing).await,
        ObjectKind::Versions => versions::list(client, targets, missing).await,
        ObjectKind::Events => {
            let events = client.transitions().await?;
            let is_told = |target: &String| {
                let only = std::slice::from_ref(target);
                events.iter().any(|event| events::is_meant(&event.job, &event.name, event.alloc, only))
            };
            known(client, targets, missing, is_told).await?;
            Ok(events::list(events, targets, form))
        }
        ObjectKind::Drift => {
            let drifts = client.drifts().await?;
            let is_told = |target: &String| {
                let only = std::slice::from_ref(target);
                drifts.iter().any(|drift| events::is_meant(&drift.job, &drift.name, Some(drift.alloc), only))
            };
            known(client, targets, missing, is_told).await?;
            Ok(drift::list(drifts, targets, form))
        }
        ObjectKind::Node => Ok(Listing::new(&[])),
    }
}

/// Fails for targets that don't exist. An existing target without events is no error.
async fn known(
    client: &Client,
    targets: &[String],
    missing: Missing,
    is_told: impl Fn(&String) -> bool,
) -> Result<(), Failure> {
    let open: Vec<&String> = targets.iter().filter(|target| !is_told(target)).collect();
    if open.is_empty() || missing == Missing::IsGone {
        return Ok(());
    }
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    for target in open {
        target::find_among(client, target, &jobs, &allocs).await?;
    }
    Ok(())
}

async fn deployments(
    client: &Client,
    targets: &[String],
    form: Form,
    missing: Missing,
) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&deployments::COLUMNS);
    let jobs = client.jobs().await?;
    for one in deployments::of(&jobs, targets, missing)? {
        let id = one.id.to_string();
        let shown = if form == Form::Wide { id.clone() } else { one.id.short() };
        let cells = deployments::row(one, shown).map(Cell::Text).into();
        let document = Document::Deployment(Box::new(one.clone()));
        listing.rows.push(Row { key: id.clone(), name: id, cells, document });
    }
    Ok(listing)
}
