//! Describes the root of a task: its directory, parts of the machine, the directories that it shares.
//!
//! In: a task, the driver's options. Out: a description for [`herdlet_rootfs`], messages about what it could not do.

use std::path::{Component, Path, PathBuf};

use herdlet_base::paths;
use herdlet_driver::{DriverError, DriverResult, Mount, Propagation, TaskConfig};
use herdlet_rootfs::root::{self, Access, Bind, Changes, LimitedEntry, Root};

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
        hidden: hidden.iter().cloned().chain(secrets_of_machine()).collect(),
        masked: vec!["private".into()],
        network: task.network.as_ref().map(|network| network.path.clone()),
    })
}

fn volume(mount: &Mount) -> DriverResult<Bind> {
    let mut target = PathBuf::new();
    for part in mount.task_path.components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(DriverError::fatal(format!(
                    "mount a volume at {}: the path must not have `..`",
                    mount.task_path.display()
                )));
            }
        }
    }
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
}
