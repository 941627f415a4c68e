//! The check of a task's `config` in a job file.
//!
//! In: the config before its texts are interpolated, the labels of ports, the limits. Out: what every agent would refuse at the
//! start, by the code of the start ([`create::refusals`]), and keys without effect. What an agent's options or its engine decide
//! is left to the start.

use herdlet_api_types::driver::{ConfigCheck, ConfigFinding, DOCKER, DriverInfo, PODMAN, Planned, Verdict};
use herdlet_images::Reference;

use crate::{
    config::{self, FieldError},
    create,
};

/// Adds the check to the description of a driver of this crate; others stay as they are.
pub fn checked(info: DriverInfo) -> DriverInfo {
    let check = match info.name.as_str() {
        DOCKER => Some(ConfigCheck(|planned| check(DOCKER, planned))),
        PODMAN => Some(ConfigCheck(|planned| check(PODMAN, planned))),
        _other => info.check,
    };
    DriverInfo { check, ..info }
}

fn check(driver: &str, planned: &Planned<'_>) -> Vec<ConfigFinding> {
    let config = match config::typed(driver, planned.config) {
        // Names and types are the schema's matter.
        Err(_) => return Vec::new(),
        Ok(Err(refused)) => return vec![refused.into()],
        Ok(Ok(config)) => config,
    };
    let image = Reference::parse(&config.docker.image).err();
    let image = image.map(|error| FieldError::new("image", format!("cannot {error}")));
    let refused = create::refusals(&config, planned);
    let refused = image.into_iter().chain(refused).map(ConfigFinding::from);
    let notes = create::without_effect(&config, planned.network)
        .into_iter()
        .map(|(key, message)| ConfigFinding { field: key.to_owned(), message, verdict: Verdict::NoEffect });
    refused.chain(notes).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use herdlet_api_types::{driver::Sharing, job::Resources};
    use serde_json::{Value as Json, json};

    use super::*;

    fn of(info: DriverInfo, config: Json) -> Vec<(String, Verdict)> {
        findings(info, config, Sharing::Own)
    }

    fn findings(info: DriverInfo, mut config: Json, network: Sharing) -> Vec<(String, Verdict)> {
        config.as_object_mut().unwrap().entry("image").or_insert("x".into());
        let planned = Planned {
            config: &config,
            resources: &Resources { memory_mib: Some(64), ..Resources::default() },
            ports: &BTreeSet::from(["http"]),
            network,
        };
        let found = checked(info).check.unwrap().findings(&planned);
        found.into_iter().map(|finding| (finding.field, finding.verdict)).collect()
    }

    /// They were refused only when the task started.
    #[test]
    fn what_every_agent_refuses_is_known_without_one() {
        for (config, field) in [
            (json!({"image": "Redis"}), "image"),
            (json!({"network_mode": "ns:/x"}), "network_mode"),
            (json!({"network_mode": "task:a"}), "network_mode"),
            (json!({"ports": ["http", "nope"]}), "ports[1]"),
            (json!({"port_map": {"nope": 80}}), "port_map.nope"),
            (json!({"port_map": {"http": 0}}), "port_map.http"),
            (json!({"ulimit": {"nofile": "x"}}), "ulimit.nofile"),
            (json!({"volumes": ["a"]}), "volumes[0]"),
            (json!({"volumes": ["a:/b", "a:b"]}), "volumes[1]"),
            (json!({"volumes": ["a:/b:x"]}), "volumes[0]"),
            (json!({"mount": [{"type": "tmpfs"}]}), "mount[0].target"),
            (json!({"mounts": [{"type": "npipe", "target": "/x"}]}), "mounts[0].type"),
            (json!({"cgroupns": "x"}), "cgroupns"),
            (json!({"security_opt": ["x"]}), "security_opt[0]"),
            (json!({"ipv4_address": "10.0.0.2"}), "ipv4_address"),
            (json!({"mac_address": "02:00:00:00:00:01", "network_mode": "host"}), "mac_address"),
            (json!({"cpu_hard_limit": true}), "cpu_hard_limit"),
            (json!({"network_mode": "container:x", "hostname": "h"}), "hostname"),
            (json!({"network_mode": "container:x", "dns_servers": ["1.1.1.1"]}), "dns_servers"),
            (json!({"network_mode": "container:x", "dns_search_domains": ["x"]}), "dns_search_domains"),
            (json!({"network_mode": "container:x", "dns_options": ["ndots:1"]}), "dns_options"),
            (json!({"network_mode": "container:x", "extra_hosts": ["a:1.1.1.1"]}), "extra_hosts"),
            (json!({"network_mode": "container:x", "mac_address": "02:00:00:00:00:01"}), "mac_address"),
        ] {
            let found = of(DriverInfo::docker(), config.clone());
            assert_eq!(found, [(field.to_owned(), Verdict::Refused)], "{config}");
        }
        for (config, field) in [
            (json!({"socket": "other"}), "socket"),
            (json!({"init_path": "/x"}), "init_path"),
            (json!({"memory_swap": "zz"}), "memory_swap"),
            (json!({"memory_swap": "1m"}), "memory_swap"),
            (json!({"image": "oci-archive:/x"}), "image"),
            (json!({"network_mode": "container:x", "dns": ["1.1.1.1"]}), "dns"),
        ] {
            let found = of(DriverInfo::podman(), config.clone());
            assert_eq!(found, [(field.to_owned(), Verdict::Refused)], "{config}");
        }
    }

    /// `ports` is written in most public files with such a network: the group's ports lead to the task all the same.
    #[test]
    fn in_the_network_of_a_group_its_address_and_names_are_shared() {
        let refused = Verdict::Refused;
        for (config, field, verdict) in [
            (json!({"hostname": "h"}), "hostname", refused),
            (json!({"dns_servers": ["1.1.1.1"]}), "dns_servers", refused),
            (json!({"port_map": {"http": 80}}), "port_map", refused),
            (json!({"network_aliases": ["a"]}), "network_aliases", refused),
            (json!({"ipv4_address": "10.0.0.2"}), "ipv4_address", refused),
            (json!({"mac_address": "02:00:00:00:00:01"}), "mac_address", refused),
            (json!({"extra_hosts": ["a:1.1.1.1", "b:host-gateway"]}), "extra_hosts[1]", refused),
            (json!({"dns_search_domains": ["x"]}), "dns_search_domains", Verdict::NoEffect),
            (json!({"dns_options": ["ndots:1"]}), "dns_options", Verdict::NoEffect),
            (json!({"network_mode": "host", "ports": ["http"]}), "ports", Verdict::NoEffect),
            (json!({"network_mode": "container:x", "hostname": "h"}), "hostname", refused),
        ] {
            let found = findings(DriverInfo::docker(), config.clone(), Sharing::Shares);
            assert_eq!(found, [(field.to_owned(), verdict)], "{config}");
        }
        for config in [
            json!({"ports": ["http", "other"]}),
            json!({"extra_hosts": ["a:1.1.1.1", "b:::1", "c:[::1]"]}),
            json!({"network_mode": "host"}),
            json!({"network_mode": "net", "ipv4_address": "10.0.0.2", "hostname": "h", "dns_servers": ["1.1.1.1"]}),
        ] {
            assert_eq!(findings(DriverInfo::docker(), config.clone(), Sharing::Shares), [], "{config}");
        }
        assert_eq!(findings(DriverInfo::podman(), json!({"hostname": "h"}), Sharing::Shares), []);
        let dns = findings(DriverInfo::podman(), json!({"dns": ["1.1.1.1"]}), Sharing::Shares);
        assert_eq!(dns, [("dns".to_owned(), refused)]);
    }

    #[test]
    fn all_findings_are_reported_and_policy_is_left_to_the_start() {
        let found = of(DriverInfo::docker(), json!({"volumes": ["a", "b"], "ports": ["nope"]}));
        assert_eq!(found.len(), 3, "{found:?}");
        let allowed = json!({"privileged": true, "cap_add": ["all"], "pid_mode": "host", "runtime": "x",
            "volumes": ["/etc:/x"], "mount": [{"source": "v", "target": "/y"}], "ports": ["http"],
            "security_opt": ["seccomp=/x"], "pids_limit": 9, "network_mode": "net", "ipv4_address": "10.0.0.2"});
        assert_eq!(of(DriverInfo::docker(), allowed), []);
    }

    #[test]
    fn ports_that_are_not_published_and_other_keys_without_effect_are_reported() {
        let ports = [("ports".to_owned(), Verdict::NoEffect)];
        for mode in ["host", "none", "container:x"] {
            assert_eq!(of(DriverInfo::docker(), json!({"network_mode": mode, "ports": ["http"]})), ports);
        }
        for mode in ["", "bridge", "net"] {
            assert_eq!(of(DriverInfo::docker(), json!({"network_mode": mode, "ports": ["http"]})), []);
        }
        let cores = [("cpuset_cpus".to_owned(), Verdict::NoEffect)];
        assert_eq!(of(DriverInfo::docker(), json!({"cpuset_cpus": "0"})), cores);
    }
}
