//! Decodes a launch spec.
//!
//! In: a blob. Out: a [`Spec`] that borrows from it, or a [`SpecError`]. Total: no blob causes a panic or an endless
//! loop.

use super::{
    ENTRY_LEN_MAX, HEADER_LEN, HOSTNAME_LEN_MAX, INSTRUCTION_LEN, INSTRUCTIONS_MAX, LIMIT_LEN, MAGIC,
    RECORD_NAME_LEN_MAX, SETTING_PATH_LEN_MAX, SPEC_LEN_MAX, STEM_LEN_MAX, SpecError, TAGS, Tag,
};
use crate::isolation::{Capabilities, Namespaces};
use core::ffi::CStr;

/// A decoded launch spec. It stores single fields; lists are iterated in the blob.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// See [`super::Field::Record`].
    pub record: Option<&'a CStr>,
    /// See [`super::Field::Program`].
    pub program: &'a CStr,
    /// See [`super::Field::Directory`].
    pub directory: Option<&'a CStr>,
    /// See [`super::Field::User`]: user id, group id.
    pub user: Option<(u32, u32)>,
    /// See [`super::Field::Umask`].
    pub umask: u32,
    /// See [`super::Field::OpenFiles`].
    pub open_files: Option<u64>,
    /// See [`super::Field::OomScoreAdj`].
    pub oom_score_adj: Option<i16>,
    /// See [`super::Field::Cgroup`].
    pub cgroup: Option<&'a CStr>,
    /// See [`super::Field::Stdout`].
    pub stdout: Option<&'a CStr>,
    /// See [`super::Field::Stderr`].
    pub stderr: Option<&'a CStr>,
    /// See [`super::Field::LogFiles`].
    pub log_files: u32,
    /// See [`super::Field::LogFileSize`].
    pub log_file_size: u64,
    /// See [`super::Field::NoNewPrivs`].
    pub no_new_privs: bool,
    /// See [`super::Field::LogBlock`].
    pub log_block: bool,
    /// See [`super::Field::Leash`].
    pub leash: bool,
    /// See [`super::Field::Terminal`].
    pub terminal: bool,
    /// See [`super::Field::Driver`].
    pub driver: u32,
    /// See [`super::Field::Entry`].
    pub entry: Option<&'a CStr>,
    /// See [`super::Field::Network`].
    pub network: Option<&'a CStr>,
    /// See [`super::Field::Namespaces`].
    pub namespaces: Namespaces,
    /// See [`super::Field::MountNamespace`].
    pub mount_namespace: bool,
    /// See [`super::Field::Proc`].
    pub proc: bool,
    /// See [`super::Field::MessageQueues`].
    pub message_queues: bool,
    /// See [`super::Field::Hostname`].
    pub hostname: Option<&'a CStr>,
    /// See [`super::Field::Capabilities`].
    pub capabilities: Option<Capabilities>,
    /// See [`super::Field::Init`].
    pub init: bool,
    /// See [`super::Field::Join`].
    pub join: Option<Namespaces>,
    /// See [`super::Field::Cgroups`].
    pub cgroups: bool,
    /// See [`super::Field::WritableCgroups`].
    pub writable_cgroups: bool,
    /// See [`super::Field::Input`].
    pub input: bool,
    entries: Entries<'a>,
}

impl<'a> Spec<'a> {
    /// Decodes a whole blob.
    ///
    /// # Errors
    /// If the blob is not a spec of this version, or a field is missing, repeated or out of range.
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
            driver: 0,
            entry: None,
            network: None,
            namespaces: Namespaces::default(),
            mount_namespace: false,
            proc: false,
            message_queues: false,
            hostname: None,
            capabilities: None,
            init: false,
            join: None,
            cgroups: false,
            writable_cgroups: false,
            input: false,
            entries,
        };
        let mut seen: u64 = 0;
        let mut walk = entries;
        loop {
            let (tag, value) = walk.next_entry()?;
            let bad = SpecError::Value(tag as u16);
            let is_list = matches!(
                tag,
                Tag::Argument
                    | Tag::Variable
                    | Tag::Group
                    | Tag::TasksFile
                    | Tag::ReadOnlyProc
                    | Tag::MaskedProc
                    | Tag::CallFilter
                    | Tag::Limit
                    | Tag::Setting
            );
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
                Tag::NoNewPrivs => spec.no_new_privs = set(value).ok_or(bad)?,
                Tag::LogBlock => spec.log_block = set(value).ok_or(bad)?,
                Tag::Leash => spec.leash = set(value).ok_or(bad)?,
                Tag::Terminal => spec.terminal = set(value).ok_or(bad)?,
                Tag::Network => spec.network = Some(text(value).ok_or(bad)?),
                Tag::Driver => spec.driver = u32_of(value).ok_or(bad)?,
                Tag::Entry => spec.entry = Some(file_name(value, ENTRY_LEN_MAX).ok_or(bad)?),
                Tag::Namespaces => spec.namespaces = kinds(value, Namespaces::CREATED).ok_or(bad)?,
                Tag::MountNamespace => spec.mount_namespace = set(value).ok_or(bad)?,
                Tag::Proc => spec.proc = set(value).ok_or(bad)?,
                Tag::ReadOnlyProc | Tag::MaskedProc => {
                    text(value).filter(|path| !matches!(path.to_bytes(), [] | [b'/', ..])).ok_or(bad)?;
                }
                Tag::MessageQueues => spec.message_queues = set(value).ok_or(bad)?,
                Tag::Hostname => spec.hostname = Some(file_name(value, HOSTNAME_LEN_MAX).ok_or(bad)?),
                Tag::Capabilities => {
                    spec.capabilities = Some(Capabilities::from_bytes(value).ok_or(bad)?);
                }
                Tag::Init => spec.init = set(value).ok_or(bad)?,
                Tag::Join => spec.join = Some(kinds(value, Namespaces::ENTERED).ok_or(bad)?),
                Tag::CallFilter => {
                    let is_whole = value.len() % INSTRUCTION_LEN == 0;
                    let count = value.len() / INSTRUCTION_LEN;
                    if !is_whole || !(1..=INSTRUCTIONS_MAX).contains(&count) {
                        return Err(bad);
                    }
                }
                Tag::Limit => {
                    limit(value).ok_or(bad)?;
                }
                Tag::Setting => {
                    setting(value).ok_or(bad)?;
                }
                Tag::Cgroups => spec.cgroups = set(value).ok_or(bad)?,
                Tag::WritableCgroups => spec.writable_cgroups = set(value).ok_or(bad)?,
                Tag::Input => spec.input = set(value).ok_or(bad)?,
            }
        }
        for needed in [Tag::Program, Tag::Argument] {
            if seen & (1 << needed as u32) == 0 {
                return Err(SpecError::Missing(needed as u16));
            }
        }
        spec.require_own_namespaces()?;
        Ok(spec)
    }

    /// Without a namespace of the task's own, these fields would change the machine's. /proc and message queues of the
    /// machine's other namespaces may be mounted, but only in mounts of the task's own.
    fn require_own_namespaces(&self) -> Result<(), SpecError> {
        if self.hostname.is_some() && !self.namespaces.contains(Namespaces::UTS) {
            return Err(SpecError::Missing(Tag::Namespaces as u16));
        }
        if (self.proc || self.message_queues || self.cgroups) && !self.mount_namespace {
            return Err(SpecError::Missing(Tag::MountNamespace as u16));
        }
        if self.cgroups && !self.namespaces.contains(Namespaces::CGROUP) {
            return Err(SpecError::Missing(Tag::Namespaces as u16));
        }
        if self.writable_cgroups && !self.cgroups {
            return Err(SpecError::Missing(Tag::Cgroups as u16));
        }
        if !self.proc && self.settings().next().is_some() {
            return Err(SpecError::Missing(Tag::Proc as u16));
        }
        // A session enters what its task has; both use the same descriptor.
        if self.join.is_some() && (self.init || self.mount_namespace || self.namespaces.flags() != 0) {
            return Err(SpecError::Value(Tag::Join as u16));
        }
        Ok(())
    }

    /// The name of the attempt's record, even if the rest of the blob is invalid.
    #[must_use]
    pub fn record_name(blob: &'a [u8]) -> Option<&'a CStr> {
        match Entries::of(blob).ok()?.next_entry().ok()? {
            (Tag::Record, value) => file_name(value, RECORD_NAME_LEN_MAX),
            _ => None,
        }
    }

    /// The program's arguments, beginning with its own name.
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

    /// The paths below /proc to make read-only.
    pub fn read_only_proc(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.texts(Tag::ReadOnlyProc)
    }

    /// The paths below /proc to hide.
    pub fn masked_proc(&self) -> impl Iterator<Item = &'a CStr> + use<'a> {
        self.texts(Tag::MaskedProc)
    }

    /// The seccomp filters, each as its instructions.
    pub fn call_filters(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.entries.filter(|(tag, _)| *tag == Tag::CallFilter).map(|(_, program)| program)
    }

    /// The resource limits: number, soft and hard limit.
    pub fn limits(&self) -> impl Iterator<Item = (u32, [u64; 2])> + use<'a> {
        self.entries.filter(|(tag, _)| *tag == Tag::Limit).filter_map(|(_, value)| limit(value))
    }

    /// The settings: path below /proc/sys and value.
    pub fn settings(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.entries.filter(|(tag, _)| *tag == Tag::Setting).filter_map(|(_, value)| setting(value))
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

/// A flag is set by its presence, without a value.
fn set(value: &[u8]) -> Option<bool> {
    value.is_empty().then_some(true)
}

/// Kinds of namespaces, at most these.
fn kinds(value: &[u8], limit: Namespaces) -> Option<Namespaces> {
    u32_of(value).and_then(|flags| Namespaces::from_flags(flags, limit))
}

/// Number, soft and hard limit.
fn limit(value: &[u8]) -> Option<(u32, [u64; 2])> {
    if value.len() != LIMIT_LEN {
        return None;
    }
    let resource = u32_of(value.get(..4)?)?;
    Some((resource, [u64_of(value.get(4..12)?)?, u64_of(value.get(12..)?)?]))
}

/// A path that stays in its directory, and a value.
fn setting(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = text(value)?.to_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let (path, value) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    let mut names = path.split(|byte| *byte == b'/');
    let stays = names.all(|name| !name.is_empty() && name != b"." && name != b"..");
    (stays && path.len() <= SETTING_PATH_LEN_MAX).then_some((path, value))
}

fn text(value: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_with_nul(value).ok()
}

/// A name that stays in its directory.
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
