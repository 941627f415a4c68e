//! Checks of container engines.
//!
//! In: the options of the drivers `docker` and `podman`. Out: a finding for each engine that is there, or that the config names.

use herdlet_api_types::driver::{DOCKER, DockerOptions, PODMAN};
use herdlet_config::Config;
use herdlet_docker::EngineReport;
use herdlet_driver::Availability;
use serde::Deserialize as _;

use super::Finding;

/// Examines the engines of the enabled drivers. `instance`: the agent's, if it has one.
pub(super) async fn engines(config: &Config, instance: Option<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for driver in [DOCKER, PODMAN] {
        if config.drivers.availability(driver) == Availability::Disabled {
            continue;
        }
        let options = serde_json::Value::Object(config.drivers.options(driver));
        let Ok(options) = DockerOptions::deserialize(options) else { continue };
        if driver == DOCKER && herdlet_docker::runs_without_engine(&options) {
            let message = "driver docker: no engine is used; containers are processes of the agent, which neither AppArmor nor SELinux confines";
            findings.push(Finding::ok("containers", message.to_owned()));
            continue;
        }
        match herdlet_docker::report(driver, &options, instance).await {
            Ok(None) => {}
            Ok(Some(report)) => findings.push(finding(driver, report)),
            Err(why) => findings.push(Finding::failure(
                "containers",
                format!("drivers.{driver}: {why}"),
                "correct the options in the config; an agent would not start",
            )),
        }
    }
    findings
}

/// Whether the engine of an enabled driver is there.
pub(super) fn has_any(config: &Config) -> bool {
    [DOCKER, PODMAN].into_iter().any(|driver| {
        let options = serde_json::Value::Object(config.drivers.options(driver));
        config.drivers.availability(driver) == Availability::Enabled
            && DockerOptions::deserialize(options)
                .is_ok_and(|options| herdlet_docker::has_engine(driver, &options))
    })
}

fn finding(driver: &str, report: EngineReport) -> Finding {
    let EngineReport { socket, answer, others } = report;
    let socket = socket.display();
    match answer {
        Err(why) => Finding::warning(
            "containers",
            format!("driver {driver}: failed to {why}"),
            format!(
                "its tasks wait until the engine answers; start it, or set drivers.{driver}.enabled: false"
            ),
        ),
        Ok(engine) if !others.is_empty() => Finding::warning(
            "containers",
            format!(
                "driver {driver}: {engine} at {socket} has containers of another Nomad client: {}",
                others.join(", ")
            ),
            "a Nomad client removes containers with Nomad's label that it does not know: use one client for each engine",
        ),
        Ok(engine) => Finding::ok("containers", format!("driver {driver}: {engine} at {socket}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn two_clients_on_one_engine_are_noticed() {
        let report = |answer: Result<&str, &str>, others: &[&str]| EngineReport {
            socket: "/x".into(),
            answer: answer.map(str::to_owned).map_err(str::to_owned),
            others: others.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(finding("docker", report(Ok("Docker 1"), &[])).verdict, Verdict::Ok);
        let other = finding("docker", report(Ok("Docker 1"), &["web-1"]));
        assert!(other.verdict == Verdict::Warning && other.message.contains("another Nomad client: web-1"));
        let silent = finding("podman", report(Err("reach it"), &[]));
        assert!(silent.message.contains("failed to reach it"));
        assert!(silent.hint.unwrap().contains("drivers.podman.enabled"));
    }
}
