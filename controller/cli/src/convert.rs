//! `herdlet convert`: converts Nomad's job files, in HCL or JSON, to manifests with every default written
//! out.

use clap::{Args, ValueEnum};
use herdlet_api_types::manifest::{JobManifest, VolumeManifest};
use herdlet_manifest::manifests::{self, Drivers};
use serde::Serialize;

use super::{
    failure::{Failure, USAGE},
    job_files::JobFiles,
    show::{self, styled},
    style,
    variables::VariableArgs,
};

/// Arguments of `herdlet convert`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    #[command(flatten)]
    files: JobFiles,
    #[command(flatten)]
    variables: VariableArgs,
    /// Output format: YAML documents, or consecutive JSON objects
    #[arg(short = 'o', long = "output", value_enum, default_value = "yaml", value_name = "FORM")]
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Yaml,
    Json,
}

pub fn convert(args: &ConvertArgs) -> Result<u8, Failure> {
    let set = manifests::load(&args.files.paths(), &Drivers::built_in(), &args.variables.read()?)
        .map_err(|problems| Failure::new(problems.to_string()).code(USAGE))?;
    for warning in &set.warnings {
        herdlet_base::stderr_line!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    let mut documents = Documents { form: args.form, is_first: true };
    for volume in &set.volumes {
        documents.print(&VolumeManifest::whole(&volume.object))?;
    }
    for job in &set.jobs {
        documents.print(&JobManifest::whole(&job.object))?;
    }
    Ok(0)
}

/// Prints documents, one after another.
struct Documents {
    form: Form,
    is_first: bool,
}

impl Documents {
    fn print<T: Serialize>(&mut self, manifest: &T) -> Result<(), Failure> {
        let is_first = std::mem::take(&mut self.is_first);
        match self.form {
            Form::Json => show::json(manifest),
            Form::Yaml if is_first => show::yaml(manifest),
            Form::Yaml => {
                show::out("---\n");
                show::yaml(manifest)
            }
        }
    }
}
