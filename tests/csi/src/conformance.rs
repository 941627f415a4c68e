//! A suite of calls that a CSI plugin must pass: their order, their idempotence, and the codes of their errors.
//!
//! In: a plugin that this process shares a mount namespace with, and an empty directory. Out: the names of the checks that
//! have passed, and those that failed with the reason. A check whose feature the plugin lacks is skipped. Requirements are
//! those of the specification's tables of errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    pin::Pin,
};

use herdlet_csi::{
    capability::{AccessMode, AttachmentMode, MountOptions, Usage, Writing},
    client::Client,
    controller::{ControllerFeature, NewSnapshot, NewVolume, Page, Validation},
    error::{CallError, CallFailure, Code},
    identity::{PluginFeature, Readiness},
    node::{Context, NodeFeature, PublishPaths, VolumeUse},
    secrets::Secrets,
    wire::{CapacityRange, SourceId, Volume, VolumeContentSource},
};

use crate::mounted::{self, MountState};

/// A plugin under test.
pub struct Subject {
    pub client: Client,
    /// For staging and target directories.
    pub folder: PathBuf,
    node_id: String,
    node: BTreeSet<NodeFeature>,
    controller: BTreeSet<ControllerFeature>,
    options: MountOptions,
    /// None: volumes of the suite need no secrets.
    secrets: Secrets,
}

#[derive(Debug, Default)]
pub struct Report {
    pub passed: Vec<&'static str>,
    /// Name and reason.
    pub failed: Vec<(&'static str, String)>,
}

/// An unmet requirement.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Requirement(String),
}

type CheckFuture<'s> = Pin<Box<dyn Future<Output = Result<(), Violation>> + 's>>;
type Check = for<'s> fn(&'s Subject) -> CheckFuture<'s>;

const CHECKS: [(&str, Check); 8] = [
    ("requests without required fields are invalid", |subject| Box::pin(subject.required_fields())),
    ("unknown volumes are not found", |subject| Box::pin(subject.unknown_volumes())),
    ("a volume is created once for its name", |subject| Box::pin(subject.creation())),
    ("every call of a volume's life can be repeated", |subject| Box::pin(subject.repetition())),
    ("two targets share a staged volume", |subject| Box::pin(subject.two_targets())),
    ("data stays when a volume is staged again", |subject| Box::pin(subject.persistence())),
    ("a volume grows", |subject| Box::pin(subject.growth())),
    ("snapshots and clones have the data of their source", |subject| Box::pin(subject.snapshots())),
];

/// The usual use of a volume.
pub const WRITER: Usage = Usage {
    writing: Writing::ReadWrite,
    attachment: AttachmentMode::FileSystem,
    access: AccessMode::SingleNodeWriter,
};

/// Runs all checks.
///
/// # Errors
///
/// If the plugin does not describe itself.
pub async fn run(client: Client, folder: &Path) -> Result<Report, Violation> {
    client.plugin_info().await?;
    let has_controller = client.plugin_features().await?.contains(&PluginFeature::Controller);
    require(client.probe().await? == Readiness::Ready, "the plugin is not ready")?;
    require(has_controller, "the suite needs a plugin with a Controller service")?;
    let subject = Subject {
        node_id: client.node_info().await?.id,
        node: client.node_features().await?,
        controller: client.controller_features().await?,
        folder: folder.to_owned(),
        client,
        options: MountOptions::default(),
        secrets: Secrets::default(),
    };
    let mut report = Report::default();
    for (name, check) in CHECKS {
        match check(&subject).await {
            Ok(()) => report.passed.push(name),
            Err(violation) => report.failed.push((name, violation.to_string())),
        }
    }
    Ok(report)
}

/// A volume in use.
struct AttachedVolume<'s> {
    subject: &'s Subject,
    volume: Volume,
    context: Context,
}

impl Subject {
    async fn create(&self, name: &str, source: Option<VolumeContentSource>) -> Result<Volume, CallError> {
        let capacity = CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 };
        self.create_sized(name, capacity, source).await
    }

    async fn create_sized(
        &self,
        name: &str,
        capacity: CapacityRange,
        source: Option<VolumeContentSource>,
    ) -> Result<Volume, CallError> {
        let new = NewVolume {
            name,
            capacity: Some(capacity),
            usages: &[WRITER],
            options: &self.options,
            parameters: &BTreeMap::new(),
            source,
            topology: None,
            secrets: &self.secrets,
        };
        self.client.create_volume(&new).await
    }

    async fn attach(&self, volume: Volume) -> Result<AttachedVolume<'_>, CallError> {
        let mut attached = AttachedVolume { subject: self, volume, context: Context::new() };
        if self.controller.contains(&ControllerFeature::AttachDetach) {
            attached.context = self.client.attach(&attached.writer(), &self.node_id).await?;
        }
        Ok(attached)
    }

    async fn required_fields(&self) -> Result<(), Violation> {
        let volume = self.create("required-fields", None).await?;
        let attached = self.attach(volume).await?;
        let (writer, target) = (attached.writer(), self.path("required-fields"));
        let nameless = VolumeUse { volume_id: "", ..writer };
        let paths = PublishPaths { staging: None, target: &target };
        expect(Code::INVALID_ARGUMENT, self.create("", None).await, "CreateVolume without a name")?;
        let deleted = self.client.delete_volume("", &self.secrets).await;
        expect(Code::INVALID_ARGUMENT, deleted, "DeleteVolume without an id")?;
        let published = self.client.publish(&nameless, paths).await;
        expect(Code::INVALID_ARGUMENT, published, "NodePublishVolume without an id")?;
        let published = self.client.publish(&writer, PublishPaths { target: "", ..paths }).await;
        expect(Code::INVALID_ARGUMENT, published, "NodePublishVolume without a target")?;
        let unpublished = self.client.unpublish(&attached.volume.volume_id, "").await;
        expect(Code::INVALID_ARGUMENT, unpublished, "NodeUnpublishVolume without a target")?;
        if self.node.contains(&NodeFeature::Stage) {
            expect(
                Code::INVALID_ARGUMENT,
                self.client.stage(&writer, "").await,
                "NodeStageVolume without a path",
            )?;
            let unstaged = self.client.unstage(&attached.volume.volume_id, "").await;
            expect(Code::INVALID_ARGUMENT, unstaged, "NodeUnstageVolume without a path")?;
        }
        attached.end().await
    }

    async fn unknown_volumes(&self) -> Result<(), Violation> {
        let unknown = AttachedVolume {
            subject: self,
            volume: Volume { volume_id: "no-such-volume".to_owned(), ..Volume::default() },
            context: Context::new(),
        };
        let (writer, path) = (unknown.writer(), self.path("unknown"));
        self.client.delete_volume("no-such-volume", &self.secrets).await?;
        let validated = self.client.validate(&writer, &BTreeMap::new()).await;
        expect(Code::NOT_FOUND, validated, "ValidateVolumeCapabilities of an unknown volume")?;
        if self.controller.contains(&ControllerFeature::AttachDetach) {
            let attached = self.client.attach(&writer, &self.node_id).await;
            expect(Code::NOT_FOUND, attached, "ControllerPublishVolume of an unknown volume")?;
        }
        if self.node.contains(&NodeFeature::Stage) {
            let staged = self.client.stage(&writer, &path).await;
            expect(Code::NOT_FOUND, staged, "NodeStageVolume of an unknown volume")?;
        }
        Ok(())
    }

    async fn creation(&self) -> Result<(), Violation> {
        let first = self.create("creation", None).await?;
        let second = self.create("creation", None).await?;
        require(first == second, "a second CreateVolume with the same name returns another volume")?;
        let larger = CapacityRange { required_bytes: 1 << 30, limit_bytes: 1 << 30 };
        let conflict = self.create_sized("creation", larger, None).await;
        expect(Code::ALREADY_EXISTS, conflict, "CreateVolume with the same name and another capacity")?;
        let attached = self.attach(first).await?;
        let validation = self.client.validate(&attached.writer(), &BTreeMap::new()).await?;
        require(validation == Validation::Confirmed, "the use that the volume was created for is rejected")?;
        if self.controller.contains(&ControllerFeature::ListVolumes) {
            let found = self.is_listed(&attached.volume.volume_id).await?;
            require(found, "ListVolumes has no volume that exists")?;
        }
        attached.end().await
    }

    async fn is_listed(&self, volume_id: &str) -> Result<bool, Violation> {
        let mut token = String::new();
        // Far more pages than a plugin under test has volumes.
        for _ in 0..10_000 {
            let page = self.client.list_volumes(Page { entries_max: 1, token }).await?;
            let mut volumes = page.entries.iter().filter_map(|entry| entry.volume.as_ref());
            if volumes.any(|volume| volume.volume_id == volume_id) {
                return Ok(true);
            }
            token = page.next_token;
            if token.is_empty() {
                return Ok(false);
            }
        }
        Err(Violation::Requirement("ListVolumes does not end".to_owned()))
    }

    async fn repetition(&self) -> Result<(), Violation> {
        let attached = self.attach(self.create("repetition", None).await?).await?;
        let again = self.attach(attached.volume.clone()).await?;
        require(
            again.context == attached.context,
            "a second ControllerPublishVolume returns another context",
        )?;
        let target = self.path("repetition");
        for _ in 0..2 {
            attached.stage().await?;
        }
        for _ in 0..2 {
            attached.publish(&target, Writing::ReadWrite).await?;
        }
        require_mounted(&target, MountState::ReadWrite)?;
        if self.node.contains(&NodeFeature::Statistics) {
            let paths = PublishPaths { staging: None, target: &target };
            let found = self.client.volume_statistics(&attached.volume.volume_id, paths).await?;
            require(found.bytes.is_some() || found.inodes.is_some(), "the statistics have no usage")?;
        }
        for _ in 0..2 {
            attached.unpublish(&target).await?;
            require_mounted(&target, MountState::No)?;
        }
        require(!Path::new(&target).exists(), "NodeUnpublishVolume leaves the target")?;
        for _ in 0..2 {
            attached.unstage().await?;
        }
        attached.detach().await?;
        attached.end().await
    }

    async fn two_targets(&self) -> Result<(), Violation> {
        let attached = self.attach(self.create("two-targets", None).await?).await?;
        let (first, second) = (self.path("first-target"), self.path("second-target"));
        attached.stage().await?;
        attached.publish(&first, Writing::ReadWrite).await?;
        attached.publish(&second, Writing::ReadOnly).await?;
        fs::write(Path::new(&first).join("file"), "shared")?;
        require(fs::read(Path::new(&second).join("file"))? == b"shared", "the targets have different data")?;
        let written = fs::write(Path::new(&second).join("file"), "");
        require(written.is_err(), "a volume that is published read-only can be written to")?;
        attached.unpublish(&first).await?;
        require(
            fs::read(Path::new(&second).join("file")).is_ok(),
            "unpublishing one target removes the other",
        )?;
        attached.unpublish(&second).await?;
        attached.unstage().await?;
        attached.end().await
    }

    async fn persistence(&self) -> Result<(), Violation> {
        let attached = self.attach(self.create("persistence", None).await?).await?;
        let target = self.path("persistence");
        attached.stage().await?;
        attached.publish(&target, Writing::ReadWrite).await?;
        fs::write(Path::new(&target).join("file"), "kept")?;
        attached.unpublish(&target).await?;
        attached.unstage().await?;
        attached.detach().await?;
        let again = self.attach(attached.volume).await?;
        again.stage().await?;
        again.publish(&target, Writing::ReadWrite).await?;
        require(fs::read(Path::new(&target).join("file"))? == b"kept", "the data is lost")?;
        again.unpublish(&target).await?;
        again.unstage().await?;
        again.end().await
    }

    async fn growth(&self) -> Result<(), Violation> {
        if !self.controller.contains(&ControllerFeature::Expand) {
            return Ok(());
        }
        let attached = self.attach(self.create("growth", None).await?).await?;
        let capacity = CapacityRange { required_bytes: 2 << 20, limit_bytes: 0 };
        let target = self.path("growth");
        attached.stage().await?;
        attached.publish(&target, Writing::ReadWrite).await?;
        let grown = self.client.expand_volume(&attached.writer(), capacity).await?;
        require(grown.capacity_bytes >= 2 << 20, "ControllerExpandVolume returns a smaller capacity")?;
        if grown.node_expansion_required {
            let staging = attached.staging();
            let paths = PublishPaths { staging: staging.as_deref(), target: &target };
            self.client.expand_on_node(&attached.writer(), paths, capacity).await?;
        }
        attached.unpublish(&target).await?;
        attached.unstage().await?;
        attached.end().await
    }

    async fn snapshots(&self) -> Result<(), Violation> {
        if !self.controller.contains(&ControllerFeature::CreateDeleteSnapshot) {
            return Ok(());
        }
        let attached = self.attach(self.create("snapshot-source", None).await?).await?;
        let target = self.path("snapshot-source");
        attached.stage().await?;
        attached.publish(&target, Writing::ReadWrite).await?;
        fs::write(Path::new(&target).join("file"), "copied")?;
        attached.unpublish(&target).await?;
        attached.unstage().await?;
        let new = NewSnapshot {
            name: "snapshot",
            volume_id: &attached.volume.volume_id,
            parameters: &BTreeMap::new(),
            secrets: &self.secrets,
        };
        let snapshot = self.client.create_snapshot(&new).await?;
        let again = self.client.create_snapshot(&new).await?;
        require(
            snapshot.snapshot_id == again.snapshot_id,
            "a second CreateSnapshot returns another snapshot",
        )?;
        let source = VolumeContentSource {
            snapshot: Some(SourceId { id: snapshot.snapshot_id.clone() }),
            volume: None,
        };
        let copy = self.attach(self.create("snapshot-copy", Some(source)).await?).await?;
        copy.stage().await?;
        copy.publish(&target, Writing::ReadWrite).await?;
        require(fs::read(Path::new(&target).join("file"))? == b"copied", "the copy has other data")?;
        copy.unpublish(&target).await?;
        copy.unstage().await?;
        copy.end().await?;
        for _ in 0..2 {
            self.client.delete_snapshot(&snapshot.snapshot_id, &self.secrets).await?;
        }
        attached.end().await
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

impl AttachedVolume<'_> {
    fn writer(&self) -> VolumeUse<'_> {
        VolumeUse {
            volume_id: &self.volume.volume_id,
            usage: WRITER,
            options: &self.subject.options,
            publish_context: &self.context,
            volume_context: &self.volume.volume_context,
            secrets: &self.subject.secrets,
        }
    }

    /// `None`: the plugin does not stage volumes.
    fn staging(&self) -> Option<String> {
        let stages = self.subject.node.contains(&NodeFeature::Stage);
        stages.then(|| self.subject.path(&format!("staging-{}", self.volume.volume_id.replace('/', "_"))))
    }

    async fn stage(&self) -> Result<(), Violation> {
        let Some(staging) = self.staging() else { return Ok(()) };
        fs::create_dir_all(&staging)?;
        Ok(self.subject.client.stage(&self.writer(), &staging).await?)
    }

    async fn unstage(&self) -> Result<(), Violation> {
        let Some(staging) = self.staging() else { return Ok(()) };
        Ok(self.subject.client.unstage(&self.volume.volume_id, &staging).await?)
    }

    async fn publish(&self, target: &str, writing: Writing) -> Result<(), Violation> {
        let staging = self.staging();
        let paths = PublishPaths { staging: staging.as_deref(), target };
        let writer = self.writer();
        let volume = VolumeUse { usage: Usage { writing, ..WRITER }, ..writer };
        Ok(self.subject.client.publish(&volume, paths).await?)
    }

    async fn unpublish(&self, target: &str) -> Result<(), Violation> {
        Ok(self.subject.client.unpublish(&self.volume.volume_id, target).await?)
    }

    async fn detach(&self) -> Result<(), Violation> {
        if !self.subject.controller.contains(&ControllerFeature::AttachDetach) {
            return Ok(());
        }
        let client = &self.subject.client;
        Ok(client.detach(&self.volume.volume_id, &self.subject.node_id, &self.subject.secrets).await?)
    }

    /// Detaches and deletes the volume, twice each.
    async fn end(&self) -> Result<(), Violation> {
        for _ in 0..2 {
            self.detach().await?;
        }
        for _ in 0..2 {
            self.subject.client.delete_volume(&self.volume.volume_id, &self.subject.secrets).await?;
        }
        Ok(())
    }
}

fn require(is_met: bool, otherwise: &str) -> Result<(), Violation> {
    if is_met { Ok(()) } else { Err(Violation::Requirement(otherwise.to_owned())) }
}

fn require_mounted(target: &str, mode: MountState) -> Result<(), Violation> {
    let found = mounted::find(Path::new(target))?;
    require(found == mode, &format!("{target} is mounted {found:?}, and should be {mode:?}"))
}

fn expect<T>(code: Code, result: Result<T, CallError>, call: &str) -> Result<(), Violation> {
    let problem = match result {
        Ok(_) => "succeeds".to_owned(),
        Err(CallError { failure: CallFailure::Reported { code: reported, .. }, .. }) if reported == code => {
            return Ok(());
        }
        Err(other) => format!("fails otherwise: {other}"),
    };
    Err(Violation::Requirement(format!("{call} must fail with {code}, and {problem}")))
}
