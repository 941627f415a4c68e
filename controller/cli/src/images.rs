//! `herdlet images`: the images that tasks use or have used, and the store of the node: pull, load, import, prune, verify.
//!
//! In: the agent's lists and reports, archives. Out: a line for each image, with its users; what was done.

mod import;

use std::{fs::File, os::fd::AsFd as _, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use futures_util::TryStreamExt as _;
use herdlet_api_types::{
    driver::{ImageUse, ImageView},
    images::{DamagedLayers, ImagePrune, PruneReport, PullStep, StoreCheck, StoredImage},
};
use serde::Serialize;

use self::import::ImportArgs;
use super::{
    Connection,
    failure::{FAILED, Failure},
    output::{Output, Reader},
    show,
    table::{Heading, Table},
    wait::limit,
};

/// Arguments of `herdlet images`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ImagesArgs {
    #[command(subcommand)]
    verb: Option<ImagesVerb>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Subcommand)]
enum ImagesVerb {
    /// Pull an image into the store of the node, before a task needs it; it stays until images prune
    #[command(
        after_help = "Examples:\n  herdlet images pull redis:7.2\n  herdlet images pull registry.example.com/team/app:1.4 -o json"
    )]
    Pull(PullArgs),
    /// Load the images of an archive: of docker save, or an OCI layout as a tar; - reads standard input
    #[command(
        after_help = "Examples:\n  herdlet images load app.tar.gz\n  docker save app:1 | herdlet images load -"
    )]
    Load(LoadArgs),
    /// Take images from Docker or Podman, and name the volumes that have to be copied
    #[command(
        after_help = "Examples:\n  herdlet images import --dry-run\n  herdlet images import redis:7.2\n  herdlet images import --from podman\n\nExit code: 0 all are there, 1 some are not."
    )]
    Import(ImportArgs),
    /// Remove images that no task uses
    #[command(
        after_help = "Examples:\n  herdlet images prune --dry-run\n  herdlet images prune --unused-for 24h\n\nAlso removes images that were pulled or loaded by hand, and that no task uses."
    )]
    Prune(PruneArgs),
    /// Compare all files of all images with what was unpacked
    #[command(
        after_help = "Examples:\n  herdlet images verify\n  herdlet images verify --remove    remove what is damaged and not in use; the next pull fetches it\n\nExit code: 0 nothing is damaged, 1 something is."
    )]
    Verify(VerifyArgs),
}

#[derive(Debug, Clone, Args)]
struct PullArgs {
    /// Its name, as tasks write it
    image: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Args)]
struct LoadArgs {
    /// The archive; - for standard input
    file: PathBuf,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Args)]
struct PruneArgs {
    /// Only images that nobody has pulled, loaded or started for this long
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = limit)]
    unused_for: Duration,
    /// Only list what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Args)]
struct VerifyArgs {
    /// Remove damaged layers that no task uses, so that the next pull fetches them
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

/// The document for programs.
#[derive(Serialize)]
struct Listing {
    images: Vec<ImageView>,
}

/// Images that were pulled or loaded.
#[derive(Serialize)]
struct FetchReport {
    images: Vec<StoredImage>,
}

impl ImagesArgs {
    pub fn connection(&mut self) -> &mut Connection {
        match &mut self.verb {
            None => &mut self.connection,
            Some(ImagesVerb::Pull(args)) => &mut args.connection,
            Some(ImagesVerb::Load(args)) => &mut args.connection,
            Some(ImagesVerb::Import(args)) => &mut args.connection,
            Some(ImagesVerb::Prune(args)) => &mut args.connection,
            Some(ImagesVerb::Verify(args)) => &mut args.connection,
        }
    }
}

/// Runs `herdlet images`.
///
/// # Errors
/// If the agent refuses or does not answer, or an archive can't be read.
pub async fn run(args: ImagesArgs) -> Result<u8, Failure> {
    match args.verb {
        None => list(args.output, &args.connection).await,
        Some(ImagesVerb::Pull(args)) => pull(args).await,
        Some(ImagesVerb::Load(args)) => load(args).await,
        Some(ImagesVerb::Import(args)) => import::run(args).await,
        Some(ImagesVerb::Prune(args)) => prune(args).await,
        Some(ImagesVerb::Verify(args)) => verify(args).await,
    }
}

async fn list(output: Output, connection: &Connection) -> Result<u8, Failure> {
    let images = connection.client()?.images().await?;
    if output.reader() == Reader::Person {
        show::out(&summary(&images));
    }
    output.document(&Listing { images })?;
    Ok(0)
}

async fn pull(args: PullArgs) -> Result<u8, Failure> {
    let mut steps = args.connection.client()?.pull_image(&args.image).await?;
    let mut before = String::new();
    while let Some(step) = steps.try_next().await? {
        match step {
            PullStep::Progress(progress) if progress.is_empty() || progress == before => {}
            PullStep::Progress(progress) => {
                args.output.line(&format!("pulling {}: {progress}", args.image));
                before = progress;
            }
            PullStep::Image(image) => {
                args.output.line(&fetched("pulled", &image));
                args.output.document(&FetchReport { images: vec![image] })?;
                return Ok(0);
            }
            PullStep::Error(error) => return Err(Failure::new(format!("failed to {error}"))),
        }
    }
    Err(Failure::new(format!("failed to pull {}: the agent ended the pull", args.image)))
}

async fn load(args: LoadArgs) -> Result<u8, Failure> {
    let archive = open(&args.file).map_err(|error| {
        Failure::new(format!("failed to read the archive {}: {error}", args.file.display()))
    })?;
    let images = args.connection.client()?.load_images(archive).await?;
    for image in &images {
        args.output.line(&fetched("loaded", image));
    }
    args.output.document(&FetchReport { images })?;
    Ok(0)
}

fn open(path: &std::path::Path) -> std::io::Result<File> {
    match path.as_os_str() == "-" {
        true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
        false => File::open(path),
    }
}

async fn prune(args: PruneArgs) -> Result<u8, Failure> {
    let unused_for_ns = u64::try_from(args.unused_for.as_nanos()).unwrap_or(u64::MAX);
    let order = ImagePrune { unused_for_ns, dry_run: args.dry_run };
    let freed = args.connection.client()?.prune_images(&order).await?;
    if args.output.reader() == Reader::Person {
        show::out(&freed_text(&freed));
    }
    args.output.document(&freed)?;
    Ok(0)
}

async fn verify(args: VerifyArgs) -> Result<u8, Failure> {
    let damaged = if args.remove { DamagedLayers::Remove } else { DamagedLayers::Report };
    let check = args.connection.client()?.verify_images(damaged).await?;
    if args.output.reader() == Reader::Person {
        show::out(&check_text(&check));
    }
    args.output.document(&check)?;
    Ok(if check.damaged.is_empty() { 0 } else { FAILED })
}

/// A line about an image that is there now.
fn fetched(what: &str, image: &StoredImage) -> String {
    let digest = if image.digest.is_empty() { &image.id } else { &image.digest };
    format!("{what} {} ({}, {digest})", names(std::slice::from_ref(image)), show::bytes(image.size_bytes))
}

/// The tags of images, or their ids.
fn names(images: &[StoredImage]) -> String {
    let named = images.iter().map(|image| {
        let tags: Vec<&str> =
            image.names.iter().map(String::as_str).filter(|name| !name.contains('@')).collect();
        if tags.is_empty() { image.id.clone() } else { tags.join(", ") }
    });
    named.collect::<Vec<_>>().join(", ")
}

fn freed_text(freed: &PruneReport) -> String {
    let verb = if freed.dry_run { "would be removed" } else { "removed" };
    let mut text = String::new();
    for image in &freed.images {
        text.push_str(&format!("{}\n", names(std::slice::from_ref(image))));
    }
    let (images, layers) = (freed.images.len(), freed.layers);
    text.push_str(&format!("{verb}: {images} images, {layers} layers, {}\n", show::bytes(freed.bytes)));
    text
}

fn check_text(check: &StoreCheck) -> String {
    if check.damaged.is_empty() {
        return format!("{} images are as they were pulled\n", check.images);
    }
    let mut table = Table::new(&["DAMAGED", "IMAGES", "WHY"]);
    for damaged in &check.damaged {
        let removed = if damaged.is_removed { "; removed, the next pull fetches it" } else { "" };
        table.row([damaged.digest.clone(), damaged.images.join(", "), format!("{}{removed}", damaged.why)]);
    }
    table.render(Heading::Shown)
}

fn summary(images: &[ImageView]) -> String {
    if images.is_empty() {
        return "no task has used an image\n".to_owned();
    }
    let mut table = Table::new(&["IMAGE", "DRIVER", "DIGEST", "SIZE", "LAST USED", "USED BY"]);
    for image in images {
        let digest = image.digest.trim_start_matches("sha256:").chars().take(12).collect::<String>();
        let (size, used) = match image.digest.is_empty() {
            true => ("not there".to_owned(), show::age(image.last_used)),
            false => (show::bytes(image.size_bytes), show::age(image.last_used)),
        };
        let used = if image.used_by.is_empty() { used } else { "now".to_owned() };
        let users = image.used_by.iter().map(user).chain(image.claimed_by.iter().map(|owner| claim(owner)));
        let users: Vec<String> = users.collect();
        table.row([image.name.clone(), image.driver.clone(), digest, size, used, users.join(", ")]);
    }
    table.render(Heading::Shown)
}

/// Who keeps an image besides the tasks of this agent.
fn claim(owner: &str) -> String {
    if owner == "kept" { "kept by hand".to_owned() } else { format!("agent {owner}") }
}

/// A task, and what it has written outside of its mounts.
fn user(user: &ImageUse) -> String {
    let alloc = if user.alloc_name.is_empty() { user.alloc.short() } else { user.alloc_name.clone() };
    let written = user.writable_bytes.filter(|bytes| *bytes > 0);
    let written = written.map(|bytes| format!(" (+{})", show::bytes(bytes))).unwrap_or_default();
    format!("{alloc}/{}{written}", user.task)
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, images::DamagedImage};

    use super::*;
    use crate::output::versioned;

    #[test]
    fn an_image_is_shown_with_its_users() {
        let user = ImageUse {
            alloc: AllocId::from_hash([1; 16]),
            alloc_name: "web.g[0]".to_owned(),
            task: "t".to_owned(),
            writable_bytes: Some(2048),
        };
        let image = ImageView {
            driver: "docker".to_owned(),
            name: "redis:7".to_owned(),
            digest: format!("sha256:{}", "ab".repeat(32)),
            used_by: vec![user],
            ..ImageView::default()
        };
        let shown = summary(std::slice::from_ref(&image));
        for part in ["redis:7", "abababababab ", "now", "web.g[0]/t (+"] {
            assert!(shown.contains(part), "{shown}");
        }
        let gone = ImageView { digest: String::new(), used_by: Vec::new(), ..image };
        assert!(summary(&[gone]).contains("not there"));
        assert_eq!(summary(&[]), "no task has used an image\n");
    }

    #[test]
    fn what_was_freed_and_damaged_is_named() {
        let names =
            vec!["docker.io/library/redis:7".to_owned(), "docker.io/library/redis@sha256:1".to_owned()];
        let image = StoredImage { id: "sha256:2".to_owned(), names, ..StoredImage::default() };
        let nameless = StoredImage { id: "sha256:3".to_owned(), ..StoredImage::default() };
        let freed = PruneReport { images: vec![image, nameless], layers: 3, bytes: 5 << 20, dry_run: true };
        let text = freed_text(&freed);
        assert!(
            text.starts_with("docker.io/library/redis:7\nsha256:3\nwould be removed: 2 images, 3 layers, 5"),
            "{text}"
        );
        assert_eq!(
            check_text(&StoreCheck { images: 2, damaged: Vec::new() }),
            "2 images are as they were pulled\n"
        );
        let damaged =
            DamagedImage { digest: "sha256:4".to_owned(), is_removed: true, ..DamagedImage::default() };
        let text = check_text(&StoreCheck { images: 2, damaged: vec![damaged] });
        assert!(text.contains("sha256:4") && text.contains("the next pull fetches it"), "{text}");
    }

    /// A document can't be a list: `-o json` and `-o yaml` always failed.
    #[test]
    fn the_document_is_an_object() {
        let images = vec![ImageView { name: "redis:7".to_owned(), ..ImageView::default() }];
        let document = serde_json::to_value(versioned(&Listing { images })).unwrap();
        assert_eq!(
            (&document["apiVersion"], &document["images"][0]["name"]),
            (&"herdlet/v1".into(), &"redis:7".into())
        );
    }
}
