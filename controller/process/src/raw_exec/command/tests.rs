//! Which program a command refers to, and whose programs are run. Tests with other owners need root.

use std::os::unix::fs::{MetadataExt as _, chown, symlink};

use herdlet_base::{
    acl::{Acl, AclError, Perm},
    safe_fs::{Dir, Rights},
    test_env::{TestEnv, is_alone, is_root, leave_out},
};

use super::*;

const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

/// The directory of an allocation with the task `web`.
struct Bench {
    dir: tempfile::TempDir,
    starter: u32,
    users: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    fn within(parent: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["web/local", "web/secrets", "alloc/data", "alloc/logs"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        Self { dir, starter: rustix::process::geteuid().as_raw(), users: Vec::new() }
    }

    /// The same with a task that runs as `nobody`; none unless the test runs as root.
    fn of_nobody() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let bench = Self { starter: NOBODY, ..Self::new() };
        bench.own("web/local", NOBODY);
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "#!/bin/true\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn own(&self, name: &str, uid: u32) {
        std::os::unix::fs::lchown(self.path(name), Some(uid), Some(uid)).unwrap();
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().mode() & 0o7777
    }

    fn find(&self, command: &str) -> Result<Found, CommandError> {
        self.find_with(command, "relative::/usr/bin:/bin")
    }

    fn find_with(&self, command: &str, search_path: &str) -> Result<Found, CommandError> {
        let trust = Trust::new(self.starter, &self.users);
        find(&Lookup { command, task_dir: &self.path("web"), search_path, trust: &trust })
    }

    fn found_path(&self, command: &str) -> PathBuf {
        self.find(command).unwrap().path
    }

    /// The reason why a command is not run.
    fn refusal(&self, command: &str) -> String {
        let error = self.find(command).unwrap_err();
        assert!(matches!(error, CommandError::Untrusted { .. }), "{error}");
        error.to_string()
    }
}

#[test]
fn relative_program_is_found_in_the_task_first() {
    let bench = Bench::new();
    let sh = bench.find("sh").unwrap();
    assert!(sh.path == Path::new("/usr/bin/sh") || sh.path == Path::new("/bin/sh"));
    assert!(sh.entry.is_none());
    let own = bench.write("web/sh", 0o755);
    assert_eq!(bench.found_path("sh"), own);
    let local = bench.write("web/local/sh", 0o755);
    for command in ["sh", "local/sh", "./local/../sh", "../web/local/sh"] {
        let found = bench.find(command).unwrap();
        let entry = found.entry.unwrap();
        assert_eq!(entry.name, "sh", "{command}");
        let dir =
            fs::read_link(herdlet_base::safe_fs::proc_path(std::os::fd::AsFd::as_fd(&*entry.dir), None));
        assert_eq!(
            dir.unwrap(),
            if command.contains("/../") { bench.path("web") } else { bench.path("web/local") }
        );
    }
    assert_eq!(bench.found_path("sh"), local);
    assert_eq!(bench.find_with("sh", &format!("{}", bench.path("web").display())).unwrap().path, local);
}

// Regression: `/bin/sleep` referred to `local/bin/sleep`, where any user could place a file.
#[test]
fn an_absolute_path_is_that_file_and_no_other() {
    let bench = Bench::new();
    for dir in ["web/local/bin", "web/bin"] {
        fs::create_dir(bench.path(dir)).unwrap();
        bench.write(&format!("{dir}/sh"), 0o755);
    }
    let found = bench.find("/bin/sh").unwrap();
    assert_eq!(found.path, Path::new("/bin/sh"));
    assert!(found.entry.is_none());
    let own = bench.path("web/bin/sh");
    assert!(bench.find(own.to_str().unwrap()).unwrap().entry.is_some());
    // In any notation of the path.
    let around = bench.path("web/../web/./bin/sh");
    assert!(bench.find(around.to_str().unwrap()).unwrap().entry.is_some());
    symlink(bench.path(""), bench.path("web/again")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(bench.path(""), elsewhere.path().join("link")).unwrap();
    let linked = elsewhere.path().join("link/web/bin/sh");
    assert!(bench.find(linked.to_str().unwrap()).unwrap().entry.is_some());
}

/// A directory was reported as not found, and a file without x only by the kernel's errno.
#[test]
fn non_executable_file_is_described_with_a_hint() {
    let bench = Bench::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let plain = elsewhere.path().join("plain");
    fs::write(&plain, "").unwrap();
    let message = |command: &str| bench.find(command).unwrap_err().to_string();
    let error = message("/tmp");
    assert!(error.ends_with("permission denied: it is a directory; name a program in it"), "{error}");
    assert!(message("./local").contains("it is a directory"), "{}", message("./local"));
    let error = message(plain.to_str().unwrap());
    assert!(error.contains("permission denied: it is not executable for any user; chmod +x"), "{error}");
    let error = message("echo hi 1");
    let hint = r#"not found; write its arguments in args (command: "echo", args: ["hi", "1"]); searched in "#;
    assert!(error.contains(hint), "{error}");
    let error = message("./serve.sh");
    let hint = "not found; a program beside the manifest is ${manifest.dir}/serve.sh; searched in the task's";
    assert!(error.contains(hint), "{error}");
}

#[test]
fn missing_program_lists_searched_places() {
    let bench = Bench::new();
    let error = bench.find("no-such-tool").unwrap_err().to_string();
    assert!(error.starts_with("exec \"no-such-tool\": not found in "), "{error}");
    assert!(error.ends_with("nor in PATH (relative::/usr/bin:/bin)"), "{error}");
    symlink("nowhere", bench.path("web/local/dangling")).unwrap();
    symlink("round", bench.path("web/local/round")).unwrap();
    for command in ["bin/none", "/bin/none", "../x", "local", "", "dangling", "round", "local/round"] {
        bench.find(command).unwrap_err();
    }
}

#[test]
fn artifact_program_is_made_executable() {
    let bench = Bench::new();
    for name in ["web/local/tool", "alloc/data/tool"] {
        let path = bench.write(name, 0o600);
        assert_eq!(bench.found_path(path.to_str().unwrap()), path);
        assert_eq!(bench.mode(name), 0o755, "{name}");
    }
    // The set-ID bits are removed: no user may run it as its owner.
    bench.write("web/local/setuid", 0o6644);
    bench.find("setuid").unwrap();
    assert_eq!(bench.mode("web/local/setuid"), 0o755);
}

#[test]
fn only_artifact_programs_are_made_executable() {
    let bench = Bench::new();
    let secret = bench.write("web/secrets/token", 0o600);
    bench.write("alloc/logs/web.stdout.0", 0o600);
    bench.write("alloc.json", 0o600);
    bench.write("web/local/two", 0o600);
    fs::hard_link(bench.path("web/local/two"), bench.path("web/local/names")).unwrap();
    symlink(&secret, bench.path("web/local/link")).unwrap();
    symlink("../secrets/token", bench.path("web/local/below")).unwrap();
    let commands = ["secrets/token", "../alloc/logs/web.stdout.0", "../alloc.json", "names", "link", "below"];
    for command in commands {
        let error = bench.find(command).unwrap_err();
        assert!(matches!(error, CommandError::NotExecutable { .. }), "{command}: {error}");
    }
    for name in ["web/secrets/token", "alloc/logs/web.stdout.0", "alloc.json", "web/local/two"] {
        assert_eq!(bench.mode(name), 0o600, "{name}");
    }
}

// Regression: a file that root keeps closed became world-readable when it was renamed to the name of a program.
#[test]
fn file_closed_by_others_is_not_made_executable() {
    let Some(bench) = Bench::of_nobody() else { return };
    bench.write("web/local/closed", 0o600);
    assert!(matches!(bench.find("closed"), Err(CommandError::NotExecutable { .. })));
    assert_eq!(bench.mode("web/local/closed"), 0o600);
    bench.write("web/local/readable", 0o644);
    bench.find("readable").unwrap();
    assert_eq!(bench.mode("web/local/readable"), 0o755);
}

#[test]
fn program_links_are_followed() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("web/local/venv/bin")).unwrap();
    let python = bench.path("web/local/venv/bin/python");
    symlink("python3", &python).unwrap();
    symlink("/bin/sh", bench.path("web/local/venv/bin/python3")).unwrap();
    for command in ["local/venv/bin/python", "venv/bin/python", python.to_str().unwrap()] {
        let found = bench.find(command).unwrap();
        assert_eq!(found.path, python, "the path that the program gets");
        let real = fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(found.entry.unwrap().name, real.file_name().unwrap());
    }
    let Some(bench) = Bench::of_nobody() else { return };
    // Links to an untrusted user's program, through an untrusted user's directory, and made by an untrusted user.
    let theirs = tempfile::tempdir().unwrap();
    fs::copy("/bin/true", theirs.path().join("tool")).unwrap();
    symlink(theirs.path().join("tool"), bench.path("web/local/tool")).unwrap();
    assert_eq!(bench.found_path("tool"), bench.path("web/local/tool"));
    chown(theirs.path().join("tool"), Some(DAEMON), None).unwrap();
    assert!(bench.refusal("tool").contains("belongs to daemon (uid 1), who could"));
    chown(theirs.path().join("tool"), Some(NOBODY), None).unwrap();
    assert_eq!(bench.found_path("tool"), bench.path("web/local/tool"));
    chown(theirs.path(), Some(DAEMON), None).unwrap();
    assert!(bench.refusal("tool").contains("belongs to daemon (uid 1), who could"));
    symlink("/bin/true", bench.path("web/local/planted")).unwrap();
    bench.own("web/local/planted", DAEMON);
    assert!(bench.refusal("local/planted").contains("belongs to daemon (uid 1), who could"));
}

#[test]
fn program_others_can_write_is_refused() {
    let Some(bench) = Bench::of_nobody() else { return };
    fs::create_dir(bench.path("web/local/bin")).unwrap();
    bench.write("web/local/bin/tool", 0o755);
    assert_eq!(bench.found_path("bin/tool"), bench.path("web/local/bin/tool"));
    for (name, good) in [("web/local/bin/tool", 0o755), ("web/local/bin", 0o755), ("web/local", 0o755)] {
        let owner = fs::metadata(bench.path(name)).unwrap().uid();
        bench.own(name, DAEMON);
        assert!(bench.refusal("bin/tool").contains("belongs to daemon (uid 1), who could"), "{name}");
        bench.own(name, owner);
        for mode in [good | 0o020, good | 0o002] {
            bench.chmod(name, mode);
            assert!(bench.refusal("bin/tool").contains("can be written to by "), "{name} {mode:o}");
        }
        bench.chmod(name, good);
        assert_eq!(bench.found_path("bin/tool"), bench.path("web/local/bin/tool"), "{name}");
    }
}

// The directories of agents without ACL support: any user may add a name, nobody may replace another user's.
#[test]
fn file_in_a_sticky_directory_belongs_to_its_owner() {
    let Some(bench) = Bench::of_nobody() else { return };
    bench.own("web/local", 0);
    bench.chmod("web/local", 0o1777);
    bench.write("web/local/tool", 0o755);
    for owner in [0, NOBODY] {
        bench.own("web/local/tool", owner);
        assert_eq!(bench.found_path("tool"), bench.path("web/local/tool"));
    }
    bench.own("web/local/tool", DAEMON);
    bench.refusal("tool");
    // Root's own program, under a name that an untrusted user chose.
    bench.write("web/original", 0o755);
    fs::hard_link(bench.path("web/original"), bench.path("web/local/sleep")).unwrap();
    assert!(bench.refusal("local/sleep").contains("2 names"));
    bench.chmod("web/local", 0o755);
    assert_eq!(bench.found_path("local/sleep"), bench.path("web/local/sleep"));
    // The owner of a directory may replace anything in it.
    bench.own("web/local", DAEMON);
    bench.chmod("web/local", 0o1777);
    bench.refusal("local/sleep");
}

#[test]
fn access_control_lists_count() {
    let Some(bench) = Bench::of_nobody() else { return };
    bench.own("web/local", 0);
    bench.write("web/local/tool", 0o755);
    let readable = Acl { other: Perm::READ_EXECUTE, ..Acl::of_users(Perm::ALL, [(NOBODY, Perm::ALL)]) };
    let set = |acl: &Acl| acl.write(fs::File::open(bench.path("web/local")).unwrap());
    match set(&readable) {
        Err(AclError::Unsupported) => return leave_out("access control lists in the temporary directory"),
        set => set.unwrap(),
    }
    assert_eq!(bench.mode("web/local") & 0o020, 0o020, "the mode is the mask of the list");
    assert_eq!(bench.found_path("tool"), bench.path("web/local/tool"));
    let users = vec![(DAEMON, Perm::ALL), (NOBODY, Perm::ALL)];
    set(&Acl { users, ..readable.clone() }).unwrap();
    assert!(bench.refusal("local/tool").contains("can be written to by daemon (uid 1)"));
    let users = vec![(DAEMON, Perm::READ_EXECUTE), (NOBODY, Perm::ALL)];
    let group = |perm| Acl { users: users.clone(), groups: vec![(DAEMON, perm)], ..readable.clone() };
    set(&group(Perm::ALL)).unwrap();
    bench.refusal("local/tool");
    set(&group(Perm::READ_EXECUTE)).unwrap();
    assert_eq!(bench.found_path("tool"), bench.path("web/local/tool"));
}

#[test]
fn users_of_sibling_tasks_are_trusted_except_by_root() {
    let Some(mut bench) = Bench::of_nobody() else { return };
    // A deleted user owns nothing.
    bench.users = vec!["no such user".to_owned(), "daemon".to_owned(), "nobody".to_owned()];
    for name in ["alloc/data/tool", "web/local/tool"] {
        bench.write(name, 0o755);
        bench.own(name, DAEMON);
    }
    bench.own("alloc/data", DAEMON);
    assert_eq!(bench.found_path("../alloc/data/tool"), bench.path("web/../alloc/data/tool"));
    bench.refusal("local/tool");
    bench.starter = 0;
    bench.refusal("../alloc/data/tool");
}

#[test]
fn a_planted_name_that_the_path_has_too_is_passed_over() {
    let Some(bench) = Bench::of_nobody() else { return };
    bench.chmod("web/local", 0o1777);
    bench.write("web/local/sh", 0o755);
    bench.own("web/local/sh", DAEMON);
    let found = bench.find("sh").unwrap();
    assert!(found.path.ends_with("bin/sh") && found.entry.is_none() && found.passed_over.is_some());
    // A command that is a path is not replaced by another program, nor is a plain name found only in the untrusted file.
    bench.write("web/sh", 0o755);
    assert_eq!(bench.found_path("sh"), bench.path("web/sh"));
    fs::create_dir(bench.path("web/local/bin")).unwrap();
    fs::create_dir(bench.path("web/bin")).unwrap();
    bench.write("web/local/bin/sh", 0o755);
    bench.write("web/bin/sh", 0o755);
    bench.own("web/local/bin/sh", DAEMON);
    bench.refusal("bin/sh");
    bench.write("web/local/theirs", 0o755);
    bench.own("web/local/theirs", DAEMON);
    bench.refusal("theirs");
    // Also if PATH leads into the allocation.
    let path = format!("{}:/usr/bin:/bin", bench.path("web/local").display());
    fs::remove_file(bench.path("web/sh")).unwrap();
    assert!(bench.find_with("sh", &path).unwrap().path.ends_with("bin/sh"));
    assert!(bench.find_with("sh", &path).unwrap().entry.is_none());
}

// Regression: a task with nested directories and chained links exhausted the agent's descriptors.
#[test]
fn long_path_is_refused_early() {
    let bench = Bench::new();
    let mut dir = Dir::open(&bench.path("web/local")).unwrap();
    for _ in 0..200 {
        dir = dir.make("d".as_ref(), Rights::Masked { mode: 0o755 }).unwrap();
    }
    let nested = |depth| format!("local/{}tool", "d/".repeat(depth));
    bench.write(&format!("web/{}", nested(100)), 0o755);
    bench.find(&nested(100)).unwrap();
    bench.write(&format!("web/{}", nested(200)), 0o755);
    assert!(bench.refusal(&nested(200)).contains("use a shorter path"));
    // The pending names of chained links accumulate.
    for link in 0..39 {
        symlink(format!("n{}/{}", link + 1, "../".repeat(1300)), bench.path(&format!("web/local/n{link}")))
            .unwrap();
    }
    symlink(".", bench.path("web/local/n39")).unwrap();
    assert!(bench.refusal("local/n0/tool").contains("use a shorter path"));
}

// An untrusted user could point a link to any file, to nothing, or into a loop.
#[test]
fn link_of_another_user_is_not_followed() {
    let Some(bench) = Bench::of_nobody() else { return };
    symlink("nowhere", bench.path("web/local/sh")).unwrap();
    assert!(bench.find("local/sh").is_err_and(|error| matches!(error, CommandError::NotFound { .. })));
    bench.own("web/local/sh", DAEMON);
    assert!(bench.refusal("local/sh").contains("belongs to daemon (uid 1), who could"));
    assert!(bench.find("sh").unwrap().passed_over.is_some());
}

// Regression: the start was retried for ever.
#[test]
fn failed_chmod_is_an_error_of_the_task() {
    let Some(env) = TestEnv::mounting() else { return };
    let mount = |arguments: &[&str]| {
        let mut command = std::process::Command::new("mount");
        assert!(command.args(arguments).arg(env.path()).status().unwrap().success());
    };
    mount(&["-t", "tmpfs", "tmpfs"]);
    let bench = Bench::within(env.path());
    bench.write("web/local/tool", 0o644);
    mount(&["-o", "remount,ro"]);
    let error = bench.find("tool").unwrap_err();
    assert!(matches!(error, CommandError::NotExecutable { .. }), "{error}");
    assert!(error.to_string().ends_with("its file system is read-only"), "{error}");
}

#[test]
fn only_a_missing_file_continues_the_search() {
    let long = "x".repeat(300);
    for path in ["/no/such", "/dev/null/x", "/bin/\0", &format!("/{long}")] {
        assert!(metadata(Path::new(path)).unwrap().is_none(), "{path}");
    }
    assert!(metadata(Path::new("/bin/sh")).unwrap().is_some());
}

// With no descriptors left, the program is not refused: the attempt is retried, and no restart is used up.
#[test]
fn a_lookup_without_descriptors_is_a_shortage_and_no_refusal() {
    const NAME: &str = "raw_exec::command::tests::a_lookup_without_descriptors_is_a_shortage_and_no_refusal";
    // Other tests need descriptors.
    if !is_alone(NAME) {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("web/local/a/b")).unwrap();
    let tool = bench.write("web/local/a/b/tool", 0o755);
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = |limit| rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let lowest = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&fs::File::open("/").unwrap())).unwrap();
    let mut refused = 0;
    // At each step of the walk.
    for free in 0.. {
        limit(rustix::process::Rlimit { current: Some(lowest + free), ..before });
        let found = ["a/b/tool", tool.to_str().unwrap()].map(|command| bench.find(command));
        limit(before);
        let errors: Vec<CommandError> = found.into_iter().filter_map(Result::err).collect();
        for error in &errors {
            assert!(
                matches!(error, CommandError::Io { source, .. } if source.raw_os_error() == Some(libc::EMFILE)),
                "{error}"
            );
        }
        refused += errors.len();
        if errors.is_empty() {
            break;
        }
    }
    assert!(refused > 6, "{refused}");
}
