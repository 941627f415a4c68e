//! Rights of a container that the agent's config has to allow: privileged containers, capabilities, the machine's namespaces,
//! runtimes, security options.
//!
//! In: the task's config, the policy. Out: fields of the request, or a refusal that names the option that would allow it.

use std::{fs, io::Read as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use bollard::models::HostConfig;
use herdlet_api_types::manifest::driver::DockerConfig;

use super::{Material, capabilities, some, sources::NOT_ENABLED};
use crate::{config::FieldError, files, policy::Policy};

/// The mode that shares the namespace of a container.
const CONTAINER: &str = "container";

/// The option that has no value.
const NO_NEW_PRIVILEGES: &str = "no-new-privileges";

/// The largest seccomp profile. Docker's default has 13 KiB.
const PROFILE_LEN_MAX: u64 = 1024 * 1024;

pub(super) fn set(host: &mut HostConfig, material: &Material<'_>) -> Result<(), FieldError> {
    let Material { config, policy, .. } = material;
    let docker = &config.docker;
    host.privileged = privileged(docker, policy)?;
    let change = capabilities::change(&docker.cap_add, &docker.cap_drop, &policy.allow_caps)?;
    if !docker.privileged {
        (host.cap_add, host.cap_drop) = (some(change.add), some(change.drop));
    }
    let [pid, ipc, uts, userns] = modes(docker, policy);
    (host.pid_mode, host.ipc_mode, host.uts_mode, host.userns_mode) = (pid?, ipc?, uts?, userns?);
    host.security_opt = some(security_options(material)?);
    Ok(())
}

/// The rights in a config that the policy denies.
pub(super) fn denials(docker: &DockerConfig, policy: &Policy) -> Vec<FieldError> {
    let change = capabilities::change(&docker.cap_add, &docker.cap_drop, &policy.allow_caps);
    let mut found: Vec<FieldError> = modes(docker, policy).into_iter().filter_map(Result::err).collect();
    found.extend(privileged(docker, policy).err());
    found.extend(change.err());
    found.extend(runtime(docker, policy).err());
    found
}

fn privileged(docker: &DockerConfig, policy: &Policy) -> Result<Option<bool>, FieldError> {
    if docker.privileged && !policy.allow_privileged {
        return Err(FieldError::new(
            "privileged",
            "Docker privileged mode is disabled on this agent; allow it with `allow_privileged` of the driver's options",
        ));
    }
    Ok(docker.privileged.then_some(true))
}

/// What is wrong on every machine.
pub(super) fn refusals(docker: &DockerConfig) -> Vec<FieldError> {
    let options = docker.security_opt.iter().enumerate();
    options.filter_map(|(index, option)| SecurityOption::parse(index, &option.0).err()).collect()
}

/// Whose namespaces it is in: pid, ipc, uts, userns.
fn modes(docker: &DockerConfig, policy: &Policy) -> [Result<Option<String>, FieldError>; 4] {
    [
        mode("pid", docker.pid_mode.as_deref(), &policy.allowed_pid, policy),
        mode("ipc", docker.ipc_mode.as_deref(), &policy.allowed_ipc, policy),
        mode("uts", docker.uts_mode.as_deref(), &policy.allowed_uts, policy),
        mode("userns", docker.userns_mode.as_deref(), &policy.allowed_userns, policy),
    ]
}

/// Sharing a namespace of the machine is a right (Nomad 2.0.4, CVE-2026-14891). Sharing one of another container is one, too: it may be
/// somebody else's, and its processes and memory are in it. `container` allows each `container:NAME`.
fn mode(
    namespace: &str,
    value: Option<&str>,
    allowed: &[String],
    policy: &Policy,
) -> Result<Option<String>, FieldError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let kind = value.split_once(':').map_or(value, |(kind, _)| kind);
    let is_shared = matches!(kind, "host" | "ns" | CONTAINER);
    let is_allowed = |mode: &String| mode == value || mode == CONTAINER && kind == CONTAINER;
    if is_shared && !policy.allow_privileged && !allowed.iter().any(is_allowed) {
        return Err(FieldError::new(
            format!("{namespace}_mode"),
            format!(
                "{value:?} is not allowed on this agent; allow it with `allowed_modes.{namespace}: [{kind}]` or `allow_privileged` of the driver's options"
            ),
        ));
    }
    Ok(Some(value.to_owned()))
}

pub(super) fn runtime(docker: &DockerConfig, policy: &Policy) -> Result<Option<String>, FieldError> {
    let Some(runtime) = docker.runtime.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    if !policy.allow_runtimes.iter().any(|allowed| allowed == runtime) {
        return Err(FieldError::new(
            "runtime",
            format!(
                "requested runtime {runtime:?} is not allowed; allow it with `allow_runtimes` of the driver's options"
            ),
        ));
    }
    Ok(Some(runtime.to_owned()))
}

/// An entry of `security_opt`.
enum SecurityOption<'t> {
    NoNewPrivileges,
    Named(&'t str, &'t str),
}

impl<'t> SecurityOption<'t> {
    fn parse(index: usize, option: &'t str) -> Result<Self, FieldError> {
        if option == NO_NEW_PRIVILEGES {
            return Ok(Self::NoNewPrivileges);
        }
        let parts = option.split_once('=').or_else(|| option.split_once(':'));
        parts.map(|(name, value)| Self::Named(name, value)).ok_or_else(|| {
            let why = format!("expected NAME=VALUE or {NO_NEW_PRIVILEGES}, found {option:?}");
            FieldError::new(format!("security_opt[{index}]"), why)
        })
    }
}

/// Options for the engine, in which the file of a seccomp profile is replaced by its content.
fn security_options(Material { task, config, policy, .. }: &Material<'_>) -> Result<Vec<String>, FieldError> {
    let read = |(index, option): (usize, &herdlet_api_types::manifest::Text)| {
        let refused = |why: String| FieldError::new(format!("security_opt[{index}]"), why);
        let (name, value) = match SecurityOption::parse(index, &option.0)? {
            SecurityOption::NoNewPrivileges => return Ok(NO_NEW_PRIVILEGES.to_owned()),
            SecurityOption::Named(name, value) => (name, value),
        };
        if name != "seccomp" || matches!(value, "unconfined" | "builtin") {
            return Ok(format!("{name}={value}"));
        }
        let profile = read_profile(&task.dirs.task, Path::new(value), policy)
            .map_err(|why| refused(format!("cannot read the seccomp profile {value:?}: {why}")))?;
        Ok(format!("seccomp={profile}"))
    };
    config.docker.security_opt.iter().enumerate().map(read).collect()
}

/// Reads a profile in the task's directory, or one of the machine by its absolute path. The latter needs the right to use paths of the
/// machine: an error would tell whether a file exists, and what kind of a file it is.
fn read_profile(task: &Path, path: &Path, policy: &Policy) -> Result<String, String> {
    let inside = path.strip_prefix(task).unwrap_or(path);
    let file = if inside.is_absolute() {
        if !policy.host_paths {
            return Err(NOT_ENABLED.to_owned());
        }
        let flags = libc::O_NONBLOCK;
        fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(inside)
            .map_err(|error| error.to_string())?
    } else {
        let found = files::open(task, inside).map_err(|error| format!("failed to {error}"))?;
        found.ok_or("it does not exist")?
    };
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > PROFILE_LEN_MAX {
        return Err("it is no file of at most 1 MiB".to_owned());
    }
    let mut text = String::new();
    file.take(PROFILE_LEN_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let profile: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("it is no JSON: {error}"))?;
    Ok(profile.to_string())
}
