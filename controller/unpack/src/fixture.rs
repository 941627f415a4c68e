//! Tars for tests, also such that no program writes.

#![expect(clippy::unwrap_used, reason = "only tests see this")]

use tar::{EntryType, Header};

/// A tar being written.
#[derive(Debug, Clone, Default)]
pub struct TarText {
    bytes: Vec<u8>,
}

/// An entry; the default is an empty file of root.
#[derive(Debug, Clone)]
pub struct TarEntry<'e> {
    pub path: &'e str,
    pub kind: u8,
    pub mode: u32,
    pub owner: (u64, u64),
    pub content: &'e [u8],
    pub target: &'e str,
    pub modified_at: u64,
    /// Names and values of extended attributes.
    pub attributes: &'e [(&'e str, &'e [u8])],
}

impl Default for TarEntry<'_> {
    fn default() -> Self {
        Self {
            path: "",
            kind: b'0',
            mode: 0o644,
            owner: (0, 0),
            content: b"",
            target: "",
            modified_at: 1,
            attributes: &[],
        }
    }
}

impl TarText {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn file(self, path: &str, content: &[u8]) -> Self {
        self.entry(&TarEntry { path, content, ..TarEntry::default() })
    }

    #[must_use]
    pub fn directory(self, path: &str) -> Self {
        self.entry(&TarEntry { path, kind: b'5', mode: 0o755, ..TarEntry::default() })
    }

    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(&TarEntry { path, kind: b'2', mode: 0o777, target, ..TarEntry::default() })
    }

    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(&TarEntry { path, kind: b'1', target, ..TarEntry::default() })
    }

    /// Adds an entry as it is, without checks of its names.
    #[must_use]
    pub fn entry(mut self, entry: &TarEntry<'_>) -> Self {
        if !entry.attributes.is_empty() {
            let records: Vec<u8> =
                entry.attributes.iter().flat_map(|(name, value)| record(name, value)).collect();
            self =
                self.entry(&TarEntry { path: "pax", kind: b'x', content: &records, ..TarEntry::default() });
        }
        if entry.path.len() > 100 {
            let content = entry.path.as_bytes();
            self = self.entry(&TarEntry { path: "long", kind: b'L', content, ..TarEntry::default() });
        }
        let mut header = Header::new_gnu();
        let name = entry.path.as_bytes();
        let len = name.len().min(100);
        header.as_old_mut().name[..len].copy_from_slice(&name[..len]);
        header.as_old_mut().linkname[..entry.target.len()].copy_from_slice(entry.target.as_bytes());
        header.set_entry_type(EntryType::new(entry.kind));
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.0);
        header.set_gid(entry.owner.1);
        header.set_mtime(entry.modified_at);
        header.set_size(u64::try_from(entry.content.len()).unwrap());
        header.set_cksum();
        self.raw(header.as_bytes()).raw(entry.content).padded()
    }

    /// Adds any bytes.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    #[must_use]
    fn padded(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The tar with its end.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}

/// A record of an extended header, for an extended attribute.
fn record(name: &str, value: &[u8]) -> Vec<u8> {
    let rest = name.len() + value.len() + " SCHILY.xattr.=\n".len();
    let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
    [len.to_string().as_bytes(), b" SCHILY.xattr.", name.as_bytes(), b"=", value, b"\n"].concat()
}
