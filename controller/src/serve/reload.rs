//! Signals that do not end the agent: SIGHUP reloads, the others are logged.
//!
//! In: signals, the flags of the start. Out: log directives, tokens, certificates, keys and folders as they are now. Settings that only
//! a restart applies are named in the log. An invalid config changes nothing.

use std::{
    sync::{Arc, OnceLock},
    task::Poll,
};

use anyhow::Context as _;
use herdlet_agent::{agent::folder::Rereads, telemetry::logs::LogLevel};
use herdlet_api::http::{Tls, Token};
use herdlet_base::error::in_full;
use herdlet_config::{
    ConfigError, Flags, Setting, Source, Surroundings, host_name, settings, settings_again,
};
use herdlet_node::member::Joined;
use herdlet_runtime::off_thread;
use herdlet_variables::Variables;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{readiness::Readiness, systemd::notify};

/// Signals whose default action is to end a process, and that mean nothing to the agent: SIGUSR1, SIGUSR2, SIGALRM, SIGSTKFLT,
/// SIGVTALRM, SIGPROF, SIGIO, SIGPWR. Programs send them by mistake, or because they expect another program.
const WITHOUT_MEANING: [(i32, &str); 8] = [
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGSTKFLT, "SIGSTKFLT"),
    (libc::SIGVTALRM, "SIGVTALRM"),
    (libc::SIGPROF, "SIGPROF"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGPWR, "SIGPWR"),
];

/// The setting that a reload applies.
const LOG_LEVEL: &str = "log_level";

/// The signals, subscribed to before anything else, so that none of them ends an agent that is starting.
pub(super) struct HarmlessSignals(Vec<(Signal, String)>);

impl HarmlessSignals {
    /// Subscribes.
    ///
    /// # Errors
    /// When the process can have no signal handler.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let named = WITHOUT_MEANING.map(|(number, name)| (number, name.to_owned()));
        let realtime = (libc::SIGRTMIN()..=libc::SIGRTMAX())
            .map(|number| (number, format!("SIGRTMIN+{}", number - libc::SIGRTMIN())));
        let all = std::iter::once((libc::SIGHUP, "SIGHUP".to_owned())).chain(named).chain(realtime);
        let listen = |(number, name)| Ok((signal(SignalKind::from_raw(number))?, name));
        all.map(listen).collect::<std::io::Result<_>>().map(Self).context("listen for signals")
    }

    /// The name of the next signal.
    async fn next(&mut self) -> String {
        std::future::poll_fn(|context| {
            let arrived = self.0.iter_mut().find_map(|(signal, name)| match signal.poll_recv(context) {
                Poll::Ready(Some(())) => Some(name.clone()),
                Poll::Ready(None) | Poll::Pending => None,
            });
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// What a reload applies, and the settings in force.
pub(super) struct Reloader {
    flags: Flags,
    level: LogLevel,
    in_force: Vec<Setting>,
    pub(super) token: Option<Token>,
    pub(super) tls: Vec<Arc<Tls>>,
    pub(super) folders: Vec<Arc<Rereads>>,
    pub(super) variables: Option<Arc<Variables>>,
    pub(super) joined: Arc<OnceLock<Joined>>,
    pub(super) readiness: Readiness,
}

/// The state of an agent that a [`Reloader`] starts from.
pub(super) struct Started {
    pub(super) flags: Flags,
    pub(super) level: LogLevel,
}

impl Reloader {
    pub(super) fn new(started: Started, readiness: Readiness) -> Self {
        let Started { flags, level } = started;
        let host = host_name();
        // The config was just read; a file that has changed since is compared at the reload.
        let in_force = settings(flags.clone(), &Surroundings::of_process(&host));
        let in_force = in_force.map(|(_, settings)| settings).unwrap_or_default();
        let (token, tls, folders, joined) = (None, Vec::new(), Vec::new(), Arc::default());
        Self { flags, level, in_force, token, tls, folders, variables: None, joined, readiness }
    }

    /// Reloads at each SIGHUP, until the agent ends.
    pub(super) async fn follow(mut self, mut signals: HarmlessSignals) {
        loop {
            match signals.next().await.as_str() {
                "SIGHUP" => {
                    tracing::info!("SIGHUP: reloading the log level, tokens, certificates, keys and folders");
                    match off_thread(move || self.reload()).await {
                        Ok(again) => self = again,
                        // The process ends.
                        Err(_) => return,
                    }
                }
                other => tracing::warn!(
                    "{other} has no meaning for the agent and is ignored; SIGHUP reloads, SIGTERM ends it"
                ),
            }
        }
    }

    /// Reloads everything; nothing if the config is invalid. Blocking.
    fn reload(mut self) -> Self {
        let is_ready = self.readiness.why_not().is_none();
        if is_ready {
            let reloading = NotifyState::monotonic_usec_now().ok();
            let reloading: Vec<_> = std::iter::once(NotifyState::Reloading).chain(reloading).collect();
            notify(&reloading);
        }
        match self.reload_settings() {
            Ok(()) => self.reload_files(),
            Err(error) => {
                // A problem in a file is a line of its own.
                let error = in_full(&error).lines().map(str::trim).collect::<Vec<_>>().join("; ");
                let error = error.replace(":; ", ": ");
                tracing::error!("failed to reload: {error}; nothing was changed");
            }
        }
        if is_ready {
            notify(&[NotifyState::Ready]);
        }
        self
    }

    /// Reads the token, the certificates, the keys of variables and the folders again. Each that is invalid leaves its predecessor in force.
    fn reload_files(&self) {
        if let Some(token) = &self.token {
            match token.reload() {
                Ok(()) => tracing::info!("read the token file again"),
                Err(error) => {
                    let error = in_full(&error);
                    tracing::error!(error, "failed to reload the token; the previous one stays valid");
                }
            }
        }
        if let Some(Err(error)) = self.variables.as_ref().map(|variables| variables.reload()) {
            tracing::error!(%error, "failed to reload the keys of variables; the previous ones stay in use");
        }
        // A failure is already logged, and a warning in the status.
        let refused = self.tls.iter().filter(|tls| tls.reload().is_err()).count();
        if let Some(Err(error)) = self.joined.get().map(Joined::reload_tls) {
            let error = in_full(&error);
            tracing::error!(
                error,
                "failed to reload the certificates for servers; the previous ones stay in use"
            );
        }
        self.folders.iter().for_each(|folder| folder.ask());
        tracing::info!(folders = self.folders.len(), certificates = self.tls.len() - refused, "reloaded");
    }

    /// Applies the settings that can change, and names the others.
    fn reload_settings(&mut self) -> Result<(), ConfigError> {
        let host = host_name();
        let surroundings = Surroundings::of_process(&host);
        let (config, now) = settings_again(self.flags.clone(), &surroundings)?;
        match self.level.set(&config.log_level) {
            Ok(()) => {}
            Err(error) => tracing::error!("failed to {}; the previous level stays in force", in_full(&error)),
        }
        let needs_restart = changed(&self.in_force, &now);
        if !needs_restart.is_empty() {
            tracing::warn!(
                "changed settings that take effect at the next start of the agent: {}",
                needs_restart.join(", ")
            );
        }
        Ok(())
    }
}

/// The keys of settings that differ and that only a restart applies. A default may be detected (free space), and so
/// differ without a change of the config.
fn changed(in_force: &[Setting], now: &[Setting]) -> Vec<&'static str> {
    let is_detected = |setting: &Setting| setting.source == Source::Default;
    let differs = |setting: &&Setting| {
        let before = in_force.iter().find(|before| before.key == setting.key);
        let both_detected = is_detected(setting) && before.is_none_or(is_detected);
        setting.key != LOG_LEVEL
            && !both_detected
            && before.map(|before| &before.value) != Some(&setting.value)
    };
    now.iter().filter(differs).map(|setting| setting.key).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_need_a_restart_are_named_and_the_level_is_not() {
        let setting = |key, value| Setting { key, value, source: Source::File };
        let before =
            [setting("name", json!("a")), setting("region", json!("x")), setting(LOG_LEVEL, json!("info"))];
        let now =
            [setting("name", json!("b")), setting("region", json!("x")), setting(LOG_LEVEL, json!("debug"))];
        assert_eq!(changed(&before, &now), ["name"]);
        assert!(changed(&before, &before).is_empty());
        // Each reload warned about the free space of the disk, which nobody had configured.
        let free = |value, source| [Setting { key: "disk_total_mb", value: json!(value), source }];
        assert!(changed(&free(9, Source::Default), &free(8, Source::Default)).is_empty());
        assert_eq!(changed(&free(9, Source::Default), &free(8, Source::File)), ["disk_total_mb"]);
        assert_eq!(changed(&free(9, Source::File), &free(8, Source::Default)), ["disk_total_mb"]);
    }
}
