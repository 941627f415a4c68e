//! `herdlet var`: variables, with the arguments and formats of Nomad's commands.
//!
//! In: paths, specifications in files or on standard input, `KEY=VALUE`. Out: variables in the requested format. `put` prints no
//! value unless a format is requested. Other users can read the arguments of a command: `KEY=@FILE` and `KEY=-` keep a value
//! out of them.

mod init;
mod keys;
mod lock;
mod render;
mod spec;

use clap::{Args, Subcommand};
use herdlet_api_types::{
    UnixNanos,
    variable::{DEFAULT_NAMESPACE, VariableKey, VariableMetadata},
};
use serde::Serialize;

use self::{
    render::{OutForm, is_terminal},
    spec::{InForm, Specification},
};
use super::{
    Connection,
    client::VariableRefusal,
    failure::{Failure, USAGE},
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet var`.
#[derive(Debug, Clone, Args)]
pub struct VarArgs {
    #[command(subcommand)]
    pub verb: VarVerb,
}

/// What to do with variables.
#[derive(Debug, Clone, Subcommand)]
pub enum VarVerb {
    /// Create a variable, or replace its items
    #[command(
        after_help = "Examples:\n  herdlet var put nomad/jobs/web user=me password=@password.txt\n  herdlet var put nomad/jobs/web password=-      the value comes from standard input\n  herdlet var put @spec.nv.hcl\n  herdlet var get nomad/jobs/web | herdlet var put - user=you\n\nWithout --force, the variable must not exist, or must have the index of the specification or of --check-index.\nOther users can see arguments: use KEY=@FILE or KEY=- for secrets. KEY= removes an item of the specification."
    )]
    Put(PutArgs),
    /// Print a variable
    #[command(
        after_help = "Examples:\n  herdlet var get nomad/jobs/web\n  herdlet var get --item password nomad/jobs/web\n  herdlet var get --out hcl nomad/jobs/web"
    )]
    Get(GetArgs),
    /// List variables, without their items
    #[command(
        after_help = "Examples:\n  herdlet var list\n  herdlet var list nomad/jobs/ --namespace prod\n  herdlet var list -q --namespace *"
    )]
    List(ListArgs),
    /// Remove a variable
    #[command(after_help = "Example:\n  herdlet var purge nomad/jobs/web")]
    Purge(PurgeArgs),
    /// Write an example of a specification to a file
    #[command(after_help = "Examples:\n  herdlet var init\n  herdlet var init --out json spec.nv.json")]
    Init(init::InitArgs),
    /// Run a command while a lock on a variable is held
    #[command(
        after_help = "Examples:\n  herdlet var lock locks/backup -- bin/backup --all\n  herdlet var lock --ttl 30s locks/backup -- sh -c 'bin/backup && bin/verify'\n\nIf the lock is lost, the command gets SIGTERM. Exit code: that of the command."
    )]
    Lock(lock::LockArgs),
    /// List, rotate and remove the keys that encrypt variables
    #[command(after_help = "Examples:\n  herdlet var key list\n  herdlet var key rotate")]
    Key(keys::VarKeyArgs),
}

/// Arguments of `herdlet var put`.
#[derive(Debug, Clone, Args)]
pub struct PutArgs {
    /// The path, @FILE or - with a specification; then @FILE or - after a path, and KEY=VALUE, KEY=@FILE or KEY=-
    #[arg(required = true, value_name = "PATH|@FILE|-")]
    words: Vec<String>,
    /// Format of the specification [default: by the extension of the file, otherwise json]
    #[arg(long = "in", value_enum, value_name = "FORMAT")]
    input: Option<InForm>,
    /// Print the variable in this format; without it, no value is printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "none")]
    out: OutForm,
    /// Change the variable only if it has this index; 0: only if there is none
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// Change the variable whatever its index is
    #[arg(long, conflicts_with = "check_index")]
    force: bool,
    /// Namespace of the variable [default: that of the specification, otherwise default]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `herdlet var get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// The path of a variable
    path: String,
    /// Print only the value of this item, without a line end
    #[arg(long, value_name = "KEY")]
    item: Option<String>,
    /// Format [default: table on a terminal, otherwise json]
    #[arg(long, value_enum, value_name = "FORMAT")]
    out: Option<OutForm>,
    #[command(flatten)]
    of: Namespace,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `herdlet var list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// List only paths that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Print only paths
    #[arg(short, long)]
    quiet: bool,
    /// Expression that listed variables match, as in the API
    #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    filter: String,
    #[command(flatten)]
    of: Namespace,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `herdlet var purge`.
#[derive(Debug, Clone, Args)]
pub struct PurgeArgs {
    /// The path of a variable
    path: String,
    /// Remove the variable only if it has this index
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    #[command(flatten)]
    of: Namespace,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

/// The namespace of a variable.
#[derive(Debug, Clone, Args)]
struct Namespace {
    /// Namespace of the variable
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

impl Namespace {
    fn key(&self, path: &str) -> Result<VariableKey, Failure> {
        if self.namespace == "*" {
            return Err(Failure::new("a variable is in one namespace: name it instead of *").code(USAGE));
        }
        Ok(VariableKey { namespace: self.namespace.clone(), path: plain_path(path).to_owned() })
    }
}

/// A path without the slashes and spaces around it, which people type as for files.
fn plain_path(path: &str) -> &str {
    path.trim().trim_matches('/')
}

impl VarVerb {
    /// The connection flags; none if it needs no agent.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Put(args) => Some(&mut args.connection),
            Self::Get(args) => Some(&mut args.connection),
            Self::List(args) => Some(&mut args.connection),
            Self::Purge(args) => Some(&mut args.connection),
            Self::Lock(args) => Some(&mut args.connection),
            Self::Key(args) => Some(args.connection()),
            Self::Init(_) => None,
        }
    }
}

pub async fn run(args: VarArgs) -> Result<u8, Failure> {
    match args.verb {
        VarVerb::Put(args) => put(args).await,
        VarVerb::Get(args) => get(args).await,
        VarVerb::List(args) => list(args).await,
        VarVerb::Purge(args) => purge(args).await,
        VarVerb::Init(args) => init::run(&args),
        VarVerb::Lock(args) => lock::run(args).await,
        VarVerb::Key(args) => keys::run(args).await,
    }
}

/// A variable with or without items, for programs.
#[derive(Serialize)]
struct Report<T> {
    variable: T,
}

#[derive(Serialize)]
struct Listing {
    variables: Vec<VariableMetadata>,
}

async fn put(args: PutArgs) -> Result<u8, Failure> {
    let Specification { mut variable, changes } = spec::read(&args.words, args.input)?;
    variable.metadata.namespace = match args.namespace {
        Some(namespace) => {
            // A copy of another variable is a new one.
            if !variable.metadata.namespace.is_empty() && variable.metadata.namespace != namespace {
                variable.metadata.modify_index = 0;
            }
            namespace
        }
        None if variable.metadata.namespace.is_empty() => DEFAULT_NAMESPACE.to_owned(),
        None => variable.metadata.namespace,
    };
    spec::apply(&mut variable, changes);
    let check = args.check_index.unwrap_or(variable.metadata.modify_index);
    let is_new = check == 0;
    let check = (!args.force).then_some(check);
    let client = args.connection.client()?;
    let written = client.put_variable(&variable, check).await;
    let key = variable.metadata.key();
    let mut written = written.map_err(|refusal| failure(refusal, &key, check))?;
    if let Reader::Program = args.output.reader() {
        return args.output.document(&Report { variable: written.metadata.without_lock_id() }).map(|()| 0);
    }
    let done = if is_new && !args.force { "created" } else { "written" };
    let line = format!("variable {key} {done}: its index is {}", written.metadata.modify_index);
    if args.out == OutForm::None {
        show::out(&format!("{line}\n"));
    } else {
        herdlet_base::stderr_line!("{line}");
        written.metadata = written.metadata.without_lock_id();
        render::print(&written, args.out)?;
    }
    Ok(0)
}

async fn get(args: GetArgs) -> Result<u8, Failure> {
    let key = args.of.key(&args.path)?;
    let found = args.connection.client()?.variable(&key).await?;
    let variable = found.ok_or_else(|| missing(&key))?;
    if let Some(item) = &args.item {
        let items = variable.items.unwrap_or_default().0;
        let value = items.get(item).ok_or_else(|| {
            let names: Vec<&str> = items.keys().map(String::as_str).collect();
            let failure = Failure::new(format!("the variable {key} has no item {item:?}"));
            failure.hint(format!("its items: {}", names.join(", ")))
        })?;
        show::print_data(value);
        return Ok(0);
    }
    match (args.out, args.output.reader()) {
        (Some(form), _) => render::print(&variable, form)?,
        (None, Reader::Program) => args.output.document(&Report { variable })?,
        (None, Reader::Person) if is_terminal() => render::print(&variable, OutForm::Table)?,
        (None, Reader::Person) => render::print(&variable, OutForm::Json)?,
    }
    Ok(0)
}

async fn list(args: ListArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let mut variables = client.variables(&args.of.namespace, &args.prefix, &args.filter).await?;
    variables.sort_by_key(VariableMetadata::key);
    match args.output.reader() {
        Reader::Program => args.output.document(&Listing { variables })?,
        Reader::Person if args.quiet => {
            let paths = variables.iter().map(|one| match args.of.namespace.as_str() {
                "*" => format!("{}|{}\n", one.namespace, one.path),
                _ => format!("{}\n", one.path),
            });
            show::out(&paths.collect::<String>());
        }
        Reader::Person => show::out(&table(&variables)),
    }
    Ok(0)
}

fn table(variables: &[VariableMetadata]) -> String {
    let mut table = Table::new(&["NAMESPACE", "PATH", "INDEX", "AGE", "LOCKED"]);
    for one in variables {
        table.row([
            one.namespace.clone(),
            one.path.clone(),
            one.modify_index.to_string(),
            show::age(UnixNanos(one.modify_time)),
            if one.lock.is_some() { "yes" } else { "no" }.to_owned(),
        ]);
    }
    if table.is_empty() { "there are no variables\n".to_owned() } else { table.render(Heading::Shown) }
}

async fn purge(args: PurgeArgs) -> Result<u8, Failure> {
    let key = args.of.key(&args.path)?;
    let client = args.connection.client()?;
    let purged = client.purge_variable(&key, args.check_index).await;
    purged.map_err(|refusal| failure(refusal, &key, args.check_index))?;
    args.output.line(&format!("variable {key} purged"));
    let metadata =
        VariableMetadata { namespace: key.namespace, path: key.path, ..VariableMetadata::default() };
    args.output.document(&Report { variable: metadata })?;
    Ok(0)
}

fn missing(key: &VariableKey) -> Failure {
    Failure::new(format!("there is no variable {key}")).hint("list them: herdlet var list --namespace *")
}

/// The error for a change that was not made.
fn failure(refusal: VariableRefusal, key: &VariableKey, check: Option<u64>) -> Failure {
    let present = match refusal {
        VariableRefusal::Failed(error) => return error.into(),
        VariableRefusal::Conflict(present) => present,
    };
    let index = present.modify_index;
    if check.is_none_or(|check| check == index) && present.lock.is_some() {
        let message = format!("the variable {key} is locked by another holder, and nothing was changed");
        return Failure::new(message)
            .hint("the lock ends when its holder releases it or no longer renews it");
    }
    let message = match (index, check) {
        (0, _) => format!("there is no variable {key}, and nothing was changed"),
        (index, Some(0)) => {
            format!("there is a variable {key} already, with index {index}; nothing was changed")
        }
        (index, _) => format!("the variable {key} has the index {index} now, and nothing was changed"),
    };
    let hint = match index {
        0 => "to create it, leave out --check-index and the index of the specification",
        _ => "read it with herdlet var get; then use --check-index with its index, or --force",
    };
    Failure::new(message).hint(hint)
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::variable::VariableLock;

    use super::*;

    #[test]
    fn conflicts_name_the_index_and_the_way_on() {
        let key = VariableKey { namespace: "prod".to_owned(), path: "a".to_owned() };
        let said = |index, lock: Option<VariableLock>, check| {
            let metadata = VariableMetadata { modify_index: index, lock, ..VariableMetadata::default() };
            let failure = failure(VariableRefusal::Conflict(Box::new(metadata)), &key, check);
            format!("{failure}; {}", failure.hint_text())
        };
        assert!(said(7, None, Some(0)).starts_with("there is a variable a@prod already, with index 7"));
        assert!(said(7, None, Some(6)).contains("has the index 7 now"));
        assert!(said(0, None, Some(6)).contains("there is no variable a@prod"));
        assert!(said(7, Some(VariableLock::default()), None).contains("locked by another holder"));
        assert!(said(7, Some(VariableLock::default()), Some(6)).contains("has the index 7 now"));
    }

    #[test]
    fn lists_have_no_items() {
        let one = VariableMetadata {
            namespace: "default".to_owned(),
            path: "a/b".to_owned(),
            modify_index: 7,
            lock: Some(VariableLock::default()),
            ..VariableMetadata::default()
        };
        assert_eq!(table(&[one]), "NAMESPACE  PATH  INDEX  AGE  LOCKED\ndefault    a/b   7      -    yes\n");
        assert_eq!(table(&[]), "there are no variables\n");
    }
}
