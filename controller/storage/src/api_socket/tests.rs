//! Sockets of the Task API: rights, places that a task has taken, and aliases.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink},
        net::UnixStream,
    },
};

use herdlet_base::privileges::Privileges;

use super::*;

struct Env {
    dir: tempfile::TempDir,
    paths: Paths,
    alloc: AllocId,
    task_dir: TaskDir,
}

impl Env {
    /// A task whose directory lies below `state`.
    fn below(state: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join(state), runtime: dir.path().join("run") };
        let alloc = AllocId::from_hash([1; 16]);
        let path = paths.task(&alloc, "t");
        fs::create_dir_all(path.join("secrets")).unwrap();
        fs::create_dir_all(&paths.runtime).unwrap();
        Self { task_dir: TaskDir::new(path, Privileges::none()), dir, paths, alloc }
    }

    fn socket(&self) -> ApiSocket<'_> {
        ApiSocket { task_dir: &self.task_dir, task: "t", access: FileAccess::Owner(None) }
    }

    fn secrets(&self) -> PathBuf {
        self.paths.task(&self.alloc, "t").join("secrets")
    }
}

#[test]
fn only_its_owner_can_connect_however_long_its_path_is() {
    let env = Env::below(&"long/".repeat(40));
    let (_listener, id) = env.socket().bind().unwrap();
    let path = env.secrets().join(SOCKET);
    let about = fs::symlink_metadata(&path).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!((about.mode() & 0o777, about.uid()), (0o600, rustix::process::geteuid().as_raw()));
    assert_eq!(env.socket().inspect(id).unwrap(), Observation::Present);
    // The path does not fit, its alias does.
    UnixStream::connect(&path).unwrap_err();
    make_alias(&env.paths, &env.alloc, "t").unwrap();
    make_alias(&env.paths, &env.alloc, "t").unwrap();
    let alias = address(&env.paths, &env.alloc, "t");
    assert!(
        alias.starts_with(env.dir.path().join("run/api")) && alias.as_os_str().len() <= SOCKET_PATH_LEN_MAX
    );
    UnixStream::connect(&alias).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!((mode(&env.paths.runtime), mode(&env.paths.api_aliases())), (0o711, 0o711));
    env.socket().remove().unwrap();
    remove_alias(&env.paths, &env.alloc, "t").unwrap();
    assert_eq!(env.socket().inspect(id).unwrap(), Observation::Absent);
    assert_eq!(fs::read_dir(env.secrets()).unwrap().count(), 0);
    assert!(!env.paths.api_aliases().exists());
}

#[test]
fn every_user_who_reaches_the_directory_of_an_image_can_connect() {
    let env = Env::below("state");
    let socket = ApiSocket { access: FileAccess::Anybody, ..env.socket() };
    let _open = socket.bind().unwrap();
    assert_eq!(fs::metadata(env.secrets().join(SOCKET)).unwrap().permissions().mode() & 0o777, 0o666);
    if rustix::process::geteuid().is_root() {
        let socket = ApiSocket { access: FileAccess::Owner(Some((65534, 65534))), ..env.socket() };
        let _open = socket.bind().unwrap();
        let about = fs::metadata(env.secrets().join(SOCKET)).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (65534, 65534, 0o600));
    }
}

#[test]
fn nothing_of_the_task_is_followed_or_kept() {
    let env = Env::below("state");
    let outside = env.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "x").unwrap();
    let (place, staging) = (env.secrets().join(SOCKET), env.secrets().join(STAGING));
    let clear = || {
        let _ = fs::remove_file(&place).or_else(|_| fs::remove_dir_all(&place));
        let _ = fs::remove_file(&staging).or_else(|_| fs::remove_dir_all(&staging));
    };
    let taken: [&dyn Fn(); 5] = [
        &|| symlink(outside.join("keep"), &place).unwrap(),
        &|| symlink(&outside, &staging).unwrap(),
        &|| fs::write(&place, "x").unwrap(),
        &|| {
            fs::create_dir(&place).unwrap();
            fs::write(place.join("x"), "x").unwrap();
        },
        // An agent was killed between binding and moving it.
        &|| {
            fs::create_dir(&staging).unwrap();
            drop(std::os::unix::net::UnixListener::bind(staging.join(SOCKET)).unwrap());
        },
    ];
    for take in taken {
        take();
        let (_listener, id) = env.socket().bind().unwrap();
        assert_eq!(env.socket().inspect(id).unwrap(), Observation::Present);
        UnixStream::connect(&place).unwrap();
        assert_eq!(fs::read_dir(env.secrets()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("keep")).unwrap(), "x");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        clear();
        assert_eq!(env.socket().inspect(id).unwrap(), Observation::Absent, "it is drift");
    }
}

#[test]
fn a_socket_that_an_earlier_agent_left_is_replaced() {
    let env = Env::below("state");
    let (first, first_id) = env.socket().bind().unwrap();
    let (_second, second_id) = env.socket().bind().unwrap();
    assert_eq!(env.socket().inspect(first_id).unwrap(), Observation::Absent);
    assert_eq!(env.socket().inspect(second_id).unwrap(), Observation::Present);
    drop(first);
    UnixStream::connect(env.secrets().join(SOCKET)).unwrap();
    fs::remove_dir_all(env.paths.task(&env.alloc, "t")).unwrap();
    assert!(matches!(env.socket().bind(), Err(ApiSocketError::NoDir { .. })));
    env.socket().remove().unwrap();
}

#[test]
fn aliases_without_a_task_are_swept() {
    let env = Env::below(&"long/".repeat(40));
    sweep_aliases(&env.paths).unwrap();
    make_alias(&env.paths, &env.alloc, "t").unwrap();
    let alias = address(&env.paths, &env.alloc, "t");
    sweep_aliases(&env.paths).unwrap();
    assert!(fs::symlink_metadata(&alias).is_ok());
    fs::remove_dir_all(env.paths.alloc(&env.alloc)).unwrap();
    sweep_aliases(&env.paths).unwrap();
    fs::symlink_metadata(&alias).unwrap_err();
    // A short path needs none.
    let env = Env::below("state");
    make_alias(&env.paths, &env.alloc, "t").unwrap();
    assert_eq!(address(&env.paths, &env.alloc, "t"), env.secrets().join(SOCKET));
    assert!(!env.paths.api_aliases().exists());
}
