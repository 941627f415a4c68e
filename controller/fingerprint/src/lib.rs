//! The machine's attributes under Nomad's names, as used by constraints and `${attr.…}`.
//!
//! In: system calls and system files, read once. Out: values by name. Unknown attributes are left out.

mod cpu;
mod interfaces;
pub mod listening;
mod network;
mod rules;

use std::{collections::BTreeMap, fs, path::Path};

use herdlet_api_types::manifest::scalar::SIGNALS;
use herdlet_plan::job::capacity::Room;

pub use cpu::topology;
pub use interfaces::{Interface, InterfaceChanges, interfaces};
pub use network::{Network, NetworkError, Networks, SPEED, is_link_local, networks, speed_of};
pub use rules::{Family, HostNetwork, NetworkRules};

/// The release of Nomad's client that we emulate; servers decide by it. They call back clients of at least 0.8.
/// Placement requires 1.4 for services with checks, 1.6.3 for cores by NUMA, 1.8 for schedules and transparent proxies;
/// unsupported features among these fail with their name. From 1.11 on servers sign a node identity, and use
/// deployments for system jobs only if all nodes have that version. 2.0 adds no version requirements.
pub const NOMAD_VERSION: &str = "1.11.3";

/// Attributes by name, without `attr.`.
pub type Attributes = BTreeMap<String, String>;

/// Detects the attributes of the machine; `total` is its capacity.
pub fn attributes(total: Room) -> Attributes {
    let mut found = Attributes::new();
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            found.insert(name.to_owned(), value);
        }
    };
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| Some(text.to_string_lossy().into_owned());
    set("kernel.name", text(uname.sysname()).map(|name| name.to_lowercase()));
    set("kernel.version", text(uname.release()));
    set("kernel.arch", text(uname.machine()));
    set("unique.hostname", text(uname.nodename()));
    set("cpu.arch", Some(architecture(std::env::consts::ARCH).to_owned()));
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    set("os.name", field(&release, '=', "ID"));
    let debian = fs::read_to_string("/etc/debian_version").unwrap_or_default();
    set("os.version", system_version(&release, &debian));
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    set("cpu.modelname", field(&processors, ':', "model name"));
    set("cpu.numcores", cores().map(|cores| cores.to_string()));
    set("cpu.frequency", frequency_mhz(&highest_khz(), &processors).map(|mhz| mhz.to_string()));
    let reported = |amount: u64| (amount != u64::MAX).then_some(amount);
    set("cpu.totalcompute", reported(total.cpu_mhz).map(|mhz| mhz.to_string()));
    set(
        "memory.totalbytes",
        reported(total.memory_mib).map(|mib| exact_bytes(mib, memory_bytes()).to_string()),
    );
    set("os.signals", Some(SIGNALS.join(",")));
    set("cpu.usablecompute", reported(total.cpu_mhz).map(|mhz| mhz.to_string()));
    let topology = topology(0);
    set("numa.node.count", Some(topology.nodes.len().to_string()));
    for node in &topology.nodes {
        let cores = topology.cores.iter().filter(|core| core.node_id == *node);
        set(&format!("numa.node{node}.cores"), Some(ranges(cores.map(|core| core.id))));
    }
    if let Some((mount, version)) = cgroups() {
        set("unique.cgroup.mountpoint", Some(mount.to_owned()));
        set("unique.cgroup.version", Some(format!("v{version}")));
        set("os.cgroups.version", Some(version.to_string()));
    }
    set("nomad.version", Some(NOMAD_VERSION.to_owned()));
    set("nomad.revision", Some(concat!("herdlet-", env!("CARGO_PKG_VERSION")).to_owned()));
    set("nomad.service_discovery", Some("true".to_owned()));
    found
}

/// The mount point and version of cgroups.
fn cgroups() -> Option<(&'static str, u8)> {
    let is_there = |path: &str| Path::new(path).exists();
    if is_there("/sys/fs/cgroup/cgroup.controllers") {
        Some(("/sys/fs/cgroup", 2))
    } else {
        is_there("/sys/fs/cgroup/cpu").then_some(("/sys/fs/cgroup/cpu", 1))
    }
}

/// Attributes of the disk that contains a directory.
pub fn storage(dir: &Path) -> Attributes {
    let mut found = Attributes::new();
    if let Ok(disk) = rustix::fs::statvfs(dir) {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize).to_string();
        found.insert("unique.storage.bytestotal".to_owned(), bytes(disk.f_blocks));
        found.insert("unique.storage.bytesfree".to_owned(), bytes(disk.f_bavail));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    if let Some(volume) = volume(&mounts, &dir) {
        found.insert("unique.storage.volume".to_owned(), volume);
    }
    found
}

/// The device of the mount that contains a directory. Of several at one path the last covers the others.
fn volume(mounts: &str, dir: &Path) -> Option<String> {
    let plain = |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((plain(fields.next()?), plain(fields.next()?)))
    });
    let above = mounts.filter(|(_, at)| dir.starts_with(at));
    above.max_by_key(|(_, at)| Path::new(at).components().count()).map(|(volume, _)| volume)
}

/// The machine's capacity; unlimited if unknown. The disk is the one that contains the state; its capacity is the
/// current free space, as in Nomad.
pub fn room(state_dir: &Path) -> Room {
    let disk = rustix::fs::statvfs(state_dir).ok().and_then(|disk| disk.f_bavail.checked_mul(disk.f_frsize));
    let mib = |bytes: Option<u64>| bytes.map_or(u64::MAX, |bytes| bytes / MIB);
    Room { cpu_mhz: total_compute_mhz(), cores: 0, memory_mib: mib(memory_bytes()), disk_mib: mib(disk) }
}

const MIB: u64 = 1024 * 1024;

fn memory_bytes() -> Option<u64> {
    let memory = rustix::system::sysinfo();
    memory.totalram.checked_mul(u64::from(memory.mem_unit))
}

/// MiB in bytes; if it equals the machine's memory, the exact number of bytes.
fn exact_bytes(mib: u64, machine: Option<u64>) -> u64 {
    machine.filter(|bytes| bytes / MIB == mib).unwrap_or(mib.saturating_mul(MIB))
}

/// Formats ordered numbers like Nomad's sets: `0-3,8`.
fn ranges(numbers: impl Iterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let shown = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// The version of the operating system. Debian's point release is in another file, as Nomad's clients read it:
/// gopsutil's `host` package.
fn system_version(release: &str, debian: &str) -> Option<String> {
    let is_debian = field(release, '=', "ID").as_deref() == Some("debian");
    let point = debian.trim();
    if is_debian && !point.is_empty() {
        return Some(point.to_owned());
    }
    field(release, '=', "VERSION_ID")
}

/// The total compute capacity of all cores in MHz, as in Nomad.
fn total_compute_mhz() -> u64 {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let frequency = frequency_mhz(&highest_khz(), &processors).unwrap_or(FREQUENCY_MHZ);
    cores().unwrap_or(1).saturating_mul(frequency)
}

/// The assumed frequency of an unknown CPU.
const FREQUENCY_MHZ: u64 = 1_000;

/// The number of cores that this process may use.
pub fn cores() -> Option<u64> {
    u64::try_from(std::thread::available_parallelism().ok()?.get()).ok()
}

/// The kernel's maximum frequency of the first core; often unknown in virtual machines.
fn highest_khz() -> String {
    fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").unwrap_or_default()
}

/// The first core's maximum frequency, else its current one.
fn frequency_mhz(highest_khz: &str, processors: &str) -> Option<u64> {
    let highest = highest_khz.trim().parse::<u64>().ok().map(|khz| khz / 1_000);
    let present = || field(processors, ':', "cpu MHz")?.split('.').next()?.parse().ok();
    highest.or_else(present).filter(|mhz| *mhz > 0)
}

/// Go's name for a CPU architecture, as Nomad uses it.
fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// The first value of a key in lines of keys and values.
fn field(text: &str, separator: char, key: &str) -> Option<String> {
    let fields = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = fields.into_iter().find(|(name, _)| name.trim() == key)?;
    Some(value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_common_attributes() {
        let found = attributes(room(Path::new("/")));
        for name in [
            "kernel.name",
            "kernel.version",
            "cpu.arch",
            "cpu.numcores",
            "cpu.totalcompute",
            "memory.totalbytes",
        ] {
            assert!(found.contains_key(name), "{name}: {found:?}");
        }
        assert_eq!(found["kernel.name"], "linux");
    }

    #[test]
    fn fields_are_read_as_they_are_written() {
        let release = "NAME=\"Debian GNU/Linux\"\nID=debian\nVERSION_ID=\"12\"\n";
        assert_eq!(field(release, '=', "ID").as_deref(), Some("debian"));
        assert_eq!(field(release, '=', "VERSION_ID").as_deref(), Some("12"));
        assert_eq!(field(release, '=', "NOPE"), None);
    }

    #[test]
    fn versions_and_core_ranges_have_nomad_form() {
        let debian = "ID=debian\nVERSION_ID=\"12\"\n";
        assert_eq!(system_version(debian, "12.11\n").as_deref(), Some("12.11"));
        assert_eq!(system_version(debian, "").as_deref(), Some("12"));
        assert_eq!(
            system_version("ID=ubuntu\nVERSION_ID=\"22.04\"\n", "bookworm/sid").as_deref(),
            Some("22.04")
        );
        assert_eq!(exact_bytes(2, Some(2 * MIB + 7)), 2 * MIB + 7);
        assert_eq!(exact_bytes(1, Some(2 * MIB + 7)), MIB, "the smaller value is used");
        for (numbers, expected) in [(&[][..], ""), (&[3], "3"), (&[0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11")] {
            assert_eq!(ranges(numbers.iter().copied()), expected);
        }
    }

    #[test]
    fn directory_uses_the_nearest_mount_above() {
        let mounts = "rootfs / rootfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n/dev/sdb /var/lib ext4 rw 0 0\ntmpfs /a\\040b tmpfs rw 0 0\n";
        let volume_of = |dir: &str| volume(mounts, Path::new(dir));
        assert_eq!(volume_of("/var/lib/herdlet").as_deref(), Some("/dev/sdb"));
        assert_eq!(volume_of("/var/library").as_deref(), Some("/dev/sda1"));
        assert_eq!(volume_of("/a b/c").as_deref(), Some("tmpfs"));
        assert_eq!(volume("", Path::new("/")), None);
        assert!(storage(Path::new("/")).contains_key("unique.storage.bytestotal"));
    }

    #[test]
    fn highest_frequency_is_used() {
        let processors = "processor\t: 0\ncpu MHz\t\t: 2450.750\n";
        assert_eq!(frequency_mhz("3700000\n", processors), Some(3_700));
        assert_eq!(frequency_mhz("", processors), Some(2_450));
        assert_eq!(frequency_mhz("", "processor\t: 0\n"), None);
        assert_eq!(frequency_mhz("0\n", ""), None);
    }

    #[test]
    fn unknown_amounts_set_no_attribute() {
        let found = attributes(Room::ENDLESS);
        assert!(!found.contains_key("cpu.totalcompute") && !found.contains_key("memory.totalbytes"));
    }
}
