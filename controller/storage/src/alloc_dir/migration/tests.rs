//! Disks that move to a successor, with a kill between any two steps.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use herdlet_base::{observation::Observation, paths::Paths, test_env::TestEnv};

use super::*;
use crate::{
    alloc_dir::{AllocDir, sweep, sweep_came},
    task_dir::TaskDir,
};

fn dir_of(task: &str) -> String {
    dir_name(task).into_owned()
}

const TASKS: [&str; 3] = ["db", "new", "we/b"];

fn id(n: u8) -> AllocId {
    AllocId::from_hash([n; 16])
}

struct Disks {
    ground: TestEnv,
    paths: Paths,
}

impl Disks {
    /// An allocation with two tasks, each with a file.
    fn new(ground: TestEnv) -> Self {
        let paths = Paths { state: ground.path().join("state"), runtime: ground.path().join("run") };
        let disks = Self { ground, paths };
        AllocDir::new(&disks.paths, id(1)).up(b"{}").unwrap();
        fs::write(disks.paths.shared(&id(1)).join("data/shared"), "shared").unwrap();
        fs::write(disks.paths.logs(&id(1)).join("db.stdout.0"), "log").unwrap();
        for task in ["db", "old", "we/b"] {
            let path = disks.paths.task(&id(1), task);
            TaskDir::new(path.clone(), disks.ground.privileges()).up().unwrap();
            fs::write(path.join("local/own"), task).unwrap();
            fs::write(path.join("tmp/scrap"), task).unwrap();
        }
        disks
    }

    fn migration() -> Migration {
        Migration { previous: id(1), tasks: TASKS.map(str::to_owned).into() }
    }

    fn successor(&self) -> AllocDir {
        AllocDir::new(&self.paths, id(2)).inheriting(Some(Self::migration()))
    }

    /// Files of an allocation's disk with their contents.
    fn disk(&self, of: u8) -> BTreeMap<PathBuf, String> {
        let top = self.paths.alloc(&id(of));
        let dirs = std::iter::once(top.join("alloc/data"))
            .chain(["db", "new", "old", "we/b"].map(|task| self.paths.task(&id(of), task).join("local")));
        let files = dirs
            .filter(|dir| !dir.is_symlink())
            .filter_map(|dir| fs::read_dir(dir).ok())
            .flatten()
            .map(|entry| entry.unwrap().path());
        files
            .map(|path| (path.strip_prefix(&top).unwrap().to_owned(), fs::read_to_string(path).unwrap()))
            .collect()
    }

    /// Entries besides the allocations' directories.
    fn leftovers(&self) -> Vec<OsString> {
        let entries = fs::read_dir(self.paths.allocs()).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| name.as_encoded_bytes().starts_with(b".")).collect()
    }
}

fn whole() -> BTreeMap<PathBuf, String> {
    let web = Path::new(&dir_of("we/b")).join("local/own");
    [("alloc/data/shared".into(), "shared"), ("db/local/own".into(), "db"), (web, "we/b")]
        .map(|(path, text): (PathBuf, &str)| (path, text.to_owned()))
        .into()
}

#[test]
fn a_disk_goes_along_and_what_is_only_the_others_stays() {
    for ground in [Some(TestEnv::plain()), TestEnv::mounting()].into_iter().flatten() {
        let disks = Disks::new(ground);
        disks.successor().up(b"{}").unwrap();
        assert_eq!(disks.disk(2), whole());
        assert_eq!(disks.successor().inspect().unwrap(), Observation::Present);
        for task in TASKS {
            let task = TaskDir::new(disks.paths.task(&id(2), task), disks.ground.privileges());
            task.up().unwrap();
            assert_eq!(task.inspect().unwrap(), Observation::Present);
        }
        assert_eq!(disks.disk(2), whole());
        let old = (PathBuf::from("old/local/own"), "old".to_owned());
        assert_eq!(disks.disk(1), [old].into(), "a task that the new one doesn't have keeps its own");
        assert!(disks.paths.logs(&id(1)).join("db.stdout.0").exists());
        assert!(!disks.paths.task(&id(2), "db").join("tmp/scrap").exists());
        // Once it exists, nothing is moved any more.
        fs::create_dir(disks.paths.task(&id(1), "db").join("local")).unwrap();
        fs::write(disks.paths.task(&id(1), "db").join("local/late"), "").unwrap();
        disks.successor().up(b"{}").unwrap();
        assert_eq!(disks.disk(2), whole());
    }
}

#[test]
fn migration_survives_a_kill_between_any_steps() {
    let moves = Disks::migration().moves(|task| dir_of(task).into()).len();
    for renamed in 0..=moves {
        for made in [false, true] {
            let disks = Disks::new(TestEnv::plain());
            let allocs = Dir::open(&disks.paths.allocs()).unwrap();
            let alloc = allocs.make(id(2).to_string().as_ref(), UNOPENED).unwrap();
            let (from, moves) = Disks::migration().source_dir(&allocs, id(2)).unwrap().unwrap();
            for one in moves.iter().take(renamed) {
                one.make(&from, &alloc).unwrap();
            }
            if let (true, Some(next)) = (made, moves.get(renamed)) {
                alloc.make(&next.to, UNOPENED).unwrap();
            }
            // The next agent.
            assert_eq!(sweep(&disks.paths).unwrap(), 0);
            sweep_came(&disks.paths, |_| true).unwrap();
            disks.successor().up(b"{}").unwrap();
            assert_eq!(disks.disk(2), whole(), "after {renamed}, {made}");
            assert_eq!(disks.successor().inspect().unwrap(), Observation::Present);
        }
    }
}

#[test]
fn failed_migration_moves_nothing() {
    let disks = Disks::new(TestEnv::plain());
    let web = disks.paths.task(&id(1), "we/b").join("local");
    fs::rename(&web, web.with_file_name("aside")).unwrap();
    symlink("/etc", &web).unwrap();
    let before: Vec<_> =
        disks.disk(1).into_iter().filter(|(path, _)| !path.starts_with(dir_of("we/b"))).collect();
    disks.successor().up(b"{}").unwrap();
    assert_eq!(disks.disk(2), BTreeMap::new());
    assert_eq!(disks.successor().inspect().unwrap(), Observation::Present);
    let after: Vec<_> =
        disks.disk(1).into_iter().filter(|(path, _)| !path.starts_with(dir_of("we/b"))).collect();
    assert_eq!((after.len(), &after), (3, &before));
    assert!(!disks.paths.task(&id(2), "db").exists(), "an empty directory would look like lost files");
}

#[test]
fn mounts_are_removed_before_a_migration() {
    let Some(ground) = TestEnv::mounting() else { return };
    let disks = Disks::new(ground);
    let point = disks.paths.task(&id(1), "db").join("local/volume");
    fs::create_dir(&point).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "volume"]).arg(&point).status().unwrap().success());
    let error = disks.successor().up(b"{}").unwrap_err();
    assert_eq!(error.class(), herdlet_base::observation::Class::Retry, "{error}");
    assert_eq!(disks.disk(2), BTreeMap::new());
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
    fs::remove_dir(&point).unwrap();
    disks.successor().up(b"{}").unwrap();
    assert_eq!(disks.disk(2), whole());
}

#[test]
fn disk_from_another_node_takes_precedence() {
    let disks = Disks::new(TestEnv::plain());
    let came = |n| disks.paths.allocs().join(came_name(id(n)));
    for (dir, name) in [("alloc/data", "d"), ("we", ""), ("db/local", "l"), ("other/local", "o")] {
        fs::create_dir_all(came(2).join(dir)).unwrap();
        if !name.is_empty() {
            fs::write(came(2).join(dir).join(name), "came").unwrap();
        }
    }
    fs::create_dir_all(disks.paths.allocs().join(coming_name(id(3))).join("tree")).unwrap();
    fs::create_dir_all(came(4)).unwrap();
    assert_eq!(sweep(&disks.paths).unwrap(), 1);
    sweep_came(&disks.paths, |known| *known == id(2)).unwrap();
    assert_eq!(disks.leftovers(), [came_name(id(2))]);
    disks.successor().up(b"{}").unwrap();
    let expected = [("alloc/data/d", "came"), ("db/local/l", "came")];
    assert_eq!(disks.disk(2), expected.map(|(path, text)| (path.into(), text.to_owned())).into());
    assert_eq!(disks.leftovers(), Vec::<OsString>::new());
    // A copy for a removed allocation is removed with it.
    fs::create_dir_all(came(2).join("alloc")).unwrap();
    disks.successor().down().unwrap();
    assert_eq!(disks.leftovers(), Vec::<OsString>::new());
}

// The files keep their owner; only the current users may enter it.
#[test]
fn a_disk_that_goes_to_another_user_is_closed_to_the_one_before() {
    use std::os::unix::fs::{MetadataExt as _, chown};

    use crate::access::TaskUsers;
    use herdlet_base::{acl::Acl, test_env::is_root};
    let Some(ground) = TestEnv::mounting().filter(|_| is_root()) else { return };
    let paths = Paths { state: ground.path().join("state"), runtime: ground.path().join("run") };
    let users = |name: &'static str| TaskUsers::find([name]).unwrap();
    let of_task = |name: &'static str| users(name).of_task(Some(name)).unwrap();
    let task =
        |of: u8, name| TaskDir::new(paths.task(&id(of), "db"), ground.privileges()).used_by(of_task(name));
    let (before, after) =
        (herdlet_base::user::ids("daemon").unwrap(), herdlet_base::user::ids("nobody").unwrap());
    AllocDir::new(&paths, id(1)).used_by(users("daemon")).up(b"{}").unwrap();
    task(1, "daemon").up().unwrap();
    let (old, new) = (paths.task(&id(1), "db"), paths.task(&id(2), "db"));
    fs::create_dir(old.join("local/sub")).unwrap();
    fs::write(old.join("local/sub/own"), "kept").unwrap();
    fs::write(paths.shared(&id(1)).join("data/shared"), "kept").unwrap();
    for path in [old.join("local/sub"), old.join("local/sub/own"), paths.shared(&id(1)).join("data/shared")] {
        chown(path, Some(before.uid), Some(before.gid)).unwrap();
    }
    let successor = AllocDir::new(&paths, id(2))
        .used_by(users("nobody"))
        .inheriting(Some(Migration { previous: id(1), tasks: vec!["db".to_owned()] }));
    for _ in 0..2 {
        successor.up(b"{}").unwrap();
        task(2, "nobody").up().unwrap();
        assert_eq!(
            (successor.inspect().unwrap(), task(2, "nobody").inspect().unwrap()),
            (Observation::Present, Observation::Present)
        );
    }
    let data = paths.shared(&id(2)).join("data");
    for dir in [paths.alloc(&id(2)), paths.shared(&id(2)), data.clone(), new.clone(), new.join("local")] {
        let acl = Acl::read(fs::File::open(&dir).unwrap()).unwrap();
        let owner = dir.metadata().unwrap().uid();
        assert!(acl.users.iter().all(|(uid, _)| *uid == after.uid), "{}: {acl:?}", dir.display());
        assert!(owner != before.uid && acl.other.bits() == 0, "{}", dir.display());
    }
    assert_eq!(new.join("local").metadata().unwrap().uid(), after.uid);
    assert_eq!(fs::read_to_string(new.join("local/sub/own")).unwrap(), "kept");
    assert_eq!(new.join("local/sub/own").metadata().unwrap().uid(), before.uid);
    assert_eq!(fs::read_to_string(data.join("shared")).unwrap(), "kept");
}
