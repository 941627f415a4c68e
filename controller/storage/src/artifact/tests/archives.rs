//! Results of valid archives.

use std::io::{Cursor, Write as _};

use herdlet_base::user::Login;

use super::*;

/// A tar with a program, a directory closed to others, and both kinds of links.
pub(super) fn good_tar() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind: tar::EntryType, mode: u32, content: &[u8], link: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        if link.is_empty() {
            tar.append_data(&mut header, path, content).unwrap();
        } else {
            tar.append_link(&mut header, path, link).unwrap();
        }
    };
    use tar::EntryType as Kind;
    add("pkg/", Kind::Directory, 0o750, b"", "");
    add("pkg/bin/tool", Kind::Regular, 0o4775, b"#!/bin/sh\n", "");
    add("pkg/bin/alias", Kind::Symlink, 0o777, b"", "../bin/tool");
    add("pkg/bin/same", Kind::Link, 0o755, b"", "pkg/bin/tool");
    add(&format!("pkg/{}", "n".repeat(180)), Kind::Regular, 0o600, b"long", "");
    // The later entry wins.
    add("pkg/twice", Kind::Regular, 0o644, b"first", "");
    add("pkg/twice", Kind::Regular, 0o640, b"second", "");
    tar.into_inner().unwrap()
}

fn good_zip() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = |mode| zip::write::SimpleFileOptions::default().unix_permissions(mode);
    zip.add_directory("pkg/", options(0o755)).unwrap();
    zip.start_file("pkg/bin/tool", options(0o755)).unwrap();
    zip.write_all(b"#!/bin/sh\n").unwrap();
    zip.add_symlink("pkg/bin/alias", "tool", options(0o777)).unwrap();
    zip.finish().unwrap().into_inner()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    // Two frames and a skippable one.
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let skipped = [0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 7, 7];
    [
        ruzstd::encoding::compress_to_vec(one, level),
        skipped.to_vec(),
        ruzstd::encoding::compress_to_vec(other, level),
    ]
    .concat()
}

/// `bin/tool` (0755), compressed by `xz`.
const XZ: &str = "/Td6WFoAAATm1rRGAgAhARYAAAB0L+Wj4Af/AEJdADEaShsJwPdtd+vy0uKwgJnneB5wwV1FLsreE3MmhAbUrheZtXO3/FxSt9d1Sm5fq5zdVzhZsGvi1Ykl91lCVtrIAAAAAPhdAPTPUQv2AAFegBAAAABXWi4UscRn+wIAAAAABFla";

#[tokio::test]
async fn archive_format_follows_the_name() {
    for (name, bytes) in [
        ("a.tar", good_tar()),
        ("a.tar.gz", gzip(&good_tar())),
        ("a.tgz", [gzip(&good_tar()[..512]), gzip(&good_tar()[512..])].concat()),
        ("a.tar.bz2", bzip2(&good_tar())),
        ("a.tar.zst", zstd(&good_tar())),
    ] {
        let (server, ground) = (Server::giving(bytes), TestEnv::new());
        ground
            .up(&[artifact(&server, &format!("/{name}"))])
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let files = ground.files();
        let mode = |path: &str| files.get(path).copied();
        assert_eq!(mode("local/pkg"), Some(0o750), "{name}");
        assert_eq!(mode("local/pkg/bin/tool"), Some(0o755), "no set-user-id bit, and not writable by others");
        assert_eq!(mode(&format!("local/pkg/{}", "n".repeat(180))), Some(0o600));
        assert_eq!(fs::read(ground.path("local/pkg/twice")).unwrap(), b"second");
        assert_eq!(fs::read_link(ground.path("local/pkg/bin/alias")).unwrap(), Path::new("../bin/tool"));
        let inode = |path| ground.path(path).metadata().unwrap().ino();
        assert_eq!(inode("local/pkg/bin/same"), inode("local/pkg/bin/tool"));
        assert_eq!(files.len(), 8, "{files:?}");
    }
    let xz = BASE64_STANDARD.decode(XZ).unwrap();
    for (name, bytes, tool) in [("a.txz", xz, "local/bin/tool"), ("a.zip", good_zip(), "local/pkg/bin/tool")]
    {
        let (server, ground) = (Server::giving(bytes), TestEnv::new());
        ground.up(&[artifact(&server, &format!("/{name}"))]).await.unwrap();
        assert_eq!(ground.files().get(tool), Some(&0o755), "{name}");
    }
}

#[tokio::test]
async fn unpack_mode_is_configurable() {
    let tar_gz = gzip(&good_tar());
    let (any, file, dir) = (ArtifactMode::Any, ArtifactMode::File, ArtifactMode::Dir);
    for (bytes, wanted, expected) in [
        (tar_gz.clone(), artifact_of("/a.tgz?archive=false", any, "local"), "local/a.tgz"),
        (tar_gz.clone(), artifact_of("/latest?archive=tgz", dir, "local/x"), "local/x/pkg/bin/tool"),
        (tar_gz.clone(), artifact_of("/a.tgz//pkg", any, "local"), "local/bin/tool"),
        (gzip(b"hello"), artifact_of("/hello.gz", any, "local"), "local/hello"),
        (gzip(b"hello"), artifact_of("/hello.gz", file, "local/name"), "local/name"),
        (bzip2(b"hello"), artifact_of("/x?archive=bz2&filename=hello", any, "local"), "local/hello"),
        (BASE64_STANDARD.decode(XZ).unwrap(), artifact_of("/a.tar.xz", file, "local/tool"), "local/tool"),
    ] {
        let (server, ground) = (Server::giving(bytes), TestEnv::new());
        ground.up(&[wanted(&server)]).await.unwrap_or_else(|error| panic!("{expected}: {error}"));
        assert!(ground.path(expected).is_file(), "{expected}: {:?}", ground.files());
        assert!(!ground.files().keys().any(|name| name.contains(".staging")));
    }
    for (bytes, wanted, expected) in [
        (tar_gz.clone(), artifact_of("/a.tgz", file, "local/x"), "it is not a plain file"),
        (tar_gz.clone(), artifact_of("/a.tgz//nothing", any, "local"), "No such file"),
        // It would stay in the archive, but leave the requested folder.
        (tar_gz.clone(), artifact_of("/a.tgz//pkg/bin", any, "local"), "leads out of the archive"),
        (b"x".to_vec(), artifact_of("/x?filename=.artifacts", any, "."), "not permitted"),
        (b"hello".to_vec(), artifact_of("/hello", dir, "local"), "mode `dir` requires an archive"),
        (b"hello".to_vec(), artifact_of("/hello", file, "local"), "directory"),
    ] {
        let (server, ground) = (Server::giving(bytes), TestEnv::new());
        let error = herdlet_base::error::in_full(&ground.up(&[wanted(&server)]).await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert_eq!(ground.files().len(), 0, "{:?}", ground.files());
    }
}

fn artifact_of(path: &str, mode: ArtifactMode, destination: &str) -> impl Fn(&Server) -> Artifact {
    let (path, destination) = (path.to_owned(), destination.to_owned());
    move |server| Artifact { mode, destination: destination.clone(), ..artifact(server, &path) }
}

/// Several artifacts for one place are merged, and existing files stay unless they have the same name.
#[tokio::test]
async fn artifacts_for_one_place_are_merged() {
    let server = Server::answering(|path| match path {
        "/a.tar" => Server::ok(&good_tar()),
        _ => Server::ok(&good_zip()),
    });
    let ground = TestEnv::new();
    fs::create_dir_all(ground.path("local/pkg/bin")).unwrap();
    fs::write(ground.path("local/pkg/bin/mine"), "mine").unwrap();
    fs::write(ground.path("local/pkg/bin/tool"), "old").unwrap();
    ground.up(&[artifact(&server, "/a.tar"), artifact(&server, "/b.zip")]).await.unwrap();
    assert_eq!(fs::read(ground.path("local/pkg/bin/mine")).unwrap(), b"mine");
    assert_eq!(fs::read(ground.path("local/pkg/bin/tool")).unwrap(), b"#!/bin/sh\n");
    assert!(ground.path("local/pkg/twice").exists());
}

/// As root: the files belong to the task's user, and the unpacking process runs as that user.
#[tokio::test]
async fn artifacts_belong_to_the_task_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (server, ground) = (Server::giving(good_tar()), TestEnv::new());
    let user = Credentials { uid: 65_534, gid: 65_534, groups: vec![65_534], login: Login::default() };
    let recipient = Recipient { dirs: ground.dirs(), user: Some(user) };
    let all = [artifact(&server, "/a.tar"), artifact(&server, "/a?archive=false")];
    let wanted = all.iter().map(resolved).collect();
    ground.fetcher.up(wanted, recipient, &CancellationToken::new()).await.unwrap();
    for path in ["local/pkg", "local/pkg/bin", "local/pkg/bin/tool", "local/a"] {
        let about = ground.path(path).symlink_metadata().unwrap();
        assert_eq!((about.uid(), about.gid()), (65_534, 65_534), "{path}");
    }
}

/// `secrets` is a separate file system that the task's user may write to: its artifacts are staged in `private`.
#[tokio::test]
async fn artifacts_in_secrets_are_staged_in_private() {
    use crate::task_dir::TaskDir;
    use herdlet_base::privileges::{Mounting, Privileges};
    let privileges = Privileges::probe();
    if privileges.mounting == Mounting::Impossible {
        herdlet_base::test_env::leave_out("the right to mount");
        return;
    }
    let ground = TestEnv::new();
    let dir = TaskDir::new(ground.path(""), privileges);
    dir.up().unwrap();
    let mut fetched = Vec::new();
    for (path, bytes) in [("/a.tar", good_tar()), ("/a", b"hello".to_vec()), ("/a.tar", good_tar())] {
        let server = Server::giving(bytes);
        let mut wanted = artifact(&server, path);
        wanted.destination = "secrets/deep".to_owned();
        fetched.push(ground.up(&[wanted]).await.map_err(|error| error.to_string()));
    }
    let files = ground.files();
    let content = fs::read(ground.path("secrets/deep/pkg/bin/alias")).ok();
    dir.down().unwrap();
    assert_eq!(fetched, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(content.as_deref(), Some(&b"#!/bin/sh\n"[..]));
    for (name, mode) in
        [("deep/pkg", 0o750), ("deep/pkg/bin/tool", 0o755), ("deep/pkg/twice", 0o640), ("deep/a", 0o644)]
    {
        assert_eq!(files.get(&format!("secrets/{name}")), Some(&mode), "{name}");
    }
    let left = |name: &&String| name.contains("staging") || name.contains(".new");
    assert_eq!(files.keys().filter(left).count(), 0, "{files:?}");
}
