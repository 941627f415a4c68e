//! Artifacts from a test server: results and refusals.

mod archives;
mod exchange;
mod hostile;
mod server;
mod trouble;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use herdlet_api_types::fixture;

use self::server::Server;
use super::*;

/// A task's directories, and a fetcher.
struct TestEnv {
    temp: tempfile::TempDir,
    fetcher: Arc<Fetcher>,
}

/// Limits that tests can reach.
const LIMITS: Limits = Limits {
    http_bytes_max: 1 << 20,
    http_time_max: Duration::from_secs(30),
    unpacked_bytes_max: 1 << 20,
    entries_max: 50,
};

/// This test program, as the unpacking process.
pub(crate) fn unpacker() -> Unpacker {
    Unpacker::of_test("artifact::tests::the_process_that_unpacks")
}

impl TestEnv {
    fn new() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: Limits) -> Self {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["task/local", "task/secrets", "task/private", "alloc/data"] {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        Self { temp, fetcher: Arc::new(Fetcher::with(limits, unpacker())) }
    }

    fn dirs(&self) -> Dirs {
        Dirs { task: self.temp.path().join("task"), shared: self.temp.path().join("alloc") }
    }

    fn path(&self, below_task: &str) -> PathBuf {
        self.dirs().task.join(below_task)
    }

    /// The staging directory of an artifact for the task's directory.
    fn staged(&self, artifact: &Artifact) -> PathBuf {
        self.temp.path().join(staging::NAME).join("task").join(&digest_of(artifact)[..16])
    }

    async fn up(&self, artifacts: &[Artifact]) -> Result<(), ArtifactError> {
        self.up_until(artifacts, &CancellationToken::new()).await
    }

    async fn up_until(
        &self,
        artifacts: &[Artifact],
        cancelled: &CancellationToken,
    ) -> Result<(), ArtifactError> {
        let recipient = Recipient { dirs: self.dirs(), user: None };
        self.fetcher.up(artifacts.iter().map(resolved).collect(), recipient, cancelled).await
    }

    fn has(&self, artifacts: &[Artifact]) -> bool {
        is_fetched(&artifacts.iter().map(resolved).collect::<Vec<_>>(), &self.dirs()).unwrap()
    }

    /// All files below the task's directory with their modes, without the directories that every task has.
    fn files(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        let task = self.path("");
        let mut open = vec![task.clone()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let about = path.symlink_metadata().unwrap();
                let name = path.strip_prefix(&task).unwrap().to_str().unwrap().to_owned();
                if about.is_dir() {
                    open.push(path);
                }
                if !["local", "secrets", "private"].contains(&name.as_str()) {
                    found.insert(name, about.mode() & 0o7777);
                }
            }
        }
        found
    }
}

fn resolved(artifact: &Artifact) -> Resolved {
    Resolved { digest: digest_of(artifact), artifact: artifact.clone() }
}

fn artifact(server: &Server, path: &str) -> Artifact {
    fixture::artifact(&format!("http://{}{path}", server.address))
}

/// Entry point of `herdlet unpack`, if this test is started as that process.
#[test]
fn the_process_that_unpacks() {
    let Some(order) = std::env::args().next_back().filter(|last| last.starts_with('{')) else { return };
    #[expect(clippy::disallowed_methods, reason = "as a program ends")]
    std::process::exit(i32::from(herdlet_unpack::execute(&order)));
}

#[tokio::test]
async fn artifact_is_fetched_once_to_its_place() {
    let server = Server::answering(|path| match path {
        "/dir/tool%20x?token=s3cret" | "/dir/tool" => Server::ok(b"hello"),
        _ => Server::status("404 Not Found"),
    });
    let ground = TestEnv::new();
    let mut first = artifact(&server, "/dir/tool%20x?token=s3cret&checksum=5d41402abc4b2a76b9719d911017c592");
    let mut second = artifact(&server, "/dir/tool");
    second.mode = ArtifactMode::File;
    second.destination = "local/deep/er/name".to_owned();
    let mut third = artifact(&server, "/dir/tool");
    third.destination = ground.dirs().shared.join("data").to_str().unwrap().to_owned();
    third.options.insert("filename".to_owned(), "other".to_owned());
    third.options.insert(
        "checksum".to_owned(),
        "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".to_owned(),
    );
    let mut fourth = artifact(&server, "/dir/tool");
    fourth.destination = "secrets/".to_owned();
    first.headers.insert("X-Key".to_owned(), "k3y".to_owned());
    let all = [first, second, third, fourth];
    assert!(!ground.has(&all));
    for _ in 0..2 {
        ground.up(&all).await.unwrap();
        assert!(ground.has(&all));
        assert_eq!(server.hits().len(), 4);
    }
    for path in ["local/tool x", "local/deep/er/name", "../alloc/data/other", "secrets/tool"] {
        assert_eq!(fs::read(ground.path(path)).unwrap(), b"hello", "{path}");
        assert_eq!(ground.path(path).metadata().unwrap().mode() & 0o7777, 0o644);
    }
    let files: Vec<String> = ground.files().into_keys().collect();
    assert_eq!(
        files,
        [
            ".artifacts",
            "local/deep",
            "local/deep/er",
            "local/deep/er/name",
            "local/tool x",
            "secrets/.artifacts",
            "secrets/tool"
        ]
    );
    // A reboot empties the memory file system, including its marks.
    fs::remove_file(ground.path("secrets/.artifacts")).unwrap();
    assert!(!ground.has(&all) && ground.has(&all[..3]));
}

#[tokio::test]
async fn artifacts_are_removed_with_the_task_directory() {
    use crate::task_dir::TaskDir;
    use herdlet_base::privileges::Privileges;
    let server = Server::answering(|_| Server::ok(b"hello"));
    let ground = TestEnv::new();
    let all = [artifact(&server, "/a")];
    let dir = TaskDir::new(ground.path(""), Privileges::none());
    dir.up().unwrap();
    ground.up(&all).await.unwrap();
    dir.up().unwrap();
    assert!(ground.has(&all));
    fs::remove_dir_all(ground.path("local")).unwrap();
    dir.up().unwrap();
    assert!(!ground.has(&all), "the artifact is fetched again");
}

#[test]
fn foreign_marker_is_ignored() {
    let ground = TestEnv::new();
    let wanted = [fixture::artifact("http://127.0.0.1/a")];
    let mark = ground.path(".artifacts");
    fs::write(&mark, digest_of(&wanted[0])).unwrap();
    assert!(ground.has(&wanted));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&mark, Some(65_534), None).unwrap();
        assert!(!ground.has(&wanted));
    }
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    assert!(!ground.has(&wanted));
    marker::add(&Dir::open(&ground.path("")).unwrap(), "a").unwrap();
}

#[test]
fn addresses_are_taken_apart_as_go_getter_does() {
    let options = |options: &[(&str, &str)]| -> BTreeMap<String, String> {
        options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    for (text, given, url, format, name, folder) in [
        ("http://h/a.tgz", &[][..], "http://h/a.tgz", "tgz", "a", ""),
        (
            "https://h:8443/d/a.tar.gz?x=%41&archive=false",
            &[],
            "https://h:8443/d/a.tar.gz?x=%41",
            "",
            "a.tar.gz",
            "",
        ),
        ("http::https://u:p@h/a", &[("archive", "zip")], "https://u:p@h/a", "zip", "a", ""),
        (
            "https://h/a.zip//x/y?checksum=z",
            &[("filename", "n"), ("t", "v w")],
            "https://h/a.zip?t=v+w",
            "zip",
            "n",
            "x/y",
        ),
        ("http://h/a.gz", &[], "http://h/a.gz", "gz", "a", ""),
        ("http://h/", &[], "http://h/", "", "artifact", ""),
    ] {
        let Ok(source) = Source::parse(text, &options(given)) else { panic!("{text}") };
        assert_eq!(source.url.as_str(), url);
        assert_eq!(source.format, Format::named(format), "{text}");
        assert_eq!((&*source.file_name, source.folder.to_str().unwrap()), (name, folder), "{text}");
        assert!(!source.redacted().contains("p@") && !source.redacted().contains('?'));
    }
    for (text, given, expected) in [
        ("git::https://h/a", &[][..], "`git` is not supported"),
        ("git@github.com:a/b", &[], "`git` is not supported"),
        ("github.com/a/b", &[], "`git` is not supported"),
        ("s3::https://s3.amazonaws.com/b/k", &[], "`s3` is not supported"),
        ("/etc/passwd", &[], "`file` is not supported"),
        ("file:///etc/passwd", &[], "`file` is not supported"),
        ("ftp://h/a", &[], "must be an address that begins with"),
        ("http://", &[], "is no valid address"),
        ("http://h/a.zip//../b", &[], "is no valid address"),
        ("http://h/a", &[("archive", "rar")], "`archive` must be `false` or one of bz2"),
        ("http://h/a?filename=../b", &[], "`filename` must be the name of a file"),
    ] {
        let Err(error) = Source::parse(text, &options(given)) else { panic!("{text} is accepted") };
        assert!(error.to_string().starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn destinations_stay_with_the_task() {
    let dirs = Dirs { task: "/s/allocs/i/web".into(), shared: "/s/allocs/i/alloc".into() };
    let base = |destination: &str| Destination::of(destination, &dirs).map(|place| place.base()).ok();
    for (destination, expected) in [
        ("local/", Some(Base::Task)),
        ("", Some(Base::Task)),
        ("./x/../local", Some(Base::Task)),
        ("/s/allocs/i/web/local/x", Some(Base::Task)),
        ("secrets/a", Some(Base::Secrets)),
        ("../alloc/data", Some(Base::Shared)),
        ("/s/allocs/i/alloc", Some(Base::Shared)),
        ("private/a", None),
        ("..", None),
        ("../other/local", None),
        // An absolute path is in the task's directory.
        ("/local/data", Some(Base::Task)),
        ("/secrets/a", Some(Base::Secrets)),
        ("/etc", Some(Base::Task)),
        ("/s/allocs/i/webby", Some(Base::Task)),
        ("/private/a", None),
        ("/../other", None),
        ("local/../../../../etc", None),
        ("../webby", None),
    ] {
        assert_eq!(base(destination), expected, "{destination}");
    }
}

#[test]
fn checksums_are_read_in_all_their_forms() {
    let hex = "5d41402abc4b2a76b9719d911017c592";
    assert!(matches!(ChecksumSource::parse(hex), Ok(ChecksumSource::Value(_))));
    assert!(matches!(ChecksumSource::parse(&format!("md5:{hex}")), Ok(ChecksumSource::Value(_))));
    assert!(matches!(ChecksumSource::parse("file:https://h/SUMS"), Ok(ChecksumSource::List(_))));
    for bad in
        ["", "md5:12", "sha1:5d41402abc4b2a76b9719d911017c592", "crc:1", "zz41402abc4b2a76b9719d911017c592"]
    {
        assert!(ChecksumSource::parse(bad).is_err(), "{bad}");
    }
    for list in [
        format!("{}  other\n{hex}  a.zip\n", hex.replace('5', "6")),
        format!("{hex} *./dist/a.zip\n"),
        format!("# made today\nMD5 (a.zip) = {hex}\n"),
        format!("{hex}\n"),
    ] {
        assert!(Checksum::in_list(&list, "a.zip").is_ok_and(|sum| sum.is(hex)), "{list}");
    }
    for list in [String::new(), format!("{hex}  aa.zip\n"), format!("{hex}\n{hex}\n")] {
        assert!(Checksum::in_list(&list, "a.zip").is_err(), "{list}");
    }
    // The empty text, by each kind.
    for (sum, computed) in [
        ("d41d8cd98f00b204e9800998ecf8427e", 32),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", 40),
        ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 64),
    ] {
        let Ok(ChecksumSource::Value(checksum)) = ChecksumSource::parse(sum) else { panic!("{sum}") };
        let made = checksum.begin().finish();
        assert_eq!((checksum.is(&made), made.len()), (true, computed));
    }
}
