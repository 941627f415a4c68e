//! Nomad's job files by example: each gives the same job as its manifest. The corpus contains every supported
//! block in HCL, the API's JSON and YAML.

use herdlet_api_types::job::Job;
use herdlet_api_types::manifest::JobManifest;

use crate::manifests::document::JOB;
use crate::manifests::{Drivers, Set, parse};
use crate::yaml::{Problems, to_yaml};

mod accepted;
mod cni;
mod parity;
mod servers;

const CORPUS: [[(&str, &str); 3]; 4] = [
    [
        ("batch.nomad.hcl", include_str!("corpus/batch.nomad.hcl")),
        ("batch.json", include_str!("corpus/batch.json")),
        ("batch.yaml", include_str!("corpus/batch.yaml")),
    ],
    [
        ("service.nomad.hcl", include_str!("corpus/service.nomad.hcl")),
        ("service.json", include_str!("corpus/service.json")),
        ("service.yaml", include_str!("corpus/service.yaml")),
    ],
    [
        ("system.nomad.hcl", include_str!("corpus/system.nomad.hcl")),
        ("system.json", include_str!("corpus/system.json")),
        ("system.yaml", include_str!("corpus/system.yaml")),
    ],
    [
        ("lone.nomad.hcl", include_str!("corpus/lone.nomad.hcl")),
        ("lone.json", include_str!("corpus/lone.json")),
        ("lone.yaml", include_str!("corpus/lone.yaml")),
    ],
];

fn read_set(name: &str, text: &str) -> Result<Set, Problems> {
    parse(name, text.as_bytes(), &Drivers::built_in())
}

fn read(name: &str, text: &str) -> Result<Job, Problems> {
    let set = read_set(name, text)?;
    assert_eq!(set.jobs.len(), 1, "{name}");
    Ok(set.jobs.into_iter().next().unwrap().object)
}

fn good(name: &str, text: &str) -> Job {
    read(name, text).unwrap_or_else(|problems| panic!("{name}:\n{problems}"))
}

fn error(name: &str, text: &str) -> String {
    read(name, text).map(|job| format!("{job:?}")).unwrap_err().to_string()
}

#[test]
fn all_three_languages_give_one_job() {
    for [hcl, json, yaml] in CORPUS {
        let wanted = good(yaml.0, yaml.1);
        assert_eq!(good(hcl.0, hcl.1), wanted, "{}", hcl.0);
        assert_eq!(good(json.0, json.1), wanted, "{}", json.0);
        // The stored bytes are equal too.
        let bytes = |(name, text)| rmp_serde::to_vec_named(&good(name, text)).unwrap();
        assert_eq!((bytes(hcl), bytes(json)), (bytes(yaml), bytes(yaml)));
    }
}

#[test]
fn stop_is_a_field_in_json_and_yaml_only() {
    let [(_, hcl), (_, json), (_, yaml)] = CORPUS[0];
    let in_yaml = good("a.yaml", &yaml.replacen("\nspec:\n", "\nspec:\n  stop: true\n", 1));
    let mut tree: serde_json::Value = serde_json::from_str(json).unwrap();
    let job = if tree.get("Job").is_some() { &mut tree["Job"] } else { &mut tree };
    job["Stop"] = true.into();
    assert!(in_yaml.stop);
    assert_eq!(good("a.json", &tree.to_string()), in_yaml);
    assert_eq!(good("written.yaml", &to_yaml(&JobManifest::from_job(&in_yaml)).unwrap()), in_yaml);
    let in_hcl = hcl.replacen("job \"nightly\" {\n", "job \"nightly\" {\n  stop = true\n", 1);
    let message = error("a.hcl", &in_hcl);
    assert!(message.contains("spec.stop: is not a field of Nomad's job files"), "{message}");
}

#[test]
fn converted_job_is_equal_and_complete() {
    for (name, text) in CORPUS.into_iter().flatten() {
        let job = good(name, text);
        let whole = JobManifest::whole(&job);
        let written = to_yaml(&whole).unwrap();
        assert_eq!(good("converted.yaml", &written), job, "{written}");
        assert_eq!(good("converted.json", &serde_json::to_string(&whole).unwrap()), job);
        for field in [
            "priority:",
            "region:",
            "count:",
            "kill_timeout:",
            "max_file_size:",
            "attempts:",
            "shutdown_delay:",
        ] {
            assert!(written.contains(field), "{name} does not contain {field}\n{written}");
        }
    }
}

#[test]
fn unbuilt_blocks_are_named_with_their_place() {
    let job = |inner: &str| {
        format!(
            "job \"a\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        command = \"x\"\n      }}\n    }}\n  }}\n{inner}\n}}\n"
        )
    };
    let message = error("a.hcl", &job("  consul {\n    namespace = \"a\"\n  }"));
    assert!(message.contains("a.hcl:10:3: spec.consul: `consul` is not supported"), "{message}");
    let task = |inner: &str| {
        format!(
            "job \"a\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        command = \"x\"\n      }}\n{inner}\n    }}\n  }}\n}}\n"
        )
    };
    for block in ["schedule", "device_"] {
        let message = error("a.hcl", &task(&format!("      {block} {{\n      }}")));
        assert!(
            message.starts_with(&format!("a.hcl:8:7: spec.groups[0].tasks[0].{block}: ")),
            "{block}: {message}"
        );
    }
}

#[test]
fn actions_have_nomads_names() {
    let task = |name: &str| {
        format!(
            "job \"a\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        command = \"x\"\n      }}\n      \
             action \"{name}\" {{\n        command = \"/bin/rm\"\n        args = [\"-r\", \"local/cache\"]\n      }}\n      action \"other\" {{\n        \
             command = \"true\"\n      }}\n    }}\n  }}\n}}\n"
        )
    };
    let job = good("a.hcl", &task("clear-cache"));
    let [first, other] = job.groups[0].tasks[0].actions.as_slice() else { panic!("{job:?}") };
    assert_eq!(
        (first.name.as_str(), first.to_command()),
        ("clear-cache", vec!["/bin/rm".into(), "-r".into(), "local/cache".into()])
    );
    assert_eq!((other.name.as_str(), other.to_command()), ("other", vec!["true".to_owned()]));
    for (name, why) in [
        ("clear cache", "actions[0].name: must be 1 to 128 letters, digits and `-`"),
        ("other", "actions[1].name: "),
        ("", "actions[0].name: "),
    ] {
        let message = error("a.hcl", &task(name));
        assert!(message.contains(why), "{name}: {message}");
    }
}

#[test]
fn invalid_artifact_is_named_by_its_path() {
    let hcl = "job \"a\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        \
               command = \"x\"\n      }\n      artifact {\n        source = \"git::https://example.org/a\"\n      }\n    }\n  \
               }\n}\n";
    let message = error("a.hcl", hcl);
    let why = "`git` is not supported; available: `http`, `https`";
    assert_eq!(message, format!("a.hcl:9:18: spec.groups[0].tasks[0].artifacts[0].source: {why}"));
    let json = r#"{"Job": {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec",
        "Config": {"command": "x"}, "Artifacts": [{"GetterSource": "git::https://example.org/a",
        "GetterOptions": {"a": "b"}, "RelativeDest": "../x"}]}]}]}}"#;
    let message = error("a.json", json);
    assert!(
        message.contains("Job.TaskGroups[0].Tasks[0].Artifacts[0].GetterSource: `git` is not supported"),
        "{message}"
    );
    assert!(
        message.contains("Job.TaskGroups[0].Tasks[0].Artifacts[0].RelativeDest: must be a path in"),
        "{message}"
    );
    // The value of a variable is not known yet.
    let open = json
        .replace("git::https://example.org", "${NOMAD_META_way}://x")
        .replace("../x", "${NOMAD_ALLOC_DIR}/x");
    assert_eq!(good("a.json", &open).groups[0].tasks[0].artifacts.len(), 1);
}

/// The lines of a heredoc are lines of the file, unless a value brings further ones.
#[test]
fn mistakes_in_templates_have_their_place_in_the_job_file() {
    let hcl = r#"
variable "name" { default = "web" }
variable "lines" { default = "a\nb" }
job "a" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "x" }
      template {
        data        = <<EOH
listen ${var.name} $${HOME}

  {{ nomadvar "x" }}
EOH
        destination = "local/a"
      }
      template {
        data        = <<-EOH
          {{ env "A" }}
            {{ exportedServices }}
          EOH
        destination = "local/b"
      }
      template {
        data        = <<EOH
${var.lines}
{{ end }}
EOH
        destination = "local/c"
      }
      template {
        data        = "\n {{ unknown }}"
        destination = "local/../../x"
      }
    }
  }
}
"#;
    let path = |index: usize, rest: &str| format!("spec.groups[0].tasks[0].templates[{index}].{rest}");
    let [in_a, in_b, in_c, in_d] = [0, 1, 2, 3].map(|index| path(index, "data"));
    let no_function = "function \"unknown\" not defined";
    let expected = [
        format!("a.hcl:13:6: {in_a}: function \"nomadvar\" not defined; did you mean nomadVar?"),
        format!(
            "a.hcl:20:16: {in_b}: `exportedServices` is not available: herdlet does not read the services of peers from Consul"
        ),
        format!(
            "a.hcl:25:23: {in_c}: line 3, column 4 of the text: unexpected \"end\" in the text outside of blocks"
        ),
        format!("a.hcl:32:23: {in_d}: line 2, column 5 of the text: {no_function}"),
        format!(
            "a.hcl:33:23: {}: must be a path in the task's directory or in ${{NOMAD_ALLOC_DIR}}, for instance local/app.conf",
            path(3, "destination")
        ),
    ];
    assert_eq!(error("a.hcl", hcl).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn mistakes_in_templates_have_the_names_of_the_api() {
    let json = r#"{"Job": {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec",
        "Config": {"command": "x"}, "Templates": [{"EmbeddedTmpl": "{{ if }}", "DestPath": "/", "Envvars": true,
        "ChangeMode": "signal"}, {"EmbeddedTmpl": "x", "SourcePath": "y", "DestPath": "z", "ErrMissingKey": 3}]}]}]}}"#;
    let message = error("a.json", json);
    for field in [
        "[0].EmbeddedTmpl: line 1, column 7 of the text: missing value",
        "[0].DestPath: must name",
        "[0].Envvars: a signal",
        "[1].EmbeddedTmpl: can't be",
        "[1].ErrMissingKey: ",
    ] {
        let expected = format!("Job.TaskGroups[0].Tasks[0].Templates{field}");
        assert!(message.contains(&expected), "{field}: {message}");
    }
}

#[test]
fn mistakes_in_hcl_are_reported_with_their_position() {
    for (text, place) in [
        ("job \"a\" {\n  grup \"g\" {\n  }\n}\n", "a.hcl:2:3: spec.grup"),
        ("job \"a\" {\n}\njb \"b\" {\n}\n", "a.hcl:3:1: a job file can't contain a block `jb`"),
        ("job {\n}\n", "a.hcl:1:1: spec: needs one name"),
        ("x = 1\n", "a.hcl:1:1: a job file can't contain `x`"),
        ("# nothing\n", "a.hcl: has no `job` block"),
        (
            "job \"a\" {\n  group \"g\" {\n    count = -1\n  }\n}\n",
            "a.hcl:3:13: spec.groups[0].count: must be at least 0",
        ),
        (
            "job \"a\" {\n  group \"g\" {\n    network {\n    }\n    network {\n    }\n  }\n}\n",
            "a.hcl:5:5: spec.groups[0].network: `network` is written twice",
        ),
        (
            "job \"a\" {\n  group \"g\" {\n    service \"x\" {\n    }\n  }\n}\n",
            "a.hcl:3:13: spec.groups[0].services[0]: `service` takes no name here",
        ),
        (
            "job \"a\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"rkt\"\n    }\n  }\n}\n",
            "a.hcl:4:16: spec.groups[0].tasks[0].driver: the driver `rkt` is not supported",
        ),
        ("job \"a\" {\n  name = bas64(\"x\")\n}\n", "a.hcl:2:10: there is no function `bas64`"),
    ] {
        let message = error("a.hcl", text);
        assert!(message.contains(place), "{message}");
    }
}

/// Regression: a value that could not be evaluated hid all other problems.
#[test]
fn unknown_value_does_not_hide_other_problems() {
    let text = "job \"a\" {\n  type = var.x\n  periodic {\n    crons = [\"0 0 * * *\"]\n  }\n  group \"g\" {\n    cuont = 2\n    \
                count = local.y\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        comand = \"x\"\n      }\n    \
                }\n  }\n}\n";
    assert_eq!(
        error("a.hcl", text),
        "a.hcl:2:14: there is no variable `x`\n\
         a.hcl:7:5: spec.groups[0].cuont: unknown field `cuont`; did you mean `count`?\n\
         a.hcl:8:19: there is no local `y`\n\
         a.hcl:12:9: spec.groups[0].tasks[0].config.comand: unknown field `comand`; did you mean `command`?"
    );
    // The set of blocks is unknown, so none is reported as missing.
    let text = "job \"a\" {\n  dynamic \"group\" {\n    for_each = var.x\n    content {\n    }\n  }\n}\n";
    assert_eq!(error("a.hcl", text), "a.hcl:3:20: there is no variable `x`");
}

#[test]
fn mistakes_in_json_are_reported_by_api_path() {
    let job = |fields: &str| {
        format!("{{\"Job\": {{\"ID\": \"a\", \"TaskGroups\": [{{\"Name\": \"g\", {fields}}}]}}}}")
    };
    let task = "\"Tasks\": [{\"Name\": \"t\", \"Driver\": \"raw_exec\", \"Config\": {\"command\": \"x\"}}]";
    for (text, expected) in [
        (job(&format!("\"Count\": \"two\", {task}")), "Job.TaskGroups[0].Count: "),
        (job(&format!("\"Cuont\": 2, {task}")), "Job.TaskGroups[0].Cuont: "),
        (
            job(&format!("\"Spreads\": [{{\"Attribute\": \"x\", \"Weight\": 101}}], {task}")),
            "Job.TaskGroups[0].Spreads[0].Weight: must be at most 100, found 101",
        ),
        (
            job(&format!("\"Constraints\": [{{\"LTarget\": \"x\"}}], {task}")),
            "Job.TaskGroups[0].Constraints[0].RTarget: `=` needs a value",
        ),
        (
            job(&format!("\"RestartPolicy\": {{\"Mode\": \"never\"}}, {task}")),
            "Job.TaskGroups[0].RestartPolicy.Mode: ",
        ),
        (
            job("\"Tasks\": [{\"Name\": \"t\", \"Driver\": \"raw_exec\", \"Config\": {}}]"),
            "Job.TaskGroups[0].Tasks[0].Config",
        ),
        (
            "{\"Job\": {\"ID\": \"a\"}, \"Jobb\": 1}".to_owned(),
            "Jobb: is not a known field of a request with `Job`",
        ),
        ("{\"Job\": {\"ID\": \"a\"}}".to_owned(), "Job"),
        ("{\"Job\": 7}".to_owned(), "Job: must be a job"),
    ] {
        let all = error("a.json", &text);
        assert!(all.contains(expected), "{text}: {all}");
        assert!(all.lines().all(|line| line.starts_with("a.json:1:")), "{all}");
    }
}

/// Regression: `validate` refused a request that the API accepts.
#[test]
fn a_registration_request_is_a_job_file() {
    let text = r#"{"Job": {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]},
        "EnforceIndex": true, "JobModifyIndex": 7, "PolicyOverride": true, "PreserveCounts": true, "PreserveResources": true,
        "EvalPriority": 60, "Submission": {"Source": "", "Format": "hcl2"}}"#;
    assert_eq!(good("a.json", text).id, "a");
}

#[test]
fn strings_of_json_are_read_as_json_has_them() {
    let text = r#"{"Job": {"ID": "a", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec",
      "Config": {"command": "\/bin\/sh", "args": ["\ud83d\ude00", "\u003c\t\n", "yes", "1.10"]}}]}]}}"#;
    let job = good("a.json", text);
    let config = serde_json::to_value(&job.groups[0].tasks[0].config).unwrap();
    assert_eq!(config, serde_json::json!({"command": "/bin/sh", "args": ["😀", "<\t\n", "yes", "1.10"]}));
}

#[test]
fn harm_in_json_is_refused() {
    let deep = format!("{{\"Job\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(error("a.json", &deep).contains("nested more than 64 deep"));
    let long =
        format!("{{\"Job\": {{\"ID\": \"a\", \"Datacenters\": [{}\"x\"]}}}}", "\"x\",".repeat(300_000));
    assert!(error("a.json", &long).contains("more than 250000 values"));
    let problems =
        parse("a.json", b"{\"Job\": {\"ID\": \"\xff\"}}", &Drivers::built_in()).map(|_| ()).unwrap_err();
    assert_eq!(problems.to_string(), "a.json:1:17: is not UTF-8: byte 0xff at offset 16");
}

/// A job file with these names, in HCL.
fn named(job: &str, more: &str, group: &str, task: &str) -> String {
    format!(
        "job \"{job}\" {{\n{more}\ngroup \"{group}\" {{\nservice {{ provider = \"nomad\" }}\n\
         task \"{task}\" {{\ndriver = \"raw_exec\"\nservice {{ provider = \"nomad\" }}\n\
         config {{ command = \"/bin/true\" }}\n}}\n}}\n}}\n"
    )
}

// Names with `_`, capitals, `.` and `/` were refused, in 17 % of public job files.
#[test]
fn names_that_nomad_accepts_are_kept() {
    let hcl = "job \"Probe_EU/blue.1\" {\n namespace = \"TeamA\"\n group \"Front_end\" {\n task \"api_v2.x\" {\n \
               driver = \"raw_exec\"\n config { command = \"/bin/true\" }\n }\n }\n}\n";
    let json = r#"{"Job": {"ID": "Probe_EU/blue.1", "Name": "Probe_EU/blue.1", "Namespace": "TeamA", "TaskGroups": [
        {"Name": "Front_end", "Tasks": [{"Name": "api_v2.x", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}]}]}}"#;
    let job = good("a.hcl", hcl);
    assert_eq!(good("a.json", json), job);
    assert_eq!((&*job.id, &*job.namespace, &*job.name), ("Probe_EU/blue.1", "TeamA", "Probe_EU/blue.1"));
    assert_eq!((&*job.groups[0].name, &*job.groups[0].tasks[0].name), ("Front_end", "api_v2.x"));
    let written = to_yaml(&JobManifest::from_job(&job)).unwrap();
    assert_eq!(good("written.yaml", &written), job, "{written}");
}

#[test]
fn names_that_cannot_be_paths_are_refused_in_all_languages() {
    let long = "x".repeat(256);
    let escaped = |name: &str| serde_json::to_string(name).unwrap();
    let (parts, marks) = ("must not have an empty part", "must not contain control characters or marks");
    for (job, problem) in [
        ("a b", "must not contain spaces"),
        ("..", parts),
        ("a/../b", parts),
        ("/a", parts),
        ("a/", parts),
        ("a\u{202e}b", marks),
        ("a\u{1b}b", marks),
        (&long, "must have at most 255 bytes"),
    ] {
        let json = serde_json::json!({ "Job": { "ID": job, "TaskGroups": [] } });
        let yaml = format!(
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: {}}}\nspec: {{groups: []}}\n",
            escaped(job)
        );
        for (name, text) in [("a.json", json.to_string()), ("a.yaml", yaml)] {
            let message = error(name, &text);
            assert!(message.contains(problem), "{job:?} in {name}: {message}");
        }
    }
    for (task, problem) in [
        ("..", "must not be `.` or `..`"),
        ("a/b", "must not contain `/` or `\\`"),
        ("a\\\\b", "must not contain `/` or `\\`"),
        (&long, "must have at most 128 bytes"),
    ] {
        for text in [named("j", "", "g", task), named("j", "", task, "t")] {
            let message = error("a.hcl", &text);
            assert!(message.contains(problem), "{task}: {message}");
        }
    }
    let message = error("a.hcl", &named("j", "namespace = \"a_b\"", "g", "t"));
    assert!(message.contains("must be 1 to 128 letters"), "{message}");
}

// A group's service was `probe-one-group`; nobody found it under the name that Nomad gives it.
#[test]
fn unnamed_service_gets_the_nomad_default() {
    let job = good("a.hcl", &named("probe", "name = \"Shown\"", "one", "main"));
    let group = &job.groups[0];
    assert_eq!(
        (&*group.services[0].name, &*group.tasks[0].services[0].name),
        ("Shown-one", "Shown-one-main")
    );
    // Nomad refuses these default names too.
    let message = error("a.hcl", &named("probe", "", "Front_end", "main"));
    assert!(
        message.contains("the default name `probe-Front_end` is not valid, it must be valid per RFC 1123"),
        "{message}"
    );
}

#[test]
fn the_id_of_a_job_may_differ_from_its_label() {
    let job = good("a.hcl", &named("probe", "id = \"probe-7\"", "one", "main"));
    assert_eq!((&*job.id, &*job.name), ("probe-7", "probe"));
    let both = good("a.hcl", &named("probe", "id = \"probe-7\"\nname = \"shown\"", "one", "main"));
    assert_eq!((&*both.id, &*both.name), ("probe-7", "shown"));
    let message = error("a.hcl", &named("probe", "id = \"a b\"", "one", "main"));
    assert!(message.contains("metadata.name: must not contain spaces"), "{message}");
}

// The job was refused; Nomad runs one allocation, and the others wait.
#[test]
fn static_port_may_exceed_the_node() {
    let group = |name: &str| {
        format!(
            "group \"{name}\" {{\ncount = 2\nnetwork {{\nport \"http\" {{ static = 8088 }}\n}}\n\
             task \"t\" {{\ndriver = \"raw_exec\"\nconfig {{ command = \"/bin/true\" }}\n}}\n}}\n"
        )
    };
    let job = good("a.hcl", &format!("job \"probe\" {{\n{}{}}}\n", group("one"), group("two")));
    assert_eq!((job.groups.len(), job.groups[0].count), (2, 2));
    let twice = group("one").replace("port \"http\"", "port \"admin\" { static = 8088 }\nport \"http\"");
    let message = error("a.hcl", &format!("job \"probe\" {{\n{twice}}}\n"));
    assert!(
        message.contains("port 8088 is already taken at `spec.groups[0].network.ports.admin`"),
        "{message}"
    );
}
