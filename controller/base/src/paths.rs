//! Paths of all files: each is a function of the state directory, the runtime directory and ids.
//!
//! User-supplied path components are percent-encoded, so that no name can leave its directory.

use std::path::{Path, PathBuf};

use herdlet_api_types::AllocId;

/// The directory that all tasks of an allocation share, in the allocation's directory.
pub const SHARED: &str = "alloc";

/// The directories of one instance.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Durable state: database, accepted files, keys, allocation directories, volumes.
    pub state: PathBuf,
    /// Data that lasts until the next boot: attempt records, sockets.
    pub runtime: PathBuf,
}

impl Paths {
    /// `<state>/state.db`.
    pub fn database(&self) -> PathBuf {
        self.state.join("state.db")
    }

    /// `<state>/accepted`: job versions as plain files, from which a lost database is rebuilt.
    pub fn accepted(&self) -> PathBuf {
        self.state.join("accepted")
    }

    /// `<state>/keys`: signing keys, 0700.
    pub fn keys(&self) -> PathBuf {
        self.state.join("keys")
    }

    /// `<state>/node`: the identity of this machine as a node of a cluster, 0700.
    pub fn node(&self) -> PathBuf {
        self.state.join("node")
    }

    /// `<state>/node/tokens/<id>`: tokens that servers have signed for an allocation's tasks.
    pub fn server_tokens(&self, id: &AllocId) -> PathBuf {
        self.node().join("tokens").join(id.to_string())
    }

    /// `<state>/node/identities/<id>`: identities that servers have signed for an allocation's tasks, one file per
    /// task.
    pub fn server_identities(&self, id: &AllocId) -> PathBuf {
        self.node().join("identities").join(id.to_string())
    }

    /// `<state>/node/disks/<id>`: the token that lets an allocation take over its predecessor's disk.
    pub fn disk_token(&self, id: &AllocId) -> PathBuf {
        self.node().join("disks").join(id.to_string())
    }

    /// The directories with a file or directory for each allocation that servers have given something.
    pub fn given_by_servers(&self) -> [PathBuf; 3] {
        ["tokens", "identities", "disks"].map(|dir| self.node().join(dir))
    }

    /// `<state>/alloc`: all allocation directories.
    pub fn allocs(&self) -> PathBuf {
        self.state.join("alloc")
    }

    /// `<state>/alloc/<id>`: one allocation's directory (Nomad's ALLOC).
    pub fn alloc(&self, id: &AllocId) -> PathBuf {
        self.allocs().join(id.to_string())
    }

    pub fn shared(&self, id: &AllocId) -> PathBuf {
        self.alloc(id).join("alloc")
    }

    pub fn logs(&self, id: &AllocId) -> PathBuf {
        self.shared(id).join("logs")
    }

    /// One task's directory (Nomad's TASKDIR).
    pub fn task(&self, id: &AllocId, task: &str) -> PathBuf {
        self.alloc(id).join(encode(task))
    }

    /// `<state>/volumes/<name>`: data of a volume made by the plugin `mkdir`.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.state.join("volumes").join(encode(name))
    }

    /// `<runtime>/attempts`: one record per task attempt.
    pub fn attempts(&self) -> PathBuf {
        self.runtime.join("attempts")
    }
}

/// `<alloc>.<task>.<n>`: the name of an attempt's record and cgroup.
pub fn attempt_name(alloc: &AllocId, task: &str, attempt: u32) -> String {
    format!("{alloc}.{}.{attempt}", encode(task))
}

/// Parses an attempt's name.
pub fn parse_attempt_name(name: &str) -> Option<(AllocId, String, u32)> {
    let (rest, attempt) = name.rsplit_once('.')?;
    let (alloc, task) = rest.split_once('.')?;
    let (alloc, task, attempt) = (AllocId(alloc.parse().ok()?), decode(task)?, attempt.parse().ok()?);
    // Numbers and ids have several spellings; only ours is accepted.
    (attempt_name(&alloc, &task, attempt) == name).then_some((alloc, task, attempt))
}

/// Percent-encodes everything but letters, digits, `-` and `_`, so that the result is one plain path component without
/// a dot.
pub fn encode(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Decodes [`encode`]d text; `None` for text that it never produces.
pub fn decode(part: &str) -> Option<String> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok().filter(|text| encode(text) == part)
}

/// Ids of the allocations that have a directory.
pub fn alloc_ids(allocs: &Path) -> Vec<AllocId> {
    let Ok(entries) = std::fs::read_dir(allocs) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| Some(AllocId(name.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_names_are_read_back_whatever_the_task_is_called() {
        let alloc = AllocId::from_hash([7; 16]);
        for task in ["httpd", "a.b", "ü/..", "%41", ""] {
            let name = attempt_name(&alloc, task, 12);
            assert!(!name.contains('/'), "{name}");
            assert_eq!(parse_attempt_name(&name), Some((alloc, task.to_owned(), 12)));
        }
        assert_eq!(parse_attempt_name("rubbish"), None);
    }

    // A second name for the same thing was mistaken for the first, and removed instead of it.
    #[test]
    fn a_name_has_one_spelling() {
        for odd in ["%+F", "%2f", "%61", "a.b", "ü", "a/b", "%", "%4"] {
            assert_eq!(decode(odd), None, "{odd}");
        }
        let name = attempt_name(&AllocId::from_hash([0xab; 16]), "t", 1);
        assert!(parse_attempt_name(&name).is_some());
        for odd in [name.to_uppercase(), name.replace(".1", ".+1"), name.replace(".1", ".01")] {
            assert_eq!(parse_attempt_name(&odd), None, "{odd}");
        }
    }
}
