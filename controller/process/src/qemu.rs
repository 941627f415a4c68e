//! The driver `qemu`: runs a virtual machine as a process, with limits, but without a root of its own.
//!
//! In: a task's `config`, the emulators of this machine. Out: how to run one. The emulator is an ordinary user's process, which can
//! read and write what that user can: an image may name other files of the machine as its base.
//!
//! Its sockets are named relative to the task's directory, which is its working directory: a socket's whole path has at most 107
//! bytes (unix(7)), and that directory's may be longer.

mod arguments;
mod image;
mod monitor;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
};

use herdlet_api_types::{
    driver::{ConfigCheck, ConfigFinding, DriverInfo, Planned, QEMU, QemuOptions, Verdict, machine_user},
    job::Task,
    manifest::driver::QemuConfig,
};
use herdlet_base::user::{self, Credentials};
use herdlet_driver::{
    DriverError, DriverResult, Fingerprint, Health, TaskConfig, limits::Limits, read_config,
};

use crate::{
    cgroup::Isolation as Cgroups,
    denied::{Denied, InvalidIds},
    engine::{Constancy, Effort, EndRequest, Engine, RunningTask, Setup, Translate, Translated},
    installed::{Programs, Versions},
    login::{self, no_user},
    supervisor::{Invocation, Isolation, Namespaces, OwnNamespaces, User},
};
use arguments::{Guest, Wrong};
use image::Images;

/// The emulator of tasks that name none. A machine that has it has the driver.
const EMULATOR: &str = "qemu-system-x86_64";

/// Where the machine's virtualisation is. Its group may use it.
const KVM: &str = "/dev/kvm";

/// Creates the driver. Must be called within a tokio runtime.
///
/// # Errors
/// If an option is invalid.
pub fn driver(setup: Setup, options: &QemuOptions, programs: Programs) -> Result<Engine, InvalidIds> {
    let QemuOptions {
        enabled: _,
        image_paths,
        args_allowlist,
        emulators_allowlist,
        denied_users,
        denied_host_uids,
        denied_host_gids,
    } = options;
    let denied = Denied::of(QEMU, denied_host_uids.as_deref(), denied_host_gids.as_deref())?;
    let translate = Qemu {
        versions: programs.versions(EMULATOR),
        programs,
        images: Images { dirs: image_paths.iter().map(PathBuf::from).collect() },
        args_allowlist: args_allowlist.clone(),
        emulators_allowlist: emulators_allowlist.clone(),
        denied: denied.with_names(denied_users.as_deref()),
    };
    Ok(Engine::new(DriverInfo { check: Some(ConfigCheck(findings)), ..DriverInfo::qemu() }, translate, setup))
}

/// What every agent refuses in a task's `config`.
pub fn findings(planned: &Planned<'_>) -> Vec<ConfigFinding> {
    // Names and types are the schema's matter.
    let Ok(config) = read_config::<QemuConfig>(planned.config) else { return Vec::new() };
    let wrong = arguments::findings(&config, planned.resources, &|label| planned.ports.contains(label));
    let refused = |Wrong { field, why }| ConfigFinding { field, message: why, verdict: Verdict::Refused };
    wrong.into_iter().map(refused).collect()
}

/// Translates tasks into emulators.
#[derive(Debug)]
struct Qemu {
    programs: Programs,
    images: Images,
    args_allowlist: Vec<String>,
    emulators_allowlist: Vec<String>,
    denied: Denied,
    versions: Versions,
}

impl Translate for Qemu {
    fn fingerprint(&self, _: &Cgroups, effort: Effort) -> Fingerprint {
        let without = |health, description| Fingerprint { health, description, attributes: BTreeMap::new() };
        if !rustix::process::geteuid().is_root() {
            let description = "Driver must run as root; run the agent as root";
            return without(Health::Undetected, description.to_owned());
        }
        let Some(emulator) = self.programs.locate(EMULATOR) else {
            return without(Health::Undetected, no_emulator(EMULATOR));
        };
        let healthy = without(Health::Healthy, "Healthy".to_owned());
        match effort {
            Effort::Quick => {
                let known = self.versions.known(&emulator).unwrap_or_default();
                Fingerprint { attributes: attributes(&known), ..healthy }
            }
            Effort::Thorough => match self.versions.query(&emulator, "--version") {
                Ok(output) => Fingerprint { attributes: attributes(&output), ..healthy },
                Err(why) => without(Health::Unhealthy, format!("the version of QEMU is unknown: {why}")),
            },
        }
    }

    fn constancy(&self) -> Constancy {
        Constancy::Changes
    }

    /// The guest's memory is bounded by its size. The emulator needs an unknown amount beside it, which only `memory_max` bounds.
    fn limits(&self, task: &TaskConfig) -> Limits {
        let limits = Limits::of_attempt(task);
        match task.resources.memory_max_mib {
            Some(_) => limits,
            None => Limits { memory_bytes: None, memory_low_bytes: limits.memory_bytes, ..limits },
        }
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        let (name, user) = login::known_user(QEMU, task)?;
        self.denied.check_user(&name, &user).err().map(|error| error.why())
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        let config = read_config::<QemuConfig>(&task.config)?;
        let name = machine_user(QEMU, task.user.as_deref()).unwrap_or_default();
        let mut user = user::find(name).map_err(no_user)?;
        self.denied.check_user(name, &user)?;
        let emulator = config.emulator.as_deref().filter(|name| !name.is_empty()).unwrap_or(EMULATOR);
        arguments::check_emulator(emulator).map_err(Wrong::into_error)?;
        arguments::check_emulator_allowed(emulator, &self.emulators_allowlist).map_err(Wrong::into_error)?;
        arguments::check_allowed(&config.args, &self.args_allowlist).map_err(Wrong::into_error)?;
        let image = self.images.find(&config.image_path, &task.dirs.task)?;
        let forwards = arguments::forwards(&config, task).map_err(Wrong::into_error)?;
        let guest = Guest { config: &config, image: &image, resources: &task.resources, forwards };
        let words = arguments::list(&guest).map_err(Wrong::into_error)?;
        let program =
            self.programs.locate(emulator).ok_or_else(|| DriverError::no_program(no_emulator(emulator)))?;
        monitor::remove_sockets(&task.dirs.task).map_err(DriverError::retry)?;
        if arguments::uses_kvm(&config) {
            join_kvm(&mut user);
        }
        let mut variables = task.env.clone();
        login::add_to(&mut variables, &user.login);
        let arguments = std::iter::once(emulator.to_owned()).chain(words).map(OsString::from).collect();
        let created = Namespaces::IPC | Namespaces::CGROUP;
        let invocation = Invocation {
            program,
            arguments,
            environment: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: Some(task.dirs.task.clone()),
            user: Some(User { uid: user.uid, gid: user.gid, groups: user.groups }),
            // Never inherit the agent's own value, which may protect it from the OOM killer.
            oom_score_adj: Some(0),
            isolation: Some(Isolation::Own(OwnNamespaces { created, ..OwnNamespaces::default() })),
            ..Invocation::default()
        };
        Ok(Translated {
            invocation,
            processes: config.pids_limit.map(u64::from),
            user: format!("user {name}"),
            messages: Vec::new(),
        })
    }

    fn command(&self, _: &RunningTask<'_>, _: &[String]) -> DriverResult<Invocation> {
        Err(DriverError::Unsupported { ability: "executing commands" })
    }

    fn ask_to_end(&self, task: &RunningTask<'_>) -> EndRequest {
        let RunningTask { config: task, main } = task;
        if !read_config::<QemuConfig>(&task.config).is_ok_and(|config| config.graceful_shutdown) {
            return EndRequest::None;
        }
        match monitor::press_power_button(&task.dirs.task, main.pid) {
            Ok(()) => EndRequest::Sent("Pressed the power button of the virtual machine"),
            Err(error) => EndRequest::Failed(format!(
                "Failed to press the power button of the virtual machine: {error}; the emulator gets the signal at once, as if the power were cut"
            )),
        }
    }
}

fn no_emulator(name: &str) -> String {
    let package = match name.rsplit('_').next() {
        Some("x86" | "64") => "qemu-system-x86",
        Some(_) | None => "qemu-system",
    };
    format!(
        "there is no {name} in the agent's PATH; install the package {package}; it is found within half a minute"
    )
}

/// Adds the group that may use virtualisation.
fn join_kvm(user: &mut Credentials) {
    if let Ok(device) = std::fs::metadata(OsStr::new(KVM))
        && device.mode() & 0o060 == 0o060
        && device.gid() != 0
        && !user.groups.contains(&device.gid())
    {
        user.groups.push(device.gid());
    }
}

/// Attributes from the output of `--version`.
fn attributes(output: &str) -> BTreeMap<String, String> {
    let version = output.split_once("version ").and_then(|(_, rest)| rest.split_whitespace().next());
    let version = version.filter(|text| text.starts_with(|char: char| char.is_ascii_digit()));
    version.map(|version| (format!("driver.{QEMU}.version"), version.to_owned())).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::job::Resources;

    use super::*;

    #[test]
    fn the_version_is_read() {
        let of = |text: &str| attributes(text).remove("driver.qemu.version");
        let debian =
            "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022\n";
        assert_eq!(of(debian).as_deref(), Some("7.2.22"));
        assert_eq!(of("QEMU emulator version 9.0.0\n").as_deref(), Some("9.0.0"));
        assert_eq!(of("version of nothing"), None);
    }

    #[test]
    fn only_memory_max_limits_the_emulator() {
        let programs = Programs::new(OsString::new(), PathBuf::new());
        let qemu = Qemu {
            versions: programs.versions(EMULATOR),
            programs,
            images: Images::default(),
            args_allowlist: Vec::new(),
            emulators_allowlist: Vec::new(),
            denied: Denied::default(),
        };
        let of = |memory_max_mib| {
            let task = image::tests::task(BTreeMap::new());
            let resources = Resources { memory_mib: Some(256), memory_max_mib, ..Resources::default() };
            let limits = qemu.limits(&TaskConfig { resources, ..task });
            [limits.memory_low_bytes, limits.memory_bytes].map(|bytes| bytes.map(|bytes| bytes >> 20))
        };
        assert_eq!(of(None), [Some(256), None]);
        assert_eq!(of(Some(512)), [Some(256), Some(512)]);
    }

    #[test]
    fn a_missing_emulator_names_its_package() {
        assert!(no_emulator(EMULATOR).contains("package qemu-system-x86;"));
        assert!(no_emulator("qemu-system-aarch64").contains("package qemu-system;"));
    }
}
