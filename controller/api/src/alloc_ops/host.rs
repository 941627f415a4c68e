//! The machine itself: its usage (Nomad's `HostStats`), and its configuration (`HostData`).

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    net::IpAddr,
    path::Path,
    sync::{Mutex, PoisonError},
};

use herdlet_agent::telemetry::{Host, nomad::Processor};
use herdlet_fingerprint;
use herdlet_runtime::{BootClock, Clock as _};
use serde_json::{Map, Value, json};

use super::{
    AllocOps,
    error::{ApiError, ApiResult},
    stream::blocking,
};

/// Disks in an answer.
const DISKS_LEN_MAX: usize = 64;

/// Addresses in an answer.
const ADDRESSES_LEN_MAX: usize = 256;

/// Bytes of a text file such as `/etc/hosts`.
const TEXT_BYTES_MAX: u64 = 64 * 1024;

/// Environment variables with public values; others may be secret.
const VARIABLES: [&str; 8] = ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"];

/// Measures the machine, and stores the last measurement to compute the usage of processors.
#[derive(Debug, Default)]
pub struct HostSampler(Mutex<Host>);

/// Usage of a disk, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Space {
    size: u64,
    available: u64,
    used: u64,
    inodes: u64,
    inodes_used: u64,
}

impl HostSampler {
    /// The machine's usage. Processor usage counts since the last call; at the first call, since the machine started.
    pub async fn stats(&self, reach: &AllocOps) -> ApiResult<Value> {
        let allocs = reach.paths.allocs();
        let read = move || Ok((Host::now(), disks(), Space::of(&allocs).unwrap_or_default()));
        let (now, disks, allocs) = blocking(read).await.map_err(failed)?;
        let before =
            std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), now.clone());
        let none = Processor::default();
        let (mut processors, mut consumed) = (Vec::new(), 0.0);
        for one in &now.processors {
            let was = before.processors.iter().find(|was| was.name() == one.name());
            let [user, system, idle] = one.since(was.unwrap_or(&none));
            let busy = 100.0 - idle;
            let ticks = busy / 100.0 * float(reach.core_mhz);
            consumed += ticks;
            // Up to Nomad 1.5, the percentage was called `Total`.
            processors.push(json!({
                "CPU": one.name(), "User": user, "System": system, "Idle": idle, "Total": busy, "TotalPercent": busy,
                "TotalTicks": ticks,
            }));
        }
        let disks: Vec<Value> =
            disks.iter().map(|(device, at, space)| space.device_json(device, at)).collect();
        Ok(json!({
            "Memory": {
                "Total": now.total, "Available": now.available, "Free": now.free,
                "Used": now.total.saturating_sub(now.available),
            },
            "CPU": processors, "DiskStats": disks, "AllocDirStats": allocs.device_json("", ""), "DeviceStats": [],
            "Uptime": now.uptime, "Timestamp": BootClock.now().wall_ns, "CPUTicksConsumed": consumed,
        }))
    }
}

/// The machine's configuration.
pub async fn data() -> ApiResult<Value> {
    let read = || {
        let disks: Map<String, Value> = disks()
            .into_iter()
            .map(|(device, _, space)| {
                (device, json!({ "DiskMB": space.size >> 20, "UsedMB": space.used >> 20 }))
            })
            .collect();
        let variables: BTreeMap<&str, String> =
            VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?))).collect();
        let uname = rustix::system::uname();
        let words = [uname.sysname(), uname.release(), uname.version(), uname.machine()];
        let os = words.map(|word| word.to_string_lossy().into_owned()).join(" ");
        Ok(json!({
            "OS": os, "Network": addresses(), "ResolvConf": text("/etc/resolv.conf"), "Hosts": text("/etc/hosts"),
            "Environment": variables, "Disk": disks,
        }))
    };
    blocking(read).await.map_err(failed)
}

fn failed(error: std::io::Error) -> ApiError {
    ApiError::Failed(format!("inspect the machine: {error}"))
}

fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Addresses of this machine, with those attributes of `hashicorp/go-sockaddr` that the others don't imply.
fn addresses() -> Vec<Value> {
    let interfaces = herdlet_fingerprint::interfaces().unwrap_or_default();
    let addresses = interfaces.iter().filter(|interface| interface.is_up).flat_map(|up| &up.addresses);
    let shown = |(address, bits): &(IpAddr, u8)| {
        let kind = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        json!({
            "type": kind, "address": address.to_string(), "mask_bits": bits.to_string(),
            "string": format!("{address}/{bits}"),
        })
    };
    addresses.take(ADDRESSES_LEN_MAX).map(shown).collect()
}

/// Disks of this machine, each once: device, mount point, and usage. Network file systems are omitted, because they may hang.
fn disks() -> Vec<(String, String, Space)> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<(String, String, Space)> = Vec::new();
    for line in table.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(at)) = (words.next(), words.next()) else { continue };
        let is_known = found.iter().any(|(known, ..)| known == device);
        if device.starts_with("/dev/") && !is_known && found.len() < DISKS_LEN_MAX {
            found.extend(Space::of(Path::new(at)).map(|space| (device.to_owned(), at.to_owned(), space)));
        }
    }
    found
}

impl Space {
    fn of(path: &Path) -> Option<Self> {
        let disk = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Some(Self {
            size: bytes(disk.f_blocks),
            available: bytes(disk.f_bavail),
            used: bytes(disk.f_blocks.saturating_sub(disk.f_bfree)),
            inodes: disk.f_files,
            inodes_used: disk.f_files.saturating_sub(disk.f_ffree),
        })
    }

    fn device_json(&self, device: &str, at: &str) -> Value {
        let percent = |part: u64, all: u64| if all == 0 { 0.0 } else { float(part) / float(all) * 100.0 };
        json!({
            "Device": device, "Mountpoint": at, "Size": self.size, "Used": self.used, "Available": self.available,
            "UsedPercent": percent(self.used, self.used.saturating_add(self.available)),
            "InodesUsedPercent": percent(self.inodes_used, self.inodes),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn float(n: u64) -> f64 {
    n as f64
}
