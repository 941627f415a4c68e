//! Malicious archives.

use std::io::Write as _;

use super::*;

struct Evil(Vec<u8>);

impl Evil {
    /// An entry with unchecked names, which the library itself would refuse.
    fn entry(mut self, path: &str, kind: u8, mode: u32, content: &[u8], link: &str) -> Self {
        let mut header = tar::Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, path: &str) -> Self {
        self.entry(path, b'0', 0o644, b"evil", "")
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, b'2', 0o777, b"", target)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn evil() -> Evil {
    Evil(Vec::new()).file("good")
}

fn evil_zip(name: &str, mode: u32, content: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().unix_permissions(mode);
    zip.start_file("xx".repeat(name.len() / 2) + &"x".repeat(name.len() % 2), options).unwrap();
    zip.write_all(content).unwrap();
    let mut bytes = zip.finish().unwrap().into_inner();
    // The library refuses to write such names.
    let dummy = "x".repeat(name.len()).into_bytes();
    let places: Vec<usize> =
        (0..bytes.len() - dummy.len()).filter(|at| bytes[*at..*at + dummy.len()] == dummy[..]).collect();
    for at in places {
        bytes[at..at + dummy.len()].copy_from_slice(name.as_bytes());
    }
    bytes
}

#[tokio::test]
async fn evil_archives_are_refused_whole() {
    let many = (0..60).fold(evil(), |tar, index| tar.file(&format!("f{index}")));
    let bomb = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let tar = evil().entry("bomb", b'0', 0o644, &vec![0; 3 << 20], "").end();
        encoder.write_all(&tar).unwrap();
        encoder.finish().unwrap()
    };
    let skipped = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for _ in 0..20 {
            encoder
                .write_all(&Evil(Vec::new()).entry("comment", b'g', 0o644, &vec![0; 1 << 20], "").0)
                .unwrap();
        }
        encoder.finish().unwrap()
    };
    let cut = {
        let tar = archives::good_tar();
        tar[..tar.len() - 2600].to_vec()
    };
    for (name, bytes, expected) in [
        ("up.tar", evil().file("../evil").end(), "leads out of the archive"),
        ("inner-up.tar", evil().file("a/../../evil").end(), "leads out of the archive"),
        ("absolute.tar", evil().file("/tmp/evil").end(), "leads out of the archive"),
        ("link-out.tar", evil().link("out", "/etc").end(), "leads out of the archive, to"),
        ("link-up.tar", evil().link("a/out", "../../x").end(), "leads out of the archive, to"),
        (
            "link-round.tar",
            evil().link("a/b", "..").link("a/c", "b/../x").end(),
            "leads out of the archive, to",
        ),
        ("through-link.tar", evil().link("d", ".").file("d/evil").end(), "symbolic link"),
        ("nested-links.tar", evil().link("a", "b").link("b", "c").link("a/x", "y").end(), "symbolic link"),
        (
            "hard-out.tar",
            evil().entry("h", b'1', 0o644, b"", "/etc/passwd").end(),
            "leads out of the archive, to",
        ),
        ("hard-up.tar", evil().entry("h", b'1', 0o644, b"", "../x").end(), "leads out of the archive, to"),
        (
            "hard-link.tar",
            evil().link("l", "good").entry("h", b'1', 0o644, b"", "l").end(),
            "a hard link to something other than a file",
        ),
        ("device.tar", evil().entry("dev", b'3', 0o666, b"", "").end(), "is a device"),
        ("fifo.tar", evil().entry("pipe", b'6', 0o666, b"", "").end(), "is a fifo"),
        ("unknown.tar", evil().entry("what", b'Q', 0o666, b"", "").end(), "of an unknown kind"),
        ("many.tar", many.end(), "more than the 50 entries"),
        ("bomb.tar.gz", bomb.clone(), "more than the 1048576 bytes"),
        ("bomb.gz", bomb, "more than the 1048576 bytes"),
        ("skipped.tgz", skipped, "more bytes than allowed"),
        ("cut.tar", cut, "unpack it: "),
        ("file-as-dir.tar", evil().file("good/x").end(), "is not a directory"),
        ("dir-as-file.tar", evil().file("d/x").file("d").end(), "directory"),
        ("deep.tar", evil().file(&"d/".repeat(45)).end(), ""),
        ("not.tar.gz", b"<html>not found</html>".to_vec(), "unpack it: "),
        ("not.zip", b"PK but not quite".to_vec(), "unpack it: "),
        ("not.tar.xz", b"\xFD7zXZ\0 nonsense that goes on".to_vec(), "unpack it: "),
        ("not.tar.bz2", b"BZh9 nonsense that goes on".to_vec(), "unpack it: "),
        ("not.tar.zst", b"\x28\xB5\x2F\xFD nonsense that goes on".to_vec(), "unpack it: "),
        ("up.zip", evil_zip("../evil", 0o644, b"x"), "leads out of the archive"),
        ("absolute.zip", evil_zip("/tmp/evil", 0o644, b"x"), "leads out of the archive"),
        ("bomb.zip", evil_zip("bomb", 0o644, &vec![0; 2 << 20]), "more than the 1048576 bytes"),
    ] {
        let (server, ground) =
            (Server::giving(bytes), TestEnv::with(Limits { http_bytes_max: 8 << 20, ..LIMITS }));
        fs::write(ground.path("local/kept"), "kept").unwrap();
        let ended = ground.up(&[artifact(&server, &format!("/{name}"))]).await;
        let files: Vec<String> = ground.files().into_keys().collect();
        if expected.is_empty() {
            ended.unwrap_or_else(|error| panic!("{name}: {error}"));
            continue;
        }
        let error = herdlet_base::error::in_full(&ended.unwrap_err());
        assert!(error.contains(expected), "{name}: {error}");
        assert_eq!(files, ["local/kept"], "{name}");
        let staged = fs::read_dir(ground.temp.path().join(staging::NAME)).unwrap().count();
        let outside = fs::read_dir(ground.temp.path()).unwrap().count();
        assert_eq!((outside, staged, Path::new("/tmp/evil").exists()), (3, 0, false), "{name}");
    }
}

/// Links planted by an earlier artifact or a task don't lead a later one outside.
#[tokio::test]
async fn a_planted_link_is_not_followed() {
    let (server, ground) = (Server::giving(archives::good_tar()), TestEnv::new());
    std::os::unix::fs::symlink(ground.temp.path(), ground.path("local/way")).unwrap();
    std::os::unix::fs::symlink("/etc", ground.path("local/pkg")).unwrap();
    let mut through = artifact(&server, "/a.tar");
    through.destination = "local/way/out".to_owned();
    assert!(ground.up(&[through]).await.unwrap_err().to_string().contains("symbolic link"));
    let error = ground.up(&[artifact(&server, "/a.tar")]).await.unwrap_err();
    assert!(error.to_string().contains("is not a directory"), "{error}");
    assert!(!ground.temp.path().join("out").exists() && !Path::new("/etc/twice").exists());
    // A file replaces a link, and the link's target stays.
    let plain = Server::giving(b"new".to_vec());
    fs::write(ground.path("local/old"), "old").unwrap();
    std::os::unix::fs::symlink("old", ground.path("local/name")).unwrap();
    ground.up(&[artifact(&plain, "/name")]).await.unwrap();
    assert_eq!(fs::read(ground.path("local/old")).unwrap(), b"old");
    assert_eq!(fs::read(ground.path("local/name")).unwrap(), b"new");
}
