//! Information about a file: Nomad's `AllocFileInfo` (`client/allocdir`).

use std::{fs::File, io, os::unix::fs::FileExt as _};

use herdlet_api_types::{UnixNanos, nomad::FileInfo, rfc3339::rfc3339};
use rustix::fs::{FileType, Stat};

/// The content type depends on this many bytes.
const SAMPLE_BYTES: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub name: String,
    pub is_dir: bool,
    /// In bytes.
    pub size: u64,
    /// In the notation of Go's `FileMode`.
    pub mode: String,
    pub modified: UnixNanos,
    /// Only for a single file.
    pub content_type: Option<&'static str>,
}

impl From<Info> for FileInfo {
    fn from(info: Info) -> Self {
        Self {
            name: info.name,
            is_dir: info.is_dir,
            size: info.size,
            file_mode: info.mode,
            mod_time: rfc3339(info.modified),
            content_type: info.content_type.map(str::to_owned),
        }
    }
}

/// Information about an entry of a directory.
pub(super) fn of(name: String, stat: &Stat) -> Info {
    let modified = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add_unsigned(stat.st_mtime_nsec);
    Info {
        name,
        is_dir: FileType::from_raw_mode(stat.st_mode).is_dir(),
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: mode(stat.st_mode),
        modified: UnixNanos(modified),
        content_type: None,
    }
}

/// Guesses the content type: text or bytes.
pub(super) fn content_type(file: &File) -> io::Result<&'static str> {
    let mut sample = [0; SAMPLE_BYTES];
    let length = file.read_at(&mut sample, 0)?;
    let sample = &sample[..length];
    let is_text = match std::str::from_utf8(sample) {
        Ok(_) => !sample.contains(&0),
        // A character may continue after the sample.
        Err(error) => error.error_len().is_none() && length == SAMPLE_BYTES,
    };
    Ok(if is_text { "text/plain; charset=utf-8" } else { "application/octet-stream" })
}

/// Type and permissions in the notation of Go's `FileMode`: letters for special bits, then
/// `rwxrwxrwx`.
fn mode(mode: u32) -> String {
    let mut text = String::new();
    match FileType::from_raw_mode(mode) {
        FileType::Directory => text.push('d'),
        FileType::Symlink => text.push('L'),
        FileType::BlockDevice => text.push('D'),
        FileType::CharacterDevice => text.push_str("Dc"),
        FileType::Fifo => text.push('p'),
        FileType::Socket => text.push('S'),
        FileType::RegularFile => {}
        FileType::Unknown => text.push('?'),
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (place, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> place) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_go_does() {
        for (raw, expected) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o020_620, "Dcrw--w----"),
            (0o010_600, "prw-------"),
            (0o104_755, "urwxr-xr-x"),
        ] {
            assert_eq!(mode(raw), expected);
        }
    }
}
