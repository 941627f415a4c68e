//! `herdlet template render`: renders a template of a job, without an agent or with its data.
//!
//! In: a template; the environment and the variables as flags or files; with `--agent` also what an agent's API gives. Out: the
//! output, and the data that is missing. Nothing else is used: not this machine's files and environment.

mod live;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use base64::prelude::*;
use clap::{Args, Subcommand};
use herdlet_api_types::variable::DEFAULT_NAMESPACE;
use herdlet_manifest::{dotenv, yaml};
use herdlet_template::{ErrorKind, MissingKey, Options, Query, Render, Template, source::Fixed};
use serde_json::json;

use self::live::{Live, Place};
use super::{
    address::Connection,
    failure::{FAILED, Failure, USAGE},
    output::{Output, Reader},
    show::{self, styled},
    style,
};

/// Arguments of `herdlet template`.
#[derive(Debug, Clone, Args)]
pub struct TemplateArgs {
    #[command(subcommand)]
    verb: TemplateVerb,
}

#[derive(Debug, Clone, Subcommand)]
enum TemplateVerb {
    /// Render a template of a job with given data, or with the data of an agent
    #[command(
        after_help = "Examples:\n  herdlet template render app.conf.tpl --env PORT=8080\n  herdlet template render app.conf.tpl --var nomad/jobs/web.password=secret\n  generate | herdlet template render - --var-file variables.yaml\n  herdlet template render app.conf.tpl --secret secret/data/web.password=secret\n  herdlet template render app.conf.tpl --agent --namespace prod\n  herdlet template render app.conf.tpl --agent --alloc web/server\n\nA file of variables or secrets contains PATH: {KEY: VALUE}, in YAML or JSON.\n\nExit code: 0 rendered, 1 it cannot be rendered or data is missing, 2 the template or an argument is invalid."
    )]
    Render(Box<RenderArgs>),
}

#[derive(Debug, Clone, Args)]
struct RenderArgs {
    /// Template: a file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Variable of the task's environment
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// File with variables of the environment, in lines NAME=VALUE
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Item of a Nomad variable
    #[arg(long, value_name = "PATH.KEY=VALUE")]
    var: Vec<String>,
    /// File with Nomad variables, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    var_file: Vec<PathBuf>,
    /// Value of a secret of Vault
    #[arg(long, value_name = "PATH.KEY=VALUE")]
    secret: Vec<String>,
    /// File with secrets of Vault, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    secret_file: Vec<PathBuf>,
    /// Delimiter before an action
    #[arg(long, value_name = "TEXT", default_value = "{{")]
    left_delimiter: String,
    /// Delimiter after an action
    #[arg(long, value_name = "TEXT", default_value = "}}")]
    right_delimiter: String,
    /// Fail if a map has no entry for a key, instead of printing `<no value>`
    #[arg(long)]
    error_on_missing_key: bool,
    /// Use the variables and services that the agent's API gives to you; values of other flags take precedence
    #[arg(long)]
    agent: bool,
    // Not a doc comment, in which `[N]` would be a link.
    #[arg(
        long,
        value_name = "TARGET",
        requires = "agent",
        help = "Task whose environment, facts and files the template reads: JOB, JOB.GROUP[N], an allocation id, each with an optional /TASK"
    )]
    alloc: Option<String>,
    /// Namespace of variables and services, with --agent; that of --alloc, or "default", if absent
    #[arg(long, value_name = "NAME", requires = "agent")]
    namespace: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

impl TemplateArgs {
    /// The connection flags; none if the command needs no agent.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        let TemplateVerb::Render(args) = &mut self.verb;
        args.agent.then_some(&mut args.connection)
    }
}

/// A template, and a file of variables, are at most this long.
const BYTES_MAX: u64 = 1 << 20;

pub async fn run(args: &TemplateArgs) -> Result<u8, Failure> {
    let TemplateVerb::Render(args) = &args.verb;
    let text = String::from_utf8(read(&args.file)?)
        .map_err(|_| Failure::new(format!("{}: is not UTF-8", args.file.display())).code(USAGE))?;
    let options = Options {
        name: args.file.display().to_string().into(),
        left_delimiter: args.left_delimiter.clone(),
        right_delimiter: args.right_delimiter.clone(),
        missing_key: if args.error_on_missing_key { MissingKey::Error } else { MissingKey::Zero },
        ..Options::default()
    };
    let source = args.source()?;
    let template =
        Template::parse(&text, &options).map_err(|error| Failure::new(error.to_string()).code(USAGE))?;
    let render = match args.agent {
        true => args.live(source).await?.render(&template).await?,
        false => template.render(&source),
    };
    let missing: Vec<String> = render.missing.iter().map(Query::to_string).collect();
    match &render.result {
        // An error may be the consequence of missing data only.
        Err(error) if missing.is_empty() || error.kind == ErrorKind::Limit => {
            Err(Failure::new(error.to_string()))
        }
        Err(error) => Err(Failure::new(error.to_string()).hint(format!("Missing: {}", missing.join(", ")))),
        Ok(output) => {
            print(args.output, output, &render)?;
            if missing.is_empty() {
                return Ok(0);
            }
            herdlet_base::stderr_line!("{} {}", styled(style::WARNING, "Missing:"), missing.join(", "));
            Ok(FAILED)
        }
    }
}

fn print(form: Output, output: &[u8], render: &Render) -> Result<(), Failure> {
    if form.reader() == Reader::Person {
        // An incomplete output is no file that a task would get.
        if render.missing.is_empty() {
            show::print_bytes(output);
        }
        return Ok(());
    }
    let (field, text) = match std::str::from_utf8(output) {
        Ok(text) => ("output", text.to_owned()),
        Err(_) => ("output_base64", BASE64_STANDARD.encode(output)),
    };
    let queries: Vec<_> = render.used.iter().map(Query::to_string).collect();
    let missing: Vec<_> = render.missing.iter().map(Query::to_string).collect();
    form.document(&json!({ field: text, "queries": queries, "missing": missing }))
}

impl RenderArgs {
    /// The data of an agent, behind the data that the flags give.
    async fn live(&self, given: Fixed) -> Result<Live, Failure> {
        let client = self.connection.client()?;
        let place = match &self.alloc {
            Some(target) => Some(Place::find(&client, target).await?),
            None => None,
        };
        let namespace = self.namespace.as_ref().or(place.as_ref().map(|place| &place.namespace));
        let namespace = namespace.cloned().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Live::new(given, client, namespace).at(place))
    }

    /// The data that the flags give. Of several values for a name, the last applies; flags before files.
    fn source(&self) -> Result<Fixed, Failure> {
        let mut env = BTreeMap::new();
        for path in &self.env_file {
            dotenv::read(&read(path)?, &mut env).map_err(|error| {
                Failure::new(format!("{}:{}: {}", path.display(), error.line, error.message)).code(USAGE)
            })?;
        }
        for assignment in &self.env {
            let (name, value) = assignment.split_once('=').ok_or_else(|| {
                Failure::new(format!("--env {assignment}: expected NAME=VALUE")).code(USAGE)
            })?;
            env.insert(name.to_owned(), value.to_owned());
        }
        let now = herdlet_base::clock::wall_now().0 / 1_000_000_000;
        let source = env
            .iter()
            .fold(Fixed::default().with_unix_time(now), |source, (name, value)| source.with_env(name, value));
        let source = with_items(source, Fixed::with_item, (&self.var_file, &self.var))?;
        with_items(source, Fixed::with_secret, (&self.secret_file, &self.secret))
    }
}

/// Adds the items of files, then those of flags.
fn with_items(
    source: Fixed,
    add: fn(Fixed, &str, &str, &str) -> Fixed,
    (files, flags): (&[PathBuf], &[String]),
) -> Result<Fixed, Failure> {
    let source = files.iter().try_fold(source, |source, path| with_items_of(source, add, path))?;
    flags.iter().try_fold(source, |source, assignment| {
        let (path, key, value) = item(assignment).ok_or_else(|| {
            // Not more of it: the value may be secret.
            let name = assignment.split_once('=').map_or(assignment.as_str(), |(name, _)| name);
            Failure::new(format!("{name}: expected PATH.KEY=VALUE")).code(USAGE).hint(
                "example: --var nomad/jobs/web.password=secret, --secret secret/data/web.password=secret",
            )
        })?;
        Ok(add(source, path, key, value))
    })
}

/// Splits `PATH.KEY=VALUE` at the last dot before the value.
fn item(assignment: &str) -> Option<(&str, &str, &str)> {
    let (name, value) = assignment.split_once('=')?;
    let (path, key) = name.rsplit_once('.')?;
    (!path.is_empty() && !key.is_empty()).then_some((path, key, value))
}

fn with_items_of(
    source: Fixed,
    add: fn(Fixed, &str, &str, &str) -> Fixed,
    path: &Path,
) -> Result<Fixed, Failure> {
    let bytes = read(path)?;
    let parsed = yaml::parse(&path.display().to_string(), &bytes);
    let failure = |problems: String| Failure::new(problems).code(USAGE);
    if !parsed.problems.is_empty() {
        return Err(failure(parsed.problems.to_string()));
    }
    parsed.documents.iter().try_fold(source, |source, document| {
        let variables: BTreeMap<String, BTreeMap<String, String>> =
            yaml::from_node(&document.root()).map_err(|problem| failure(problem.to_string()))?;
        let items = variables
            .iter()
            .flat_map(|(path, items)| items.iter().map(move |(key, value)| (path, key, value)));
        Ok(items.fold(source, |source, (path, key, value)| add(source, path, key, value)))
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", path.display())).code(USAGE);
    let read = |reader: &mut dyn io::Read| {
        let mut bytes = Vec::new();
        reader.take(BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = match path.as_os_str() == "-" {
        true => read(&mut io::stdin().lock()),
        false => File::open(path).and_then(|mut file| read(&mut file)),
    };
    let bytes = bytes.map_err(|error| failed(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(failed(format!("has more than {BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(more: &[&str]) -> RenderArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RenderArgs,
        }
        let line = ["render"].iter().chain(more);
        <Line as clap::Parser>::parse_from(line).args
    }

    fn rendered(text: &str, more: &[&str]) -> Result<String, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.tpl");
        std::fs::write(&file, text).unwrap();
        let args = args(&[&[file.to_str().unwrap()], more].concat());
        let template = Template::parse(text, &Options::default()).unwrap();
        let render = template.render(&args.source()?);
        Ok(String::from_utf8(render.result.unwrap()).unwrap())
    }

    #[test]
    fn data_comes_from_flags_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let (env, variables) = (dir.path().join("env"), dir.path().join("variables.yaml"));
        std::fs::write(&env, "A=file\nB=\"quoted value\"\n").unwrap();
        std::fs::write(&variables, "nomad/jobs/web:\n  user: admin\n  port: \"80\"\n").unwrap();
        let text = r#"{{ env "A" }} {{ env "B" }} {{ with nomadVar "nomad/jobs/web" }}{{ .user }}:{{ .port }}:{{ .password }}{{ end }}"#;
        let flags = [
            "--env-file",
            env.to_str().unwrap(),
            "--env",
            "A=flag",
            "--var-file",
            variables.to_str().unwrap(),
            "--var",
            "nomad/jobs/web.password=a.b=c",
        ];
        assert_eq!(rendered(text, &flags).unwrap(), "flag quoted value admin:80:a.b=c");
    }

    #[test]
    fn secrets_of_vault_come_from_flags_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets.yaml");
        std::fs::write(&file, "kv/web: {user: admin}\n").unwrap();
        let text = r#"{{ with secret "kv/web" }}{{ .Data.user }}{{ end }} {{ with secret "secret/data/web" }}{{ .Data.data.password }}{{ end }} {{ secrets "secret/data" }}"#;
        let flags = ["--secret-file", file.to_str().unwrap(), "--secret", "secret/data/web.password=a.b=c"];
        assert_eq!(rendered(text, &flags).unwrap(), "admin a.b=c [web]");
    }

    #[test]
    fn wrong_flags_name_the_right_form() {
        for (flags, expected) in [
            (["--env", "A"], "NAME=VALUE"),
            (["--var", "a=b"], "PATH.KEY=VALUE"),
            (["--secret", "a=b"], "PATH.KEY=VALUE"),
        ] {
            let failure = rendered("x", &flags).unwrap_err();
            assert!(failure.to_string().contains(expected), "{failure}");
            assert_eq!(failure.code, USAGE);
        }
    }

    #[tokio::test]
    async fn missing_data_has_an_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.tpl");
        let code = async |text: &str| {
            std::fs::write(&file, text).unwrap();
            let args = TemplateArgs { verb: TemplateVerb::Render(Box::new(args(&[file.to_str().unwrap()]))) };
            run(&args).await.map_err(|failure| (failure.code, failure.to_string()))
        };
        assert_eq!(code("").await.unwrap(), 0);
        assert_eq!(code(r#"{{ with nomadVar "nomad/jobs/x" }}{{ .a }}{{ end }}"#).await.unwrap(), FAILED);
        let (exit, message) = code("a\n{{ if }}").await.unwrap_err();
        assert_eq!(exit, USAGE);
        assert!(message.ends_with("t.tpl:2:7: missing value for if"), "{message}");
        let (exit, message) = code(r#"{{ secret "a" }}"#).await.unwrap_err();
        assert_eq!(exit, FAILED);
        assert!(message.contains("secret needs Vault"), "{message}");
    }
}
