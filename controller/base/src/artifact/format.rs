//! Archive formats and their names.
//!
//! In: the path of a URL, or a name. Out: a format. This module does not read archives.

use serde::{Deserialize, Serialize};

/// The format of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Files in a tar, compressed or uncompressed.
    Tar(Codec),
    /// Files in a zip.
    Zip,
    One(Codec),
}

/// Compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    Plain,
    /// RFC 1952.
    Gzip,
    /// bzip2.
    Bzip2,
    Xz,
    /// RFC 8878.
    Zstd,
}

const NAMES: [(&str, Format); 14] = [
    ("bz2", Format::One(Codec::Bzip2)),
    ("gz", Format::One(Codec::Gzip)),
    ("tar", Format::Tar(Codec::Plain)),
    ("tar.bz2", Format::Tar(Codec::Bzip2)),
    ("tar.gz", Format::Tar(Codec::Gzip)),
    ("tar.xz", Format::Tar(Codec::Xz)),
    ("tar.zst", Format::Tar(Codec::Zstd)),
    ("tbz2", Format::Tar(Codec::Bzip2)),
    ("tgz", Format::Tar(Codec::Gzip)),
    ("txz", Format::Tar(Codec::Xz)),
    ("tzst", Format::Tar(Codec::Zstd)),
    ("xz", Format::One(Codec::Xz)),
    ("zip", Format::Zip),
    ("zst", Format::One(Codec::Zstd)),
];

impl Format {
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    pub fn names() -> [&'static str; 14] {
        NAMES.map(|(name, _)| name)
    }

    /// The format by the path's extension; the longest match wins.
    pub fn of_path(path: &str) -> Option<Self> {
        let ends =
            |(name, _): &&(&str, Self)| path.strip_suffix(name).is_some_and(|stem| stem.ends_with('.'));
        NAMES.iter().filter(ends).max_by_key(|(name, _)| name.len()).map(|(_, format)| *format)
    }

    /// The file name after decompression.
    pub fn stem_of(self, file_name: &str) -> &str {
        let names = NAMES.iter().filter(|(_, format)| *format == self);
        let stems = names.filter_map(|(name, _)| file_name.strip_suffix(name)?.strip_suffix('.'));
        stems.min_by_key(|stem| stem.len()).filter(|stem| !stem.is_empty()).unwrap_or(file_name)
    }
}
