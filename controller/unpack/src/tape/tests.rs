//! Tars as programs write them, and such that none does.

use super::*;
use crate::fixture::{TarEntry, TarText};

type ReadEntry = (String, Kind, Vec<u8>);

fn read(tar: &[u8]) -> io::Result<Vec<ReadEntry>> {
    let mut tape = TapeReader::new(tar);
    let mut found = Vec::new();
    while let Some(entry) = tape.next_entry()? {
        let mut content = Vec::new();
        tape.content().read_to_end(&mut content)?;
        found.push((entry.path.to_string_lossy().into_owned(), entry.kind, content));
    }
    Ok(found)
}

fn found(path: &str, kind: Kind, content: &[u8]) -> ReadEntry {
    (path.to_owned(), kind, content.to_vec())
}

#[test]
fn entries_of_all_kinds_are_read() {
    let long = "d/".repeat(200) + "f";
    let tar = TarText::new()
        .directory("d/")
        .file("d/f", b"hello")
        .file(&long, &[7; 1024])
        .symlink("l", "d/f")
        .hard_link("h", "d/f")
        .entry(&TarEntry { path: "p", kind: b'6', ..TarEntry::default() })
        .entry(&TarEntry { path: "c", kind: b'3', ..TarEntry::default() })
        .entry(&TarEntry { path: "old/", kind: 0, ..TarEntry::default() })
        .entry(&TarEntry { path: "?", kind: b'Z', content: b"skipped", ..TarEntry::default() })
        .file("last", b"x");
    let expected = [
        found("d/", Kind::Directory, b""),
        found("d/f", Kind::File, b"hello"),
        found(&long, Kind::File, &[7; 1024]),
        found("l", Kind::Symlink, b""),
        found("h", Kind::HardLink, b""),
        found("p", Kind::Fifo, b""),
        found("c", Kind::Device, b""),
        found("old/", Kind::Directory, b""),
        found("?", Kind::Unknown, b"skipped"),
        found("last", Kind::File, b"x"),
    ];
    assert_eq!(read(&tar.clone().finish()).unwrap(), expected);
    // Without its end, and with bytes behind it.
    let cut = tar.clone().finish();
    assert_eq!(read(&cut[..cut.len() - 1024]).unwrap(), expected);
    assert_eq!(read(&[tar.finish(), vec![1; 700]].concat()).unwrap(), expected);
}

#[test]
fn unread_contents_are_skipped() {
    let tar = TarText::new().file("a", &[1; 70_000]).file("b", b"b").finish();
    let mut tape = TapeReader::new(&*tar);
    tape.next_entry().unwrap();
    let mut begin = [0; 10];
    tape.content().read_exact(&mut begin).unwrap();
    assert_eq!(tape.next_entry().unwrap().unwrap().path, std::path::Path::new("b"));
    assert!(tape.next_entry().unwrap().is_none());
}

#[test]
fn extended_headers_change_the_next_entry_only() {
    let capability: &[u8] = &[1, 0, 0, 2, b'\n', 0, 0, 0];
    let tar = TarText::new()
        .entry(&TarEntry { path: "pax", kind: b'g', content: b"9 a=bcde\n", ..TarEntry::default() })
        .entry(&TarEntry {
            path: "x",
            kind: b'x',
            content: b"11 path=yz\n22 mtime=12.000000005\n13 uid=70000\n",
            ..TarEntry::default()
        })
        .file("short", b"1")
        .entry(&TarEntry {
            path: "cap",
            attributes: &[("security.capability", capability), ("user.a", b"b")],
            owner: (3, 4),
            ..TarEntry::default()
        })
        .finish();
    let mut tape = TapeReader::new(&*tar);
    let first = tape.next_entry().unwrap().unwrap();
    assert_eq!((first.path, first.owner), ("yz".into(), Some((70_000, 0))));
    assert_eq!(first.modified_at, Some((12, 5)));
    let second = tape.next_entry().unwrap().unwrap();
    assert_eq!((second.path, second.owner, second.modified_at), ("cap".into(), Some((3, 4)), Some((1, 0))));
    let expected =
        [(b"security.capability".to_vec(), capability.to_vec()), (b"user.a".to_vec(), b"b".to_vec())];
    assert_eq!(second.attributes, expected);
}

/// A file with parts at 512 and 4096, in GNU's old format.
fn sparse(parts: &[(u64, u64)], stored: &[u8], real_size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_size(u64::try_from(stored.len()).unwrap());
    let gnu = header.as_gnu_mut().unwrap();
    for (entry, (at, len)) in gnu.sparse.iter_mut().zip(parts) {
        entry.set_offset(*at);
        entry.set_length(*len);
    }
    gnu.set_real_size(real_size);
    header.set_cksum();
    TarText::new()
        .raw(header.as_bytes())
        .raw(stored)
        .raw(&vec![0; stored.len().next_multiple_of(512) - stored.len()])
        .finish()
}

#[test]
fn holes_are_zeros() {
    let tar = sparse(&[(512, 3), (4096, 2), (5000, 0)], b"abcde", 5000);
    let mut expected = vec![0; 5000];
    expected[512..515].copy_from_slice(b"abc");
    expected[4096..4098].copy_from_slice(b"de");
    assert_eq!(read(&tar).unwrap(), [found("sparse", Kind::File, &expected)]);
    assert_eq!(read(&sparse(&[], b"", 3)).unwrap(), [found("sparse", Kind::File, &[0; 3])]);
    for (parts, real_size) in [
        (&[(512, 3), (100, 2)][..], 5000),
        (&[(512, 6)], 5000),
        (&[(512, 5)], 100),
        (&[(u64::MAX - 1, 5)], u64::MAX),
    ] {
        assert!(read(&sparse(parts, b"abcde", real_size)).is_err(), "{parts:?}");
    }
}

#[test]
fn an_invalid_tar_is_refused() {
    let good = TarText::new().file("a", &[1; 1000]).finish();
    let mut wrong_sum = good.clone();
    wrong_sum[0] = b'b';
    for (tar, why) in [
        (&good[..600], "cut in a content"),
        (&good[..100], "cut in a header"),
        (&wrong_sum[..], "a checksum"),
        (&[b'x'; 4096][..], "no tar"),
    ] {
        assert!(read(tar).is_err(), "{why}");
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(1 << 40);
    header.set_cksum();
    assert!(read(header.as_bytes()).is_err(), "a huge extended header");
}

/// What Go's `archive/tar` reads, with which registries and builders check images.
#[test]
fn ends_and_names_are_those_of_go() {
    let tar = TarText::new().file("a", b"1").finish();
    let one = tar.len() - tar.iter().rev().take_while(|byte| **byte == 0).count();
    let header_end = one.next_multiple_of(512);
    let block = |byte: u8| vec![byte; 512];
    let with = |blocks: &[Vec<u8>]| [&tar[..header_end], &blocks.concat()].concat();
    for (blocks, is_read) in [
        (vec![], true),
        (vec![block(0)], true),
        (vec![block(0), block(0), block(7)], true),
        (vec![block(0), tar[..512].to_vec()], false),
        (vec![block(0), vec![0; 100]], false),
    ] {
        assert_eq!(read(&with(&blocks)).is_ok(), is_read, "{} blocks", blocks.len());
    }
    let named = TarText::new()
        .entry(&TarEntry { path: "././@LongLink", kind: b'L', content: b"of-gnu\0", ..TarEntry::default() })
        .entry(&TarEntry { path: "x", kind: b'x', content: b"15 path=of-pax\n", ..TarEntry::default() })
        .file("short", b"1")
        .finish();
    let first = TapeReader::new(&*named).next_entry().unwrap().unwrap();
    assert_eq!(first.path, std::path::Path::new("of-gnu"));
}
