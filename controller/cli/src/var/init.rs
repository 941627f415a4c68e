//! `herdlet var init`: writes an example of a specification.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write as _},
    path::PathBuf,
};

use clap::Args;

use super::spec::InForm;
use crate::{failure::Failure, output::Output};

/// Arguments of `herdlet var init`.
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// The file to write; it must not exist [default: spec.nv.hcl or spec.nv.json]
    file: Option<PathBuf>,
    /// Format
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "hcl")]
    out: InForm,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

const HCL: &str = r#"# The path, unless it is an argument of the command.
path = "nomad/jobs/example"

# The namespace, unless --namespace names another one.
# namespace = "default"

# The names and values. Only this is required. Names of letters, digits and "_" are the easiest to use in templates.
items {
  user     = "me"
  password = "change-me"
}
"#;

const JSON: &str = r#"{
  "Namespace": "default",
  "Path": "nomad/jobs/example",
  "Items": {
    "user": "me",
    "password": "change-me"
  }
}
"#;

pub(super) fn run(args: &InitArgs) -> Result<u8, Failure> {
    let (name, text) = match args.out {
        InForm::Hcl => ("spec.nv.hcl", HCL),
        InForm::Json => ("spec.nv.json", JSON),
    };
    let path = args.file.clone().unwrap_or_else(|| name.into());
    let mut options = OpenOptions::new();
    let made =
        options.write(true).create_new(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    made.map_err(|error| {
        Failure::new(if error.kind() == ErrorKind::AlreadyExists {
            format!("{} exists already; name another file", path.display())
        } else {
            format!("{}: cannot be written: {error}", path.display())
        })
    })?;
    if !args.quiet {
        let shown = path.display();
        Output::default().line(&format!("wrote {shown}; edit it, then run: herdlet var put @{shown}"));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_a_valid_specification_and_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        for out in [InForm::Hcl, InForm::Json] {
            let file = dir.path().join(format!("{out:?}"));
            let args = InitArgs { file: Some(file.clone()), out, quiet: true };
            assert_eq!(run(&args).unwrap(), 0);
            assert!(run(&args).unwrap_err().to_string().contains("exists already"));
            let words = [format!("@{}", file.display())];
            let read = super::super::spec::read(&words, Some(out)).unwrap().variable;
            assert_eq!((read.metadata.path.as_str(), read.items.unwrap().0.len()), ("nomad/jobs/example", 2));
        }
    }
}
