//! The arguments of an emulator.
//!
//! In: a task's `config`, its ports and its memory. Out: the arguments, in the order of Nomad's driver, or the key that is wrong.
//! A comma separates options of QEMU, so it is doubled in names of files and allowed in no other value.

use std::path::Path;

use herdlet_api_types::{
    alloc::AssignedPort,
    job::Resources,
    manifest::{Text, driver::QemuConfig},
};
use herdlet_driver::{DriverError, TaskConfig};

use super::monitor::{AGENT, MONITOR};

/// The memory of a guest in MiB, as in Nomad.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 128..=4_000_000;
/// The memory of a task that states none, as in Nomad.
const MEMORY_DEFAULT_MIB: u64 = 300;
/// How names of emulators begin. Anything else would let `emulator` run a program of choice.
const EMULATORS: &str = "qemu-system-";

/// A key of a `config` that can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) field: String,
    pub(super) why: String,
}

impl Wrong {
    fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }

    pub(super) fn into_error(self) -> DriverError {
        DriverError::fatal(format!("parse config: {}: {}", self.field, self.why))
    }
}

/// A virtual machine.
pub(super) struct Guest<'g> {
    pub(super) config: &'g QemuConfig,
    pub(super) image: &'g Path,
    pub(super) resources: &'g Resources,
    pub(super) forwards: Vec<Forward>,
}

/// A port of the machine that leads to one of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    /// Empty for all addresses.
    address: String,
    port: u16,
    guest: u16,
}

/// What every agent refuses, as far as it is known before the start. A text with `${…}` is not.
pub(super) fn findings(
    config: &QemuConfig,
    resources: &Resources,
    has_port: &dyn Fn(&str) -> bool,
) -> Vec<Wrong> {
    let is_known = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.contains("${"));
    let mut wrong = Vec::new();
    if is_known(&config.emulator) {
        wrong.extend(check_emulator(config.emulator.as_deref().unwrap_or_default()).err());
    }
    for (field, value) in words(config) {
        if is_known(value) {
            wrong.extend(word(field, value.as_deref().unwrap_or_default()).err());
        }
    }
    if is_known(&config.accelerator) {
        wrong.extend(check_accelerator(config.accelerator.as_deref().unwrap_or_default()).err());
    }
    wrong.extend(memory(resources).err());
    for (label, guest) in config.port_map.0.iter().filter(|(_, guest)| !guest.contains("${")) {
        wrong.extend(guest_port(label, guest).err());
        if !has_port(label) {
            wrong.push(unknown_port(label));
        }
    }
    wrong
}

/// # Errors
/// If it is no name of an emulator.
pub(super) fn check_emulator(name: &str) -> Result<(), Wrong> {
    let is_name =
        name.strip_prefix(EMULATORS).is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_plain));
    if is_name || name.is_empty() {
        return Ok(());
    }
    Err(Wrong::new(
        "emulator",
        format!("expected the name of an emulator, such as {EMULATORS}aarch64, found {name:?}"),
    ))
}

/// Checks an emulator against those that the driver's options allow.
///
/// # Errors
/// If it is not allowed.
pub(super) fn check_emulator_allowed(name: &str, allowed: &[String]) -> Result<(), Wrong> {
    let is_it = |allowed: &String| allowed == name || name.strip_prefix(EMULATORS) == Some(allowed);
    if allowed.is_empty() || allowed.iter().any(is_it) {
        return Ok(());
    }
    Err(Wrong::new(
        "emulator",
        format!(
            "{name} is not allowed; `drivers.qemu.emulators_allowlist` of the agent's config lists what is"
        ),
    ))
}

/// # Errors
/// If QEMU has it on other systems only, or not at all. Several are alternatives, in their order.
fn check_accelerator(names: &str) -> Result<(), Wrong> {
    let is_known = |name: &str| ACCELERATORS.contains(&name);
    // Other characters are another problem.
    if names.is_empty() || !names.chars().all(is_plain) || names.split(':').all(is_known) {
        return Ok(());
    }
    let message =
        format!("QEMU has no accelerator {names:?} on Linux; write tcg, or kvm on a machine with /dev/kvm");
    Err(Wrong::new("accelerator", message))
}

/// Checks arguments against those that the driver's options allow.
///
/// # Errors
/// If one is not allowed.
pub(super) fn check_allowed(args: &[Text], allowed: &[String]) -> Result<(), Wrong> {
    if allowed.is_empty() {
        return Ok(());
    }
    // QEMU accepts one dash and two.
    let name = |option: &str| option.trim().trim_start_matches('-').to_owned();
    let mut takes_value = false;
    for (index, Text(arg)) in args.iter().enumerate() {
        let is_option = arg.trim().starts_with('-');
        let is_allowed = match is_option {
            true => allowed.iter().any(|allowed| name(allowed) == name(arg)),
            // One that belongs to no option is the image of a disk.
            false => takes_value,
        };
        if !is_allowed {
            return Err(Wrong::new(
                format!("args[{index}]"),
                format!(
                    "{arg:?} is not allowed; `drivers.qemu.args_allowlist` of the agent's config lists what is"
                ),
            ));
        }
        takes_value = is_option;
    }
    Ok(())
}

/// The ports of a task that lead to its guest.
///
/// # Errors
/// If a label or a number is wrong.
pub(super) fn forwards(config: &QemuConfig, task: &TaskConfig) -> Result<Vec<Forward>, Wrong> {
    let forward = |(label, guest): (&String, &String)| {
        let guest = guest_port(label, guest)?;
        let port = task.own_ports.get(label).or_else(|| task.ports.get(label));
        let AssignedPort { host_ip, value, to } = port.ok_or_else(|| unknown_port(label))?;
        if task.network.is_some() {
            // In the network of the group, to whose ports those of the machine lead.
            let port = if *to == 0 { *value } else { *to };
            return Ok(Forward { address: String::new(), port, guest });
        }
        if host_ip.contains(':') {
            return Err(Wrong::new(
                format!("port_map.{label}"),
                format!("QEMU can't forward a port of the IPv6 address {host_ip}"),
            ));
        }
        Ok(Forward { address: host_ip.clone(), port: *value, guest })
    };
    config.port_map.0.iter().map(forward).collect()
}

/// Whether the guest uses the machine's virtualisation.
pub(super) fn uses_kvm(config: &QemuConfig) -> bool {
    config.accelerator.as_deref() == Some("kvm")
}

/// All arguments.
///
/// # Errors
/// If a key is wrong.
pub(super) fn list(guest: &Guest<'_>) -> Result<Vec<String>, Wrong> {
    let Guest { config, image, resources, forwards } = guest;
    for (field, value) in words(config) {
        word(field, value.as_deref().unwrap_or_default())?;
    }
    let given = |text: &Option<String>, default: &str| match text.as_deref() {
        None | Some("") => default.to_owned(),
        Some(text) => text.to_owned(),
    };
    let machine =
        format!("type={},accel={}", given(&config.machine_type, "pc"), given(&config.accelerator, "tcg"));
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let drive = format!("file={},if={}", doubled(&image.to_string_lossy()), config.drive_interface.name());
    let mut all: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| all.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-machine", &machine, "-name", &doubled(&name), "-m", &format!("{}M", memory(resources)?)]);
    let has_processors = config.args.iter().any(|Text(arg)| arg.trim_start_matches('-') == "smp");
    if let Some(cores) = resources.cores.filter(|_| !has_processors) {
        add(&["-smp", &cores.to_string()]);
    }
    add(&["-drive", &drive, "-nographic"]);
    if config.graceful_shutdown {
        add(&["-monitor", &format!("unix:{MONITOR},server=on,wait=off")]);
    }
    if config.guest_agent {
        add(&["-chardev", &format!("socket,path={AGENT},server=on,wait=off,id=qga0")]);
        add(&["-device", "virtio-serial"]);
        add(&["-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0"]);
    }
    config.args.iter().for_each(|Text(arg)| add(&[arg]));
    if !forwards.is_empty() {
        let rules = forwards.iter().flat_map(|Forward { address, port, guest }| {
            ["udp", "tcp"].map(|protocol| format!(",hostfwd={protocol}:{address}:{port}-:{guest}"))
        });
        add(&["-netdev", &format!("user,id=user.0{}", rules.collect::<String>())]);
        add(&["-device", "virtio-net,netdev=user.0"]);
    }
    if uses_kvm(config) {
        add(&["-enable-kvm", "-cpu", "host"]);
    }
    Ok(all)
}

/// The accelerators of QEMU on Linux.
const ACCELERATORS: [&str; 3] = ["tcg", "kvm", "xen"];

/// Values that become part of an option.
fn words(config: &QemuConfig) -> [(&'static str, &Option<String>); 2] {
    [("accelerator", &config.accelerator), ("machine_type", &config.machine_type)]
}

fn word(field: &str, value: &str) -> Result<(), Wrong> {
    if value.chars().all(is_plain) {
        return Ok(());
    }
    Err(Wrong::new(
        field,
        format!("{value:?} has other characters than letters, digits, `.`, `-`, `_` and `:`"),
    ))
}

fn is_plain(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_' | ':')
}

fn memory(resources: &Resources) -> Result<u64, Wrong> {
    let memory = resources.memory_mib.unwrap_or(MEMORY_DEFAULT_MIB);
    if MEMORY_MIB.contains(&memory) {
        return Ok(memory);
    }
    let (min, max) = (MEMORY_MIB.start(), MEMORY_MIB.end());
    Err(Wrong::new("resources.memory", format!("a guest has {min} to {max} MiB of memory, found {memory}")))
}

fn guest_port(label: &str, text: &str) -> Result<u16, Wrong> {
    let port = text.parse::<u16>().ok().filter(|port| *port != 0);
    port.ok_or_else(|| {
        Wrong::new(format!("port_map.{label}"), format!("expected a port from 1 to 65535, found {text:?}"))
    })
}

fn unknown_port(label: &str) -> Wrong {
    Wrong::new(
        format!("port_map.{label}"),
        format!("Unknown port label {label:?}; add the port to a `network` block"),
    )
}

fn doubled(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::manifest::driver::Pairs;
    use serde_json::json;

    use super::*;

    fn config(more: serde_json::Value) -> QemuConfig {
        let mut config = json!({"image_path": "local/x.img"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    fn line(config: &QemuConfig, forwards: Vec<Forward>) -> String {
        let resources = Resources { memory_mib: Some(512), ..Resources::default() };
        let image = Path::new("/alloc/t/local/a,b.img");
        list(&Guest { config, image, resources: &resources, forwards }).unwrap().join(" ")
    }

    #[test]
    fn arguments_are_nomads() {
        let plain = "-machine type=pc,accel=tcg -name a,,b.img -m 512M -drive file=/alloc/t/local/a,,b.img,if=ide -nographic";
        assert_eq!(line(&config(json!({})), Vec::new()), plain);
        let all = config(json!({
            "drive_interface": "virtio", "accelerator": "kvm", "machine_type": "q35", "graceful_shutdown": true,
            "guest_agent": true, "args": ["-smp", "2"],
        }));
        let forwards = vec![Forward { address: "127.0.0.1".into(), port: 20000, guest: 22 }];
        assert_eq!(
            line(&all, forwards),
            "-machine type=q35,accel=kvm -name a,,b.img -m 512M -drive file=/alloc/t/local/a,,b.img,if=virtio -nographic \
             -monitor unix:qm.sock,server=on,wait=off \
             -chardev socket,path=qa.sock,server=on,wait=off,id=qga0 -device virtio-serial \
             -device virtserialport,chardev=qga0,name=org.qemu.guest_agent.0 -smp 2 \
             -netdev user,id=user.0,hostfwd=udp:127.0.0.1:20000-:22,hostfwd=tcp:127.0.0.1:20000-:22 \
             -device virtio-net,netdev=user.0 -enable-kvm -cpu host"
        );
    }

    /// A guest with one processor would leave the other cores of its task idle.
    #[test]
    fn a_guest_has_a_processor_for_each_core() {
        let processors = |more: serde_json::Value| {
            let config = config(more);
            let resources = Resources { memory_mib: Some(512), cores: Some(2), ..Resources::default() };
            let image = Path::new("/alloc/t/local/a.img");
            let guest = Guest { config: &config, image, resources: &resources, forwards: Vec::new() };
            let words = list(&guest).unwrap();
            let given = words.iter().zip(words.iter().skip(1)).filter(|(option, _)| *option == "-smp");
            given.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(processors(json!({})), ["2"]);
        assert_eq!(processors(json!({"args": ["-smp", "4"]})), ["4"]);
    }

    #[test]
    fn wrong_keys_are_named_before_the_start() {
        let enough = Resources { memory_mib: Some(256), ..Resources::default() };
        let found = |more: serde_json::Value| -> Vec<String> {
            let found = findings(&config(more), &enough, &|label| label == "http");
            found.into_iter().map(|wrong| wrong.field).collect()
        };
        assert_eq!(found(json!({"emulator": "sh"})), ["emulator"]);
        assert_eq!(found(json!({"emulator": "qemu-system-x/../../sh"})), ["emulator"]);
        assert_eq!(found(json!({"accelerator": "tcg,firmware=/etc/shadow"})), ["accelerator"]);
        assert_eq!(found(json!({"accelerator": "hvf"})), ["accelerator"]);
        assert_eq!(found(json!({"accelerator": "kvm:tcg"})), [""; 0]);
        assert_eq!(found(json!({"machine_type": "pc,x=y"})), ["machine_type"]);
        assert_eq!(found(json!({"port_map": {"http": 0}})), ["port_map.http"]);
        assert_eq!(found(json!({"port_map": [{"http": 80, "other": 81}]})), ["port_map.other"]);
        assert_eq!(found(json!({"accelerator": "${meta.a}", "port_map": {"http": "${meta.p}"}})), [""; 0]);
        assert_eq!(found(json!({"emulator": "qemu-system-aarch64", "machine_type": "virt"})), [""; 0]);
        let small = Resources { memory_mib: Some(64), ..Resources::default() };
        let wrong = findings(&config(json!({})), &small, &|_| true);
        assert!(wrong[0].field == "resources.memory" && wrong[0].why.contains("64"), "{wrong:?}");
    }

    #[test]
    fn options_that_are_not_allowed_are_refused() {
        let allowed = ["-smp".to_owned(), "nodefaults".to_owned()];
        let check = |args: &[&str]| {
            let args: Vec<Text> = args.iter().map(|arg| Text((*arg).to_owned())).collect();
            check_allowed(&args, &allowed).map_err(|wrong| wrong.field)
        };
        assert_eq!(check(&["-smp", "2", "--nodefaults"]), Ok(()));
        assert_eq!(check(&["-smp", "2", "-drive", "file=/dev/sda"]), Err("args[2]".to_owned()));
        assert_eq!(check(&[" --drive", "x"]), Err("args[0]".to_owned()));
        assert_eq!(check(&["/dev/sda"]), Err("args[0]".to_owned()));
        assert_eq!(check(&["-smp", "2", "/dev/sda"]), Err("args[2]".to_owned()));
        assert_eq!(check_allowed(&[Text("-drive".into())], &[]), Ok(()));
    }

    #[test]
    fn ports_lead_to_the_guest() {
        let ports = [("http", ("127.0.0.1", 20000, 8080)), ("six", ("::1", 20001, 0))].map(
            |(label, (ip, value, to))| (label.to_owned(), AssignedPort { host_ip: ip.to_owned(), value, to }),
        );
        let task = |network| TaskConfig { network, ..crate::qemu::image::tests::task(ports.clone().into()) };
        let map = |label: &str| QemuConfig {
            port_map: Pairs([(label.to_owned(), "80".to_owned())].into()),
            ..QemuConfig::default()
        };
        let forward = |address: &str, port| vec![Forward { address: address.to_owned(), port, guest: 80 }];
        assert_eq!(forwards(&map("http"), &task(None)), Ok(forward("127.0.0.1", 20000)));
        let space = herdlet_driver::NetworkSpace { path: "/x".into(), hostname: None };
        assert_eq!(forwards(&map("http"), &task(Some(space))), Ok(forward("", 8080)));
        assert!(forwards(&map("six"), &task(None)).unwrap_err().why.contains("IPv6"));
        assert_eq!(forwards(&map("none"), &task(None)).unwrap_err().field, "port_map.none");
    }
}
