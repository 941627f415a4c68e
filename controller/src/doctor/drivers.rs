//! What drivers of processes need on this machine: paths of `chroot_env`, programs, virtualisation.
//!
//! In: the config. Out: findings for the enabled drivers `exec`, `java` and `qemu`. That namespaces and roots can be made is
//! another check.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use herdlet_api_types::driver::{EXEC, ExecOptions, JAVA, QEMU};
use herdlet_config::Config;
use herdlet_driver::Availability;
use herdlet_process::{exec, installed};
use serde_json::Value;

use super::Finding;

const CHECK: &str = "drivers";
/// Programs of drivers, each with the package of Debian.
const PROGRAMS: [(&str, &str, &str); 2] =
    [(JAVA, "java", "default-jre-headless"), (QEMU, "qemu-system-x86_64", "qemu-system-x86")];
const KVM: &str = "/dev/kvm";

pub(super) fn drivers(config: &Config) -> Vec<Finding> {
    let is_on = |driver: &str| config.drivers.availability(driver) == Availability::Enabled;
    let mut found = Vec::new();
    for driver in [EXEC, JAVA].into_iter().filter(|driver| is_on(driver)) {
        let options = serde_json::from_value(Value::Object(config.drivers.options(driver)));
        found.extend(missing(driver, &options.unwrap_or_default()));
    }
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    for (driver, program, package) in PROGRAMS.into_iter().filter(|(driver, ..)| is_on(driver)) {
        found.push(match installed::locate(program, &search_path) {
            Some(path) if driver == QEMU => virtualisation(&path, Path::new(KVM)),
            Some(path) => Finding::ok(CHECK, format!("driver {driver}: {}", path.display())),
            None => {
                let message = format!(
                    "driver {driver}: not offered, there is no {program} in PATH (package {package})"
                );
                Finding::ok(CHECK, message)
            }
        });
    }
    found
}

/// The paths of `chroot_env` that do not exist.
fn missing(driver: &str, options: &ExecOptions) -> Vec<Finding> {
    let finding = |path: &Path| {
        let path = path.display();
        let message =
            format!("driver {driver}: chroot_env lists {path}, which does not exist: tasks do not see it");
        Finding::warning(
            CHECK,
            message,
            format!("create {path}, or remove it from `drivers.{driver}.chroot_env`"),
        )
    };
    exec::missing_sources(options).into_iter().map(finding).collect()
}

/// Whether guests can use the virtualisation of this machine.
fn virtualisation(emulator: &Path, kvm: &Path) -> Finding {
    let (emulator, device) = (emulator.display(), kvm.display());
    match kvm.metadata() {
        Err(_) => {
            Finding::ok(CHECK, format!("driver qemu: {emulator}; there is no {device}: guests are emulated"))
        }
        Ok(meta) if meta.gid() == 0 || meta.mode() & 0o060 != 0o060 => Finding::warning(
            CHECK,
            format!("driver qemu: no group may use {device}, so tasks with `accelerator: kvm` fail"),
            format!("as root: chgrp kvm {device}; chmod 660 {device}"),
        ),
        Ok(_) => Finding::ok(CHECK, format!("driver qemu: {emulator}, with {device}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _};

    use super::{super::Verdict, *};

    #[test]
    fn paths_that_tasks_would_not_see_are_named() {
        let of = |paths: &[&str]| {
            let shown: BTreeMap<String, String> =
                paths.iter().map(|path| ((*path).to_owned(), "/etc".to_owned())).collect();
            missing(EXEC, &ExecOptions { chroot_env: Some(shown), ..ExecOptions::default() })
        };
        let found = of(&["/usr", "/no/such/jdk"]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].verdict == Verdict::Warning && found[0].message.contains("/no/such/jdk"),
            "{found:?}"
        );
        assert!(missing(EXEC, &ExecOptions::default()).is_empty());
    }

    #[test]
    fn a_device_that_no_group_may_use_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let (device, emulator) = (dir.path().join("kvm"), Path::new("/usr/bin/qemu"));
        assert_eq!(virtualisation(emulator, &device).verdict, Verdict::Ok);
        fs::write(&device, "").unwrap();
        fs::set_permissions(&device, fs::Permissions::from_mode(0o600)).unwrap();
        let found = virtualisation(emulator, &device);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.hint.unwrap().contains("chgrp kvm"));
    }
}
