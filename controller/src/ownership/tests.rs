//! Who can change a path, told by real files. Owners other than ours take root.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::Path,
};

use super::{accounts::Accounts, *};

const NOBODY: u32 = 65_534;

fn ground() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/file"), "x").unwrap();
    for path in ["", "a", "a/b"] {
        set_mode(&dir.path().join(path), 0o755);
    }
    set_mode(&dir.path().join("a/b/file"), 0o640);
    dir
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn why(result: Result<(), OwnershipError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn what_only_we_can_change_is_trusted_below_a_sticky_directory_too() {
    let ground = ground();
    let file = ground.path().join("a/b/file");
    check(&file).unwrap();
    check_way(&file).unwrap();
    // As /tmp.
    set_mode(ground.path(), 0o1777);
    check(&file).unwrap();
    check_entries(&ground.path().join("a")).unwrap();
}

#[test]
fn whoever_may_write_on_the_way_or_to_the_file_is_named() {
    let ground = ground();
    let file = ground.path().join("a/b/file");
    for (path, mode, said) in [
        ("a/b/file", 0o646, "everybody could change it; chmod o-w"),
        ("a/b", 0o777, "everybody could change it"),
        ("a", 0o757, "everybody could change it"),
        ("", 0o777, "everybody could change it"),
    ] {
        let path = ground.path().join(path);
        let before = fs::metadata(&path).unwrap().permissions();
        set_mode(&path, mode);
        let why = why(check(&file));
        assert!(why.contains(said) && why.contains(&format!("mode {mode:04o}")), "{why}");
        assert!(why.contains(&path.canonicalize().unwrap().display().to_string()), "{why}");
        fs::set_permissions(&path, before).unwrap();
    }
    check(&file).unwrap();
    // Of the way only names count.
    set_mode(&file, 0o666);
    check_way(&file).unwrap();
    check(&file).unwrap_err();
}

#[test]
fn a_sticky_directory_does_not_protect_what_is_obeyed_in_it() {
    let ground = ground();
    let folder = ground.path().join("a/b");
    set_mode(&folder, 0o1777);
    check(&folder).unwrap_err();
    check(&folder.join("file")).unwrap();
}

#[test]
fn what_is_not_there_is_judged_by_where_it_would_be() {
    let ground = ground();
    let missing = ground.path().join("a/b/new/deeper");
    assert!(check(&missing).unwrap_err().is_absent());
    check_way(&missing).unwrap();
    check_if_there(&missing).unwrap();
    set_mode(&ground.path().join("a/b"), 0o777);
    check_way(&missing).unwrap_err();
    check_if_there(&missing).unwrap_err();
}

#[test]
fn links_are_walked_and_circles_end() {
    let ground = ground();
    symlink("a/../a/b", ground.path().join("relative")).unwrap();
    symlink(ground.path().join("relative/file"), ground.path().join("absolute")).unwrap();
    check(&ground.path().join("absolute")).unwrap();
    assert!(matches!(check(&ground.path().join("a/b/file/x")), Err(OwnershipError::Unknown { .. })));
    set_mode(&ground.path().join("a"), 0o777);
    check(&ground.path().join("absolute")).unwrap_err();
    symlink("circle", ground.path().join("circle")).unwrap();
    assert!(matches!(check(&ground.path().join("circle")), Err(OwnershipError::Unknown { .. })));
}

#[test]
fn owners_count_wherever_they_are() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let ground = ground();
    let file = ground.path().join("a/b/file");
    for path in ["a/b/file", "a/b", "a"] {
        let path = ground.path().join(path);
        chown(&path, Some(NOBODY), None).unwrap();
        let why = why(check(&file));
        assert!(why.contains("(uid 65534)") && why.contains("chown -h root"), "{why}");
        chown(&path, Some(0), None).unwrap();
    }
    // A link of somebody else's in a sticky directory, as planted in /tmp.
    set_mode(ground.path(), 0o1777);
    let link = ground.path().join("link");
    symlink("a/b/file", &link).unwrap();
    check(&link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    assert!(why(check(&link)).contains("link belongs to"));
    assert!(why(check_way(&link)).contains("link belongs to"));
    // In a directory of ours nobody else can replace it.
    set_mode(ground.path(), 0o755);
    check(&link).unwrap();
    chown(&file, Some(NOBODY), None).unwrap();
    check_entries(&ground.path().join("a/b")).unwrap_err();
    check_way(&file).unwrap();
}

#[test]
fn an_access_list_counts_where_its_mask_lets_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let ground = ground();
    let file = ground.path().join("a/b/file");
    // Version 2: owner rw, user nobody rwx, group r, mask as given, others none (linux/posix_acl_xattr.h).
    let list = |mask: u16| {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in [
            (1_u16, 6_u16, u32::MAX),
            (2, 7, NOBODY),
            (4, 4, u32::MAX),
            (16, mask, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    let set = |mask| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, c"system.posix_acl_access", &list(mask), flags)
    };
    if set(4).is_err() {
        return; // The file system has none.
    }
    check(&file).unwrap();
    set(6).unwrap();
    assert!(why(check(&file)).contains("setfacl -b"));
}

#[test]
fn a_group_is_private_where_nobody_else_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let (users, groups) = (dir.path().join("passwd"), dir.path().join("group"));
    fs::write(&users, "root:x:0:0::/:/bin/sh\nann:x:7:7::/:\nbob:x:8:8::/:\neve:x:9:10::/:\n").unwrap();
    fs::write(&groups, "root:x:0:\nann:x:7:ann\nbob:x:8:eve\nstaff:x:50:\neve:x:10:\nann2:x:11:\n").unwrap();
    let accounts = Accounts::of_files(users, groups);
    let is_private = |gid| accounts.is_private(gid, |uid| uid == 0 || uid == 7 || uid == 8);
    // `staff` has no members, but programs may be set-group-id; 10 is of a user that is not trusted.
    assert_eq!([0, 7, 8, 50, 10, 11, 99].map(is_private), [true, true, false, false, false, false, false]);
    assert_eq!(
        (&*accounts.described(7), &*accounts.described(77), &*accounts.name(8)),
        ("ann (uid 7)", "uid 77", "bob")
    );
}
