//! Networks in mode `cni/NAME`, in every language.

use herdlet_api_types::job::{Job, NetworkMode};

use super::{error, good, read_set};

fn hcl(network: &str) -> String {
    format!(
        "job \"probe\" {{\n  group \"one\" {{\n    network {{\n{network}\n    }}\n    task \"main\" {{\n      \
         driver = \"raw_exec\"\n      config {{\n        command = \"/bin/sleep\"\n      }}\n    }}\n  }}\n}}\n"
    )
}

fn yaml(network: &str) -> String {
    format!(
        "{{apiVersion: herdlet/v1, kind: Job, metadata: {{name: probe}}, spec: {{groups: [{{name: one, network: {network}, \
         tasks: [{{name: main, driver: raw_exec, config: {{command: /bin/sleep}}}}]}}]}}}}"
    )
}

fn mode_and_args(job: &Job) -> (String, Vec<(&str, &str)>) {
    let network = job.groups[0].network.as_ref().unwrap();
    let args = network.cni_args.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    (network.mode.to_string(), args.collect())
}

#[test]
fn network_and_arguments_are_read_and_printed() {
    let job = good(
        "a.hcl",
        &hcl(
            "      mode = \"cni/my-net.1\"\n      cni {\n        args = {\n          IP = \"10.0.0.7\"\n          MTU = 1400\n        }\n      }",
        ),
    );
    assert_eq!(job.groups[0].network.as_ref().unwrap().mode, NetworkMode::Cni("my-net.1".to_owned()));
    let expected = ("cni/my-net.1".to_owned(), vec![("IP", "10.0.0.7"), ("MTU", "1400")]);
    assert_eq!(mode_and_args(&job), expected);
    let printed = herdlet_api_types::nomad::job(&job, 0);
    let network = &printed["TaskGroups"][0]["Networks"][0];
    assert_eq!(network["Mode"], "cni/my-net.1");
    assert_eq!(network["CNI"]["Args"], serde_json::json!({ "IP": "10.0.0.7", "MTU": "1400" }));
    assert_eq!(good("a.json", &printed.to_string()), job);
    let from_yaml = good("a.yaml", &yaml("{mode: cni/my-net.1, cni: {args: {IP: 10.0.0.7, MTU: 1400}}}"));
    assert_eq!(mode_and_args(&from_yaml), expected);
}

#[test]
fn arguments_that_plugins_can_not_read_are_refused() {
    for (network, expected) in [
        ("{mode: cni/x, cni: {args: {\"a;b\": c}}}", "names must have no `;`"),
        ("{mode: cni/x, cni: {args: {\"a=b\": c}}}", "names must have no `;`"),
        ("{mode: cni/x, cni: {args: {a: \"b;c\"}}}", "names must have no `;`"),
        ("{mode: cni/}", "network.mode: "),
        ("{mode: cni/a/b}", "network.mode: "),
        ("{mode: \"cni/..\"}", "network.mode: "),
        (
            "{mode: brigde}",
            "network.mode: expected `host`, `bridge`, `none` or `cni/NAME`, found \"brigde\"; did you mean `bridge`?",
        ),
    ] {
        let problem = error("a.yaml", &yaml(network));
        assert!(problem.contains(expected), "{network}: {problem}");
    }
    for (network, expected) in [
        (
            "{mode: cni/x, cni: {args: {NOMAD_JOB_ID: other}}}",
            "NOMAD_JOB_ID: has no effect: the agent sets it",
        ),
        ("{mode: bridge, cni: {args: {a: b}}}", "network.cni: has no effect without `mode: cni/NAME`"),
    ] {
        let set = read_set("a.yaml", &yaml(network)).unwrap();
        let warnings: Vec<String> =
            set.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect();
        assert!(warnings.len() == 1 && warnings[0].ends_with(expected), "{warnings:?}");
    }
}
