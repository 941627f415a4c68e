//! Layers, unpacked by the process as in the agent. As root: other users can't make what layers have.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest;
use herdlet_base::{artifact::checksum::hex, test_env::is_root};

use super::*;
use crate::fixture::{TarEntry, TarText};

/// Entry point of the process, if this test is started as it.
#[test]
fn the_process_that_unpacks() {
    let Some(order) = std::env::args().next_back().filter(|last| last.starts_with('{')) else { return };
    #[expect(clippy::disallowed_methods, reason = "as a program ends")]
    std::process::exit(i32::from(execute(&order)));
}

struct UnpackedLayer {
    temp: tempfile::TempDir,
    result: Result<LayerReport, UnpackError>,
}

impl UnpackedLayer {
    fn path(&self, path: &str) -> PathBuf {
        self.temp.path().join("layer/tree").join(path)
    }

    fn about(&self, path: &str) -> fs::Metadata {
        fs::symlink_metadata(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn attribute(&self, path: &str, name: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 1024];
        let len = rustix::fs::lgetxattr(self.path(path), name, &mut value[..]).ok()?;
        value.truncate(len);
        Some(value)
    }

    fn is_white(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path))
            .is_ok_and(|about| about.file_type().is_char_device() && about.rdev() == 0)
    }

    fn is_opaque(&self, path: &str) -> bool {
        self.attribute(path, "trusted.overlay.opaque").as_deref() == Some(b"y")
    }

    fn why(&self) -> String {
        self.result.as_ref().map_or_else(ToString::to_string, |report| panic!("it was unpacked: {report:?}"))
    }
}

const BYTES_MAX: u64 = 1 << 20;

async fn unpack_with(bytes: &[u8], codec: Codec) -> UnpackedLayer {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("layer")).unwrap();
    fs::write(temp.path().join("outside"), "outside").unwrap();
    let path = temp.path().join("archive");
    fs::write(&path, bytes).unwrap();
    let order = LayerOrder {
        codec,
        algorithm: Algorithm::Sha256,
        bytes_max: BYTES_MAX,
        entries_max: 100,
        seconds_max: 600,
    };
    let into = Dir::open(&temp.path().join("layer")).unwrap();
    let unpacker = Unpacker::of_test("tests::the_process_that_unpacks");
    let archive = File::open(path).unwrap();
    let unpacked = unpacker.unpack_layer(archive, &into, &order, &CancellationToken::new()).await;
    let result = unpacked.and_then(|()| finish_layer(&into).map(|(_, report)| report));
    assert_eq!(fs::read_to_string(temp.path().join("outside")).unwrap(), "outside");
    UnpackedLayer { temp, result }
}

async fn unpack(tar: TarText) -> UnpackedLayer {
    unpack_with(&tar.finish(), Codec::Plain).await
}

#[tokio::test]
async fn a_layer_keeps_what_belongs_to_its_files() {
    if !is_root() {
        return;
    }
    let capability: &[u8] = &[1, 0, 0, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let entry = |path, kind, mode, owner| TarEntry {
        path,
        kind,
        mode,
        owner,
        modified_at: 1_000_000,
        ..TarEntry::default()
    };
    let tar = TarText::new()
        .entry(&entry("./", b'5', 0o750, (5, 6)))
        .entry(&entry("shut", b'5', 0o1000, (7, 8)))
        .entry(&TarEntry { content: b"#!", ..entry("shut/su", b'0', 0o6755, (7, 8)) })
        .entry(&TarEntry {
            attributes: &[
                ("security.capability", capability),
                ("user.note", b"a\nb"),
                ("user.overlay.opaque", b"y"),
                ("trusted.overlay.opaque", b"y"),
                ("security.selinux", b"label"),
            ],
            ..entry("ping", b'0', 0o755, (0, 0))
        })
        .entry(&TarEntry { target: "/etc/passwd", ..entry("link", b'2', 0o777, (9, 9)) })
        .hard_link("again", "shut/su")
        .hard_link("link again", "link")
        .entry(&entry("pipe", b'6', 0o622, (3, 4)))
        .entry(&entry("/opt/absolute", b'0', 0o604, (0, 0)));
    let unpacked = unpack(tar.clone()).await;
    let report = unpacked.result.as_ref().unwrap();
    let sha256 = digest::digest(&digest::SHA256, &tar.finish());
    assert_eq!(report.digest, format!("sha256:{}", hex(sha256.as_ref())));
    assert_eq!((report.bytes, report.skipped), (2, 0));
    let seen = |path: &str| {
        let about = unpacked.about(path);
        (about.mode() & 0o7777, about.uid(), about.gid(), about.mtime())
    };
    assert_eq!(seen(""), (0o750, 5, 6, 1_000_000));
    assert_eq!(seen("shut"), (0o1000, 7, 8, 1_000_000));
    assert_eq!(seen("shut/su"), (0o6755, 7, 8, 1_000_000));
    assert_eq!(unpacked.about("again").ino(), unpacked.about("shut/su").ino());
    assert_eq!(unpacked.about("link again").ino(), unpacked.about("link").ino());
    assert_eq!(seen("link"), (0o777, 9, 9, 1_000_000));
    assert_eq!(fs::read_link(unpacked.path("link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(seen("pipe"), (0o622, 3, 4, 1_000_000));
    assert!(unpacked.about("pipe").file_type().is_fifo());
    assert_eq!(seen("opt/absolute").0, 0o604);
    assert_eq!(unpacked.attribute("ping", "security.capability").as_deref(), Some(capability));
    for dropped in ["user.overlay.opaque", "trusted.overlay.opaque"] {
        assert_eq!(unpacked.attribute("ping", dropped), None, "{dropped}");
    }
    assert_ne!(unpacked.attribute("ping", "security.selinux").as_deref(), Some(&b"label"[..]));
    let note = unpacked.attribute("ping", "user.note");
    assert!(note.is_none() || note.as_deref() == Some(b"a\nb"), "{note:?}");
}

#[tokio::test]
async fn removed_files_become_marks_of_overlays() {
    if !is_root() {
        return;
    }
    let old = TarEntry { kind: b'5', mode: 0o755, modified_at: 1_000_000, ..TarEntry::default() };
    let tar = TarText::new()
        .entry(&TarEntry { path: "d", ..old.clone() })
        .file("d/.wh.gone", b"")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/new", b"new")
        .file(".wh.replaced", b"")
        .file("replaced/new", b"new")
        .file("file", b"new")
        .file(".wh.file", b"")
        .file("implicit/deep/.wh.x", b"")
        .directory(".wh..wh.plnk")
        .file(".wh..wh.plnk/1.2", b"")
        .file(".wh..wh.aufs", b"");
    let unpacked = unpack(tar).await;
    unpacked.result.as_ref().unwrap();
    assert!(unpacked.is_white("d/gone") && unpacked.is_white("implicit/deep/x"));
    assert_eq!(unpacked.about("d").mtime(), 1_000_000);
    assert!(unpacked.is_opaque("opaque") && unpacked.is_opaque("replaced") && !unpacked.is_opaque("d"));
    assert_eq!(fs::read_to_string(unpacked.path("file")).unwrap(), "new");
    let names: Vec<_> =
        fs::read_dir(unpacked.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with(".wh.")), "{names:?}");
    assert!(!unpacked.temp.path().join("layer/marks").exists());
}

#[tokio::test]
async fn devices_are_left_out() {
    if !is_root() {
        return;
    }
    let device = |path, kind| TarEntry { path, kind, mode: 0o666, ..TarEntry::default() };
    let tar = TarText::new()
        .directory("dev")
        .entry(&device("dev/sda", b'4'))
        .entry(&device("dev/white", b'3'))
        .entry(&device("socket", b's'));
    let unpacked = unpack(tar).await;
    assert_eq!(unpacked.result.as_ref().unwrap().skipped, 3);
    assert_eq!(fs::read_dir(unpacked.path("dev")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_later_entry_replaces_an_earlier_one() {
    if !is_root() {
        return;
    }
    let tar = TarText::new()
        .symlink("a", "/etc")
        .directory("a")
        .file("a/passwd", b"own")
        .file("b", b"one")
        .symlink("b", "c")
        .file("c", b"one")
        .file("c", b"two");
    let unpacked = unpack(tar).await;
    unpacked.result.as_ref().unwrap();
    assert_eq!(fs::read_to_string(unpacked.path("a/passwd")).unwrap(), "own");
    assert_eq!(fs::read_to_string(unpacked.path("b")).unwrap(), "two");
}

#[tokio::test]
async fn hostile_layer_is_refused() {
    if !is_root() {
        return;
    }
    let long = format!("{}x", "a/".repeat(3000));
    let deep = format!("{}x", "a/".repeat(300));
    for (name, tar, why) in [
        ("up", TarText::new().file("../outside", b"x"), "leads out"),
        ("up in the middle", TarText::new().file("a/../../outside", b"x"), "leads out"),
        (
            "a link to a directory",
            TarText::new().symlink("a", "../..").file("a/outside", b"x"),
            "symbolic link",
        ),
        ("an absolute link", TarText::new().symlink("a", "/tmp").file("a/outside", b"x"), "symbolic link"),
        ("a hard link up", TarText::new().hard_link("a", "../../outside"), "leads out"),
        (
            "a hard link through a link",
            TarText::new().symlink("a", "../..").hard_link("b", "a/outside"),
            "symbolic link",
        ),
        ("a hard link to what is missing", TarText::new().hard_link("b", "/etc/passwd"), "hard link"),
        ("a hard link to a directory", TarText::new().directory("a").hard_link("b", "a"), "hard link"),
        ("a link without a target", TarText::new().symlink("a", ""), "no target"),
        ("a whiteout up", TarText::new().file("../.wh.outside", b""), "leads out"),
        ("a whiteout of the parent", TarText::new().file("a/.wh...", b""), "leads out"),
        ("a whiteout of itself", TarText::new().file("a/.wh..", b""), "leads out"),
        ("a whiteout of nothing", TarText::new().file("a/.wh.", b""), "leads out"),
        (
            "a whiteout through a link",
            TarText::new().symlink("a", "../..").file("a/.wh.outside", b""),
            "symbolic link",
        ),
        ("an opaque link", TarText::new().symlink("a", "../..").file("a/.wh..wh..opq", b""), "symbolic link"),
        ("an opaque parent", TarText::new().file("../.wh..wh..opq", b""), "leads out"),
        ("a file below a file", TarText::new().file("a", b"").file("a/b", b""), "not a directory"),
        ("a long path", TarText::new().file(&long, b""), "nested too deep"),
        ("a deep path", TarText::new().file(&deep, b""), "nested too deep"),
        ("a long name", TarText::new().file(&"n".repeat(300), b""), "name too long"),
    ] {
        let unpacked = unpack(tar).await;
        assert!(unpacked.why().to_lowercase().contains(why), "{name}: {}", unpacked.why());
    }
}

#[tokio::test]
async fn a_layer_has_bounds() {
    if !is_root() {
        return;
    }
    let many = (0..200).fold(TarText::new(), |tar, number| tar.file(&number.to_string(), b""));
    assert!(unpack(many).await.why().contains("more than the 100 entries"));
    let large = TarText::new().file("a", &vec![1; 1_200_000]).finish();
    assert!(matches!(unpack_with(&large, Codec::Plain).await.result, Err(UnpackError::TooLarge { .. })));
    // A bomb: 64 MiB of zeros in 64 KiB.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut bomb = tar::Header::new_gnu();
    bomb.set_path("bomb").unwrap();
    bomb.set_mode(0o644);
    bomb.set_size(1 << 26);
    bomb.set_cksum();
    encoder.write_all(bomb.as_bytes()).unwrap();
    (0..64).for_each(|_| encoder.write_all(&vec![0; 1 << 20]).unwrap());
    let bomb = encoder.finish().unwrap();
    let unpacked = unpack_with(&bomb, Codec::Gzip).await;
    assert!(matches!(unpacked.result, Err(UnpackError::TooLarge { .. })), "{:?}", unpacked.result);
    // Zeros behind the end of the tar, which the digest covers.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..64).for_each(|_| encoder.write_all(&vec![0; 1 << 20]).unwrap());
    let unpacked = unpack_with(&encoder.finish().unwrap(), Codec::Gzip).await;
    assert!(unpacked.why().contains("more bytes than allowed"), "{}", unpacked.why());
}

/// The process could have been taken over: the agent does not trust its list either.
#[test]
fn a_hostile_list_of_marks_is_refused() {
    if !is_root() {
        return;
    }
    let lists: BTreeMap<&str, &[u8]> = BTreeMap::from([
        ("up", &b"w../outside\0"[..]),
        ("up to a directory", b"o..\0"),
        ("a link", b"wlink/outside\0"),
        ("an opaque link", b"olink\0"),
        ("an unknown mark", b"x\0"),
        ("a number", b"s-1\0"),
    ]);
    for (name, list) in lists {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("layer/tree")).unwrap();
        std::os::unix::fs::symlink("../..", temp.path().join("layer/tree/link")).unwrap();
        fs::write(temp.path().join("layer/marks"), list).unwrap();
        let made = finish_layer(&Dir::open(&temp.path().join("layer")).unwrap());
        assert!(made.is_err(), "{name}");
        assert!(
            !temp.path().join("outside").exists() && !temp.path().join("layer/outside").exists(),
            "{name}"
        );
    }
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("layer/tree")).unwrap();
    fs::write(temp.path().join("list"), b"wx\0").unwrap();
    std::os::unix::fs::symlink("../list", temp.path().join("layer/marks")).unwrap();
    assert!(finish_layer(&Dir::open(&temp.path().join("layer")).unwrap()).is_err());
}
