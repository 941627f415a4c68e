//! Ownership checks on real files. Changing owners requires root.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::Path,
};

use super::{accounts::Accounts, trusted::Trusted, *};
use crate::acl::{Acl, AclError, Perm};

const NOBODY: u32 = 65_534;

fn temp_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/file"), "x").unwrap();
    for path in ["", "a", "a/b"] {
        set_mode(&dir.path().join(path), 0o755);
    }
    set_mode(&dir.path().join("a/b/file"), 0o640);
    dir
}

/// Whether files can be given away; otherwise the test is skipped, or fails where skipping is forbidden.
fn is_root() -> bool {
    rustix::process::geteuid().is_root() || left_out("root")
}

fn left_out(what: &str) -> bool {
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some_and(|value| value == "1");
    assert!(!is_required, "HERDLET_TEST_REQUIRE=1 requires {what}");
    eprintln!("left out: {what} is missing");
    false
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn why(result: Result<(), OwnershipError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn sticky_ancestor_is_trusted() {
    let ground = temp_dir();
    let file = ground.path().join("a/b/file");
    check(&file).unwrap();
    check_way(&file).unwrap();
    // Like /tmp.
    set_mode(ground.path(), 0o1777);
    check(&file).unwrap();
    check_entries(&ground.path().join("a")).unwrap();
}

#[test]
fn writers_of_a_path_are_named() {
    let ground = temp_dir();
    let file = ground.path().join("a/b/file");
    for (path, mode, expected) in [
        ("a/b/file", 0o646, "so everybody could change it; check what is in it and run `chmod o-w /"),
        ("a/b", 0o777, " use a path on which only root "),
        ("a", 0o757, " use a path on which only root "),
        ("", 0o777, " use a path on which only root "),
    ] {
        let path = ground.path().join(path);
        let before = fs::metadata(&path).unwrap().permissions();
        set_mode(&path, mode);
        let why = why(check(&file));
        assert!(why.contains(expected) && why.contains(&format!("mode {mode:04o}")), "{why}");
        assert!(why.contains(&path.canonicalize().unwrap().display().to_string()), "{why}");
        fs::set_permissions(&path, before).unwrap();
    }
    check(&file).unwrap();
    // On the way only names matter.
    set_mode(&file, 0o666);
    check_way(&file).unwrap();
    check(&file).unwrap_err();
}

#[test]
fn sticky_directory_does_not_protect_obeyed_files() {
    let ground = temp_dir();
    let folder = ground.path().join("a/b");
    set_mode(&folder, 0o1777);
    let refused = why(check(&folder));
    // As with `--state-dir /tmp`: the mode must stay.
    assert!(refused.contains("use a new directory below it") && !refused.contains("chmod"), "{refused}");
    check(&folder.join("file")).unwrap();
}

#[test]
fn missing_path_is_judged_by_its_parent() {
    let ground = temp_dir();
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
    let ground = temp_dir();
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
fn owners_are_checked_on_the_whole_path() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let file = ground.path().join("a/b/file");
    for path in ["a/b/file", "a/b", "a"] {
        let path = ground.path().join(path);
        chown(&path, Some(NOBODY), None).unwrap();
        let why = why(check(&file));
        // A directory on the way serves other users too.
        let is_named = path == file;
        assert!(why.contains("(uid 65534)") && why.contains("HERDLET_TRUSTED_USERS="), "{why}");
        assert_eq!(why.contains("run `chown -h root /"), is_named, "{why}");
        assert_eq!(why.contains("use a path on which only root"), !is_named, "{why}");
        chown(&path, Some(0), None).unwrap();
    }
    // Another user's link in a sticky directory, as planted in /tmp.
    set_mode(ground.path(), 0o1777);
    let link = ground.path().join("link");
    symlink("a/b/file", &link).unwrap();
    check(&link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    for refused in [why(check(&link)), why(check_way(&link)), why(check(&link.join("x")))] {
        assert!(refused.contains("link: ") || refused.contains("link belongs to"), "{refused}");
        assert!(!refused.contains("chown"), "{refused}");
    }
    assert!(why(check(&link)).contains("remove this link"));
    // Nobody else can replace it in our own directory.
    set_mode(ground.path(), 0o755);
    check(&link).unwrap();
    chown(&file, Some(NOBODY), None).unwrap();
    check_entries(&ground.path().join("a/b")).unwrap_err();
    check_way(&file).unwrap();
}

#[test]
fn access_list_is_limited_by_its_mask() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let file = ground.path().join("a/b/file");
    let set = |mask| {
        let read = Perm::from_bits(4);
        let list = Acl {
            owner: Perm::from_bits(6),
            users: vec![(NOBODY, Perm::ALL)],
            group: read,
            groups: Vec::new(),
            mask: Some(Perm::from_bits(mask)),
            other: Perm::NONE,
        };
        list.write(fs::File::open(&file).unwrap())
    };
    match set(4) {
        Err(AclError::Unsupported) => {
            left_out("a file system with access control lists");
            return;
        }
        written => written.unwrap(),
    }
    check(&file).unwrap();
    set(6).unwrap();
    let refused = why(check(&file));
    assert!(refused.contains("so by its access list nobody (uid 65534) could change it"), "{refused}");
    // It limits the list and keeps every right to read.
    assert!(refused.contains("run `chmod g-w /"), "{refused}");
    set_mode(&file, 0o640);
    check(&file).unwrap();
}

#[test]
fn group_is_private_without_other_members() {
    let dir = tempfile::tempdir().unwrap();
    let (users, groups) = (dir.path().join("passwd"), dir.path().join("group"));
    fs::write(&users, "root:x:0:0::/:/bin/sh\nann:x:7:7::/:\nbob:x:8:8::/:\neve:x:9:10::/:\n").unwrap();
    fs::write(&groups, "root:x:0:\nann:x:7:ann\nbob:x:8:eve\nstaff:x:50:\neve:x:10:\nann2:x:11:\n").unwrap();
    let accounts = Accounts::of_files(users, groups);
    let is_private = |gid| accounts.is_private(gid, |uid| uid == 0 || uid == 7 || uid == 8);
    // `staff` has no members, but programs may be set-group-id; 10 belongs to an untrusted user.
    assert_eq!([0, 7, 8, 50, 10, 11, 99].map(is_private), [true, true, false, false, false, false, false]);
    assert_eq!(
        (&*accounts.described(7), &*accounts.described(77), &*accounts.name(8)),
        ("ann (uid 7)", "uid 77", "bob")
    );
}

#[test]
fn files_are_judged_unless_their_directory_is_exposed() {
    let ground = temp_dir();
    let dir = ground.path().join("a/b");
    let (open, link, absent) = (dir.join("open"), dir.join("link"), dir.join("absent"));
    fs::write(&open, "x").unwrap();
    set_mode(&open, 0o666);
    symlink("../b/open", &link).unwrap();
    let files = [dir.join("file"), open, link, absent];
    let exposed = || {
        let found = exposed_in(&dir, files.iter().map(PathBuf::as_path));
        found.iter().map(|error| error.path().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(exposed(), files[1..3]);
    assert!(why(check_entries(&dir)).contains("everybody could change it"));
    set_mode(&dir, 0o777);
    assert_eq!(exposed(), [&*dir]);
    fs::remove_dir_all(&dir).unwrap();
    assert!(exposed().is_empty());
}

fn trusted(users: &str, groups: &str, accounts: &Accounts) -> Trusted {
    let value = |name: &str| Some(if name == TRUSTED_USERS { users } else { groups }.to_owned());
    Trusted::of(value, accounts)
}

#[test]
fn trusted_accounts_are_names_or_ids() {
    let dir = tempfile::tempdir().unwrap();
    let (users, groups) = (dir.path().join("passwd"), dir.path().join("group"));
    fs::write(&users, "ann:x:7:7::/:\n").unwrap();
    fs::write(&groups, "staff:x:50:ann\n").unwrap();
    let accounts = Accounts::of_files(users, groups);
    let trusted = trusted("ann, 8,anna", "staff,2000 , staf,", &accounts);
    assert_eq!((&*trusted.users, &*trusted.groups), (&[7, 8][..], &[50, 2000][..]));
    let unknown = [(TRUSTED_USERS, "anna".to_owned()), (TRUSTED_GROUPS, "staf".to_owned())];
    assert_eq!(trusted.unknown, unknown);
}

/// Like a Kubernetes volume with `fsGroup`: `root:GID`, 2775, on which an agent without root can't change anything.
#[test]
fn an_agent_that_is_not_root_may_trust_the_group_of_its_volume() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let dir = ground.path().join("a/b");
    chown(&dir, Some(0), Some(2_000)).unwrap();
    set_mode(&dir, 0o2775);
    let guard = |uid, groups| {
        let accounts = Accounts::of_machine();
        TrustPolicy { uid, others: trusted("", groups, &accounts), accounts }
    };
    let judged = |guard: TrustPolicy| guard.end(&dir, &walk::walk(&dir, &guard)?);
    let refused = why(judged(guard(1_000, "")));
    assert!(refused.contains("so group 2000 could change it"), "{refused}");
    assert!(refused.contains("HERDLET_TRUSTED_GROUPS=2000"), "{refused}");
    judged(guard(1_000, "2000")).unwrap();
    assert!(!why(judged(guard(0, ""))).contains(TRUSTED_GROUPS), "root can remove the right of the group");
}

fn stranger(uid: u32, users: &str, groups: &str) -> TrustPolicy {
    let accounts = Accounts::of_files("/nowhere", "/nowhere");
    TrustPolicy { uid, others: trusted(users, groups, &accounts), accounts }
}

#[test]
fn trusted_accounts_are_named() {
    assert_eq!(stranger(0, "", "").described(), "root");
    assert_eq!(stranger(7, "", "").described(), "root and uid 7");
    assert_eq!(
        stranger(7, "8", "50").described(),
        "root, uid 7, uid 8 (HERDLET_TRUSTED_USERS) and all members of group 50 (HERDLET_TRUSTED_GROUPS)"
    );
}

/// As after `su`, which keeps the caller's variable.
#[test]
fn foreign_runtime_directory_is_reported_with_a_remedy() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let dir = ground.path().join("a");
    chown(&dir, Some(NOBODY), None).unwrap();
    stranger(NOBODY, "", "").session(&dir).unwrap();
    stranger(7, "", "").session(&dir.join("absent")).unwrap();
    let refused = stranger(7, "", "").session(&dir).unwrap_err().to_string();
    assert!(refused.contains("it belongs to uid 65534, and this process runs as uid 7"), "{refused}");
    assert!(refused.contains("Unset it"), "{refused}");
}

/// A message quotes a name as one shell word, even if another user chose it.
#[test]
fn names_in_commands_are_quoted_and_odd_ones_left_out() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    for (name, offered) in
        [("plain", "plain`"), ("$(x) 'y'", r"/$(x) '\''y'\'''`"), ("li\nne", "use a file of root")]
    {
        let file = ground.path().join(name);
        fs::write(&file, "x").unwrap();
        chown(&file, Some(NOBODY), None).unwrap();
        let refused = why(check(&file));
        assert!(refused.contains(offered), "{refused}");
        assert_eq!(refused.contains("chown"), !name.contains('\n'), "{refused}");
    }
}

/// A guard for an agent with this user.
fn guard_of(uid: u32) -> TrustPolicy {
    let accounts = Accounts::of_machine();
    TrustPolicy { uid, others: trusted("", "", &accounts), accounts }
}

#[test]
fn command_is_suggested_only_if_the_user_can_run_it() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let (dir, file) = (ground.path().join("a/b"), ground.path().join("a/b/file"));
    let judged = |uid| {
        let guard = guard_of(uid);
        why(walk::walk(&file, &guard).and_then(|end| guard.end(&file, &end)))
    };
    // Root can change owner and mode; another user can't change files of others.
    chown(&file, Some(7), None).unwrap();
    assert!(judged(0).contains("run `chown -h root /"));
    let refused = judged(NOBODY);
    assert!(
        refused.contains("use a file of the agent's user or root") && !refused.contains("chown"),
        "{refused}"
    );
    chown(&file, Some(0), None).unwrap();
    set_mode(&file, 0o646);
    assert!(!judged(NOBODY).contains("chmod"));
    chown(&file, Some(NOBODY), None).unwrap();
    assert!(judged(NOBODY).contains("run `chmod o-w /"));
    set_mode(&file, 0o640);
    // The advice would otherwise point to its own home.
    chown(&dir, Some(NOBODY), None).unwrap();
    set_mode(&dir, 0o777);
    let refused = judged(NOBODY);
    assert!(refused.contains("if no other user needs to write there, run `chmod o-w /"), "{refused}");
    chown(&dir, Some(0), None).unwrap();
    for uid in [0, NOBODY] {
        assert!(!judged(uid).contains("chmod"), "the advice does not change directories of all users");
    }
}

/// `chown` would leave the previous owner's hard links and open files.
#[test]
fn foreign_directory_is_to_be_replaced() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let dir = ground.path().join("a/b");
    chown(&dir, Some(NOBODY), None).unwrap();
    let refused = why(check(&dir));
    assert!(refused.contains("use a new directory that belongs to root"), "{refused}");
    assert!(!refused.contains("chown"), "{refused}");
}

/// As with `--config /dev/null` as root, where the command would close the device to everybody.
#[test]
fn devices_and_fifos_get_no_command() {
    let refused = why(check(Path::new("/dev/null")));
    assert!(refused.contains("it is a device: name a regular file"), "{refused}");
    let ground = temp_dir();
    let fifo = ground.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o666.into()).unwrap();
    set_mode(&fifo, 0o666);
    let refused = refused + &why(check(&fifo));
    assert!(refused.contains("it is a FIFO: name a regular file"), "{refused}");
    assert!(!refused.contains("chmod") && !refused.contains("chown"), "{refused}");
}

/// The agent obeys what was in a directory before it was trusted, at every depth.
#[test]
fn state_directory_is_inspected_without_task_directories() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let state = ground.path().join("a");
    let alloc = state.join("alloc/0");
    for dir in
        ["accepted/ended", "keys", "node/tokens/0", "folders", "bin", "volumes/site", "alloc/0/t/local"]
    {
        fs::create_dir_all(state.join(dir)).unwrap();
    }
    for theirs in ["volumes/site/index", "alloc/0/t/local/file"] {
        fs::write(state.join(theirs), "x").unwrap();
        chown(state.join(theirs), Some(NOBODY), None).unwrap();
    }
    chown(alloc.join("t/local"), Some(NOBODY), None).unwrap();
    check_kept(&state).unwrap();
    for planted in [
        "instance",
        "accepted/default.e.json",
        "accepted/ended/default.e.json",
        "keys/identity.p8",
        "keys/identity.json",
        "node/tokens/0/t",
        "folders/memory",
        "bin/shim",
        "alloc/0/alloc.json",
    ] {
        let path = state.join(planted);
        fs::write(&path, "x").unwrap();
        check_kept(&state).unwrap();
        chown(&path, Some(NOBODY), None).unwrap();
        let refused = check_kept(&state).unwrap_err();
        assert_eq!(refused.path(), path);
        let refused = refused.to_string();
        assert!(refused.contains("use a new directory that belongs to root"), "{refused}");
        assert!(!refused.contains("chown"), "{refused}");
        fs::remove_file(&path).unwrap();
        // A link, regardless of its target.
        symlink("/etc/passwd", &path).unwrap();
        lchown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        assert_eq!(check_kept(&state).unwrap_err().path(), path);
        fs::remove_file(&path).unwrap();
    }
    let open = state.join("accepted");
    set_mode(&open, 0o777);
    assert!(why(check_kept(&state)).contains("run `chmod o-w /"));
    set_mode(&open, 0o700);
    // As an older release leaves it: the agent closes it.
    set_mode(&alloc, 0o1777);
    check_kept(&state).unwrap();
    chown(&alloc, Some(NOBODY), None).unwrap();
    assert_eq!(check_kept(&state).unwrap_err().path(), alloc);
    assert_eq!(exposed_kept(&state).len(), 1);
    assert!(exposed_kept(&state.join("absent")).is_empty());
}

/// A socket of root's, as an agent leaves it that is killed before the socket gets its mode.
#[test]
fn only_foreign_files_in_a_state_directory_are_reported() {
    if !is_root() {
        return;
    }
    let ground = temp_dir();
    let state = ground.path().join("a");
    let path = state.join("left");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    set_mode(&path, 0o777);
    check_kept(&state).unwrap();
    check_entries(&state).unwrap();
    chown(&path, Some(NOBODY), None).unwrap();
    assert!(why(check_kept(&state)).contains("only another user can have put it there"));
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o666.into()).unwrap();
    set_mode(&path, 0o666);
    let refused = why(check_kept(&state));
    assert!(
        refused.contains("it is a FIFO, and the agent keeps only regular files there: remove it"),
        "{refused}"
    );
    assert!(!refused.contains("another user"), "{refused}");
}

#[test]
fn names_that_a_terminal_would_obey_are_shown_escaped() {
    let ground = temp_dir();
    let dir = ground.path().join("a/\u{1b}[2J\nno\u{9b}");
    fs::create_dir(&dir).unwrap();
    set_mode(&dir, 0o777);
    for refused in [why(check(&dir)), why(check(&dir.join("file"))), why(check(&dir.join("file/x")))] {
        assert!(refused.contains(r"a/\u{1b}[2J\nno\u{9b}"), "{refused}");
        assert!(!refused.contains(char::is_control), "{refused:?}");
    }
}
