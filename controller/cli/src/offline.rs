//! Commands that need no agent: `validate`, `completions`, `version`.

use std::collections::BTreeMap;

use clap::Args;
use herdlet_api_types::{
    api::{COMMIT, VERSION},
    job::{Job, Provider},
    rfc3339::rfc3339,
};
use herdlet_manifest::{
    manifests::{self, Drivers, Loaded, Set},
    region,
    yaml::{Problem, Problems},
};
use herdlet_plan::job::periodic;
use serde::Serialize;

use super::{
    failure::{FAILED, Failure, USAGE},
    job_files::JobFiles,
    output::{Output, Reader},
    show::{self, styled},
    style,
    variables::VariableArgs,
};

/// Arguments of `herdlet validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    #[command(flatten)]
    files: JobFiles,
    /// Treat warnings as problems
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    output: Output,
}

/// What `herdlet validate -o json` prints, valid or not.
#[derive(Default, Serialize)]
struct Validation {
    /// Whether the exit code is 0.
    good: bool,
    jobs: Vec<String>,
    /// The first launches of periodic jobs if they were applied now.
    launches: BTreeMap<String, String>,
    /// Jobs with services in Consul, which the agent then needs.
    consul: Vec<String>,
    volumes: Vec<String>,
    problems: Vec<Problem>,
    /// The number of problems that are not listed.
    more_problems: usize,
    warnings: Vec<Problem>,
}

/// Arguments of `herdlet version`.
#[derive(Debug, Clone, Args)]
pub struct VersionArgs {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct VersionReport {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
}

/// Arguments of `herdlet completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Exit code 0 if all manifests are valid, 1 for problems, 2 if nothing could be checked: unreadable files, and files
/// without a manifest.
pub fn validate(args: &ValidateArgs, drivers: &Drivers) -> Result<u8, Failure> {
    let files = args.files.paths();
    let missing = files.iter().find(|path| path.as_os_str() != "-" && !path.exists());
    if let Some(path) = missing {
        return Err(Failure::new(format!("{}: there is no such file", path.display())).code(USAGE));
    }
    let variables = args.variables.read()?;
    let (mut set, problems) = match manifests::load(&files, drivers, &variables) {
        Ok(set) => (set, Problems::new()),
        Err(problems) => (Set::default(), problems),
    };
    if problems.is_empty() && set.jobs.is_empty() && set.volumes.is_empty() {
        return Err(Failure::new("the files contain no manifest").code(USAGE));
    }
    let regions = other_regions(&set);
    set.warnings.extend(regions);
    let without_consul = if names_consul() { Vec::new() } else { for_consul(&set) };
    let has_warnings = !set.warnings.is_empty() || !without_consul.is_empty();
    let good = problems.is_empty() && !(args.strict && has_warnings);
    // Problems without a line concern a text as a whole (unreadable, too large, without a manifest), which was not
    // checked.
    let is_checked = problems.iter().any(|problem| problem.line > 0);
    let code = match good {
        true => 0,
        false if is_checked || problems.is_empty() => FAILED,
        false => USAGE,
    };
    match args.output.reader() {
        Reader::Person => print_validation(&set, &problems, &without_consul),
        Reader::Program => args.output.document(&Validation {
            good,
            jobs: set.jobs.iter().map(|loaded| loaded.object.key().to_string()).collect(),
            launches: launches(&set),
            consul: for_consul(&set),
            volumes: set.volumes.iter().map(|loaded| loaded.object.name.clone()).collect(),
            more_problems: problems.more(),
            problems: problems.into_vec(),
            warnings: set.warnings,
        })?,
    }
    Ok(code)
}

fn launches(set: &Set) -> BTreeMap<String, String> {
    let now = herdlet_base::clock::wall_now();
    let first = set.jobs.iter().filter_map(|loaded| {
        let at = periodic::first_launch(&loaded.object, now).and_then(rfc3339)?;
        Some((loaded.object.key().to_string(), at))
    });
    first.collect()
}

/// Warnings about jobs that name a region.
fn other_regions(set: &Set) -> Vec<Problem> {
    let warning = |loaded: &Loaded<Job>| {
        Some(Problem {
            source: loaded.source.to_string(),
            line: loaded.position.line,
            column: loaded.position.column,
            path: "spec.region".to_owned(),
            message: region::warning(&loaded.object, None)?,
        })
    };
    set.jobs.iter().filter_map(warning).collect()
}

/// Jobs with services in Consul. In Nomad's formats this is the default of a service without `provider`.
fn for_consul(set: &Set) -> Vec<String> {
    let jobs = set.jobs.iter().map(|loaded| &loaded.object);
    jobs.filter(|job| job.has_services_in(Provider::Consul)).map(|job| job.key().to_string()).collect()
}

/// Whether the environment names a Consul, as it can for an agent.
fn names_consul() -> bool {
    std::env::var_os("CONSUL_HTTP_ADDR").is_some_and(|address| !address.is_empty())
}

fn print_validation(set: &Set, problems: &Problems, without_consul: &[String]) {
    let warn = |text: &dyn std::fmt::Display| {
        herdlet_base::stderr_line!("{} {text}", styled(style::WARNING, "warning:"));
    };
    set.warnings.iter().for_each(|warning| warn(warning));
    for job in without_consul {
        warn(&format_args!(
            "{job}: it has services in Consul (the default in Nomad's formats), and CONSUL_HTTP_ADDR names none: without a \
             Consul the job does not converge; name it, or use the built-in catalogue (provider: nomad)"
        ));
    }
    if problems.is_empty() {
        let (jobs, volumes) = (counted(set.jobs.len(), "job"), counted(set.volumes.len(), "volume"));
        show::out(&format!("good: {jobs}, {volumes}\n"));
        for (job, at) in launches(set) {
            show::out(&format!("  {job}: first launch: {at}\n"));
        }
    } else {
        herdlet_base::stderr_line!("{problems}");
    }
}

pub fn version(args: &VersionArgs) -> Result<u8, Failure> {
    args.output.line(&format!("herdlet {}", full_version(VERSION, COMMIT)));
    args.output.document(&VersionReport { version: VERSION, commit: COMMIT })?;
    Ok(0)
}

/// A version, with the commit if the build recorded it.
pub fn full_version(version: &str, commit: Option<&str>) -> String {
    commit.map_or_else(|| version.to_owned(), |commit| format!("{version} (commit {commit})"))
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
