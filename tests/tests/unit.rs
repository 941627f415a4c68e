//! The shipped systemd unit: systemd accepts every line, and it contains no harmful setting.
//!
//! In: deploy/herdlet.service, and `systemd-analyze` if available. tests/guest/run tests the unit with a real
//! systemd.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use herdlet_e2e::environment;

/// Each gives the service its own mount namespace: a restart would lose the agent's mounts for tasks.
const MOUNT_NAMESPACE: [&str; 28] = [
    "BindLogSockets",
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "ExecPaths",
    "InaccessiblePaths",
    "MountAPIVFS",
    "MountFlags",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateNetwork",
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "TemporaryFileSystem",
];

/// Each would be inherited by every task, or affects running tasks.
const HARMFUL: [&str; 9] = [
    "CapabilityBoundingSet",
    "Delegate",
    "LoadCredential",
    "NoNewPrivileges",
    "RestrictNamespaces",
    "RestrictSUIDSGID",
    "RuntimeDirectory",
    "SystemCallFilter",
    "User",
];

type Outcome = Result<(), Box<dyn Error>>;

#[test]
fn systemd_accepts_the_unit() -> Outcome {
    let Some(analyze) = environment::program("systemd-analyze") else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("herdlet.service");
    // systemd checks that the program exists; the agent need not be installed for this.
    fs::write(&copy, unit()?.replace("/usr/bin/herdlet ", "/bin/true "))?;

    let output = Command::new(analyze).arg("verify").arg(&copy).output()?;

    // The exit code is 0 even for unknown keys.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{}", output.status);
    Ok(())
}

#[test]
fn the_unit_leaves_tasks_alone() -> Outcome {
    let unit = unit()?;
    assert_eq!(value(&unit, "Type"), Some("notify"));
    assert_eq!(value(&unit, "KillMode"), Some("process"));
    for key in MOUNT_NAMESPACE.into_iter().chain(HARMFUL) {
        assert_eq!(value(&unit, key), None, "{key}= must not be in the unit");
    }
    Ok(())
}

fn unit() -> std::io::Result<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/herdlet.service"))
}

/// Returns the value of the first `key=` line; comments don't count.
fn value<'u>(unit: &'u str, key: &str) -> Option<&'u str> {
    unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}
