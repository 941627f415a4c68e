//! `herdlet fs`: the files of an allocation.
//!
//! In: a target and a path below the allocation's directory, or below the task's if the target names one. Out: a table,
//! facts, or the bytes of a file.

use clap::{Args, Subcommand};
use futures_util::StreamExt as _;
use herdlet_api_types::{AllocId, alloc::ClientStatus, nomad::FileInfo, view::AllocView};
use serde::Serialize;

use super::{
    Connection,
    client::Client,
    failure::Failure,
    output::{Output, Reader},
    show, stdout,
    table::{Heading, Table},
    target,
};

/// Arguments of `herdlet fs`.
#[derive(Debug, Clone, Args)]
pub struct FsArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// List a directory
    #[command(after_help = "Example:\n  herdlet fs ls web local")]
    #[command(alias = "list")]
    Ls(FsTarget),
    /// Show the size, mode and age of a file or directory
    #[command(after_help = "Example:\n  herdlet fs stat web alloc/data")]
    Stat(FsTarget),
    /// Print a file
    #[command(after_help = "Example:\n  herdlet fs cat web.web[0]/httpd local/config")]
    Cat(File),
    /// Print a file, or list a directory, as Nomad's alloc fs does
    #[command(hide = true, after_help = "Example:\n  herdlet alloc fs web.web[0] alloc/data/state.json")]
    Show(FsTarget),
}

/// A file or directory, and the form of the output.
#[derive(Debug, Clone, Args)]
struct FsTarget {
    /// A job or group with one running allocation, an allocation, or a task
    target: String,
    /// Path in the allocation's directory (alloc, TASK), or in the task's (local, tmp)
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
struct File {
    /// A job or group with one running allocation, an allocation, or a task
    target: String,
    /// Path in the allocation's directory (alloc, TASK), or in the task's (local, tmp)
    path: String,
}

#[derive(Serialize)]
struct Listing {
    files: Vec<FileInfo>,
}

pub async fn run(args: FsArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    match args.what {
        What::Ls(FsTarget { target, path, output }) => {
            let (alloc, path) = find(&client, &target, &path).await?;
            let files = client.list_files(alloc, &path).await?;
            match output.reader() {
                Reader::Person => show::out(&table(&files)),
                Reader::Program => output.document(&Listing { files })?,
            }
        }
        What::Stat(FsTarget { target, path, output }) => {
            let (alloc, path) = find(&client, &target, &path).await?;
            let info = client.stat_file(alloc, &path).await?;
            match output.reader() {
                Reader::Person => show::out(&table(std::slice::from_ref(&info))),
                Reader::Program => output.document(&info)?,
            }
        }
        What::Show(FsTarget { target, path, output }) => {
            let (alloc, path) = find(&client, &target, &path).await?;
            let info = client.stat_file(alloc, &path).await?;
            if !info.is_dir {
                cat(&client, alloc, &path).await?;
                return Ok(0);
            }
            let files = client.list_files(alloc, &path).await?;
            match output.reader() {
                Reader::Person => show::out(&table(&files)),
                Reader::Program => output.document(&Listing { files })?,
            }
        }
        What::Cat(File { target, path }) => {
            let (alloc, path) = find(&client, &target, &path).await?;
            cat(&client, alloc, &path).await?;
        }
    }
    Ok(0)
}

/// The single allocation that the target means, and the path in it.
async fn find(client: &Client, text: &str, path: &str) -> Result<(AllocId, String), Failure> {
    let target = target::find(client, text).await?;
    let path = match &target.task {
        Some(task) => format!("{task}/{path}"),
        None => path.to_owned(),
    };
    Ok((one_of(&target.allocs, text)?, path))
}

/// The only allocation, or the only running one.
fn one_of(allocs: &[AllocView], text: &str) -> Result<AllocId, Failure> {
    let running: Vec<&AllocView> =
        allocs.iter().filter(|view| view.status == ClientStatus::Running).collect();
    match (allocs, running.as_slice()) {
        ([one], _) => Ok(one.spec.id),
        (_, [one]) => Ok(one.spec.id),
        ([], _) => Err(Failure::new(format!("{text} has no allocation yet"))),
        (several, _) => {
            let names: Vec<String> = several.iter().map(|view| view.spec.name()).collect();
            let failure = Failure::new(format!("{text} has {} allocations; name one", names.len()));
            Err(failure.code(super::failure::USAGE).hint(format!("available: {}", names.join(", "))))
        }
    }
}

async fn cat(client: &Client, alloc: AllocId, path: &str) -> Result<(), Failure> {
    let mut pieces = client.read_file(alloc, path).await?;
    while let Some(piece) = pieces.next().await {
        stdout::bytes(&piece?);
    }
    Ok(())
}

fn table(files: &[FileInfo]) -> String {
    let mut table = Table::new(&["MODE", "SIZE", "MODIFIED", "NAME"]);
    for file in files {
        let name =
            if file.is_dir { format!("{}/", file.name.trim_end_matches('/')) } else { file.name.clone() };
        // To the second, which is enough.
        let modified = file.mod_time.as_deref().unwrap_or_default();
        let modified = modified.split(['.', 'Z']).next().unwrap_or_default().replace('T', " ");
        table.row([file.file_mode.clone(), file.size.to_string(), modified, name]);
    }
    table.render(Heading::Shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::{alloc_view, ended, job};

    #[test]
    fn only_running_allocation_is_chosen() {
        let web = job("web", "front", "httpd");
        let (running, over) = (alloc_view(&web, 0, 1), ended(alloc_view(&web, 1, 2)));
        let id = running.spec.id;
        assert_eq!(one_of(&[running.clone(), over.clone()], "web").unwrap(), id);
        assert_eq!(one_of(std::slice::from_ref(&over), "web").unwrap(), over.spec.id);
        let several = one_of(&[running, alloc_view(&web, 1, 3)], "web").unwrap_err();
        assert!(several.to_string().contains("web has 2 allocations; name one"), "{several}");
        assert!(one_of(&[], "web").is_err());
    }

    #[test]
    fn directories_are_marked_in_listings() {
        let file = |name: &str, is_dir| FileInfo {
            name: name.to_owned(),
            is_dir,
            size: 8,
            file_mode: "-rw-r--r--".to_owned(),
            mod_time: Some("2026-01-02T03:04:05.123Z".to_owned()),
            content_type: None,
        };
        assert_eq!(
            table(&[file("local", true), file("x", false)]),
            "MODE        SIZE  MODIFIED             NAME\n\
             -rw-r--r--  8     2026-01-02 03:04:05  local/\n\
             -rw-r--r--  8     2026-01-02 03:04:05  x\n"
        );
    }
}
