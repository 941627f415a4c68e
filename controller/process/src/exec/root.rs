//! Describes the root of a task: its directory, parts of the machine, the directories that it shares.
//!
//! In: a task, the driver's options. Out: a description for [`herdlet_rootfs`], messages about what it could not do.

use std::path::{Component, Path, PathBuf};

use herdlet_base::paths;
use herdlet_driver::{Device, DriverError, DriverResult, Mount, Propagation, TaskConfig};
use herdlet_rootfs::root::{self, Access, Bind, Changes, DeviceFile, LimitedEntry, Root};

use super::policy::Policy;

/// The directory for the kernel's use, in the allocation's directory. No task's directory has such a name.
const WORK: &str = ".work";

/// Files of the machine that a task with rights over files could read in `/etc`: hashes of passwords.
const PASSWORDS: [&str; 5] =
    ["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"];

/// Where the keys of an SSH server are.
const SSH: &str = "/etc/ssh";

/// Describes the root.
///
/// # Errors
/// If a volume has a place that no root can have.
pub(super) fn describe(task: &TaskConfig, policy: &Policy, hidden: &[PathBuf]) -> DriverResult<Root> {
    let dirs = &task.dirs;
    let (Some(alloc), Some(name)) = (dirs.task.parent(), dirs.task.file_name()) else {
        return Err(DriverError::fatal(
            "find the allocation's directory: the task's directory has no parent",
        ));
    };
    let bind = |source: &Path, target: PathBuf, access| Bind {
        source: source.to_owned(),
        target,
        access,
        propagation: root::Propagation::Private,
    };
    let shared = PathBuf::from(paths::SHARED);
    let mut binds = vec![
        bind(&dirs.shared, shared.clone(), Access::ReadWrite),
        // The agent writes there; a task may only read its own logs, as in Nomad.
        bind(&dirs.logs, shared.join("logs"), Access::ReadOnly),
    ];
    let mut volumes = task.mounts.iter().map(volume).collect::<DriverResult<Vec<_>>>()?;
    // One may be below another.
    volumes.sort_by(|one, other| one.target.cmp(&other.target));
    binds.append(&mut volumes);
    Ok(Root {
        alloc: alloc.to_owned(),
        task: name.into(),
        work: Path::new(WORK).join(name),
        entries: policy.entries.clone(),
        binds,
        devices: task.devices.iter().map(device).collect::<DriverResult<_>>()?,
        hidden: hidden.iter().cloned().chain(secrets_of_machine()).collect(),
        masked: vec!["private".into()],
        network: task.network.as_ref().map(|network| network.path.clone()),
    })
}

/// A device keeps the owner and mode that it has on the machine.
fn device(device: &Device) -> DriverResult<DeviceFile> {
    device.require_all_rights()?;
    Ok(DeviceFile { source: device.host_path.clone(), target: in_root("device", &device.task_path)? })
}

fn volume(mount: &Mount) -> DriverResult<Bind> {
    let target = in_root("volume", &mount.task_path)?;
    Ok(Bind {
        source: mount.host_path.clone(),
        target,
        access: if mount.readonly { Access::ReadOnly } else { Access::ReadWrite },
        propagation: match mount.propagation {
            Propagation::Private => root::Propagation::Private,
            Propagation::HostToTask => root::Propagation::FromMachine,
            Propagation::Bidirectional => root::Propagation::Shared,
        },
    })
}

/// A path in the task, relative to its root.
fn in_root(what: &str, path: &Path) -> DriverResult<PathBuf> {
    let mut target = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let path = path.display();
                return Err(DriverError::fatal(format!(
                    "mount a {what} at {path}: the path must not have `..`"
                )));
            }
        }
    }
    Ok(target)
}

fn secrets_of_machine() -> Vec<PathBuf> {
    let keys = std::fs::read_dir(SSH).into_iter().flatten().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        (name.starts_with("ssh_host_") && name.ends_with("_key")).then(|| Path::new(SSH).join(name))
    });
    PASSWORDS.iter().map(PathBuf::from).chain(keys).collect()
}

/// What people should know about a root.
pub(super) fn messages(limited: &[LimitedEntry]) -> Vec<String> {
    let about = |changes: Changes, what: &str| {
        let all: Vec<&LimitedEntry> = limited.iter().filter(|entry| entry.changes == changes).collect();
        let reason = &all.first()?.reason;
        let targets: Vec<String> = all.iter().map(|entry| format!("/{}", entry.target.display())).collect();
        Some(format!("{what} {}: the task's directory can't hold them ({reason})", targets.join(", ")))
    };
    let temporary = "Changes are lost when the task ends, and limited to 64 MiB, in";
    let refused = "Changes are refused in";
    [about(Changes::Temporary, temporary), about(Changes::Refused, refused)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_entries_are_named_with_the_reason() {
        let limited = |target: &str, changes| LimitedEntry {
            target: target.into(),
            changes,
            reason: "Invalid argument".to_owned(),
        };
        let found = messages(&[
            limited("etc", Changes::Temporary),
            limited("lib", Changes::Refused),
            limited("usr", Changes::Temporary),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("in /etc, /usr: ") && found[0].contains("Invalid argument"), "{found:?}");
        assert!(found[1].contains("in /lib: "), "{found:?}");
        assert!(messages(&[]).is_empty());
    }

    #[test]
    fn a_volume_stays_in_the_root() {
        let mount = |path: &str| Mount {
            host_path: "/x".into(),
            task_path: path.into(),
            readonly: true,
            propagation: Propagation::HostToTask,
        };
        let bind = volume(&mount("/srv/./data")).unwrap();
        assert_eq!((&*bind.target, bind.access), (Path::new("srv/data"), Access::ReadOnly));
        assert_eq!(bind.propagation, root::Propagation::FromMachine);
        assert!(volume(&mount("/srv/../../etc")).is_err());
    }

    #[test]
    fn a_device_has_all_rights_or_is_refused() {
        let of = |path: &str, permissions: &str| {
            let (host_path, task_path) = ("/dev/zero".into(), path.into());
            device(&Device { host_path, task_path, permissions: permissions.to_owned() })
        };
        assert_eq!(of("/dev/x", "rwm").unwrap().target, Path::new("dev/x"));
        let refused = of("/dev/x", "r").unwrap_err().why();
        assert!(refused.starts_with("pass the device /dev/zero with the permissions \"r\": "), "{refused}");
        assert!(of("/dev/../etc/x", "rw").is_err());
    }
}
