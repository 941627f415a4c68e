//! The result of `get`: a row for each object, with its name and document.

use herdlet_api_types::{
    AllocId, UnixNanos,
    csi::CsiPluginView,
    deployment::Deployment,
    network::NetworkView,
    nomad,
    overview::{Drift, Transition},
    service::ServiceView,
    view::{AllocView, JobVersion, JobView, TaskView, VolumeView},
};
use herdlet_manifest::manifests;
use serde::Serialize;

use super::{Form, ListRequest, ObjectKind};
use crate::{
    client::{Client, ClientError},
    failure::Failure,
    show,
    table::{Heading, Table},
};

pub(super) struct Listing {
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    /// A note about objects that are not listed.
    pub(super) unlisted: Option<String>,
}

pub(super) struct Row {
    /// Unique among the objects of its kind.
    pub(super) key: String,
    pub(super) name: String,
    pub(super) cells: Vec<Cell>,
    pub(super) document: Document,
}

/// A cell of a table. The age of an object is compared by its time, so that a passing second is no
/// change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Text(String),
    /// The time since then.
    Age(UnixNanos),
}

impl Cell {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Age(at) => show::age(*at),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What `-o json` and `-o yaml` print of an object.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Document {
    Job(Box<JobView>),
    /// In our own form; [`Document::printed`] replaces it by Nomad's.
    Alloc(Box<AllocView>),
    Allocation(Box<nomad::Allocation>),
    Task {
        alloc: AllocId,
        name: String,
        task: Box<TaskView>,
    },
    Service(Box<ServiceView>),
    Volume(Box<VolumeView>),
    Network(Box<NetworkView>),
    Plugin(Box<CsiPluginView>),
    Deployment(Box<Deployment>),
    Version(JobVersion),
    Event(Transition),
    Drift(Drift),
}

impl Document {
    /// The document to print; none if the object is gone.
    pub(super) async fn printed(self, client: &Client) -> Result<Option<Self>, Failure> {
        match self {
            Self::Alloc(view) => match client.allocation(view.spec.id).await {
                Ok(allocation) => Ok(Some(Self::Allocation(Box::new(allocation)))),
                Err(ClientError::Status { status: 404, .. }) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Self::Job(_)
            | Self::Allocation(_)
            | Self::Task { .. }
            | Self::Service(_)
            | Self::Volume(_)
            | Self::Network(_)
            | Self::Plugin(_)
            | Self::Deployment(_)
            | Self::Version(_)
            | Self::Event(_)
            | Self::Drift(_) => Ok(Some(self)),
        }
    }

    /// The manifest of an object that can be applied.
    pub(super) fn manifest(&self) -> Result<Option<String>, Failure> {
        let text = match self {
            Self::Job(view) => manifests::job_to_yaml(&view.job),
            Self::Version(version) => manifests::job_to_yaml(&version.job),
            Self::Volume(view) => manifests::volume_to_yaml(&view.spec),
            Self::Alloc(_)
            | Self::Allocation(_)
            | Self::Task { .. }
            | Self::Service(_)
            | Self::Network(_)
            | Self::Plugin(_)
            | Self::Deployment(_)
            | Self::Event(_)
            | Self::Drift(_) => return Ok(None),
        };
        text.map(Some).map_err(|error| Failure::new(format!("failed to {error}")))
    }
}

impl Listing {
    pub(super) fn new(columns: &[&'static str]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), unlisted: None }
    }

    pub(super) async fn print(self, wanted: &ListRequest<'_>) -> Result<(), Failure> {
        match wanted.form {
            Form::Table | Form::Wide => {
                if !self.rows.is_empty() {
                    show::out(&self.whole(wanted.kind, wanted.heading));
                } else if self.unlisted.is_none() {
                    herdlet_base::stderr_line!("{}", wanted.kind.none());
                }
                self.unlisted.iter().for_each(|message| herdlet_base::stderr_line!("{message}"));
                Ok(())
            }
            Form::Name => {
                self.rows.iter().for_each(|row| show::out(&format!("{}\n", row.name)));
                Ok(())
            }
            Form::Json => show::json(&self.documents(wanted.client).await?),
            Form::Yaml if wanted.kind.has_manifests() => {
                let texts: Result<Vec<_>, _> = self.rows.iter().map(|row| row.document.manifest()).collect();
                let texts: Vec<String> = texts?.into_iter().flatten().collect();
                show::out(&texts.join("---\n"));
                Ok(())
            }
            Form::Yaml => show::yaml(&self.documents(wanted.client).await?),
            Form::Custom => {
                let documents = self.documents(wanted.client).await?;
                let values: Result<Vec<_>, _> = documents.iter().map(serde_json::to_value).collect();
                let values =
                    values.map_err(|error| Failure::new(format!("failed to encode the objects: {error}")))?;
                show::out(&wanted.shape.render(&values, wanted.heading).unwrap_or_default());
                Ok(())
            }
        }
    }

    async fn documents(self, client: &Client) -> Result<Vec<Document>, Failure> {
        let mut documents = Vec::with_capacity(self.rows.len());
        for row in self.rows {
            documents.extend(row.document.printed(client).await?);
        }
        Ok(documents)
    }

    /// The table, or a text if it is empty.
    pub(super) fn whole(&self, kind: ObjectKind, heading: Heading) -> String {
        if self.rows.is_empty() {
            return format!("{}\n", kind.none());
        }
        let mut table = Table::new(&self.columns);
        self.rows.iter().for_each(|row| table.row(row.cells.iter().map(Cell::text)));
        table.render(heading)
    }
}

impl ObjectKind {
    /// The text for an empty list.
    pub(super) fn none(self) -> &'static str {
        match self {
            Self::Jobs => "there are no jobs",
            Self::Allocs => "there are no allocations",
            Self::Tasks => "there are no tasks",
            Self::Services => "there are no services in the built-in catalogue",
            Self::Volumes => "there are no volumes",
            Self::Networks => "no allocation has a network of its own",
            Self::Plugins => "there are no CSI plugins",
            Self::Deployments => "there are no deployments",
            Self::Versions => "there are no versions",
            Self::Events => "nothing has happened since the agent started",
            Self::Drift => "no drift was found since the agent started",
            Self::Node => "the agent has no attributes of this machine",
        }
    }

    /// Whether `-o yaml` prints manifests.
    pub(super) fn has_manifests(self) -> bool {
        match self {
            Self::Jobs | Self::Versions | Self::Volumes => true,
            Self::Allocs
            | Self::Tasks
            | Self::Services
            | Self::Networks
            | Self::Plugins
            | Self::Deployments
            | Self::Events
            | Self::Drift
            | Self::Node => false,
        }
    }
}
