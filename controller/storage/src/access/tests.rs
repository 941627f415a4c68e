//! Directory rights, with lists and on a file system without.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use herdlet_base::test_env::{TestEnv, leave_out};

use super::*;

const WEB: Ids = Ids { uid: 5001, gid: 5001 };
const DB: Ids = Ids { uid: 5002, gid: 5002 };

fn users(of: &[Ids]) -> TaskUsers {
    TaskUsers { users: of.to_vec(), ..TaskUsers::default() }
}

fn of_task(own: Ids, all: &[Ids]) -> TaskUsers {
    TaskUsers { own: Own::User(own), ..users(all) }
}

/// A fixture where files can be given away; otherwise reports the test as skipped.
fn test_env() -> Option<TestEnv> {
    let ground = TestEnv::mounting()?;
    if ground.privileges().ownership == Ownership::OwnOnly {
        leave_out("the right to give files away");
        return None;
    }
    Some(ground)
}

fn mode_and_owner(path: &Path) -> (u32, u32) {
    let stat = path.metadata().unwrap();
    (stat.mode() & 0o7777, stat.uid())
}

#[test]
fn listed_users_have_access_and_others_do_not() {
    let Some(ground) = test_env() else { return };
    for before in [0o700, 0o1777, 0o777, 0o2755] {
        fs::set_permissions(ground.path(), fs::Permissions::from_mode(before)).unwrap();
        Acl::from_mode(before).write(fs::File::open(ground.path()).unwrap()).unwrap();
        let dir = Dir::open(ground.path()).unwrap();
        let access = of_task(WEB, &[WEB, DB]).task();
        assert!(access.difference(&dir).unwrap().is_some());
        for _ in 0..2 {
            access.apply(&dir).unwrap();
            assert_eq!(access.difference(&dir).unwrap(), None);
        }
        let expected = [(WEB.uid, Perm::ALL), (DB.uid, Perm::READ_EXECUTE)];
        assert_eq!(Acl::read(&dir).unwrap(), Acl::of_users(Perm::ALL, expected));
        assert_eq!(mode_and_owner(ground.path()), (0o1770, us().uid));
        // Open it from outside.
        fs::set_permissions(ground.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let why = access.difference(&dir).unwrap().unwrap();
        assert!(why.ends_with("has the wrong permissions"), "{why}");
        access.apply(&dir).unwrap();
        // The directory moves to an allocation whose tasks have another user.
        let access = of_task(DB, &[DB]).own(ground.privileges());
        assert!(access.difference(&dir).unwrap().unwrap().contains("belongs to user"));
        access.apply(&dir).unwrap();
        assert_eq!(
            (Acl::read(&dir).unwrap(), access.difference(&dir).unwrap()),
            (Acl::from_mode(0o700), None)
        );
        assert_eq!(mode_and_owner(ground.path()), (0o700, DB.uid));
        TaskUsers::private().apply(&dir).unwrap();
    }
}

// A step made it 0777 without the sticky bit before the next one closed it, and it stayed so if the agent was killed in
// between.
#[test]
fn closing_a_directory_never_opens_it() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let task = of_task(WEB, &[WEB, DB]);
    for before in [0o1777, 0o3777, 0o755] {
        for access in [task.own(ground.privileges()), task.task(), TaskUsers::private()] {
            Acl::from_mode(before).write(&dir).unwrap();
            fs::set_permissions(ground.path(), fs::Permissions::from_mode(before)).unwrap();
            dir.set_owner((0, 0)).unwrap();
            let found = Found::of(&dir).unwrap();
            for step in access.steps(&found, found.acl.as_ref().unwrap()) {
                step.take(&dir).unwrap();
                let (mode, _) = mode_and_owner(ground.path());
                assert!(mode & 0o002 == 0 || mode & STICKY != 0, "{before:o} {step:?}: {mode:o}");
            }
            assert_eq!(access.difference(&dir).unwrap(), None, "{before:o}");
        }
    }
}

#[test]
fn unknown_user_keeps_its_access() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    users(&[WEB, DB]).common().apply(&dir).unwrap();
    let with = |of: &[Ids]| TaskUsers { known: UserLookup::Some, ..users(of) };
    for access in [with(&[WEB]).common(), TaskUsers::unknown().common()] {
        assert_eq!(access.difference(&dir).unwrap(), None);
        access.apply(&dir).unwrap();
        assert_eq!(Acl::read(&dir).unwrap().users.len(), 2);
    }
    fs::set_permissions(ground.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let access = TaskUsers::unknown().common();
    assert!(access.difference(&dir).unwrap().is_some());
    access.apply(&dir).unwrap();
    assert_eq!(Acl::read(&dir).unwrap().other, Perm::NONE);
    let found = TaskUsers::find(["no such user", "", "nobody", "nobody", "root"]).unwrap();
    assert_eq!((found.users.len(), found.known), (1, UserLookup::Some));
    assert_eq!(found.of_task(Some("no such user")).unwrap().own, Own::Unknown);
}

#[test]
fn file_system_without_acls_uses_owners() {
    let Some(ground) = test_env() else { return };
    let status = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(ground.path()).status().unwrap();
    assert!(status.success());
    let top = Dir::open(ground.path()).unwrap();
    assert!(matches!(Acl::read(&top), Err(AclError::Unsupported)));
    let us = us().uid;
    let (one, two, none) = (users(&[WEB]), users(&[WEB, DB]), users(&[]));
    let enclosed = TaskUsers { enclosed: vec![WEB], ..users(&[WEB]) };
    let wanted = [
        (one.entrance(), (0o711, us)),
        (enclosed.entrance(), (0o700, us)),
        (none.entrance(), (0o700, us)),
        (two.common(), (0o711, us)),
        (one.logs(), (0o700, us)),
        (one.data(), (0o700, WEB.uid)),
        (one.scratch(), (0o700, WEB.uid)),
        (two.data(), (0o700, us)),
        (none.scratch(), (0o1700, us)),
        (of_task(DB, &[WEB, DB]).task(), (0o700, DB.uid)),
        (of_task(DB, &[WEB, DB]).own(ground.privileges()), (0o700, DB.uid)),
        (of_task(DB, &[WEB, DB]).secret(ground.privileges()), (0o700, DB.uid)),
        (TaskUsers::private(), (0o700, us)),
    ];
    for (number, (access, expected)) in wanted.into_iter().enumerate() {
        let name = number.to_string();
        let dir = top.make(name.as_ref(), UNOPENED).unwrap();
        fs::set_permissions(ground.path().join(&name), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(access.difference(&dir).unwrap().is_some(), "{number}");
        access.apply(&dir).unwrap();
        assert_eq!(access.difference(&dir).unwrap(), None, "{number}");
        assert_eq!(mode_and_owner(&ground.path().join(&name)), expected, "{number}");
    }
}

// While name services failed, each inspection found a difference, and a deleted user was locked out under its task.
#[test]
fn file_system_without_acls_keeps_unknown_users() {
    let Some(ground) = test_env() else { return };
    let status = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(ground.path()).status().unwrap();
    assert!(status.success());
    let dir = Dir::open(ground.path()).unwrap();
    let (known, unknown) = (of_task(WEB, &[WEB]), TaskUsers::unknown());
    let deleted = TaskUsers { known: UserLookup::Some, own: Own::Unknown, ..TaskUsers::default() };
    let each = |users: &TaskUsers| {
        let own = [users.own(ground.privileges()), users.secret(ground.privileges())];
        [
            vec![users.entrance(), users.common(), users.logs(), users.data(), users.scratch(), users.task()],
            own.into(),
        ]
        .concat()
    };
    for users in [unknown, deleted] {
        for (known, access) in each(&known).iter().zip(each(&users)) {
            known.apply(&dir).unwrap();
            let before = mode_and_owner(ground.path());
            assert_eq!(access.difference(&dir).unwrap(), None);
            access.apply(&dir).unwrap();
            assert_eq!(mode_and_owner(ground.path()), before);
            fs::set_permissions(ground.path(), fs::Permissions::from_mode(0o1777)).unwrap();
            assert!(access.difference(&dir).unwrap().is_some());
            access.apply(&dir).unwrap();
            assert_eq!(access.difference(&dir).unwrap(), None);
            assert_eq!(mode_and_owner(ground.path()).0 & 0o066, 0);
        }
    }
    // Another task's user was deleted: this one still gets its own.
    let other = TaskUsers { known: UserLookup::Some, ..of_task(WEB, &[WEB]) };
    TaskUsers::private().apply(&dir).unwrap();
    for access in [other.task(), other.own(ground.privileges()), other.secret(ground.privileges())] {
        access.apply(&dir).unwrap();
        assert_eq!(mode_and_owner(ground.path()), (0o700, WEB.uid));
    }
    // Users who may enter every allocation don't take access from its only user.
    let guests = TaskUsers { guests: vec![DB], ..users(&[WEB]) };
    guests.data().apply(&dir).unwrap();
    assert_eq!(mode_and_owner(ground.path()), (0o700, WEB.uid));
}

/// Makes the kernel refuse lists from the calling thread.
fn refuse_lists(errno: rustix::io::Errno) {
    use seccompiler::{SeccompAction, SeccompFilter};
    let refused = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(libc::SYS_fsetxattr, vec![])].into();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    seccompiler::apply_filter(&seccompiler::BpfProgram::try_from(filter).unwrap()).unwrap();
}

// A full disk used to keep every directory of an older agent open.
#[test]
fn unwritable_acl_closes_the_directory_first() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let task = of_task(WEB, &[WEB, DB]);
    let mode = |mode| fs::set_permissions(ground.path(), fs::Permissions::from_mode(mode)).unwrap();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            refuse_lists(rustix::io::Errno::NOSPC);
            for (access, expected) in
                [(task.entrance(), 0o700), (task.common(), 0o1700), (task.own(ground.privileges()), 0o700)]
            {
                dir.set_owner((0, 0)).unwrap();
                mode(if expected == 0o1700 { 0o1777 } else { 0o777 });
                for _ in 0..2 {
                    let error = access.apply(&dir).unwrap_err();
                    assert!(error.to_string().contains("No space left"), "{error}");
                    assert_eq!(mode_and_owner(ground.path()).0, expected);
                }
            }
        });
        refused.join().unwrap();
    });
    // There is space again.
    task.entrance().apply(&dir).unwrap();
    assert_eq!(Acl::read(&dir).unwrap().users.len(), 2);
}

#[test]
fn refused_acls_count_as_unsupported() {
    let Some(ground) = test_env() else { return };
    let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(ground.path()).status().unwrap();
    assert!(status.success());
    let dir = Dir::open(ground.path()).unwrap();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            refuse_lists(rustix::io::Errno::OPNOTSUPP);
            let access = users(&[WEB]).data();
            for _ in 0..2 {
                access.apply(&dir).unwrap();
                assert_eq!(mode_and_owner(ground.path()), (0o700, WEB.uid));
                assert_eq!(access.difference(&dir).unwrap(), None);
            }
        });
        refused.join().unwrap();
    });
}

// Everything made for an allocation used to inherit a parent directory's default list.
#[test]
fn a_default_list_is_removed_where_the_directory_is_the_agents() {
    let Some(ground) = test_env() else { return };
    let inherited = Acl::of_users(Perm::ALL, [(4_242, Perm::ALL)]);
    let parent = Dir::open(ground.path()).unwrap();
    inherited.write_default(&parent).unwrap();
    let dir = parent.make("alloc".as_ref(), UNOPENED).unwrap();
    assert!(Acl::has_default(&dir).unwrap());
    let access = users(&[WEB]).entrance();
    assert!(access.difference(&dir).unwrap().is_some());
    access.apply(&dir).unwrap();
    assert_eq!(access.difference(&dir).unwrap(), None);
    assert!(!Acl::has_default(&dir).unwrap());
    let inner = dir.make("inner".as_ref(), UNOPENED).unwrap();
    assert!(!Acl::has_default(&inner).unwrap() && Acl::read(&inner).unwrap().users.is_empty());
    // A default list that a user has set on its own directory stays.
    let own = of_task(WEB, &[WEB]).own(ground.privileges());
    own.apply(&inner).unwrap();
    inherited.write_default(&inner).unwrap();
    assert_eq!(own.difference(&inner).unwrap(), None);
    own.apply(&inner).unwrap();
    assert!(Acl::has_default(&inner).unwrap());
}

/// A user of an image, whose number no user of this machine has, could write into none of its directories.
#[test]
fn users_of_images_may_use_the_directories_that_tasks_share_and_their_own() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let users = users(&[WEB]).and_users_of_images();
    let others = |access: Access| {
        access.apply(&dir).unwrap();
        assert_eq!(access.difference(&dir).unwrap(), None);
        let acl = Acl::read(&dir).unwrap();
        (acl.group, acl.other)
    };
    assert_eq!(others(users.common()), (Perm::EXECUTE, Perm::EXECUTE), "they pass through it");
    assert_eq!(others(users.data()), (Perm::ALL, Perm::ALL));
    assert_eq!(others(users.scratch()), (Perm::ALL, Perm::ALL));
    assert_eq!(mode_and_owner(ground.path()).0 & STICKY, STICKY);
    for closed in [users.entrance(), users.logs(), users.task(), TaskUsers::private()] {
        assert_eq!(others(closed), (Perm::NONE, Perm::NONE));
    }
    // The directories of a task that runs as a user of the machine stay its own.
    assert_eq!(others(users.own(ground.privileges())), (Perm::NONE, Perm::NONE));
    let image = users.of_image();
    for own in [image.own(ground.privileges()), image.secret(ground.privileges())] {
        assert_eq!(others(own), (Perm::ALL, Perm::ALL));
        // An image may run as a user with the number of another task's.
        assert!(Acl::read(&dir).unwrap().users.is_empty());
    }
}

/// A program in the root of a task may change to a user that no job names, as servers that start as root do.
#[test]
fn all_users_may_pass_through_a_directory_that_is_a_root() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let root = TaskUsers { own: Own::User(WEB), ..users(&[WEB, DB]) }.of_root();
    let others = |access: Access| {
        access.apply(&dir).unwrap();
        assert_eq!(access.difference(&dir).unwrap(), None);
        let acl = Acl::read(&dir).unwrap();
        (acl.group, acl.other)
    };
    assert_eq!(others(root.task()), (Perm::EXECUTE, Perm::EXECUTE));
    assert_eq!(mode_and_owner(ground.path()).1, us().uid, "its own user does not own it");
    assert!(Acl::read(&dir).unwrap().users.contains(&(WEB.uid, Perm::ALL)));
    assert_eq!(others(root.own(ground.privileges())), (Perm::ALL, Perm::ALL));
    assert_eq!(mode_and_owner(ground.path()).0 & STICKY, STICKY);
    assert_eq!(others(root.secret(ground.privileges())), (Perm::NONE, Perm::NONE));
    assert!(Acl::read(&dir).unwrap().users.is_empty(), "its own user owns it");
}

/// The `secrets` of a task that runs an image are open to the image's user, whatever its number: users of the allocation's other tasks,
/// who may enter the directory of each task, read and changed them.
/// A task in a root of its own can make set-user-id programs of root, which other processes of its user must not reach.
#[test]
fn users_of_roots_do_not_enter_from_outside() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let names = ["daemon", "nobody"];
    let [daemon, nobody] = names.map(|name| user::ids(name).unwrap());
    let enter = [daemon, nobody].map(|ids| (ids.uid, Perm::READ_EXECUTE));
    for (entering, expected) in [(&names[..], &enter[..]), (&["daemon"][..], &enter[..1]), (&[][..], &[][..])]
    {
        let users = TaskUsers::find(names).unwrap().entering(entering.iter().copied()).unwrap();
        let access = users.entrance();
        // As an earlier agent left it.
        TaskUsers::find(names).unwrap().entrance().apply(&dir).unwrap();
        assert_eq!(access.difference(&dir).unwrap().is_none(), entering.len() == 2, "{entering:?}");
        access.apply(&dir).unwrap();
        let expected = Acl::of_users(Perm::ALL, expected.iter().copied());
        assert_eq!(Acl::read(&dir).unwrap(), expected, "{entering:?}");
        // In the root they have the rights of a task.
        users.common().apply(&dir).unwrap();
        let shared = Acl::of_users(Perm::ALL, [daemon, nobody].map(|ids| (ids.uid, Perm::ALL)));
        assert_eq!(Acl::read(&dir).unwrap(), shared, "{entering:?}");
    }
    TaskUsers::private().apply(&dir).unwrap();
}

#[test]
fn the_directory_of_a_task_that_runs_an_image_is_closed_to_the_users_of_other_tasks() {
    let Some(ground) = test_env() else { return };
    let dir = Dir::open(ground.path()).unwrap();
    let of_others = TaskUsers { guests: vec![DB], ..users(&[WEB]) }.and_users_of_images();
    of_others.task().apply(&dir).unwrap();
    assert_eq!(Acl::read(&dir).unwrap().users.len(), 2);
    // Also if the name services do not answer meanwhile.
    for image in [of_others.of_image(), TaskUsers::unknown().of_image()] {
        let access = image.task();
        access.apply(&dir).unwrap();
        assert_eq!(access.difference(&dir).unwrap(), None);
        assert_eq!(Acl::read(&dir).unwrap(), Acl::from_mode(0o700));
        assert_eq!(mode_and_owner(ground.path()), (0o1700, us().uid));
    }
}
