//! `--var` and `--var-file`: values of variables in HCL job files.

use std::path::PathBuf;

use clap::Args;
use herdlet_api_types::api::{ManifestText, VariableTexts};
use herdlet_manifest::{hcl::Variables, yaml::Problems};

use super::failure::{Failure, USAGE};

/// Values for variables. `NOMAD_VAR_<name>` has the lowest precedence; of several values for a variable, the last applies.
#[derive(Debug, Clone, Default, Args)]
pub struct VariableArgs {
    /// Value for a variable of HCL job files
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// File with values for variables, in HCL or JSON
    #[arg(long, value_name = "FILE")]
    var_file: Vec<PathBuf>,
}

/// Prefix of environment variables, as in Nomad.
const PREFIX: &str = "NOMAD_VAR_";

/// A larger file is not a file of values.
const BYTES_MAX: u64 = 1 << 20;

impl VariableArgs {
    /// The values as given, for an agent.
    pub(super) fn texts(&self) -> Result<VariableTexts, Failure> {
        let named = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix(PREFIX)?.to_owned();
            Some((name, value.to_str()?.to_owned()))
        });
        let files = self.var_file.iter().map(|path| {
            let failed = |why: String| Failure::new(format!("{}: {why}", path.display())).code(USAGE);
            let length =
                std::fs::metadata(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
            if !length.is_file() || length.len() > BYTES_MAX {
                return Err(failed(format!("is not a file of at most {BYTES_MAX} bytes")));
            }
            let text =
                std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
            Ok(ManifestText { name: path.display().to_string(), text })
        });
        Ok(VariableTexts {
            environment: named.collect(),
            files: files.collect::<Result<_, _>>()?,
            assignments: self.var.clone(),
        })
    }

    /// The values as given, for `run`. Prints errors.
    ///
    /// # Errors
    /// The exit code.
    pub fn collect(&self) -> Result<VariableTexts, u8> {
        self.texts().map_err(|failure| {
            failure.print();
            failure.not_the_tasks().code
        })
    }

    /// The values, to parse manifests locally.
    pub(super) fn read(&self) -> Result<Variables, Failure> {
        let failure = |problems: Problems| Failure::new(problems.to_string()).code(USAGE);
        Variables::read(&self.texts()?).map_err(failure)
    }
}
