//! `herdlet images import`: takes the images of Docker or Podman into the store of the node, and names the volumes to be copied.
//!
//! In: the programs `docker` and `podman` on this machine, with the rights of the caller. Out: images in the store; a list of
//! volumes. Nothing of the other engine is changed.

use std::{collections::BTreeMap, fs::File, os::fd::OwnedFd, process::Stdio};

use clap::{Args, ValueEnum};
use herdlet_api_types::images::StoredImage;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::names;
use crate::{
    Connection,
    failure::{FAILED, Failure},
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

#[derive(Debug, Clone, Args)]
pub(super) struct ImportArgs {
    /// Images to take; all that have a name if none is given
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// The engine that has them
    #[arg(long, value_enum, default_value_t)]
    from: Engine,
    /// Only name the images and volumes
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Engine {
    #[default]
    Docker,
    Podman,
}

/// What was taken, and what is left to do.
#[derive(Serialize)]
struct ImportReport {
    images: Vec<ImportedImage>,
    /// The volumes of the engine, which herdlet does not copy.
    volumes: Vec<EngineVolume>,
    dry_run: bool,
}

#[derive(Serialize)]
struct ImportedImage {
    name: String,
    loaded: Vec<StoredImage>,
    /// Why it was not taken.
    error: Option<String>,
}

/// A volume of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EngineVolume {
    #[serde(rename(deserialize = "Name"))]
    name: String,
    #[serde(rename(deserialize = "Driver"), default)]
    driver: String,
    /// Where its files are.
    #[serde(rename(deserialize = "Mountpoint"), default)]
    path: String,
    /// The containers that mount it, with the path in each.
    #[serde(skip_deserializing)]
    used_by: Vec<String>,
}

/// A container, as `inspect` shows it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EngineContainer {
    #[serde(default)]
    name: String,
    #[serde(default)]
    mounts: Vec<EngineMount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EngineMount {
    #[serde(rename = "Type", default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    destination: String,
}

/// # Errors
/// If the engine's program fails, or the agent refuses or does not answer.
pub(super) async fn run(args: ImportArgs) -> Result<u8, Failure> {
    let ImportArgs { images, from, dry_run, output, connection } = args;
    let client = connection.client()?;
    let wanted = if images.is_empty() { from.images().await? } else { images };
    let volumes = from.volumes().await?;
    let mut imported = Vec::new();
    for name in wanted {
        if dry_run {
            output.line(&name);
            imported.push(ImportedImage { name, loaded: Vec::new(), error: None });
            continue;
        }
        let (archive, saving) = from.save(&name)?;
        let loaded = client.load_images(archive).await;
        let saved = from.finish(saving, &format!("save {name}")).await;
        // An archive that ends early has its reason at the engine.
        let image = match saved.and(loaded.map_err(Failure::from)) {
            Ok(loaded) => ImportedImage { name, loaded, error: None },
            Err(failure) => {
                ImportedImage { name, loaded: Vec::new(), error: Some(failure.message().to_owned()) }
            }
        };
        output.line(&image.line());
        imported.push(image);
    }
    let code = if imported.iter().any(|image| image.error.is_some()) { FAILED } else { 0 };
    if output.reader() == Reader::Person {
        show::out(&volumes_text(&volumes));
    }
    output.document(&ImportReport { images: imported, volumes, dry_run })?;
    Ok(code)
}

impl ImportedImage {
    fn line(&self) -> String {
        match &self.error {
            Some(error) => format!("{}: {error}", self.name),
            None => format!("{}: loaded {}", self.name, names(&self.loaded)),
        }
    }
}

impl Engine {
    fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// The images that have a name.
    async fn images(self) -> Result<Vec<String>, Failure> {
        let listed = self.lines(&["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]).await?;
        Ok(listed.into_iter().filter(|name| !name.contains("<none>")).collect())
    }

    async fn volumes(self) -> Result<Vec<EngineVolume>, Failure> {
        let mut volumes: Vec<EngineVolume> =
            self.inspect(&["volume", "inspect"], self.lines(&["volume", "ls", "-q"]).await?).await?;
        let containers: Vec<EngineContainer> =
            self.inspect(&["container", "inspect"], self.lines(&["container", "ls", "-aq"]).await?).await?;
        let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for container in &containers {
            for mount in container.mounts.iter().filter(|mount| mount.kind == "volume") {
                let user = format!("{}:{}", container.name.trim_start_matches('/'), mount.destination);
                users.entry(mount.name.clone()).or_default().push(user);
            }
        }
        for volume in &mut volumes {
            volume.used_by = users.remove(&volume.name).unwrap_or_default();
        }
        Ok(volumes)
    }

    async fn inspect<T: for<'d> Deserialize<'d>>(
        self,
        command: &[&str],
        ids: Vec<String>,
    ) -> Result<Vec<T>, Failure> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let arguments: Vec<&str> = command.iter().copied().chain(ids.iter().map(String::as_str)).collect();
        let text = self.lines(&arguments).await?.join("\n");
        let wrong =
            |error| Failure::new(format!("failed to read the output of {} inspect: {error}", self.program()));
        serde_json::from_str(&text).map_err(wrong)
    }

    /// The lines that a command prints.
    async fn lines(self, arguments: &[&str]) -> Result<Vec<String>, Failure> {
        let ended = self.command(arguments).stdin(Stdio::null()).output().await;
        let ended = ended.map_err(|error| self.cannot_run(&error))?;
        if !ended.status.success() {
            return Err(self.failed(&arguments.join(" "), &ended.stderr));
        }
        let text = String::from_utf8_lossy(&ended.stdout);
        Ok(text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect())
    }

    /// Starts to write the archive of an image.
    fn save(self, image: &str) -> Result<(File, tokio::process::Child), Failure> {
        let mut command = self.command(&["image", "save", image]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.cannot_run(&error))?;
        let missing = || std::io::Error::other("it has no output");
        let output = child.stdout.take().ok_or_else(missing).and_then(|output| output.into_owned_fd());
        let output: OwnedFd = output.map_err(|error| self.cannot_run(&error))?;
        Ok((File::from(output), child))
    }

    async fn finish(self, child: tokio::process::Child, what: &str) -> Result<(), Failure> {
        let ended = child.wait_with_output().await.map_err(|error| self.cannot_run(&error))?;
        if ended.status.success() { Ok(()) } else { Err(self.failed(what, &ended.stderr)) }
    }

    fn command(self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(arguments);
        command
    }

    fn cannot_run(self, error: &std::io::Error) -> Failure {
        let program = self.program();
        Failure::new(format!("failed to run {program}: {error}")).hint(format!(
            "run this command where {program} works, or save the images there and use herdlet images load"
        ))
    }

    fn failed(self, what: &str, stderr: &[u8]) -> Failure {
        let why = String::from_utf8_lossy(stderr);
        Failure::new(format!("failed to {what} with {}: {}", self.program(), why.trim()))
    }
}

fn volumes_text(volumes: &[EngineVolume]) -> String {
    if volumes.is_empty() {
        return "the engine has no volumes to copy\n".to_owned();
    }
    let mut table = Table::new(&["VOLUME TO COPY", "USED BY", "FILES"]);
    for EngineVolume { name, driver, path, used_by } in volumes {
        let files = if driver == "local" { path.clone() } else { format!("{path} (driver {driver})") };
        table.row([name.clone(), used_by.join(", "), files]);
    }
    table.render(Heading::Shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_with_their_users_and_files() {
        let inspected =
            r#"[{"Name": "data", "Driver": "local", "Mountpoint": "/v/data/_data", "Scope": "local"}]"#;
        let mut volumes: Vec<EngineVolume> = serde_json::from_str(inspected).unwrap();
        volumes[0].used_by.push("db:/var/lib/db".to_owned());
        let text = volumes_text(&volumes);
        assert!(
            text.contains("data") && text.contains("db:/var/lib/db") && text.contains("/v/data/_data"),
            "{text}"
        );
        let document = serde_json::to_value(&volumes).unwrap();
        assert_eq!((&document[0]["name"], &document[0]["path"]), (&"data".into(), &"/v/data/_data".into()));
        assert_eq!(volumes_text(&[]), "the engine has no volumes to copy\n");
    }
}
