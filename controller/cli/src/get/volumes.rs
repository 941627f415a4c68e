//! Rows of volumes.

use herdlet_api_types::{
    view::VolumeView,
    volume::{VolumeKind, VolumeStatus},
};

use super::listing::{Cell, Document, Listing, Row};
use crate::{client::Client, failure::Failure};

pub(super) async fn list(client: &Client, names: &[String]) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&["VOLUME", "KIND", "STATUS", "CLAIMS", "PATH"]);
    let mut volumes = client.volumes().await?;
    volumes.retain(|view| names.is_empty() || names.contains(&view.spec.name));
    for view in volumes {
        let name = view.spec.name.clone();
        let cells = volume_cells(&view).map(Cell::Text).into();
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Volume(Box::new(view)) });
    }
    Ok(listing)
}

fn volume_cells(view: &VolumeView) -> [String; 5] {
    let kind = match view.spec.kind {
        VolumeKind::HostPath { .. } => "host path",
        VolumeKind::Mkdir { .. } => "mkdir",
    };
    let (status, path) = match &view.status {
        VolumeStatus::Pending => ("pending".to_owned(), String::new()),
        VolumeStatus::Ready { path } => ("ready".to_owned(), path.clone()),
        VolumeStatus::Failed { why } => (format!("failed: {why}"), String::new()),
    };
    [view.spec.name.clone(), kind.to_owned(), status, view.claims.len().to_string(), path]
}
