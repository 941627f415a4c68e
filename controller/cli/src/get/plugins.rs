//! Rows of CSI plugins: the tasks that run, by the ids of plugins.

use herdlet_api_types::csi::{CsiPluginDescription, CsiPluginView};

use super::listing::{Cell, Document, Listing, Row};
use crate::{client::Client, failure::Failure, missing::Missing};

pub(super) async fn list(client: &Client, ids: &[String], missing: Missing) -> Result<Listing, Failure> {
    let mut views = client.plugins().await?;
    if let Some(id) = missing.among(ids, |id| views.iter().any(|view| view.id == id)) {
        return Err(Failure::new(format!("no task is a CSI plugin with the id {id:?}"))
            .hint("list them: herdlet get plugins"));
    }
    views.retain(|view| ids.is_empty() || ids.contains(&view.id));
    Ok(listing(views))
}

fn listing(views: Vec<CsiPluginView>) -> Listing {
    let mut listing = Listing::new(&["PLUGIN", "TYPE", "STATUS", "PROVIDER", "VERSION", "ALLOC", "TASK"]);
    for view in views {
        let (key, name) = (format!("{}/{}", view.alloc, view.task), view.id.clone());
        let cells = cells(&view).map(Cell::Text).into();
        listing.rows.push(Row { key, name, cells, document: Document::Plugin(Box::new(view)) });
    }
    listing
}

fn cells(view: &CsiPluginView) -> [String; 7] {
    let reported = |text: fn(&CsiPluginDescription) -> &String| {
        view.description.as_ref().map_or_else(|| "-".to_owned(), |it| text(it).clone())
    };
    let status =
        view.unhealthy.as_ref().map_or_else(|| "healthy".to_owned(), |why| format!("unhealthy: {why}"));
    [
        view.id.clone(),
        view.kind.as_str().to_owned(),
        status,
        reported(|it| &it.provider),
        reported(|it| &it.version),
        view.alloc.short().to_string(),
        view.task.clone(),
    ]
}
