//! Finds the machine's cgroup hierarchies.
//!
//! In: `/proc/self/mountinfo`, not `/proc/self/cgroup`, which also lists unmounted hierarchies. Out: mount points. It
//! creates one thing: a cgroup2 mount in the runtime directory, if the machine has none.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use herdlet_driver::limits::Controller;
use rustix::mount::MountFlags;

use super::{CgroupError, Setup, files};

/// Where to find cgroup2 first: plain v2, then hybrid.
const USUAL: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The controller of cores.
pub(super) const CPUSET: &str = "cpuset";

/// Where hierarchies are mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    /// Mounts of the cgroup2 hierarchy, the best one first.
    pub v2: Vec<PathBuf>,
    /// v1 hierarchies by controller.
    pub v1: BTreeMap<Controller, PathBuf>,
    /// The v1 hierarchy of cpusets.
    pub cpuset: Option<PathBuf>,
}

impl Mounts {
    /// The machine's mounts; mounts our own cgroup2 if there is none.
    ///
    /// # Errors
    /// When there is no cgroup2 and none can be mounted.
    pub fn read(setup: &Setup) -> Result<Self, CgroupError> {
        let own = own_mount(&setup.runtime);
        let mut mounts = Self::parse(&files::read(Path::new("/proc/self/mountinfo"))?);
        mounts.v2.sort_by_key(|point| match USUAL.iter().position(|usual| point == Path::new(usual)) {
            Some(rank) => rank,
            None if *point == own => USUAL.len(),
            None => USUAL.len() + 1,
        });
        // A mount elsewhere may belong to another instance and disappear with it.
        if !mounts
            .v2
            .first()
            .is_some_and(|best| *best == own || USUAL.iter().any(|usual| best == Path::new(usual)))
        {
            match mount(&own) {
                Ok(()) => mounts.v2.insert(0, own),
                Err(error) if mounts.v2.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(mounts)
    }

    /// Parses the text of a mountinfo file (proc(5)).
    pub fn parse(mountinfo: &str) -> Self {
        let mut v2 = Vec::new();
        let (mut v1, mut cpuset) = (BTreeMap::new(), None);
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(point) = left.split(' ').nth(4) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") => v2.push(unescape(point)),
                Some("cgroup") => {
                    let has = |name: &str| options.split(',').any(|option| option == name);
                    let found = Controller::ALL.into_iter().filter(|controller| has(controller.name()));
                    v1.extend(found.map(|controller| (controller, unescape(point))));
                    if has(CPUSET) {
                        cpuset = Some(unescape(point));
                    }
                }
                Some(_) | None => {}
            }
        }
        Self { v2, v1, cpuset }
    }
}

/// Enables a v2 controller for the children of `dir`.
pub(super) fn enable(controller: &str, dir: &Path) -> Result<(), CgroupError> {
    let control = dir.join("cgroup.subtree_control");
    let has = |text: &str| text.split_whitespace().any(|name| name == controller);
    if files::read_if_there(&control).is_some_and(|enabled| has(&enabled)) {
        return Ok(());
    }
    files::write(&control, &format!("+{controller}"))
}

/// Where an instance mounts its own cgroup2.
pub(super) fn own_mount(runtime: &Path) -> PathBuf {
    runtime.join("cgroup2")
}

fn mount(point: &Path) -> Result<(), CgroupError> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.split_whitespace().next_back() == Some("cgroup2")) {
        return Err(CgroupError::NoHierarchy { why: "the kernel has none".into() });
    }
    fs::create_dir_all(point).map_err(files::failed("make", point))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("none", point, "cgroup2", flags, None)
        .map_err(|errno| files::failed("mount cgroup2 on", point)(errno.into()))
}

/// Decodes the octal escapes of blanks and backslashes in mount points.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;

    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after
            .first_chunk::<3>()
            .filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        rest = match octal {
            Some([a, b, c]) => {
                out.push((a & 3) << 6 | (b & 7) << 3 | (c & 7));
                &after[3..]
            }
            None => {
                out.push(*first);
                after
            }
        };
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_v2_is_found() {
        let mounts =
            Mounts::parse("30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(mounts.v2, [Path::new("/sys/fs/cgroup")]);
        assert!(mounts.v1.is_empty());
    }

    #[test]
    fn hybrid_cgroups_are_detected_with_joint_controllers() {
        let mounts = Mounts::parse(
            "1 0 0:1 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             2 1 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             3 1 0:3 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             4 1 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             4 1 0:6 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
             5 1 0:5 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n",
        );
        assert_eq!(mounts.v2, [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(mounts.v1[&Controller::Cpu], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mounts.cpuset.as_deref(), Some(Path::new("/sys/fs/cgroup/cpuset")));
        assert_eq!(mounts.v1[&Controller::Memory], Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn odd_mount_points_and_lines_do_no_harm() {
        let mounts = Mounts::parse("rubbish\n7 1 0:2 / /run/a\\040b/c rw - cgroup2 none rw\n8 - cgroup2\n");
        assert_eq!(mounts.v2, [Path::new("/run/a b/c")]);
        assert_eq!(Mounts::parse(""), Mounts::default());
    }
}
