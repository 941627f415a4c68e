//! A report about an engine, for `herdlet doctor`: whether it answers, and whether another client uses it too.
//!
//! In: a driver's options. Out: an [`EngineReport`]. It changes nothing.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_api_types::driver::DockerOptions;

use crate::{
    engine::{Engine, Place, candidates, uses_builtin},
    names,
    policy::{Mode, Policy},
};

/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Containers of others that are named.
const OTHERS_MAX: usize = 3;

/// What was found of the engine of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// Its socket.
    pub socket: PathBuf,
    /// Its name and version, or why it does not answer.
    pub answer: Result<String, String>,
    /// Names of containers that another Nomad client has created, a few of them.
    pub others: Vec<String>,
}

/// Whether this machine has the engine that a driver would use, running or not at the moment.
pub fn has_engine(driver: &str, options: &DockerOptions) -> bool {
    Policy::of(options, Mode::Standalone).is_ok_and(|policy| candidates(driver, &policy).socket.exists())
}

/// Whether new tasks of the driver `docker` run without an engine.
pub fn runs_without_engine(options: &DockerOptions) -> bool {
    Policy::of(options, Mode::Standalone).is_ok_and(|policy| uses_builtin(&policy))
}

/// Examines the engine that a driver would use, running or not. None if there is none on this machine.
///
/// # Errors
/// An option that can't be honoured.
pub async fn report(
    driver: &str,
    options: &DockerOptions,
    instance: Option<&str>,
) -> Result<Option<EngineReport>, String> {
    let policy = Policy::of(options, Mode::Standalone)?;
    let place = candidates(driver, &policy);
    if !is_there(&policy, &place, &|path| path.exists()) {
        return Ok(None);
    }
    Ok(Some(examine(place, instance).await))
}

/// Whether an engine is on this machine: its socket is named or there, or its daemon is installed.
fn is_there(policy: &Policy, place: &Place, exists: &dyn Fn(&Path) -> bool) -> bool {
    policy.socket.is_some() || exists(&place.socket) || place.is_installed(exists)
}

async fn examine(place: Place, instance: Option<&str>) -> EngineReport {
    let engine = Engine::new(place.clone(), CALL_MAX);
    let mut report = EngineReport { socket: place.socket, answer: Ok(String::new()), others: Vec::new() };
    report.answer = match engine.probe().await {
        Ok(about) => {
            let name = if about.is_docker() { "Docker" } else { "Podman" };
            Ok(format!("{name} {}", about.version))
        }
        Err(why) => Err(why),
    };
    // Without its instance an agent can't tell its own containers from others.
    if report.answer.is_ok()
        && instance.is_some()
        && let Ok(all) = engine.containers_of_nomad().await
    {
        let of_others = all.into_iter().filter(|container| {
            let owner = container.labels.as_ref().and_then(|labels| labels.get(names::INSTANCE));
            owner.is_none_or(|owner| Some(owner.as_str()) != instance)
        });
        let names = of_others.filter_map(|container| container.names?.into_iter().next());
        report.others = names.map(|name| name.trim_start_matches('/').to_owned()).take(OTHERS_MAX).collect();
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    /// An engine that was installed and not started was not mentioned at all.
    #[tokio::test]
    async fn an_installed_engine_without_a_socket_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy::of(&DockerOptions::default(), Mode::Standalone).unwrap();
        let place = |kind| Place { kind, socket: dir.path().join("none.sock") };
        let dockerd = |path: &Path| path == Path::new("/usr/sbin/dockerd");
        assert!(is_there(&policy, &place(Kind::Docker), &dockerd));
        // Podman's client is installed for other reasons, too; and nothing at all needs no engine.
        assert!(!is_there(&policy, &place(Kind::Podman), &dockerd));
        assert!(!is_there(&policy, &place(Kind::Docker), &|_| false));
        let report = examine(place(Kind::Docker), None).await;
        let why = report.answer.unwrap_err();
        assert!(why.starts_with("reach Docker at ") && why.contains("none.sock: "), "{why}");
        assert!(report.others.is_empty());
    }
}
