//! The drivers of manifests that are read without an agent.

use herdlet_api_types::driver::built_in;
use herdlet_manifest::manifests::Drivers;

/// The built-in drivers, with their own checks of a task's `config`.
pub(crate) fn of_manifests() -> Drivers {
    let checked = |info| herdlet_process::check::checked(herdlet_docker::checked(info));
    let infos: Vec<_> = built_in().into_iter().map(checked).collect();
    infos.iter().collect()
}

#[cfg(test)]
mod tests {
    use herdlet_manifest::manifests::{self, Set};

    fn read(group: &str, config: &str) -> Result<Set, String> {
        let text = format!(
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  groups:\n  - name: g\n    {group}\n    \
             tasks: [{{name: t, driver: docker, config: {{image: x, {config}}}}}]\n"
        );
        let read = manifests::parse("x.yaml", text.as_bytes(), &super::of_manifests());
        read.map_err(|problems| problems.to_string())
    }

    /// `herdlet validate` called them good, and the task failed.
    #[test]
    fn what_no_agent_can_start_is_refused_by_its_key() {
        let ports = "network: {ports: {http: {}}}";
        for (config, key) in [
            ("network_mode: \"ns:/x\"", "config.network_mode"),
            ("ports: [http, nope]", "config.ports[1]"),
            ("port_map: [{nope: 80}]", "config.port_map.nope"),
            ("port_map: {nope: 80}", "config.port_map.nope"),
            ("ulimit: {nofile: x}", "config.ulimit.nofile"),
            ("volumes: [a]", "config.volumes[0]"),
            ("mount: [{type: tmpfs, target: x}]", "config.mount[0].target"),
            ("cpu_hard_limit: true", "config.cpu_hard_limit"),
            ("network_mode: \"container:x\", hostname: h", "config.hostname"),
        ] {
            let refused = read(ports, config).unwrap_err();
            assert!(refused.contains(key), "{config}: {refused}");
        }
        // A problem of the schema is reported once, and nothing that follows from an unreadable part.
        assert_eq!(
            read(ports, "ports: nope, volumes: [a], imagine: 1").unwrap_err().matches("volumes").count(),
            0
        );
        assert!(!read("network: {ports: [http]}", "ports: [nope]").unwrap_err().contains("not found"));
    }

    #[test]
    fn what_only_the_start_knows_is_not_judged() {
        for config in [
            "ports: [\"${meta.port}\"]",
            "ulimit: [{nofile: \"${meta.files}\"}]",
            "volumes: [\"${meta.volume}\"]",
            "mount: [{type: tmpfs, target: \"${meta.target}\"}], cgroupns: \"${meta.cgroups}\"",
            "network_mode: \"${meta.network}\", ipv4_address: 10.0.0.2, hostname: h",
            "privileged: true, volumes: [\"/etc:/x\"]",
        ] {
            let set = read("network: {ports: {http: {}}}", config).unwrap();
            assert_eq!(set.warnings, [], "{config}");
        }
    }

    #[test]
    fn ports_that_are_not_published_are_a_warning() {
        let set = read("network: {ports: {http: {}}}", "network_mode: host, ports: [http]").unwrap();
        let [warning] = &*set.warnings else { panic!("{:?}", set.warnings) };
        assert!(warning.path.ends_with("config.ports") && warning.message.contains("publishes nothing"));
    }
}
