//! The launch spec: everything a shim has to know to start one task or one exec session, as one flat blob.
//!
//! In: a list of [`Field`]s from the agent, who writes the blob into a sealed memfd. Out: a [`Spec`] that borrows from
//! the mapped blob, so that the shim needs no allocator. It knows no file, no process and no policy.
//!
//! The format is a magic word and then entries of tag (u16), length (u32) and value, little endian, closed by an empty
//! entry with tag 0 which must be the last. Strings carry their terminating NUL byte, so that the kernel may read them in
//! place. Decoding is total: whatever the bytes, there is a `Spec` or a [`SpecError`]. Unknown tags are errors: both sides
//! come from the same build, a spec never outlives a start.

use core::ffi::CStr;
use core::fmt;

/// The largest blob, in bytes. It covers what Linux accepts as arguments and environment with the default stack limit.
pub const SPEC_LEN_MAX: usize = 2 * 1024 * 1024;
/// The longest log file stem, in bytes: `.4294967295` must still fit into a file name.
pub const STEM_LEN_MAX: usize = 240;
/// The longest record name, in bytes.
pub const RECORD_NAME_LEN_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"hls1";
const HEADER_LEN: usize = 6;

/// One thing to know about a start. Single fields given twice are an error, the list fields may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// File name of the attempt's record. Must be the first field (`run` only).
    Record(&'a [u8]),
    /// Path of the program, resolved: it is executed as it stands, relative to the working directory.
    Program(&'a [u8]),
    /// One argument; the first is the program's name for itself (list).
    Argument(&'a [u8]),
    /// One `NAME=value` of the environment (list).
    Variable(&'a [u8]),
    /// Working directory. Without it the agent's own one stays.
    Directory(&'a [u8]),
    /// User and group to become. Without it ids and supplementary groups stay as they are.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// One supplementary group; with [`Field::User`] the list is exact, an empty one means none (list).
    Group(u32),
    /// File mode creation mask; 0o022 if absent.
    Umask(u32),
    /// Soft and hard limit of open files. Where the hard limit can't be raised, what is allowed is taken.
    OpenFiles(u64),
    /// OOM score adjustment, -1000 to 1000. Lowering without the right to do so is passed over.
    OomScoreAdj(i16),
    /// Set no_new_privs.
    NoNewPrivs,
    /// Directory of the v2 cgroup to be born in; must never have been killed through `cgroup.kill`.
    Cgroup(&'a [u8]),
    /// A v1 `tasks` file into which the child writes itself (list).
    TasksFile(&'a [u8]),
    /// Stem of the files that keep stdout: `<stem>.0`, `<stem>.1`, … Without it stdout is /dev/null.
    Stdout(&'a [u8]),
    /// Stem of the files that keep stderr. Without it stderr is /dev/null.
    Stderr(&'a [u8]),
    /// How many files of each stream are kept, at least 1.
    LogFiles(u32),
    /// Bytes after which a file is full, at least 1.
    LogFileSize(u64),
    /// Make the task wait for the disk instead of dropping output.
    LogBlock,
    /// Kill everything when the pipe at fd 4 hangs up (`enter` always does).
    Leash,
    /// Fd 0 is a terminal that becomes the controlling one (`enter` only).
    Terminal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Tag {
    End = 0,
    Record = 1,
    Program = 2,
    Argument = 3,
    Variable = 4,
    Directory = 5,
    User = 6,
    Group = 7,
    Umask = 8,
    OpenFiles = 9,
    OomScoreAdj = 10,
    NoNewPrivs = 11,
    Cgroup = 12,
    TasksFile = 13,
    Stdout = 14,
    Stderr = 15,
    LogFiles = 16,
    LogFileSize = 17,
    LogBlock = 18,
    Leash = 19,
    Terminal = 20,
}

const TAGS: [Tag; 21] = [
    Tag::End,
    Tag::Record,
    Tag::Program,
    Tag::Argument,
    Tag::Variable,
    Tag::Directory,
    Tag::User,
    Tag::Group,
    Tag::Umask,
    Tag::OpenFiles,
    Tag::OomScoreAdj,
    Tag::NoNewPrivs,
    Tag::Cgroup,
    Tag::TasksFile,
    Tag::Stdout,
    Tag::Stderr,
    Tag::LogFiles,
    Tag::LogFileSize,
    Tag::LogBlock,
    Tag::Leash,
    Tag::Terminal,
];

/// Why something is not a launch spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// Larger than [`SPEC_LEN_MAX`].
    TooLong,
    /// Not a launch spec, or one of another version.
    Magic,
    /// The blob ends within an entry, or goes on after its end.
    Truncated,
    /// An unknown tag.
    Unknown(u16),
    /// A value of the wrong size, with a NUL byte in it, out of its range, or given twice. Holds the tag.
    Value(u16),
    /// A required field is missing. Holds the tag.
    Missing(u16),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "fit arguments and environment into {SPEC_LEN_MAX} bytes"),
            Self::Magic => f.write_str("decode a launch spec of another format"),
            Self::Truncated => f.write_str("decode a truncated launch spec"),
            Self::Unknown(tag) => write!(f, "decode the unknown launch spec field {tag}"),
            Self::Value(tag) => {
                write!(
                    f,
                    "accept launch spec field {tag} (wrong size, NUL byte, out of range, or given twice)"
                )
            }
            Self::Missing(tag) => write!(f, "find the required launch spec field {tag}"),
        }
    }
}

impl core::error::Error for SpecError {}

/// Appends a spec to `out` (a `Vec<u8>`, say).
///
/// # Errors
/// When a string has a NUL byte in it, or the whole is too long. What was appended until then is useless.
pub fn encode<'a>(
    fields: impl IntoIterator<Item = Field<'a>>,
    out: &mut impl Extend<u8>,
) -> Result<(), SpecError> {
    let mut len = MAGIC.len() + HEADER_LEN;
    out.extend(MAGIC);
    for field in fields {
        let mut number = [0; 8];
        let (tag, value, closing) = field.parts(&mut number);
        if closing == Closing::Nul && value.contains(&0) {
            return Err(SpecError::Value(tag as u16));
        }
        let value_len = value.len() + closing as usize;
        len = len.saturating_add(HEADER_LEN).saturating_add(value_len);
        if len > SPEC_LEN_MAX {
            return Err(SpecError::TooLong);
        }
        put_header(tag, value_len, out);
        out.extend(value.iter().copied());
        out.extend(core::iter::repeat_n(0, closing as usize));
    }
    put_header(Tag::End, 0, out);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    None = 0,
    Nul = 1,
}

fn put_header(tag: Tag, len: usize, out: &mut impl Extend<u8>) {
    out.extend((tag as u16).to_le_bytes());
    out.extend((len as u32).to_le_bytes());
}

impl<'a> Field<'a> {
    fn parts<'b>(&'b self, number: &'b mut [u8; 8]) -> (Tag, &'b [u8], Closing)
    where
        'a: 'b,
    {
        let text = |tag, value: &'b [u8]| (tag, value, Closing::Nul);
        match *self {
            Self::Record(name) => text(Tag::Record, name),
            Self::Program(path) => text(Tag::Program, path),
            Self::Argument(argument) => text(Tag::Argument, argument),
            Self::Variable(variable) => text(Tag::Variable, variable),
            Self::Directory(path) => text(Tag::Directory, path),
            Self::User { uid, gid } => {
                number[..4].copy_from_slice(&uid.to_le_bytes());
                number[4..].copy_from_slice(&gid.to_le_bytes());
                (Tag::User, number, Closing::None)
            }
            Self::Group(gid) => small(Tag::Group, gid, number),
            Self::Umask(mask) => small(Tag::Umask, mask, number),
            Self::OpenFiles(limit) => large(Tag::OpenFiles, limit, number),
            Self::OomScoreAdj(adjustment) => {
                number[..2].copy_from_slice(&adjustment.to_le_bytes());
                (Tag::OomScoreAdj, &number[..2], Closing::None)
            }
            Self::NoNewPrivs => (Tag::NoNewPrivs, &[], Closing::None),
            Self::Cgroup(path) => text(Tag::Cgroup, path),
            Self::TasksFile(path) => text(Tag::TasksFile, path),
            Self::Stdout(stem) => text(Tag::Stdout, stem),
            Self::Stderr(stem) => text(Tag::Stderr, stem),
            Self::LogFiles(count) => small(Tag::LogFiles, count, number),
            Self::LogFileSize(bytes) => large(Tag::LogFileSize, bytes, number),
            Self::LogBlock => (Tag::LogBlock, &[], Closing::None),
            Self::Leash => (Tag::Leash, &[], Closing::None),
            Self::Terminal => (Tag::Terminal, &[], Closing::None),
        }
    }
}

fn small(tag: Tag, value: u32, number: &mut [u8; 8]) -> (Tag, &[u8], Closing) {
    number[..4].copy_from_slice(&value.to_le_bytes());
    (tag, &number[..4], Closing::None)
}

fn large(tag: Tag, value: u64, number: &mut [u8; 8]) -> (Tag, &[u8], Closing) {
    *number = value.to_le_bytes();
    (tag, number, Closing::None)
}

/// A decoded launch spec. The single fields stand here, the lists are walked over in the blob.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// See [`Field::Record`].
    pub record: Option<&'a CStr>,
    /// See [`Field::Program`].
    pub program: &'a CStr,
    /// See [`Field::Directory`].
    pub directory: Option<&'a CStr>,
    /// See [`Field::User`]: user id, group id.
    pub user: Option<(u32, u32)>,
    /// See [`Field::Umask`].
    pub umask: u32,
    /// See [`Field::OpenFiles`].
    pub open_files: Option<u64>,
    /// See [`Field::OomScoreAdj`].
    pub oom_score_adj: Option<i16>,
    /// See [`Field::Cgroup`].
    pub cgroup: Option<&'a CStr>,
    /// See [`Field::Stdout`].
    pub stdout: Option<&'a CStr>,
    /// See [`Field::Stderr`].
    pub stderr: Option<&'a CStr>,
    /// See [`Field::LogFiles`].
    pub log_files: u32,
    /// See [`Field::LogFileSize`].
    pub log_file_size: u64,
    /// See [`Field::NoNewPrivs`].
    pub no_new_privs: bool,
    /// See [`Field::LogBlock`].
    pub log_block: bool,
    /// See [`Field::Leash`].
    pub leash: bool,
    /// See [`Field::Terminal`].
    pub terminal: bool,
    entries: Entries<'a>,
}

impl<'a> Spec<'a> {
    /// Reads a whole blob.
    ///
    /// # Errors
    /// When the blob is not a spec of this version, or a field is missing, doubled or out of its range.
    pub fn decode(blob: &'a [u8]) -> Result<Self, SpecError> {
        let entries = Entries::of(blob)?;
        let mut spec = Self {
            record: None,
            program: c"",
            directory: None,
            user: None,
            umask: 0o022,
            open_files: None,
            oom_score_adj: None,
            cgroup: None,
            stdout: None,
            stderr: None,
            log_files: 10,
            log_file_size: 10 * 1024 * 1024,
            no_new_privs: false,
            log_block: false,
            leash: false,
            terminal: false,
            entries,
        };
        let mut seen: u32 = 0;
        let mut walk = entries;
        loop {
            let (tag, value) = walk.next_entry()?;
            let bad = SpecError::Value(tag as u16);
            let is_list = matches!(tag, Tag::Argument | Tag::Variable | Tag::Group | Tag::TasksFile);
            if seen & (1 << tag as u32) != 0 && !is_list {
                return Err(bad);
            }
            seen |= 1 << tag as u32;
            match tag {
                Tag::End if value.is_empty() && walk.rest.is_empty() => break,
                Tag::End => return Err(SpecError::Truncated),
                Tag::Record => spec.record = Some(file_name(value, RECORD_NAME_LEN_MAX).ok_or(bad)?),
                Tag::Program => {
                    spec.program = text(value).filter(|path| !path.is_empty()).ok_or(bad)?;
                }
                Tag::Argument | Tag::Variable | Tag::TasksFile => {
                    text(value).ok_or(bad)?;
                }
                Tag::Directory => spec.directory = Some(text(value).ok_or(bad)?),
                Tag::User => {
                    let both = u64_of(value).ok_or(bad)?;
                    spec.user = Some((both as u32, (both >> 32) as u32));
                }
                Tag::Group => {
                    u32_of(value).ok_or(bad)?;
                }
                Tag::Umask => spec.umask = u32_of(value).filter(|mask| *mask <= 0o777).ok_or(bad)?,
                Tag::OpenFiles => spec.open_files = Some(u64_of(value).ok_or(bad)?),
                Tag::OomScoreAdj => {
                    let bytes: [u8; 2] = value.try_into().map_err(|_| bad)?;
                    let adjustment = i16::from_le_bytes(bytes);
                    if !(-1000..=1000).contains(&adjustment) {
                        return Err(bad);
                    }
                    spec.oom_score_adj = Some(adjustment);
                }
                Tag::Cgroup => spec.cgroup = Some(text(value).ok_or(bad)?),
                Tag::Stdout => spec.stdout = Some(file_name(value, STEM_LEN_MAX).ok_or(bad)?),
                Tag::Stderr => spec.stderr = Some(file_name(value, STEM_LEN_MAX).ok_or(bad)?),
                Tag::LogFiles => spec.log_files = u32_of(value).filter(|count| *count > 0).ok_or(bad)?,
                Tag::LogFileSize => {
                    spec.log_file_size = u64_of(value).filter(|bytes| *bytes > 0).ok_or(bad)?;
                }
                Tag::NoNewPrivs => spec.no_new_privs = value.is_empty(),
                Tag::LogBlock => spec.log_block = value.is_empty(),
                Tag::Leash => spec.leash = value.is_empty(),
                Tag::Terminal => spec.terminal = value.is_empty(),
            }
        }
        for needed in [Tag::Program, Tag::Argument] {
            if seen & (1 << needed as u32) == 0 {
                return Err(SpecError::Missing(needed as u16));
            }
        }
        Ok(spec)
    }

    /// The name of the attempt's record, even if the rest of the blob is bad.
    #[must_use]
    pub fn record_name(blob: &'a [u8]) -> Option<&'a CStr> {
        match Entries::of(blob).ok()?.next_entry().ok()? {
            (Tag::Record, value) => file_name(value, RECORD_NAME_LEN_MAX),
            _ => None,
        }
    }

    /// The program's arguments, its own name first.
    pub fn arguments(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.texts(Tag::Argument)
    }

    /// The environment.
    pub fn variables(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.texts(Tag::Variable)
    }

    /// The v1 `tasks` files to enter.
    pub fn tasks_files(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.texts(Tag::TasksFile)
    }

    /// The supplementary groups.
    pub fn groups(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.entries.filter(|(tag, _)| *tag == Tag::Group).filter_map(|(_, value)| u32_of(value))
    }

    fn texts(&self, wanted: Tag) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.entries.filter(move |(tag, _)| *tag == wanted).filter_map(|(_, value)| text(value))
    }
}

#[derive(Clone, Copy, Debug)]
struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    fn of(blob: &'a [u8]) -> Result<Self, SpecError> {
        if blob.len() > SPEC_LEN_MAX {
            return Err(SpecError::TooLong);
        }
        blob.strip_prefix(&MAGIC).map(|rest| Self { rest }).ok_or(SpecError::Magic)
    }

    fn next_entry(&mut self) -> Result<(Tag, &'a [u8]), SpecError> {
        let (header, rest) = self.rest.split_first_chunk::<HEADER_LEN>().ok_or(SpecError::Truncated)?;
        let [t0, t1, l0, l1, l2, l3] = *header;
        let number = u16::from_le_bytes([t0, t1]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let tag = TAGS.get(usize::from(number)).copied().ok_or(SpecError::Unknown(number))?;
        let (value, rest) = rest.split_at_checked(len).ok_or(SpecError::Truncated)?;
        self.rest = rest;
        Ok((tag, value))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (Tag, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().ok().filter(|(tag, _)| *tag != Tag::End)
    }
}

fn text(value: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_with_nul(value).ok()
}

/// A name that stays within its directory.
fn file_name(value: &[u8], len_max: usize) -> Option<&CStr> {
    let name = text(value)?;
    let bytes = name.to_bytes();
    let fits = !bytes.is_empty() && bytes.len() <= len_max && !bytes.contains(&b'/');
    (fits && bytes != b"." && bytes != b"..").then_some(name)
}

fn u32_of(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_le_bytes)
}

fn u64_of(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Field<'static>> {
        vec![
            Field::Record(b"a.1"),
            Field::Program(b"/bin/sh"),
            Field::Argument(b"sh"),
            Field::Argument(b""),
            Field::Variable(b"A=1"),
            Field::Variable(b"B="),
            Field::Directory(b"/tmp"),
            Field::User { uid: 7, gid: 8 },
            Field::Group(9),
            Field::Group(10),
            Field::Umask(0o27),
            Field::OpenFiles(1024),
            Field::OomScoreAdj(-5),
            Field::NoNewPrivs,
            Field::Cgroup(b"/sys/fs/cgroup/x"),
            Field::TasksFile(b"/sys/fs/cgroup/cpu/x/tasks"),
            Field::Stdout(b"web.stdout"),
            Field::Stderr(b"web.stderr"),
            Field::LogFiles(3),
            Field::LogFileSize(1 << 20),
            Field::LogBlock,
            Field::Leash,
            Field::Terminal,
        ]
    }

    fn blob(fields: &[Field<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(fields.iter().copied(), &mut out).unwrap();
        out
    }

    #[test]
    fn every_field_arrives() {
        let blob = blob(&all());
        let spec = Spec::decode(&blob).unwrap();
        assert_eq!(spec.record, Some(c"a.1"));
        assert_eq!(Spec::record_name(&blob), Some(c"a.1"));
        assert_eq!(spec.program, c"/bin/sh");
        assert_eq!(spec.arguments().collect::<Vec<_>>(), [c"sh", c""]);
        assert_eq!(spec.variables().collect::<Vec<_>>(), [c"A=1", c"B="]);
        assert_eq!(spec.tasks_files().collect::<Vec<_>>(), [c"/sys/fs/cgroup/cpu/x/tasks"]);
        assert_eq!(spec.groups().collect::<Vec<_>>(), [9, 10]);
        assert_eq!(spec.directory, Some(c"/tmp"));
        assert_eq!(spec.user, Some((7, 8)));
        assert_eq!((spec.umask, spec.open_files, spec.oom_score_adj), (0o27, Some(1024), Some(-5)));
        assert_eq!(spec.cgroup, Some(c"/sys/fs/cgroup/x"));
        assert_eq!((spec.stdout, spec.stderr), (Some(c"web.stdout"), Some(c"web.stderr")));
        assert_eq!((spec.log_files, spec.log_file_size), (3, 1 << 20));
        assert!(spec.no_new_privs && spec.log_block && spec.leash && spec.terminal);
    }

    #[test]
    fn a_cut_or_damaged_blob_is_an_error_and_never_a_panic() {
        let whole = blob(&all());
        for len in 0..whole.len() {
            assert!(Spec::decode(&whole[..len]).is_err(), "cut at {len}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let _ = Spec::decode(&damaged);
                let _ = Spec::record_name(&damaged);
            }
        }
        let mut longer = whole;
        longer.push(0);
        assert_eq!(Spec::decode(&longer).err(), Some(SpecError::Truncated));
    }

    #[test]
    fn bad_fields_are_refused() {
        let minimal = [Field::Program(b"/x"), Field::Argument(b"x")];
        assert!(Spec::decode(&blob(&minimal)).is_ok());
        let with = |field| Spec::decode(&blob(&[minimal[0], minimal[1], field])).err();
        assert_eq!(with(Field::Program(b"/y")), Some(SpecError::Value(2)), "twice");
        assert_eq!(with(Field::Stdout(b"../x")), Some(SpecError::Value(14)));
        assert_eq!(with(Field::Stdout(b"..")), Some(SpecError::Value(14)));
        assert_eq!(with(Field::Stdout(&[b'x'; 241])), Some(SpecError::Value(14)));
        assert_eq!(with(Field::LogFiles(0)), Some(SpecError::Value(16)));
        assert_eq!(with(Field::Umask(0o1000)), Some(SpecError::Value(8)));
        assert_eq!(with(Field::OomScoreAdj(1001)), Some(SpecError::Value(10)));
        assert_eq!(Spec::decode(&blob(&minimal[..1])).err(), Some(SpecError::Missing(3)));
        let mut out = Vec::new();
        assert_eq!(encode([Field::Argument(b"a\0b")], &mut out), Err(SpecError::Value(3)));
        let large = vec![b'x'; SPEC_LEN_MAX];
        assert_eq!(encode([Field::Argument(&large)], &mut out), Err(SpecError::TooLong));
    }
}
