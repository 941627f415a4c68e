//! `config` of tasks for the driver `qemu`. Names and defaults are Nomad's (`drivers/qemu/driver.go`); `pids_limit` is herdlet's.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::Pairs;
use crate::manifest::Text;

/// `config` for `qemu`: a virtual machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-misplaced" = {
    "image": "did you mean `image_path`?",
    "image_paths": "`image_paths` belongs to `drivers.qemu` of the agent's config",
    "memory": "`memory` belongs to `resources` of the task",
    "user": "`user` belongs to the task, beside `config`",
})))]
#[serde(deny_unknown_fields)]
pub struct QemuConfig {
    /// The image of its disk: a path relative to the task's directory, or an absolute one. It is in the allocation's directory, or
    /// below one of the driver's `image_paths`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub image_path: String,
    /// The bus of the disk; default `ide`.
    #[serde(default, skip_serializing_if = "DriveInterface::is_default")]
    pub drive_interface: DriveInterface,
    /// `tcg` (the default) emulates the processor; `kvm` uses the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// The emulator: `qemu-system-x86_64` (the default) or that of another architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulator: Option<String>,
    /// The kind of machine to emulate; default `pc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Whether a stop presses the virtual power button and waits for the guest, up to `kill_timeout`; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub graceful_shutdown: bool,
    /// Whether the guest has a channel for QEMU's guest agent, the socket `qa.sock` in the task's directory; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub guest_agent: bool,
    /// Ports of the guest by the label of the port on the machine that leads to them.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub port_map: Pairs,
    /// Further arguments of the emulator; `${…}` is replaced. The driver's `args_allowlist` may limit them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Text>,
    /// The maximum number of its processes and threads; default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub pids_limit: Option<u32>,
}

/// The bus of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DriveInterface {
    /// IDE.
    #[default]
    Ide,
    /// SCSI.
    Scsi,
    /// An SD card.
    Sd,
    /// Flash memory without a bus.
    Mtd,
    /// A floppy disk.
    Floppy,
    /// Parallel flash memory, such as firmware.
    Pflash,
    /// A device of virtio.
    Virtio,
    /// None: `args` attach it.
    None,
}

impl DriveInterface {
    /// Its name in QEMU.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ide => "ide",
            Self::Scsi => "scsi",
            Self::Sd => "sd",
            Self::Mtd => "mtd",
            Self::Floppy => "floppy",
            Self::Pflash => "pflash",
            Self::Virtio => "virtio",
            Self::None => "none",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
