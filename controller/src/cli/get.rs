//! `herdlet get`: lists, for people and for scripts.

mod node;

use clap::{Args, ValueEnum};
use herdlet_api_types::{
    alloc::ClientStatus,
    job::{Job, Provider},
    service::Registration,
    view::{AllocView, JobView, TaskView, VolumeView},
    volume::{VolumeKind, VolumeStatus},
};
use serde_json::json;

use super::{
    Connection, children,
    client::Client,
    deployments,
    failure::{Failure, USAGE},
    rollback, show,
    table::{Heading, Table},
    target,
};
use crate::desired::manifests;

/// Arguments of `herdlet get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// What to list
    #[arg(value_enum)]
    kind: Kind,
    /// Only these: targets, or names of services and volumes
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Arguments of `herdlet ps`.
#[derive(Debug, Clone, Args)]
pub struct PsArgs {
    /// Only these targets
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

impl From<PsArgs> for GetArgs {
    fn from(args: PsArgs) -> Self {
        Self { kind: Kind::Allocs, targets: args.targets, output: args.output, connection: args.connection }
    }
}

#[derive(Debug, Clone, Args)]
struct Output {
    /// How to print it. json prints allocations as Nomad does, yaml prints jobs as manifests
    #[arg(short, long, value_enum, default_value = "table")]
    output: Form,
    /// Leave the heading out
    #[arg(long)]
    no_headers: bool,
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
enum Kind {
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
    /// Of one job
    #[value(alias = "version")]
    Versions,
    /// What constraints can name of this machine
    #[value(alias = "nodes")]
    Node,
}

pub(super) async fn run(args: GetArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let printer = Printer {
        form: args.output.output,
        heading: if args.output.no_headers { Heading::Hidden } else { Heading::Shown },
    };
    match args.kind {
        Kind::Jobs => jobs(&client, &args.targets, printer).await?,
        Kind::Allocs => allocs(&client, &args.targets, printer).await?,
        Kind::Tasks => tasks(&client, &args.targets, printer).await?,
        Kind::Services => services(&client, &args.targets, printer).await?,
        Kind::Volumes => volumes(&client, &args.targets, printer).await?,
        Kind::Deployments => list_deployments(&client, &args.targets, printer).await?,
        Kind::Versions => versions(&client, &args.targets, printer).await?,
        Kind::Node => machine(&client, printer).await?,
    }
    Ok(0)
}

#[derive(Clone, Copy)]
struct Printer {
    form: Form,
    heading: Heading,
}

impl Printer {
    fn table(self, table: &Table, none: &str) {
        if table.is_empty() {
            anstream::eprintln!("{none}");
        } else {
            show::out(&table.render(self.heading));
        }
    }

    fn names(names: impl Iterator<Item = String>) {
        for name in names {
            show::out(&format!("{name}\n"));
        }
    }
}

/// The jobs of these names, or all.
async fn chosen_jobs(client: &Client, targets: &[String]) -> Result<Vec<JobView>, Failure> {
    let mut jobs = client.jobs().await?;
    if !targets.is_empty() {
        if let Some(missing) =
            targets.iter().find(|name| !jobs.iter().any(|view| view.key.to_string() == **name))
        {
            return Err(Failure::new(format!("there is no job {missing:?}")));
        }
        jobs.retain(|view| targets.contains(&view.key.to_string()));
    }
    Ok(jobs)
}

async fn jobs(client: &Client, targets: &[String], printer: Printer) -> Result<(), Failure> {
    let jobs = chosen_jobs(client, targets).await?;
    match printer.form {
        Form::Json => show::json(&jobs),
        Form::Yaml => yaml(jobs.iter().map(|view| &*view.job)),
        Form::Name => {
            Printer::names(jobs.iter().map(|view| view.key.to_string()));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let (all, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
            let mut table = Table::new(&["JOB", "TYPE", "VERSION", "RUNNING", "STATE", "AGE", "MESSAGE"]);
            for view in &jobs {
                table.row(job_row(view, &allocs, &all));
            }
            printer.table(&table, "there are no jobs");
            Ok(())
        }
    }
}

async fn list_deployments(client: &Client, targets: &[String], printer: Printer) -> Result<(), Failure> {
    let jobs = chosen_jobs(client, targets).await?;
    let all = deployments::all(&jobs);
    match printer.form {
        Form::Json => show::json(&all),
        Form::Yaml => show::yaml(&all),
        Form::Name => {
            Printer::names(all.iter().map(|one| one.id.to_string()));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&deployments::COLUMNS);
            for one in all {
                let id = if printer.form == Form::Wide { one.id.to_string() } else { one.id.short() };
                table.row(deployments::row(one, id));
            }
            printer.table(&table, "there are no deployments");
            Ok(())
        }
    }
}

async fn versions(client: &Client, targets: &[String], printer: Printer) -> Result<(), Failure> {
    let [name] = targets else {
        return Err(Failure::new("versions are those of one job: herdlet get versions JOB").code(USAGE));
    };
    let job = rollback::find(client, name).await?.key;
    let versions = client.versions(&job).await?;
    match printer.form {
        Form::Json => show::json(&versions),
        Form::Yaml => yaml(versions.iter().map(|version| &*version.job)),
        Form::Name => {
            Printer::names(versions.iter().map(|version| version.version.to_string()));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&["VERSION", "AGE", ""]);
            for (at, version) in versions.iter().enumerate() {
                let current = if at == 0 { "current" } else { "" };
                table.row([version.version.to_string(), show::age(version.submit_time), current.to_owned()]);
            }
            printer.table(&table, "there are no versions");
            Ok(())
        }
    }
}

async fn machine(client: &Client, printer: Printer) -> Result<(), Failure> {
    let node = client.node().await?;
    let attributes = node::attributes(&node);
    match printer.form {
        Form::Json => show::json(&node),
        Form::Yaml => show::yaml(&attributes),
        Form::Name => {
            Printer::names(attributes.into_keys());
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&["ATTRIBUTE", "VALUE"]);
            for (name, value) in attributes {
                table.row([name, value]);
            }
            printer.table(&table, "the agent knows nothing of this machine");
            Ok(())
        }
    }
}

/// Jobs as manifests.
fn yaml<'j>(jobs: impl Iterator<Item = &'j Job>) -> Result<(), Failure> {
    let texts: Result<Vec<_>, _> = jobs.map(manifests::job_to_yaml).collect();
    let texts = texts.map_err(|error| Failure::new(format!("failed to {error}")))?;
    show::out(&texts.join("---\n"));
    Ok(())
}

/// A job in a table; `jobs` are all there are.
fn job_row(view: &JobView, allocs: &[AllocView], jobs: &[JobView]) -> [String; 7] {
    let of_job = || allocs.iter().filter(|alloc| alloc.spec.job_key == view.key);
    let running = of_job().filter(|alloc| alloc.status == ClientStatus::Running).count();
    let wanted: u32 = view.job.groups.iter().map(|group| group.count).sum();
    let mut kind = view.job.kind.as_str();
    let count = if view.job.makes_children() {
        let children = children::of(view, jobs);
        let all = children.pending + children.running + children.dead;
        kind = children::kind(&view.job);
        format!("{} ({}/{all} done)", children.running, children.dead)
    } else if view.job.kind.completes() {
        let done = of_job().filter(|alloc| alloc.status == ClientStatus::Complete).count();
        format!("{running} ({done}/{wanted} done)")
    } else {
        format!("{running}/{wanted}")
    };
    let state = if view.deleting { "deleting" } else { view.convergence.state.as_str() };
    [
        view.key.to_string(),
        kind.to_owned(),
        view.version.to_string(),
        count,
        state.to_owned(),
        show::age(view.submit_time),
        view.convergence.message.clone(),
    ]
}

/// The allocations that targets name, or all.
async fn chosen(client: &Client, targets: &[String]) -> Result<Vec<(AllocView, Option<String>)>, Failure> {
    let mut allocs = client.allocs().await?;
    if targets.is_empty() {
        allocs.sort_by_key(|view| {
            (view.spec.job_key.clone(), view.spec.group.clone(), view.spec.index, view.spec.create_index)
        });
        return Ok(allocs.into_iter().map(|view| (view, None)).collect());
    }
    let jobs = client.jobs().await?;
    let mut chosen = Vec::new();
    for text in targets {
        let target = target::resolve(text, &jobs, &allocs)?;
        chosen.extend(target.allocs.into_iter().map(|view| (view, target.task.clone())));
    }
    Ok(chosen)
}

async fn allocs(client: &Client, targets: &[String], printer: Printer) -> Result<(), Failure> {
    let allocs: Vec<AllocView> = chosen(client, targets).await?.into_iter().map(|(view, _)| view).collect();
    let wide = match printer.form {
        Form::Json | Form::Yaml => {
            let mut whole = Vec::new();
            for view in &allocs {
                whole.push(client.allocation(view.spec.id).await?);
            }
            return if printer.form == Form::Json { show::json(&whole) } else { show::yaml(&whole) };
        }
        Form::Name => {
            Printer::names(allocs.iter().map(|view| view.spec.id.to_string()));
            return Ok(());
        }
        Form::Table => false,
        Form::Wide => true,
    };
    let columns: &[_] = if wide {
        &["ID", "NAME", "VERSION", "STATUS", "HEALTHY", "STATE", "AGE", "PORTS", "MESSAGE"]
    } else {
        &["ID", "NAME", "VERSION", "STATUS", "HEALTHY", "STATE", "AGE"]
    };
    let mut table = Table::new(columns);
    for view in &allocs {
        let [id, name, version, status, healthy, state, age] =
            alloc_row(view, if wide { view.spec.id.to_string() } else { view.spec.id.short() });
        if wide {
            let ports = view
                .spec
                .ports
                .iter()
                .map(|(label, port)| format!("{label}={}:{}", port.host_ip, port.value));
            let ports = ports.collect::<Vec<_>>().join(",");
            let message = view.convergence.message.clone();
            table.row([id, name, version, status, healthy, state, age, ports, message]);
        } else {
            table.row([id, name, version, status, healthy, state, age]);
        }
    }
    printer.table(&table, "there are no allocations");
    Ok(())
}

fn alloc_row(view: &AllocView, id: String) -> [String; 7] {
    let healthy = match view.healthy {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    [
        id,
        view.spec.name(),
        view.spec.job_version.to_string(),
        view.status.as_str().to_owned(),
        healthy.to_owned(),
        view.convergence.state.as_str().to_owned(),
        show::age(view.spec.create_time),
    ]
}

async fn tasks(client: &Client, targets: &[String], printer: Printer) -> Result<(), Failure> {
    let allocs = chosen(client, targets).await?;
    let tasks: Vec<(&AllocView, &TaskView)> = allocs
        .iter()
        .flat_map(|(view, wanted)| {
            let meant = move |task: &&TaskView| wanted.as_deref().is_none_or(|wanted| *wanted == *task.name);
            view.tasks.iter().filter(meant).map(move |task| (view, task))
        })
        .collect();
    let name = |view: &AllocView, task: &TaskView| format!("{}/{}", view.spec.name(), task.name);
    match printer.form {
        Form::Json | Form::Yaml => {
            let list: Vec<_> = tasks
                .iter()
                .map(|(view, task)| json!({ "alloc": view.spec.id, "name": name(view, task), "task": task }))
                .collect();
            if printer.form == Form::Json { show::json(&list) } else { show::yaml(&list) }
        }
        Form::Name => {
            Printer::names(tasks.iter().map(|(view, task)| name(view, task)));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&["TASK", "ALLOC", "STATE", "PHASE", "RESTARTS", "AGE"]);
            for (view, task) in tasks {
                table.row([
                    name(view, task),
                    view.spec.id.short(),
                    task.state.as_str().to_owned(),
                    show::phase(task),
                    task.restarts.to_string(),
                    show::age(task.started_at),
                ]);
            }
            printer.table(&table, "there are no tasks");
            Ok(())
        }
    }
}

async fn services(client: &Client, names: &[String], printer: Printer) -> Result<(), Failure> {
    let mut services = client.services().await?;
    services.retain(|one| names.is_empty() || names.contains(&one.name));
    match printer.form {
        Form::Json => show::json(&services),
        Form::Yaml => show::yaml(&services),
        Form::Name => {
            Printer::names(services.into_iter().map(|one| one.name));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&["SERVICE", "ADDRESS", "PROVIDER", "ALLOC", "TASK", "TAGS"]);
            for one in &services {
                table.row(service_row(one));
            }
            printer.table(&table, "there are no services in the built-in catalogue");
            Ok(())
        }
    }
}

fn service_row(one: &Registration) -> [String; 6] {
    let provider = match one.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    [
        one.name.clone(),
        format!("{}:{}", one.address, one.port),
        provider.to_owned(),
        one.alloc.short(),
        one.task.clone().unwrap_or_else(|| "-".to_owned()),
        one.tags.join(","),
    ]
}

async fn volumes(client: &Client, names: &[String], printer: Printer) -> Result<(), Failure> {
    let mut volumes = client.volumes().await?;
    volumes.retain(|view| names.is_empty() || names.contains(&view.spec.name));
    match printer.form {
        Form::Json => show::json(&volumes),
        Form::Yaml => {
            let texts: Result<Vec<_>, _> =
                volumes.iter().map(|view| manifests::volume_to_yaml(&view.spec)).collect();
            let texts = texts.map_err(|error| Failure::new(format!("failed to {error}")))?;
            show::out(&texts.join("---\n"));
            Ok(())
        }
        Form::Name => {
            Printer::names(volumes.into_iter().map(|view| view.spec.name.clone()));
            Ok(())
        }
        Form::Table | Form::Wide => {
            let mut table = Table::new(&["VOLUME", "KIND", "STATUS", "CLAIMS", "PATH"]);
            for view in &volumes {
                table.row(volume_row(view));
            }
            printer.table(&table, "there are no volumes");
            Ok(())
        }
    }
}

fn volume_row(view: &VolumeView) -> [String; 5] {
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
