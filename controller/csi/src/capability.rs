//! How a volume is used: its access and attachment modes, and mount options.
//!
//! In: the names of Nomad's job files. Out: capabilities of CSI, and the name of the directory for such a use.

use std::fmt;

use crate::wire::{BlockVolume, MountVolume, VolumeAccessMode, VolumeCapability};

/// Who may use a volume at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessMode {
    SingleNodeReaderOnly,
    SingleNodeWriter,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
}

impl AccessMode {
    const ALL: [Self; 5] = [
        Self::SingleNodeReaderOnly,
        Self::SingleNodeWriter,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
    ];

    /// The mode with this name, as in job files.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::SingleNodeReaderOnly => "single-node-reader-only",
            Self::SingleNodeWriter => "single-node-writer",
            Self::MultiNodeReaderOnly => "multi-node-reader-only",
            Self::MultiNodeSingleWriter => "multi-node-single-writer",
            Self::MultiNodeMultiWriter => "multi-node-multi-writer",
        }
    }

    /// Returns whether a volume can be used with write access at all.
    pub fn permits_writing(self) -> bool {
        match self {
            Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly => false,
            Self::SingleNodeWriter | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter => true,
        }
    }

    fn number(self) -> i32 {
        match self {
            Self::SingleNodeReaderOnly => VolumeAccessMode::SINGLE_NODE_READER_ONLY,
            Self::SingleNodeWriter => VolumeAccessMode::SINGLE_NODE_WRITER,
            Self::MultiNodeReaderOnly => VolumeAccessMode::MULTI_NODE_READER_ONLY,
            Self::MultiNodeSingleWriter => VolumeAccessMode::MULTI_NODE_SINGLE_WRITER,
            Self::MultiNodeMultiWriter => VolumeAccessMode::MULTI_NODE_MULTI_WRITER,
        }
    }
}

/// What a task sees of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttachmentMode {
    /// A directory.
    FileSystem,
    /// A block device.
    BlockDevice,
}

impl AttachmentMode {
    /// The mode with this name, as in job files.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::FileSystem, Self::BlockDevice].into_iter().find(|mode| mode.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::FileSystem => "file-system",
            Self::BlockDevice => "block-device",
        }
    }
}

/// Whether tasks may write to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Writing {
    ReadOnly,
    ReadWrite,
}

/// One use of a volume. Volumes with equal uses share a staging directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Usage {
    pub writing: Writing,
    pub attachment: AttachmentMode,
    pub access: AccessMode,
}

/// The name of the use's directory, as in Nomad: `rw-file-system-single-node-writer`.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writing = match self.writing {
            Writing::ReadOnly => "ro",
            Writing::ReadWrite => "rw",
        };
        write!(f, "{writing}-{}-{}", self.attachment.name(), self.access.name())
    }
}

impl Usage {
    /// The use with this name of a directory.
    pub fn from_name(name: &str) -> Option<Self> {
        [Writing::ReadOnly, Writing::ReadWrite]
            .into_iter()
            .flat_map(|writing| {
                [AttachmentMode::FileSystem, AttachmentMode::BlockDevice].map(|mode| (writing, mode))
            })
            .flat_map(|(writing, attachment)| {
                AccessMode::ALL.map(|access| Self { writing, attachment, access })
            })
            .find(|usage| usage.to_string() == name)
    }

    /// The capability of CSI. A block device has no mount options.
    pub fn capability(&self, options: &MountOptions) -> VolumeCapability {
        let (block, mount) = match self.attachment {
            AttachmentMode::BlockDevice => (Some(BlockVolume {}), None),
            AttachmentMode::FileSystem => (None, Some(options.message())),
        };
        let access_mode = Some(VolumeAccessMode { mode: self.access.number() });
        VolumeCapability { block, mount, access_mode }
    }
}

/// Options of a volume's file system. Not `Debug`: the specification allows secrets in flags.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Empty: the plugin chooses.
    pub fs_type: String,
    pub flags: Vec<String>,
}

impl MountOptions {
    fn message(&self) -> MountVolume {
        MountVolume { fs_type: self.fs_type.clone(), mount_flags: self.flags.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_named_after_their_modes() {
        let usage = Usage {
            writing: Writing::ReadWrite,
            attachment: AttachmentMode::FileSystem,
            access: AccessMode::SingleNodeWriter,
        };
        assert_eq!(usage.to_string(), "rw-file-system-single-node-writer");
        assert_eq!(Usage::from_name("rw-file-system-single-node-writer"), Some(usage));
        assert_eq!(Usage::from_name("rw-file-system"), None);
        let names: Vec<_> =
            AccessMode::ALL.iter().filter(|mode| mode.permits_writing()).map(|mode| mode.name()).collect();
        assert_eq!(names, ["single-node-writer", "multi-node-single-writer", "multi-node-multi-writer"]);
    }

    #[test]
    fn only_file_systems_have_mount_options() {
        let options = MountOptions { fs_type: "ext4".to_owned(), flags: vec!["noatime".to_owned()] };
        let capability = |attachment| {
            let access = AccessMode::MultiNodeMultiWriter;
            Usage { writing: Writing::ReadOnly, attachment, access }.capability(&options)
        };
        let (directory, device) =
            (capability(AttachmentMode::FileSystem), capability(AttachmentMode::BlockDevice));
        assert_eq!(
            directory.mount.map(|mount| (mount.fs_type, mount.mount_flags)),
            Some(("ext4".into(), vec!["noatime".into()]))
        );
        assert!(directory.block.is_none() && device.mount.is_none() && device.block.is_some());
        assert_eq!(device.access_mode.map(|mode| mode.mode), Some(5));
    }
}
