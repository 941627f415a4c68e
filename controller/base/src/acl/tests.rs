//! Access control lists on a real file system, and their encoding.

use std::{fs::File, os::unix::fs::MetadataExt as _, os::unix::fs::PermissionsExt as _};

use super::*;
use crate::test_env::leave_out;

/// An open directory on a file system with lists; reports the test as skipped if the temporary directory's has none.
fn acl_dir() -> Option<(tempfile::TempDir, File)> {
    let temp = tempfile::tempdir().unwrap();
    let dir = File::open(temp.path()).unwrap();
    match Acl::read(&dir) {
        Ok(_) => Some((temp, dir)),
        Err(AclError::Unsupported) => {
            leave_out("access control lists in the temporary directory");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn example() -> Acl {
    Acl {
        owner: Perm::ALL,
        users: vec![(33, Perm::READ_EXECUTE), (65534, Perm::ALL)],
        group: Perm::from_bits(6),
        groups: vec![(50, Perm::from_bits(6)), (60, Perm::EXECUTE)],
        mask: Some(Perm::ALL),
        other: Perm::NONE,
    }
}

#[test]
fn written_acl_is_read_back() {
    let Some((temp, dir)) = acl_dir() else { return };
    let mode = || temp.path().metadata().unwrap().mode() & 0o7777;
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o1751)).unwrap();
    assert_eq!(Acl::read(&dir).unwrap(), Acl::from_mode(0o751));
    let acl = example();
    acl.write(&dir).unwrap();
    assert_eq!(Acl::read(&dir).unwrap(), acl);
    assert_eq!((mode(), acl.mode()), (0o1770, 0o770), "the sticky bit stays");
    let path = rustix::fs::open(temp.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(Acl::read(&path).unwrap(), acl);
    // Without named entries only the mode remains.
    Acl::from_mode(0o700).write(&dir).unwrap();
    assert_eq!((Acl::read(&dir).unwrap(), mode()), (Acl::from_mode(0o700), 0o1700));
}

#[test]
fn a_long_list_is_read_whole() {
    let Some((_temp, dir)) = acl_dir() else { return };
    let acl = Acl::of_users(Perm::ALL, (1000..1100).map(|uid| (uid, Perm::EXECUTE)));
    acl.write(&dir).unwrap();
    assert_eq!(Acl::read(&dir).unwrap(), acl);
}

#[test]
fn a_mode_that_is_changed_later_changes_the_mask() {
    let Some((temp, dir)) = acl_dir() else { return };
    example().write(&dir).unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let acl = Acl::read(&dir).unwrap();
    assert_eq!(acl, Acl { mask: Some(Perm::READ_EXECUTE), ..example() });
    assert_eq!(acl.writers(), Writers::default());
}

#[test]
fn writers_are_those_whom_the_mask_lets_write() {
    let acl = example();
    let all = Writers { users: vec![65534], group: true, groups: vec![50], other: false };
    assert_eq!(acl.writers(), all);
    assert_eq!(Acl { mask: None, ..acl.clone() }.writers(), all);
    assert_eq!(Acl { mask: Some(Perm::READ_EXECUTE), ..acl }.writers(), Writers::default());
    let writers = |mode| Acl::from_mode(mode).writers();
    assert_eq!(writers(0o755), Writers::default());
    assert_eq!(writers(0o775), Writers { group: true, ..Writers::default() });
    assert_eq!(writers(0o1777), Writers { group: true, other: true, ..Writers::default() });
}

#[test]
fn users_are_named_once_and_sorted() {
    let acl = Acl::of_users(Perm::ALL, [(9, Perm::ALL), (3, Perm::EXECUTE), (9, Perm::EXECUTE)]);
    assert_eq!(acl.users.iter().map(|(uid, _)| *uid).collect::<Vec<_>>(), [3, 9]);
    assert_eq!(Acl::of_users(Perm::ALL, []), Acl::from_mode(0o700));
}

#[test]
fn the_encoding_is_the_kernel_s_and_all_else_is_refused() {
    let bytes = example().encode();
    assert_eq!(Acl::decode(&bytes).unwrap(), example());
    assert_eq!(bytes[..20], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 33, 0, 0, 0]);
    let broken = [
        bytes[..3].to_vec(),
        bytes[..4].to_vec(),
        bytes[..bytes.len() - 1].to_vec(),
        bytes[..bytes.len() - 8].to_vec(),
        [&[1], &bytes[1..]].concat(),
        [&bytes[..4], &[3], &bytes[5..]].concat(),
    ];
    for bytes in broken {
        assert!(matches!(Acl::decode(&bytes), Err(AclError::Malformed)), "{bytes:?}");
    }
}

#[test]
fn file_system_without_acls_is_recognized() {
    // Files in proc can't have lists.
    let file = File::open("/proc/self/status").unwrap();
    assert!(matches!(Acl::read(&file), Err(AclError::Unsupported)));
    assert!(matches!(example().write(&file), Err(AclError::Unsupported)));
    assert!(matches!(error("read", Errno::PERM), AclError::Io { .. }));
}
