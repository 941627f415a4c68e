//! `herdlet get`: lists objects, for people and for scripts; once, or again after each change.
//!
//! In: a kind and targets. Out: rows of a table, names, or documents. [`rows`] builds the rows, [`listing`] prints them,
//! [`follow`] implements `--watch`.

mod drift;
mod events;
mod follow;
mod listing;
mod node;
mod rows;

use clap::{Args, ValueEnum};

use super::{
    Connection,
    client::Client,
    failure::{Failure, USAGE},
    table::Heading,
};
use crate::missing::Missing;

use listing::Listing;

/// Arguments of `herdlet get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// What to list
    #[arg(value_enum)]
    kind: ObjectKind,
    /// Only these targets, or names of services and volumes
    targets: Vec<String>,
    #[arg(skip)]
    ended: EndedAllocs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet ps`.
#[derive(Debug, Clone, Args)]
pub struct PsArgs {
    /// Include ended allocations
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    pub listed: OfKindArgs,
}

/// Arguments of `herdlet drift`, which lists one kind.
#[derive(Debug, Clone, Args)]
pub struct OfKindArgs {
    /// Only these targets
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl OfKindArgs {
    fn of(self, kind: ObjectKind, ended: EndedAllocs) -> GetArgs {
        let Self { targets, output, connection } = self;
        GetArgs { kind, targets, ended, output, connection }
    }

    /// `herdlet get drift`.
    pub fn drift(self) -> GetArgs {
        self.of(ObjectKind::Drift, EndedAllocs::Listed)
    }
}

impl PsArgs {
    /// `herdlet get allocs`; only live allocations unless `--all` is given.
    pub fn allocs(self) -> GetArgs {
        self.listed.of(ObjectKind::Allocs, if self.all { EndedAllocs::Listed } else { EndedAllocs::Counted })
    }
}

/// Whether to list ended allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EndedAllocs {
    #[default]
    Listed,
    /// Only their number is printed.
    Counted,
}

#[derive(Debug, Clone, Args)]
struct Output {
    /// Output format. json prints allocations as Nomad does, yaml prints jobs as manifests
    #[arg(short, long, value_enum, default_value = "table")]
    output: Form,
    /// Omit the header
    #[arg(long)]
    no_headers: bool,
    /// Continue until Ctrl-C: on a terminal, update the table, else print each change as a line or document
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ObjectKind {
    #[value(alias = "job")]
    Jobs,
    #[value(alias = "alloc", alias = "allocations")]
    Allocs,
    #[value(alias = "task")]
    Tasks,
    #[value(alias = "service")]
    Services,
    #[value(alias = "volume")]
    Volumes,
    #[value(alias = "deployment")]
    Deployments,
    /// The versions of one job
    #[value(alias = "version")]
    Versions,
    /// Recent events of allocations and their causes, newest first
    #[value(alias = "event")]
    Events,
    /// Differences from what the agent created, and their repairs, newest first
    Drift,
    /// Attributes of this machine that constraints can refer to
    #[value(alias = "nodes")]
    Node,
}

/// What to list, and how.
struct ListRequest<'w> {
    client: &'w Client,
    kind: ObjectKind,
    targets: &'w [String],
    ended: EndedAllocs,
    form: Form,
    heading: Heading,
}

pub async fn run(args: GetArgs) -> Result<u8, Failure> {
    let GetArgs { kind, targets, ended, output, connection } = args;
    let client = connection.client()?;
    let heading = if output.no_headers { Heading::Hidden } else { Heading::Shown };
    let wanted =
        ListRequest { client: &client, kind, targets: &targets, ended, form: output.output, heading };
    if kind == ObjectKind::Node {
        if output.watch {
            return Err(
                Failure::new("node can't be watched: it does not change while the agent runs").code(USAGE)
            );
        }
        node::print(&wanted).await?;
    } else if output.watch {
        return follow::follow(&wanted).await;
    } else {
        wanted.list(Missing::IsWrong).await?.print(&wanted).await?;
    }
    Ok(0)
}

impl ListRequest<'_> {
    /// Lists the present objects.
    async fn list(&self, missing: Missing) -> Result<Listing, Failure> {
        rows::list(self, missing).await
    }
}
