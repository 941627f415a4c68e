//! The root of a container: the layers of its image, the directories that it shares, memory and devices.
//!
//! In: the request that another engine would get. Out: a description for [`herdlet_rootfs`].

use std::path::{Component, Path, PathBuf};

use bollard::models::{HostConfig, Mount, MountBindOptionsPropagationEnum as Spread, MountType};
use herdlet_driver::{DriverError, DriverResult};
use herdlet_rootfs::root::{Access, Bind, DeviceFile, ImageRoot, MemoryDir, Propagation, Rights};

use super::machine_devices;

/// Paths in the root that no container sees, besides those that every root hides.
const MASKED: [&str; 1] = ["sys/devices/virtual/powercap"];

/// The mode of a directory in memory.
const MEMORY_MODE: u32 = 0o1777;

/// What a root is made of besides the request.
pub(super) struct Parts {
    /// Directories, the lowest layer first.
    pub(super) layers: Vec<PathBuf>,
    pub(super) changes: PathBuf,
    /// Files about the network, with their places.
    pub(super) files: Vec<(PathBuf, &'static str)>,
    pub(super) working_dir: PathBuf,
    /// Paths of the machine that no task may see.
    pub(super) hidden: Vec<PathBuf>,
    pub(super) network: Option<PathBuf>,
}

/// Describes the root.
///
/// # Errors
/// A place that no root can have.
pub(super) fn describe(host: &HostConfig, parts: Parts) -> DriverResult<ImageRoot> {
    let Parts { layers, changes, files, working_dir, hidden, network } = parts;
    let mut binds = Vec::new();
    for text in host.binds.iter().flatten() {
        binds.push(bind(text)?);
    }
    for (source, target) in files {
        let (target, propagation) = (below_root(target)?, Propagation::Private);
        binds.push(Bind { source, target, access: Access::ReadWrite, propagation });
    }
    let mut memory = Vec::new();
    for mount in host.mounts.iter().flatten() {
        match mount.typ {
            Some(MountType::TMPFS) => memory.push(memory_dir(mount)?),
            _ => binds.push(of_mount(mount)?),
        }
    }
    if host.ipc_mode.as_deref() == Some("host") {
        let target = PathBuf::from("dev/shm");
        let source = Path::new("/").join(&target);
        binds.push(Bind { source, target, access: Access::ReadWrite, propagation: Propagation::Private });
    }
    let devices = host.devices.iter().flatten().map(|device| {
        let source = PathBuf::from(device.path_on_host.clone().unwrap_or_default());
        Ok(DeviceFile {
            source,
            target: below_root(device.path_in_container.as_deref().unwrap_or_default())?,
        })
    });
    let mut devices: Vec<DeviceFile> = devices.collect::<DriverResult<_>>()?;
    let (rights, masked) = match host.privileged {
        Some(true) => {
            let own = |device: &DeviceFile| devices.iter().all(|given| given.target != device.target);
            let of_machine: Vec<DeviceFile> = machine_devices::list()?.into_iter().filter(own).collect();
            devices.extend(of_machine);
            (Rights::Privileged, Vec::new())
        }
        Some(false) | None => (Rights::Confined, MASKED.map(PathBuf::from).into()),
    };
    Ok(ImageRoot {
        layers,
        changes,
        rights,
        access: if host.readonly_rootfs == Some(true) { Access::ReadOnly } else { Access::ReadWrite },
        directories: vec![below_root(&working_dir)?],
        binds,
        memory,
        devices,
        shm_bytes: host.shm_size.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0),
        hidden,
        masked,
        network,
    })
}

/// Makes missing directories of `volumes`, as other engines do, which make none for `mount`.
///
/// # Errors
/// A source that is missing, or can't be made.
pub(super) fn make_sources(host: &HostConfig) -> DriverResult<()> {
    let sources = host.binds.iter().flatten().filter_map(|bind| bind.split(':').next()).map(Path::new);
    for source in sources.filter(|source| !source.exists()) {
        std::fs::create_dir_all(source).map_err(|error| {
            DriverError::recoverable(format!("make the volume {}: {error}", source.display()))
        })?;
    }
    let mounts = host.mounts.iter().flatten().filter(|mount| mount.typ != Some(MountType::TMPFS));
    let mut sources = mounts.filter_map(|mount| mount.source.as_deref()).map(Path::new);
    match sources.find(|source| !source.exists()) {
        Some(missing) => {
            Err(DriverError::recoverable(format!("mount {}: it does not exist", missing.display())))
        }
        None => Ok(()),
    }
}

/// `SOURCE:TARGET[:OPTIONS]`
fn bind(text: &str) -> DriverResult<Bind> {
    let mut parts = text.splitn(3, ':');
    let (source, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let options: Vec<&str> = parts.next().into_iter().flat_map(|options| options.split(',')).collect();
    let has = |names: &[&str]| options.iter().any(|option| names.contains(option));
    let propagation = match () {
        () if has(&["shared", "rshared"]) => Propagation::Shared,
        () if has(&["slave", "rslave"]) => Propagation::FromMachine,
        () => Propagation::Private,
    };
    Ok(Bind {
        source: source.into(),
        target: below_root(target)?,
        access: if has(&["ro"]) { Access::ReadOnly } else { Access::ReadWrite },
        propagation,
    })
}

fn of_mount(mount: &Mount) -> DriverResult<Bind> {
    let propagation = mount.bind_options.as_ref().and_then(|options| options.propagation);
    Ok(Bind {
        source: mount.source.clone().unwrap_or_default().into(),
        target: below_root(mount.target.as_deref().unwrap_or_default())?,
        access: access(mount),
        propagation: match propagation {
            Some(Spread::SHARED | Spread::RSHARED) => Propagation::Shared,
            Some(Spread::SLAVE | Spread::RSLAVE) => Propagation::FromMachine,
            Some(Spread::PRIVATE | Spread::RPRIVATE | Spread::EMPTY) | None => Propagation::Private,
        },
    })
}

fn memory_dir(mount: &Mount) -> DriverResult<MemoryDir> {
    let options = mount.tmpfs_options.clone().unwrap_or_default();
    Ok(MemoryDir {
        target: below_root(mount.target.as_deref().unwrap_or_default())?,
        bytes: options.size_bytes.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0),
        mode: options.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(MEMORY_MODE),
        access: access(mount),
    })
}

fn access(mount: &Mount) -> Access {
    if mount.read_only == Some(true) { Access::ReadOnly } else { Access::ReadWrite }
}

/// A path of the container, relative to its root. The root itself is no place for a mount.
fn below_root(path: impl AsRef<Path>) -> DriverResult<PathBuf> {
    let path = path.as_ref();
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::RootDir | Component::CurDir => {}
            // As the engines do by the path's text.
            Component::ParentDir => drop(below.pop()),
            Component::Prefix(_) => {
                return Err(DriverError::fatal(format!("mount at {}: it is no path", path.display())));
            }
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use bollard::models::{DeviceMapping, MountBindOptions, MountTmpfsOptions};

    use super::*;

    /// A start was repeated for ever.
    #[test]
    fn missing_sources_are_made_for_volumes_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let binds = Some(vec![format!("{}:/x:ro", path("a/b"))]);
        make_sources(&HostConfig { binds, ..HostConfig::default() }).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        let mount = |source: String| Mount { source: Some(source), ..Mount::default() };
        let with = |source: String| HostConfig { mounts: Some(vec![mount(source)]), ..HostConfig::default() };
        make_sources(&with(path("a"))).unwrap();
        let missing = make_sources(&with(path("none"))).unwrap_err();
        assert_eq!(missing.class(), herdlet_driver::FailureClass::Recoverable);
        assert!(missing.why().ends_with("none: it does not exist"), "{}", missing.why());
    }

    #[test]
    fn a_request_becomes_a_root() {
        let mount = |typ, target: &str| Mount {
            typ: Some(typ),
            source: Some("/s".into()),
            target: Some(target.into()),
            read_only: Some(true),
            ..Mount::default()
        };
        let spread = MountBindOptions { propagation: Some(Spread::RSLAVE), ..MountBindOptions::default() };
        let memory = MountTmpfsOptions { size_bytes: Some(9), mode: Some(0o700), ..Default::default() };
        let host = HostConfig {
            binds: Some(vec!["/a:/b:ro,z".into(), "/c:/d/../e:rshared".into()]),
            mounts: Some(vec![
                Mount { bind_options: Some(spread), ..mount(MountType::BIND, "/f") },
                Mount { tmpfs_options: Some(memory), ..mount(MountType::TMPFS, "/g") },
            ]),
            devices: Some(vec![DeviceMapping {
                path_on_host: Some("/dev/x".into()),
                path_in_container: Some("/dev/y".into()),
                cgroup_permissions: None,
            }]),
            readonly_rootfs: Some(true),
            shm_size: Some(5),
            ipc_mode: Some("host".into()),
            ..HostConfig::default()
        };
        let parts = Parts {
            layers: vec!["/l".into()],
            changes: "/x".into(),
            files: vec![("/h".into(), "/etc/hosts")],
            working_dir: "/srv".into(),
            hidden: Vec::new(),
            network: None,
        };
        let root = describe(&host, parts).unwrap();
        let of = |source: &str, target: &str, access, propagation| Bind {
            source: source.into(),
            target: target.into(),
            access,
            propagation,
        };
        assert_eq!(
            root.binds,
            [
                of("/a", "b", Access::ReadOnly, Propagation::Private),
                of("/c", "e", Access::ReadWrite, Propagation::Shared),
                of("/h", "etc/hosts", Access::ReadWrite, Propagation::Private),
                of("/s", "f", Access::ReadOnly, Propagation::FromMachine),
                of("/dev/shm", "dev/shm", Access::ReadWrite, Propagation::Private),
            ]
        );
        let expected =
            MemoryDir { target: "g".into(), bytes: Some(9), mode: 0o700, access: Access::ReadOnly };
        assert_eq!((root.memory, root.access, root.shm_bytes), (vec![expected], Access::ReadOnly, Some(5)));
        assert_eq!(root.devices, [DeviceFile { source: "/dev/x".into(), target: "dev/y".into() }]);
        assert_eq!(root.directories, [PathBuf::from("srv")]);
    }
}
