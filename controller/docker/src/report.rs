//! A report about an engine, for `herdlet doctor`: whether it answers, and whether another client uses it too.
//!
//! In: a driver's options. Out: an [`EngineReport`]. It changes nothing.

use std::{path::PathBuf, time::Duration};

use herdlet_api_types::driver::DockerOptions;

use crate::{
    engine::{Engine, candidates},
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
    if policy.socket.is_none() && !place.socket.exists() && !place.is_installed() {
        return Ok(None);
    }
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
    Ok(Some(report))
}
