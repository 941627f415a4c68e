//! Mounts of a container: the task's directories, volumes of the group, `volumes`, `mount` and `tmpfs`.
//!
//! In: the task's directories and config, the policy. Out: fields of the request. A path outside of the allocation's directory needs
//! `volumes.enabled`, also if a link in that directory leads there; and so does a directory whose entries the agent itself relies on
//! ([`super::sources`]).

use std::{collections::HashMap, fs, path::Path};

use bollard::models::{
    HostConfig, Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum as Spread,
    MountTmpfsOptions, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig,
};
use herdlet_api_types::manifest::driver::{DockerConfig, DockerMount};
use herdlet_driver::{DriverError, DriverResult, Mount, Propagation};

use super::{
    Material, group, some,
    sources::{Missing, NOT_ENABLED, Pin, Sources},
};
use crate::{config::FieldError, policy::Policy};

/// The options of `volumes` with which later mounts on one side appear on the other.
const PROPAGATING: [&str; 4] = ["shared", "rshared", "slave", "rslave"];

/// Why they are refused.
const NOT_PROPAGATED: &str = "propagation of mounts needs `volumes.enabled` of the driver's options: without it, only the state of now is mounted";

/// The options of `volumes` that engines know.
const OPTIONS: [&str; 22] = [
    "ro",
    "rw",
    "z",
    "Z",
    "U",
    "nocopy",
    "copy",
    "private",
    "rprivate",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "consistent",
    "cached",
    "delegated",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
];

/// What is wrong on every machine.
pub(super) fn refusals(docker: &DockerConfig) -> Vec<FieldError> {
    let volumes = docker.volumes.iter().enumerate().filter_map(|(index, text)| {
        let why = Volume::parse(&text.0).err()?;
        Some(FieldError::new(format!("volumes[{index}]"), why))
    });
    let mounts = mounts(docker).filter_map(|(field, mount)| Kind::of(&field, mount).err());
    volumes.chain(mounts).collect()
}

/// Mounts of paths of the machine, and of volumes of the engine, that the policy denies. Where a path with a link leads is known at the
/// start.
pub(super) fn denials(docker: &DockerConfig, policy: &Policy) -> Vec<FieldError> {
    if policy.host_paths {
        return Vec::new();
    }
    let denied = |source: &str| source.starts_with('/').then(|| format!("{source:?}: {NOT_ENABLED}"));
    let volumes = docker.volumes.iter().enumerate().filter_map(|(index, text)| {
        let volume = Volume::parse(&text.0).ok()?;
        Some(FieldError::new(format!("volumes[{index}]"), denied(volume.source)?))
    });
    let mounts = mounts(docker).filter_map(|(field, mount)| {
        let why = match Kind::of(&field, mount).ok()? {
            Kind::Bind(_) => denied(&mount.source.0)?,
            Kind::Volume => NOT_ENABLED.to_owned(),
            Kind::Tmpfs => return None,
        };
        Some(FieldError::new(field, why))
    });
    volumes.chain(mounts).collect()
}

/// All of `mount` and `mounts`, each with its field.
fn mounts(docker: &DockerConfig) -> impl Iterator<Item = (String, &DockerMount)> {
    let mount = docker.mount.iter().enumerate().map(|(index, mount)| (format!("mount[{index}]"), mount));
    let mounts = docker.mounts.iter().enumerate().map(|(index, mount)| (format!("mounts[{index}]"), mount));
    mount.chain(mounts)
}

/// Sets them. Returns what the agent has to mount for the engine.
pub(super) fn set(host: &mut HostConfig, material: &Material<'_>) -> DriverResult<Vec<Pin>> {
    let mut binds = own_binds(material)?;
    let mut sources = Sources::new(material);
    for (index, text) in material.config.docker.volumes.iter().enumerate() {
        let field = format!("volumes[{index}]");
        let made = volume(&field, &text.0, &mut sources, material);
        binds.push(made.map_err(|why| FieldError::new(field, why))?);
    }
    let docker = &material.config.docker;
    let used = material.task.mounts.iter().filter(|mount| is_used(mount, docker));
    let mut mounts: Vec<EngineMount> = used.map(of_part).collect();
    for (field, mount) in self::mounts(docker) {
        let kind = Kind::of(&field, mount)?;
        let made = written((&field, mount), kind, &mut sources, material);
        mounts.push(made.map_err(|why| FieldError::new(field, why))?);
    }
    host.binds = Some(binds);
    host.mounts = some(mounts);
    let tmpfs: HashMap<String, String> = material
        .config
        .podman
        .tmpfs
        .iter()
        .map(|text| text.split_once(':').unwrap_or((text, "")))
        .map(|(target, options)| (target.to_owned(), options.to_owned()))
        .collect();
    host.tmpfs = some(tmpfs);
    Ok(sources.pins)
}

/// Whether a mount of the agent is used: not a file about a network that the task does not use, or brings along.
fn is_used(mount: &Mount, docker: &DockerConfig) -> bool {
    let target = mount.task_path.as_path();
    let volumes = docker.volumes.iter().filter_map(|text| Some(Volume::parse(&text.0).ok()?.target));
    let mut own = volumes.chain(mounts(docker).map(|(_, mount)| mount.target.0.as_str()));
    !group::is_file(target) || group::is_used(docker) && !own.any(|own| Path::new(own) == target)
}

/// The three directories of every task; the task may only read its own logs.
///
/// # Errors
/// If one of them is a link by now: the engine would follow it.
fn own_binds(material: &Material<'_>) -> DriverResult<Vec<String>> {
    let dirs = &material.task.dirs;
    let (local, secrets) = (dirs.task.join("local"), dirs.task.join("secrets"));
    for dir in [&dirs.shared, &local, &secrets, &dirs.logs] {
        let mut inside = dir.ancestors().take_while(|dir| Some(*dir) != dirs.task.parent());
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink());
        if let Some(link) = inside.find(|path| is_link(path)) {
            return Err(DriverError::fatal(format!(
                "mount the directories of the task: {} is a link: a task has replaced the directory",
                link.display()
            )));
        }
    }
    let label = material.policy.selinux_label.as_deref();
    let bind = |path: &Path, target: &str, option: Option<&str>| {
        let options: Vec<&str> = option.into_iter().chain(label).collect();
        let options = if options.is_empty() { String::new() } else { format!(":{}", options.join(",")) };
        format!("{}:{target}{options}", path.display())
    };
    Ok(vec![
        bind(&dirs.shared, "/alloc", None),
        bind(&local, "/local", None),
        bind(&secrets, "/secrets", None),
        bind(&dirs.logs, "/alloc/logs", Some("ro")),
    ])
}

/// The parts of `SOURCE:TARGET[:OPTIONS]`.
struct Volume<'t> {
    source: &'t str,
    target: &'t str,
    options: Vec<&'t str>,
}

impl<'t> Volume<'t> {
    fn parse(text: &'t str) -> Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let (Some(source), Some(target)) = (parts.next(), parts.next()) else {
            return Err(format!("expected SOURCE:TARGET[:OPTIONS], found {text:?}"));
        };
        if source.is_empty() || !target.starts_with('/') {
            return Err(format!("expected SOURCE:TARGET with an absolute target, found {text:?}"));
        }
        let options: Vec<&str> = parts.next().into_iter().flat_map(|options| options.split(',')).collect();
        if let Some(unknown) = options.iter().find(|option| !OPTIONS.contains(option)) {
            return Err(format!(
                "the option {unknown:?} in {text:?} is unknown; there are ro, rw, z, Z, nocopy and propagation modes"
            ));
        }
        Ok(Self { source, target, options })
    }
}

/// A volume as the engine takes it.
fn volume(
    field: &str,
    text: &str,
    sources: &mut Sources<'_>,
    material: &Material<'_>,
) -> Result<String, String> {
    let Volume { source, target, mut options } = Volume::parse(text)?;
    let has_driver = material.config.docker.volume_driver.as_deref().is_some_and(|driver| !driver.is_empty());
    let source = if has_driver {
        if !material.policy.host_paths {
            return Err(NOT_ENABLED.to_owned());
        }
        source.to_owned()
    } else {
        if !sources.may_propagate() && options.iter().any(|option| PROPAGATING.contains(option)) {
            return Err(NOT_PROPAGATED.to_owned());
        }
        sources.path(field, source, Missing::Create)?.display().to_string()
    };
    options.extend(material.policy.selinux_label.as_deref());
    let options = if options.is_empty() { String::new() } else { format!(":{}", options.join(",")) };
    Ok(format!("{source}:{target}{options}"))
}

/// A mount that a part of the allocation has produced.
fn of_part(mount: &Mount) -> EngineMount {
    let propagation = match mount.propagation {
        Propagation::Private => None,
        Propagation::HostToTask => Some(Spread::RSLAVE),
        Propagation::Bidirectional => Some(Spread::RSHARED),
    };
    let target = match mount.task_path.is_absolute() {
        true => mount.task_path.clone(),
        false => Path::new("/").join(&mount.task_path),
    };
    EngineMount {
        typ: Some(MountType::BIND),
        source: Some(mount.host_path.display().to_string()),
        target: Some(target.display().to_string()),
        read_only: Some(mount.readonly),
        bind_options: propagation.map(|propagation| MountBindOptions {
            propagation: Some(propagation),
            ..MountBindOptions::default()
        }),
        ..EngineMount::default()
    }
}

/// The kind of a mount.
#[derive(Clone, Copy)]
enum Kind {
    Bind(Option<Spread>),
    Volume,
    Tmpfs,
}

impl Kind {
    fn of(field: &str, mount: &DockerMount) -> Result<Self, FieldError> {
        let refused = |key: &str, why: String| FieldError::new(format!("{field}.{key}"), why);
        if !mount.target.0.starts_with('/') {
            let why = format!("`target` must be an absolute path, found {:?}", mount.target.0);
            return Err(refused("target", why));
        }
        match mount.kind.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("volume") {
            "bind" => {
                let options = mount.bind_options.as_ref();
                let name = options.and_then(|options| options.0.propagation.as_deref());
                let spread = name.filter(|name| !name.is_empty()).map(propagation).transpose();
                Ok(Self::Bind(spread.map_err(|why| refused("bind_options.propagation", why))?))
            }
            "volume" => Ok(Self::Volume),
            "tmpfs" => Ok(Self::Tmpfs),
            other => Err(refused("type", format!("`type` must be bind, volume or tmpfs, found {other:?}"))),
        }
    }
}

fn written(
    (field, mount): (&str, &DockerMount),
    kind: Kind,
    sources: &mut Sources<'_>,
    material: &Material<'_>,
) -> Result<EngineMount, String> {
    let base = EngineMount {
        target: Some(mount.target.0.clone()),
        read_only: Some(mount.readonly),
        ..EngineMount::default()
    };
    match kind {
        Kind::Bind(propagation) => {
            let is_shared =
                propagation.is_some_and(|spread| !matches!(spread, Spread::PRIVATE | Spread::RPRIVATE));
            if !sources.may_propagate() && is_shared {
                return Err(NOT_PROPAGATED.to_owned());
            }
            let source = sources.path(field, &mount.source.0, Missing::Refuse)?;
            Ok(EngineMount {
                typ: Some(MountType::BIND),
                source: Some(source.display().to_string()),
                bind_options: propagation.map(|propagation| MountBindOptions {
                    propagation: Some(propagation),
                    ..MountBindOptions::default()
                }),
                ..base
            })
        }
        Kind::Volume => {
            if !material.policy.host_paths {
                return Err(NOT_ENABLED.to_owned());
            }
            let options = mount.volume_options.clone().unwrap_or_default().0;
            let driver = options.driver_config.map(|driver| driver.0);
            Ok(EngineMount {
                typ: Some(MountType::VOLUME),
                source: some(mount.source.0.clone()),
                volume_options: Some(MountVolumeOptions {
                    no_copy: options.no_copy.then_some(true),
                    labels: some(options.labels.0.into_iter().collect()),
                    driver_config: driver.map(|driver| MountVolumeOptionsDriverConfig {
                        name: some(driver.name.0),
                        options: some(driver.options.0.into_iter().collect()),
                    }),
                    ..MountVolumeOptions::default()
                }),
                ..base
            })
        }
        Kind::Tmpfs => {
            let options = mount.tmpfs_options.clone().unwrap_or_default().0;
            Ok(EngineMount {
                typ: Some(MountType::TMPFS),
                tmpfs_options: Some(MountTmpfsOptions {
                    size_bytes: options.size.and_then(|size| i64::try_from(size).ok()),
                    mode: options.mode.map(i64::from),
                    ..MountTmpfsOptions::default()
                }),
                ..base
            })
        }
    }
}

fn propagation(name: &str) -> Result<Spread, String> {
    Ok(match name {
        "private" => Spread::PRIVATE,
        "rprivate" => Spread::RPRIVATE,
        "shared" => Spread::SHARED,
        "rshared" => Spread::RSHARED,
        "slave" => Spread::SLAVE,
        "rslave" => Spread::RSLAVE,
        other => {
            return Err(format!(
                "`bind_options.propagation` must be (r)private, (r)shared or (r)slave, found {other:?}"
            ));
        }
    })
}
