//! `herdlet dispatch`: runs a child of a parameterized job with a payload and meta.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use herdlet_api_types::JobKey;
use serde::Serialize;

use super::{
    Connection,
    client::Dispatch,
    failure::{Failure, USAGE},
    output::Output,
    rollback::find,
    wait::{Accepted, Goal, WaitFlags, WaitTarget},
};

/// Arguments of `herdlet dispatch`.
#[derive(Debug, Clone, Args)]
pub struct DispatchArgs {
    /// A parameterized job
    job: String,
    /// File with the payload, at most 16 KiB, or - for standard input
    #[arg(value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Value of a meta key that the job declares; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Part of the child's id: JOB/dispatch-PREFIX-...
    #[arg(long = "id-prefix-template", value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Dispatching again with the same token returns the same child
    #[arg(long, value_name = "TOKEN", default_value = "")]
    idempotency_token: String,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) job: JobKey,
    pub(super) parent: JobKey,
}

/// More than any agent accepts, so that the agent itself reports a payload that is too large.
const PAYLOAD_BYTES_MAX: u64 = 1 << 20;

pub async fn run(args: DispatchArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let payload = args.payload.as_deref().map(read).transpose()?.unwrap_or_default();
    let client = args.connection.client()?;
    let parent = limit.within("find it", find(&client, &args.job)).await?.key;
    let mut meta = BTreeMap::new();
    for (key, value) in args.meta {
        if meta.insert(key.clone(), value).is_some() {
            return Err(Failure::new(format!("--meta gives {key:?} twice")).code(USAGE));
        }
    }
    let wanted =
        Dispatch { payload: &payload, meta: &meta, id_prefix: &args.prefix, token: &args.idempotency_token };
    let (job, index) = limit.within("dispatch it", client.dispatch(&parent, &wanted)).await?;
    args.output.line(&format!("job/{parent} dispatched as job/{job}"));
    let report = Report { job: job.clone(), parent };
    let jobs = vec![WaitTarget::version(job, 0)];
    let accepted = Accepted { client: &client, jobs, index, goal: Goal::Complete };
    args.wait.finish(limit, accepted, &report, args.output).await
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "expected KEY=VALUE".to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(format!("{}: the payload cannot be read: {why}", path.display())).code(USAGE)
    };
    let mut bytes = Vec::new();
    let mut take = |source: &mut dyn Read| source.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut bytes);
    if path.as_os_str() == "-" {
        take(&mut io::stdin().lock()).map_err(|error| failed(&error))?;
    } else {
        take(&mut std::fs::File::open(path).map_err(|error| failed(&error))?)
            .map_err(|error| failed(&error))?;
    }
    if bytes.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(failed(&"a payload has at most 16 KiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_is_split_at_the_first_equals_sign() {
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(pair("a=").unwrap(), ("a".to_owned(), String::new()));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }
}
