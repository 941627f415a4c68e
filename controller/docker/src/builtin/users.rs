//! Users of an image: names are looked up in the image's own `/etc/passwd` and `/etc/group`, by the rules of the OCI runtimes.
//!
//! In: an open root, `USER[:GROUP]`, more groups. Out: ids. The files are the image's: they are read in bounds, and no link leads out of
//! the root. No name service of the machine is asked.

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use herdlet_base::safe_fs;
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

/// The largest file of users or groups.
const LEN_MAX: u64 = 4 * 1024 * 1024;
/// The most groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// The user of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// All groups, the first one included.
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// Who is asked for.
pub(super) struct UserRequest<'w> {
    /// `USER[:GROUP]`, names or numbers; root if it is empty.
    pub(super) user: &'w str,
    /// More groups, names or numbers.
    pub(super) more_groups: Vec<&'w str>,
}

/// A user of `/etc/passwd`.
struct Account<'f> {
    name: &'f str,
    uid: u32,
    gid: u32,
    home: &'f str,
}

/// A group of `/etc/group`.
struct Group<'f> {
    name: &'f str,
    gid: u32,
    members: &'f str,
}

/// Finds a user. The error continues "failed to".
///
/// # Errors
/// A name that the image does not have.
pub(super) fn find(root: BorrowedFd<'_>, wanted: &UserRequest<'_>) -> Result<ImageUser, String> {
    let (passwd, groups) = (read(root, "etc/passwd")?, read(root, "etc/group")?);
    let (user, group) = match wanted.user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (wanted.user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number = user.parse::<u32>().ok();
    let is_it = |account: &Account<'_>| account.name == user || number == Some(account.uid);
    let account = passwd.lines().filter_map(account).find(is_it);
    let uid = account.as_ref().map(|account| account.uid).or(number);
    let uid = uid.ok_or_else(|| format!("find user {user:?}: the image has no such user in /etc/passwd"))?;
    let gid = match group {
        Some(group) => gid_of(group, &groups)?,
        None => account.as_ref().map_or(0, |account| account.gid),
    };
    let mut all = vec![gid];
    if let (None, Some(account)) = (group, &account) {
        let is_member = |group: &Group<'_>| group.members.split(',').any(|name| name == account.name);
        all.extend(groups.lines().filter_map(self::group).filter(is_member).map(|group| group.gid));
    }
    for group in &wanted.more_groups {
        all.push(gid_of(group, &groups)?);
    }
    all.sort_unstable();
    all.dedup();
    if all.len() > GROUPS_MAX {
        return Err(format!("find the groups of user {user:?}: there are more than {GROUPS_MAX}"));
    }
    let home = account.map(|account| account.home).filter(|home| home.starts_with('/'));
    Ok(ImageUser { uid, gid, groups: all, home: home.unwrap_or("/").to_owned() })
}

fn gid_of(name: &str, groups: &str) -> Result<u32, String> {
    let number = name.parse::<u32>().ok();
    let found = groups.lines().filter_map(group).find(|group| group.name == name);
    let gid = found.map(|group| group.gid).or(number);
    gid.ok_or_else(|| format!("find group {name:?}: the image has no such group in /etc/group"))
}

fn account(line: &str) -> Option<Account<'_>> {
    let mut fields = line.split(':');
    let (name, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
    Some(Account { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: fields.nth(1).unwrap_or("") })
}

fn group(line: &str) -> Option<Group<'_>> {
    let mut fields = line.split(':');
    let (name, gid) = (fields.next()?, fields.nth(1)?);
    Some(Group { name, gid: gid.parse().ok()?, members: fields.next().unwrap_or("") })
}

/// The text of a file; empty if there is none, or it is no file.
fn read(root: BorrowedFd<'_>, path: &str) -> Result<String, String> {
    let failed = |why: String| format!("read /{path} of the image: {why}");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = match openat2(root, Path::new(path), flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(String::new()),
        found => found.map_err(|errno| failed(errno.to_string()))?,
    };
    let about = fstat(&found).map_err(|errno| failed(errno.to_string()))?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    let file =
        File::open(safe_fs::proc_path(found.as_fd(), None)).map_err(|error| failed(error.to_string()))?;
    file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > LEN_MAX {
        return Err(failed(format!("it is larger than {LEN_MAX} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    struct Image(tempfile::TempDir);

    impl Image {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("etc")).unwrap();
            let image = Self(dir);
            image.file("passwd", "root:x:0:0:root:/root:/bin/sh\nbad line\nweb:x:33:34::/srv/web:\nx:y:z\n");
            image.file("group", "root:x:0:\nweb:x:34:\nlog:x:50:ftp,web\ntape:x:60:other\n");
            image
        }

        fn file(&self, name: &str, text: &str) {
            fs::write(self.0.path().join("etc").join(name), text).unwrap();
        }

        fn find(&self, user: &str, more: &[&str]) -> Result<(u32, u32, Vec<u32>, String), String> {
            let root = File::open(self.0.path()).unwrap();
            let found = find(root.as_fd(), &UserRequest { user, more_groups: more.to_vec() })?;
            Ok((found.uid, found.gid, found.groups, found.home))
        }
    }

    #[test]
    fn users_are_those_of_the_image() {
        let image = Image::new();
        let web = |groups: &[u32]| Ok((33, 34, groups.to_vec(), "/srv/web".to_owned()));
        assert_eq!(image.find("web", &[]), web(&[34, 50]));
        assert_eq!(image.find("33", &["tape", "7"]), web(&[7, 34, 50, 60]));
        assert_eq!(image.find("", &[]), Ok((0, 0, vec![0], "/root".to_owned())));
        // A group that is named replaces the others.
        assert_eq!(image.find("web:tape", &[]), Ok((33, 60, vec![60], "/srv/web".to_owned())));
        assert_eq!(image.find("1000:1001", &[]), Ok((1000, 1001, vec![1001], "/".to_owned())));
        // Numbers that the image does not have are in the group of root, as with Docker.
        assert_eq!(image.find("1000", &[]), Ok((1000, 0, vec![0], "/".to_owned())));
        for (user, more) in
            [("ftp", &[][..]), ("web:ftp", &[]), ("web", &["ftp"]), ("-1", &[]), ("4294967296", &[])]
        {
            assert!(image.find(user, more).is_err(), "{user}");
        }
    }

    #[test]
    fn files_of_users_may_be_anything() {
        let image = Image::new();
        let passwd = image.0.path().join("etc/passwd");
        fs::remove_file(&passwd).unwrap();
        assert_eq!(image.find("5", &[]).unwrap().0, 5);
        assert!(image.find("root", &[]).is_err());
        // The machine has a root.
        symlink("/../../../../../../etc/passwd", &passwd).unwrap();
        assert!(image.find("root", &[]).is_err(), "a link led out of the image");
        fs::remove_file(&passwd).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &passwd, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(image.find("root", &[]).is_err());
        fs::remove_file(&passwd).unwrap();
        File::create(&passwd).unwrap().set_len(LEN_MAX + 1).unwrap();
        assert!(image.find("root", &[]).unwrap_err().contains("larger than"));
    }
}
