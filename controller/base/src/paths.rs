//! Paths of all files: each is a function of the state directory, the runtime directory and ids.
//!
//! User-supplied path components are encoded, so that no name can leave its directory, and no two names have the same
//! path. A task's directory and its logs keep the task's name, as in Nomad ([`dir_name`]); other names are
//! percent-encoded ([`encode`]). Where the result would be too long for a file name, its hash replaces it
//! ([`file_name`]).

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{SHA256, digest};
use herdlet_api_types::{AllocId, names::NameKind};

/// The directory that all tasks of an allocation share, in the allocation's directory.
pub const SHARED: &str = "alloc";

/// The agent's own file in an allocation's directory: the allocation with its job, which may have secrets.
pub const SPEC: &str = "alloc.json";

/// The longest path of a socket: `sun_path` has 108 bytes, one of them for the end (unix(7)).
pub const SOCKET_PATH_LEN_MAX: usize = 107;

/// The longest encoded name in a file name; the rest is for prefixes, numbers and suffixes of temporary files.
const ENCODED_LEN_MAX: usize = 180;

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
        self.alloc(id).join(&*self.task_name(id, task))
    }

    /// The name of a task's directory, with which its log files begin too: see [`task_name_in`].
    pub fn task_name<'t>(&self, id: &AllocId, task: &'t str) -> Cow<'t, str> {
        task_name_in(&self.alloc(id), task)
    }

    /// `<state>/volumes/<name>`: data of a volume made by the plugin `mkdir`.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.state.join("volumes").join(file_name(name))
    }

    /// `<state>/csi`: what CSI plugins mount.
    pub fn csi(&self) -> PathBuf {
        self.state.join("csi")
    }

    /// `<runtime>/csi`: directories with the sockets of CSI plugins.
    pub fn csi_sockets(&self) -> PathBuf {
        self.runtime.join("csi")
    }

    /// `<runtime>/api`: short aliases of sockets of the Task API whose paths are too long.
    pub fn api_aliases(&self) -> PathBuf {
        self.runtime.join("api")
    }

    /// The alias of a task's socket in [`Paths::api_aliases`].
    pub fn api_alias(&self, id: &AllocId, task: &str) -> PathBuf {
        self.api_aliases().join(short_name(&id.to_string(), task))
    }

    /// The file that keeps the network namespace of an allocation.
    pub fn network(&self, id: &AllocId) -> PathBuf {
        self.runtime.join("netns").join(id.to_string())
    }

    /// `<runtime>/consul/services`: tokens of Consul that services are registered with, one file per service.
    pub fn service_tokens(&self) -> PathBuf {
        self.runtime.join("consul").join("services")
    }

    /// `<runtime>/consul/owed`: tokens of Consul that are to be logged out.
    pub fn owed_tokens(&self) -> PathBuf {
        self.runtime.join("consul").join("owed")
    }

    /// `<runtime>/attempts`: one record per task attempt.
    pub fn attempts(&self) -> PathBuf {
        self.runtime.join("attempts")
    }
}

/// `<alloc>.<task>.<n>`: the name of an attempt's record and cgroup. A long task name that needs much encoding is kept
/// as it is, after a `~`.
pub fn attempt_name(alloc: &AllocId, task: &str, attempt: u32) -> String {
    let encoded = encode(task);
    if encoded.len() > ENCODED_LEN_MAX && NameKind::Part.accepts(task) {
        return format!("{alloc}.~{task}.{attempt}");
    }
    format!("{alloc}.{encoded}.{attempt}")
}

/// Parses an attempt's name.
pub fn parse_attempt_name(name: &str) -> Option<(AllocId, String, u32)> {
    let (rest, attempt) = name.rsplit_once('.')?;
    let (alloc, task) = rest.split_once('.')?;
    let task = match task.strip_prefix('~') {
        Some(plain) => plain.to_owned(),
        None => decode(task)?,
    };
    let (alloc, attempt) = (AllocId(alloc.parse().ok()?), attempt.parse().ok()?);
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

/// [`encode`]s a name, or hashes it if the result would be too long. A hash cannot be decoded: such a file has to hold
/// its name.
pub fn file_name(name: &str) -> String {
    let encoded = encode(name);
    if encoded.len() > ENCODED_LEN_MAX { hashed(name) } else { encoded }
}

/// `~` and the SHA-256 of a text, in hexadecimal digits.
pub fn hashed(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().fold(String::from("~"), |name, byte| format!("{name}{byte:02x}"))
}

/// The name of a task's directory: the task's name, in which only those characters are percent-encoded that would make
/// it another path, a hidden file, one of the allocation's own entries, or an encoded name.
pub fn dir_name(task: &str) -> Cow<'_, str> {
    let is_ours = task == SHARED || task.starts_with(SPEC);
    let bytes = task.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_plain = |at: usize, byte: u8| match byte {
        b'/' | b'\\' | 0..=0x1f | 0x7f => false,
        b'.' => at > 0,
        b'%' => !(is_hex(at + 1) && is_hex(at + 2)),
        _ => at > 0 || !is_ours,
    };
    if !task.is_empty() && bytes.iter().enumerate().all(|(at, byte)| is_plain(at, *byte)) {
        return Cow::Borrowed(task);
    }
    let mut name = Vec::with_capacity(bytes.len() + 2);
    for (at, byte) in bytes.iter().enumerate() {
        if is_plain(at, *byte) {
            name.push(*byte);
        } else {
            name.extend(format!("%{byte:02X}").bytes());
        }
    }
    // Only whole ASCII bytes were replaced.
    Cow::Owned(String::from_utf8_lossy(&name).into_owned())
}

/// The name of a task's directory in an allocation's directory. Earlier builds percent-encoded the whole name;
/// allocations from then keep their directories.
pub fn task_name_in<'t>(alloc: &Path, task: &'t str) -> Cow<'t, str> {
    let (name, encoded) = (dir_name(task), encode(task));
    let may_be_old = *name != *encoded && encoded != SHARED;
    let is_old = may_be_old && alloc.join(&encoded).symlink_metadata().is_ok();
    if is_old { Cow::Owned(encoded) } else { name }
}

/// The length of a name that distinguishes the sockets of a machine.
const SHORT_LEN: usize = 16;

/// A short name for a task of an allocation, for paths of sockets.
pub fn short_name(alloc: &str, task: &str) -> String {
    let mut name = hashed(&format!("{alloc}/{task}"));
    name.truncate(SHORT_LEN);
    name
}

/// The task whose directory has this name: one that [`dir_name`] or an earlier build returned; `None` for another name.
pub fn task_of(dir: &str) -> Option<String> {
    let mut name = Vec::with_capacity(dir.len());
    let mut left = dir.as_bytes();
    while let [byte, rest @ ..] = left {
        left = rest;
        match (byte, left) {
            (b'%', [high, low, rest @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digits = [*high, *low];
                name.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                left = rest;
            }
            (byte, _) => name.push(*byte),
        }
    }
    String::from_utf8(name).ok().filter(|task| dir_name(task) == dir || encode(task) == dir)
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

    /// Names of tasks: usual ones, and those that a path could misread.
    fn tasks() -> Vec<String> {
        let long = ["ü".repeat(64), ".".repeat(128), "%41".repeat(42), "a b".repeat(42), "~".repeat(128)];
        let short = [
            "httpd",
            "a.b",
            "api_v2.x",
            "a b",
            ".",
            "..",
            ".a",
            "...",
            "%41",
            "%%41",
            "%4",
            "%4%41",
            "%2541",
            "~a",
            "alloc",
            "%61lloc",
            "alloc.json",
            "alloc.json.new",
            ".alloc.json.new",
            "ü/..",
            "a/b",
            "a\\b",
            "a\nb",
            "",
        ];
        short.into_iter().map(str::to_owned).chain(long).collect()
    }

    #[test]
    fn attempt_names_are_read_back_for_any_task_name() {
        let alloc = AllocId::from_hash([7; 16]);
        for task in tasks() {
            let name = attempt_name(&alloc, &task, u32::MAX);
            assert!(!name.contains('/') && name.len() <= 255, "{name}");
            assert_eq!(parse_attempt_name(&name), Some((alloc, task, u32::MAX)));
        }
        assert_eq!(parse_attempt_name("rubbish"), None);
        assert_eq!(parse_attempt_name(&format!("{alloc}.~a.1")), None);
    }

    #[test]
    fn task_directory_name_is_escaped_if_needed() {
        for (task, name) in [
            ("Front_end", "Front_end"),
            ("api_v2.x", "api_v2.x"),
            ("a b", "a b"),
            ("ü", "ü"),
            ("100%", "100%"),
            ("%41", "%2541"),
            (".a", "%2Ea"),
            ("..", "%2E."),
            ("alloc", "%61lloc"),
            ("alloc.json", "%61lloc.json"),
            ("alloc-2", "alloc-2"),
            ("a/b", "a%2Fb"),
            ("", ""),
        ] {
            assert_eq!(dir_name(task), name);
        }
    }

    #[test]
    fn tasks_have_distinct_directories() {
        let mut seen = std::collections::BTreeMap::new();
        for task in tasks().into_iter().filter(|task| !task.is_empty()) {
            let name = dir_name(&task).into_owned();
            assert!(
                !name.contains('/') && !name.starts_with('.') && name != SHARED && name.len() <= 236,
                "{name}"
            );
            assert_eq!(task_of(&name).as_ref(), Some(&task), "{name}");
            assert_eq!(seen.insert(name, task.clone()), None, "{task}");
        }
        // As earlier builds named them.
        assert_eq!(task_of("a%2Eb").as_deref(), Some("a.b"));
        assert_eq!(task_of("a%2fb"), None);
    }

    #[test]
    fn an_allocation_of_an_earlier_build_keeps_its_directories() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().into(), runtime: dir.path().join("run") };
        let (old, new) = (AllocId::from_hash([1; 16]), AllocId::from_hash([2; 16]));
        std::fs::create_dir_all(paths.alloc(&old).join("a%2Eb")).unwrap();
        assert_eq!(paths.task(&old, "a.b"), paths.alloc(&old).join("a%2Eb"));
        assert_eq!(paths.task(&old, "a.c"), paths.alloc(&old).join("a.c"));
        assert_eq!(paths.task(&new, "a.b"), paths.alloc(&new).join("a.b"));
        // The shared directory is not that of a task.
        std::fs::create_dir_all(paths.shared(&new)).unwrap();
        assert_eq!(paths.task(&new, SHARED), paths.alloc(&new).join("%61lloc"));
    }

    #[test]
    fn a_long_name_is_hashed() {
        assert_eq!(file_name("data.1"), "data%2E1");
        let (one, other) = (file_name(&".".repeat(128)), file_name(&".".repeat(127)));
        assert!(one.starts_with('~') && one.len() == 65 && one != other, "{one}");
        assert_eq!(decode(&one), None);
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
