//! `herdlet get`: lists objects, for people and for scripts; once, or again after each change.
//!
//! In: a kind and targets. Out: rows of a table, names, or documents. [`rows`] builds the rows, [`listing`] prints them,
//! [`follow`] implements `--watch`.

mod allocs;
mod drift;
mod events;
mod follow;
mod jobs;
mod listing;
mod networks;
mod node;
mod plugins;
mod rows;
mod services;
mod template;
mod versions;
mod volumes;

use clap::{Args, ValueEnum};

use super::{
    Connection,
    client::Client,
    failure::{Failure, USAGE},
    show,
    table::Heading,
};
use crate::{
    missing::Missing,
    selection::{Absent, SelectorFlag},
};

use listing::Listing;
use template::{Column, Template};

/// Arguments of `herdlet get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// What to list
    #[arg(value_enum)]
    kind: ObjectKind,
    /// Only these targets, or names of services, volumes, bridges and plugins
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
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
    selector: SelectorFlag,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl OfKindArgs {
    fn of(self, kind: ObjectKind, ended: EndedAllocs) -> GetArgs {
        let Self { targets, selector, output, connection } = self;
        GetArgs { kind, targets, selector, ended, output, connection }
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
    /// Output format: table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…; json prints
    /// allocations as Nomad does, yaml prints jobs as manifests
    #[arg(short, long, default_value = "table", value_parser = Shape::parse, value_name = "FORM")]
    output: Shape,
    /// Omit the header
    #[arg(long)]
    no_headers: bool,
    /// Continue until Ctrl-C: on a terminal, update the table, else print each change as a line or document
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    /// By a template or columns.
    Custom,
}

/// A form with what it needs.
#[derive(Debug, Clone)]
enum Shape {
    Plain(Form),
    JsonPath(Template),
    Columns(Vec<Column>),
}

impl Shape {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, argument) = text.split_once('=').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let plain = |form| match argument {
            None => Ok(Self::Plain(form)),
            Some(_) => Err(format!("{name} takes no argument")),
        };
        match name {
            "table" => plain(Form::Table),
            "wide" => plain(Form::Wide),
            "json" => plain(Form::Json),
            "yaml" => plain(Form::Yaml),
            "name" => plain(Form::Name),
            "jsonpath" => {
                let template =
                    argument.ok_or("write jsonpath=TEMPLATE, as in jsonpath='{.items[*].key.id}'")?;
                Template::parse(template).map(Self::JsonPath)
            }
            "custom-columns" => {
                let listed =
                    argument.ok_or("write custom-columns=NAME:PATH,…, as in custom-columns=JOB:.key.id")?;
                template::columns(listed).map(Self::Columns)
            }
            _ => {
                Err("expected table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…"
                    .to_owned())
            }
        }
    }

    fn form(&self) -> Form {
        match self {
            Self::Plain(form) => *form,
            Self::JsonPath(_) | Self::Columns(_) => Form::Custom,
        }
    }

    /// The text of documents in a custom form; none in another one.
    fn render(&self, documents: &[serde_json::Value], heading: Heading) -> Option<String> {
        match self {
            Self::Plain(_) => None,
            Self::JsonPath(template) => Some(template.render(documents)),
            Self::Columns(columns) => Some(template::table(columns, documents, heading)),
        }
    }
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
    /// Networks of allocations, and the bridge that connects them
    #[value(alias = "network")]
    Networks,
    /// Tasks that are CSI plugins, and whether they respond
    #[value(alias = "plugin")]
    Plugins,
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
    shape: &'w Shape,
    heading: Heading,
}

pub async fn run(args: GetArgs) -> Result<u8, Failure> {
    let GetArgs { kind, targets, selector, ended, output, connection } = args;
    let client = connection.client()?;
    let heading = if output.no_headers { Heading::Hidden } else { Heading::Shown };
    let targets = selector.targets(&client, targets, Absent::All).await?;
    let shape = &output.output;
    let form = shape.form();
    let wanted = ListRequest { client: &client, kind, targets: &targets, ended, form, shape, heading };
    if output.watch && form == Form::Custom {
        let message =
            "--watch prints table, wide, json, yaml or name; for changes as they happen: -o json --watch";
        return Err(Failure::new(message).code(USAGE));
    }
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
        let listing = wanted.list(Missing::IsWrong).await?;
        match listing.rows.is_empty()
            && kind == ObjectKind::Events
            && matches!(form, Form::Table | Form::Wide)
        {
            true => show::out(&events::none_text(&targets, &client.allocs().await?)),
            false => listing.print(&wanted).await?,
        }
    }
    Ok(0)
}

impl ListRequest<'_> {
    /// Lists the present objects.
    async fn list(&self, missing: Missing) -> Result<Listing, Failure> {
        rows::list(self, missing).await
    }
}
