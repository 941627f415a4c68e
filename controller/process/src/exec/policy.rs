//! What the driver's options allow.
//!
//! In: options, a task's config, its user. Out: what the task gets, or a refusal that names the option that would allow it.

use std::{collections::BTreeMap, path::PathBuf};

use herdlet_api_types::{
    driver::{AllowedNamespaces, ExecOptions},
    manifest::{
        Text,
        driver::{ExecConfig, NamespaceMode},
    },
};
use herdlet_base::user::Credentials;
use herdlet_driver::{DriverError, DriverResult};
use herdlet_rootfs::root::Entry;

use super::capabilities::{CapabilitySet, DEFAULT, Names, unknown_name};
use crate::denied::{Denied, InvalidIds};

/// What a task sees of the machine, as in Nomad.
const ENTRIES: [&str; 9] =
    ["/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/run/systemd/resolve", "/sbin", "/usr"];

/// Options that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    #[error(transparent)]
    Ids(#[from] InvalidIds),
    #[error("allow_caps: there is no capability {name:?}")]
    Capability { name: String },
    #[error("chroot_env: {path:?} must be an absolute path without `..`")]
    Path { path: String },
}

/// The options of the driver.
#[derive(Debug)]
pub(crate) struct Policy {
    driver: &'static str,
    modes: Modes,
    allowed: AllowedNamespaces,
    allow_caps: Names,
    denied: Denied,
    pub(super) entries: Vec<Entry>,
}

/// Whose namespaces a task is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Modes {
    pub(super) pid: NamespaceMode,
    pub(super) ipc: NamespaceMode,
}

impl Policy {
    /// # Errors
    /// If an option is invalid.
    pub(crate) fn new(driver: &'static str, options: &ExecOptions) -> Result<Self, InvalidOptions> {
        let ExecOptions {
            enabled: _,
            default_pid_mode: pid,
            default_ipc_mode: ipc,
            allowed_modes,
            allow_caps,
            denied_users,
            denied_host_uids,
            denied_host_gids,
            chroot_env,
            no_pivot_root: _,
        } = options;
        let allow_caps = match allow_caps {
            Some(names) => Names::parse(names.iter().map(String::as_str)),
            None => Names::parse(DEFAULT),
        };
        let denied = Denied::of(driver, denied_host_uids.as_deref(), denied_host_gids.as_deref())?;
        Ok(Self {
            driver,
            modes: Modes { pid: *pid, ipc: *ipc },
            allowed: allowed_modes.clone().unwrap_or_default().0,
            allow_caps: allow_caps.map_err(|name| InvalidOptions::Capability { name })?,
            denied: denied.with_names(denied_users.as_deref()),
            entries: match chroot_env {
                Some(paths) => entries(paths)?,
                None => ENTRIES.map(|path| Entry { source: path.into(), target: below_root(path) }).into(),
            },
        })
    }

    /// # Errors
    /// A namespace of the machine that the options don't allow.
    pub(super) fn modes(&self, config: &ExecConfig) -> DriverResult<Modes> {
        let Self { driver, modes, allowed, .. } = self;
        let mode = |name: &str, wanted: Option<NamespaceMode>, (default, allowed): (_, &[NamespaceMode])| {
            let mode = wanted.unwrap_or(default);
            if mode == default || mode == NamespaceMode::Private || allowed.contains(&mode) {
                return Ok(mode);
            }
            Err(DriverError::fatal(format!(
                "parse config: {name}_mode: host is not allowed on this agent; allow it with `drivers.{driver}.allowed_modes.{name}: [host]` in its config"
            )))
        };
        Ok(Modes {
            pid: mode("pid", config.pid_mode, (modes.pid, &allowed.pid))?,
            ipc: mode("ipc", config.ipc_mode, (modes.ipc, &allowed.ipc))?,
        })
    }

    /// # Errors
    /// Unknown capabilities, and those that the options don't allow.
    pub(super) fn capabilities(&self, config: &ExecConfig) -> DriverResult<CapabilitySet> {
        let names = |key: &str, names: &[Text]| {
            Names::parse(names.iter().map(|name| name.0.as_str()))
                .map_err(|name| DriverError::fatal(format!("parse config: {key}: {}", unknown_name(&name))))
        };
        let (add, drop) = (names("cap_add", &config.cap_add)?, names("cap_drop", &config.cap_drop)?);
        CapabilitySet::new(&add, &drop, &self.allow_caps).map_err(|denied| {
            DriverError::fatal(format!(
                "parse config: cap_add: driver does not allow the following capabilities: {denied}; allow them with `drivers.{}.allow_caps` in the agent's config",
                self.driver
            ))
        })
    }

    /// # Errors
    /// If no task may run as this user.
    pub(super) fn check_user(&self, name: &str, user: &Credentials) -> DriverResult<()> {
        self.denied.check_user(name, user)
    }
}

fn entries(paths: &BTreeMap<String, String>) -> Result<Vec<Entry>, InvalidOptions> {
    let entry = |(source, target): (&String, &String)| {
        for path in [source, target] {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(InvalidOptions::Path { path: path.clone() });
            }
        }
        Ok(Entry { source: source.into(), target: below_root(target) })
    };
    paths.iter().map(entry).collect()
}

fn below_root(path: &str) -> PathBuf {
    path.trim_start_matches('/').into()
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{driver::EXEC, manifest::driver::Block};
    use herdlet_base::user;
    use serde_json::json;

    use super::*;

    fn config(more: serde_json::Value) -> ExecConfig {
        let mut config = json!({"command": "x"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn namespaces_of_the_machine_need_a_permission() {
        let host = config(json!({"pid_mode": "host"}));
        let refused = Policy::new(EXEC, &ExecOptions::default()).unwrap().modes(&host).unwrap_err().why();
        assert!(refused.contains("drivers.exec.allowed_modes.pid: [host]"), "{refused}");
        let modes = AllowedNamespaces { pid: vec![NamespaceMode::Host], ipc: Vec::new() };
        let allowed = ExecOptions { allowed_modes: Some(Block(modes)), ..ExecOptions::default() };
        let modes = Policy::new(EXEC, &allowed).unwrap().modes(&host).unwrap();
        assert_eq!(modes, Modes { pid: NamespaceMode::Host, ipc: NamespaceMode::Private });
        let default = ExecOptions { default_ipc_mode: NamespaceMode::Host, ..ExecOptions::default() };
        let policy = Policy::new(EXEC, &default).unwrap();
        assert_eq!(policy.modes(&config(json!({}))).unwrap().ipc, NamespaceMode::Host);
        let private = config(json!({"ipc_mode": "private"}));
        assert_eq!(policy.modes(&private).unwrap().ipc, NamespaceMode::Private);
    }

    #[test]
    fn root_is_denied_under_each_of_its_names() {
        let policy = Policy::new(EXEC, &ExecOptions::default()).unwrap();
        for name in ["root", "0", "0:0", "root:nogroup"] {
            let Ok(user) = user::find(name) else { continue };
            assert!(policy.check_user(name, &user).unwrap_err().why().contains("is disallowed"), "{name}");
        }
        policy.check_user("nobody", &user::find("nobody").unwrap()).unwrap();
        let open = ExecOptions {
            denied_users: Some(Vec::new()),
            denied_host_gids: Some("7".to_owned()),
            ..ExecOptions::default()
        };
        let policy = Policy::new(EXEC, &open).unwrap();
        policy.check_user("root", &user::find("root").unwrap()).unwrap();
        let denied = policy.check_user("9:7", &user::find("9:7").unwrap()).unwrap_err().why();
        assert!(denied.contains("drivers.exec.denied_host_gids"), "{denied}");
    }

    #[test]
    fn invalid_options_are_named() {
        let caps = ExecOptions { allow_caps: Some(vec!["chwon".to_owned()]), ..ExecOptions::default() };
        assert!(Policy::new(EXEC, &caps).unwrap_err().to_string().contains("chwon"));
        for path in ["etc", "/etc/../root"] {
            let paths = BTreeMap::from([(path.to_owned(), "/etc".to_owned())]);
            let options = ExecOptions { chroot_env: Some(paths), ..ExecOptions::default() };
            assert!(Policy::new(EXEC, &options).unwrap_err().to_string().contains(path));
        }
        let refused = Policy::new(EXEC, &ExecOptions::default()).unwrap();
        let refused = refused.capabilities(&config(json!({"cap_add": ["net_admin"]}))).unwrap_err().why();
        assert!(refused.contains("drivers.exec.allow_caps") && refused.contains("net_admin"), "{refused}");
    }
}
