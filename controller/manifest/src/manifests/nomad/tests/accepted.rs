//! Job files that Nomad accepts and that use nothing this release lacks: each is accepted, with its meaning.

use herdlet_api_types::Duration;
use herdlet_api_types::job::{CheckKind, Job, PortRequest, Resources};

use super::{error, good, read_set};

/// A job in HCL with these lines in the job, in its group and in its task.
fn hcl(job: &str, group: &str, task: &str) -> String {
    format!(
        "job \"probe\" {{\n{job}\n  group \"one\" {{\n{group}\n    task \"main\" {{\n      driver = \"raw_exec\"\n      \
         config {{\n        command = \"/bin/sleep\"\n      }}\n{task}\n    }}\n  }}\n}}\n"
    )
}

fn of_task(lines: &str) -> Job {
    good("a.hcl", &hcl("", "", lines))
}

fn of_group(lines: &str) -> Job {
    good("a.hcl", &hcl("", lines, ""))
}

/// The warnings about a text.
fn warnings(name: &str, text: &str) -> Vec<String> {
    let set = read_set(name, text).unwrap_or_else(|problems| panic!("{problems}"));
    set.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect()
}

#[test]
fn a_reference_without_quotes_is_the_same_as_with_them() {
    let job = good(
        "a.hcl",
        &hcl(
            "  constraint {\n    attribute = attr.kernel.name\n    value     = \"linux\"\n  }",
            "",
            "      env {\n        PORT = NOMAD_PORT_http\n        URL  = format(\"http://%s\", NOMAD_ADDR_http)\n      }",
        ),
    );
    assert_eq!(job.constraints[0].attribute, "${attr.kernel.name}");
    let env = &job.groups[0].tasks[0].env;
    assert_eq!((&*env["PORT"], &*env["URL"]), ("${NOMAD_PORT_http}", "http://${NOMAD_ADDR_http}"));
}

#[test]
fn last_value_of_a_repeated_key_wins() {
    let text = hcl("  meta = {\n    a = \"1\"\n    b = \"x\"\n    a = \"2\"\n  }", "", "");
    let meta = good("a.hcl", &text).meta;
    assert_eq!((&*meta["a"], &*meta["b"]), ("2", "x"));
    assert_eq!(warnings("a.hcl", &text), [": the key `a` is written more than once; the last value counts"]);
}

/// Regression: as soon as one group had `update`, the others had none and were replaced all at once.
#[test]
fn each_service_group_has_an_update_block() {
    let other = "  group \"two\" {\n    task \"main\" {\n      driver = \"mock\"\n    }\n  }";
    let job = good("a.hcl", &hcl(other, "    update {\n      max_parallel = 2\n    }", ""));
    let parallel = |group: &str| job.group(group).unwrap().update.as_ref().map(|update| update.max_parallel);
    assert_eq!((parallel("one"), parallel("two")), (Some(2), Some(1)));
    let yaml = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [\
                {name: one, update: {max_parallel: 2}, tasks: [{name: t, driver: mock}]},\
                {name: two, tasks: [{name: t, driver: mock}]}]}}";
    assert_eq!(good("a.yaml", yaml).group("two").unwrap().update, None);
}

#[test]
fn zero_and_negative_numbers_mean_the_same_as_in_nomad() {
    assert_eq!(of_group("    update {\n      max_parallel = 0\n    }").groups[0].update, None);
    let of_job = good("a.hcl", &hcl("  update {\n    max_parallel = 0\n  }", "", ""));
    assert_eq!(of_job.groups[0].update, None);
    let resources = |lines: &str| {
        of_task(&format!("      resources {{\n{lines}\n      }}")).groups[0].tasks[0].resources.clone()
    };
    assert_eq!(resources("memory = 64\nmemory_max = -1").memory_max_mib, Some(Resources::ALL_MEMORY));
    assert_eq!(resources("memory = 64\nmemory_max = 0").memory_max_mib, None);
    assert_eq!((resources("cores = 2").cores, resources("cores = 2").cpu_mhz), (Some(2), None));
    assert_eq!(resources("memory_max = -1").memory_max_mib, Some(Resources::ALL_MEMORY));
    let ports =
        of_group("    network {\n      port \"a\" {\n        static = 0\n        to = -1\n      }\n    }");
    let port = ports.groups[0].network.as_ref().unwrap().ports["a"];
    assert_eq!((port.fixed, port.to), (None, None));
    let identity = of_task(
        "      identity {\n        name = \"x\"\n        aud = [\"y\"]\n        file = true\n        ttl = \"0s\"\n      }",
    );
    assert_eq!(identity.groups[0].tasks[0].identities[0].ttl, None);
    assert_eq!(
        of_task("      kill_timeout = \"0s\"").groups[0].tasks[0].kill_timeout,
        Duration::from_secs(5)
    );
    let service = of_group(
        "    network {\n      port \"a\" {}\n    }\n    service {\n      name = \"s\"\n      port = \"a\"\n      \
         weights {\n        passing = 0\n        warning = -1\n      }\n      check {\n        type = \"tcp\"\n        \
         interval = \"10s\"\n        timeout = \"2s\"\n        success_before_passing = -1\n      }\n    }",
    );
    let service = &service.groups[0].services[0];
    assert_eq!((service.weights.passing, service.weights.warning), (1, 1));
    assert_eq!(service.checks[0].thresholds.success_before_passing, 0);
    let periodic = |lines: &str| hcl(&format!("  periodic {{\n    enabled = false\n{lines}\n  }}"), "", "");
    assert_eq!(good("a.hcl", &periodic("")).periodic.unwrap().crons, [""; 0]);
    // Everything that is written is still read.
    assert!(error("a.hcl", &periodic("    cron = \"x\"")).contains("spec.periodic.cron: "));
    let low = error("a.hcl", &hcl("", "", "      resources {\n        memory_max = 5\n      }"));
    assert!(low.contains("memory_max: must be at least 10, or −1 for no limit, found 5"), "{low}");
    let empty = of_task("      user = \"\"\n      kill_signal = \"\"");
    assert_eq!((&empty.groups[0].tasks[0].user, &empty.groups[0].tasks[0].kill_signal), (&None, &None));
}

#[test]
fn an_absolute_destination_is_in_the_tasks_directory() {
    let artifact = "      artifact {\n        source = \"https://files.example.org/a.tgz\"\n        destination = \"/local/data\"\n      }";
    assert_eq!(of_task(artifact).groups[0].tasks[0].artifacts[0].destination, "/local/data");
    let identity = "      identity {\n        name = \"x\"\n        aud = [\"y\"]\n        file = true\n        filepath = \"/secrets/t\"\n      }";
    assert_eq!(of_task(identity).groups[0].tasks[0].identities[0].filepath.as_deref(), Some("/secrets/t"));
    let mount = hcl(
        "",
        "    volume \"data\" {\n      type = \"host\"\n      source = \"data\"\n    }",
        "      volume_mount {\n        volume = \"data\"\n        destination = \"/srv/data\"\n      }",
    );
    assert_eq!(
        warnings("a.hcl", &mount),
        [
            "spec.groups[0].tasks[0].volume_mounts[0].destination: with raw_exec a task sees the machine's own files, so the \
          volume is in the task's directory, at `srv/data`"
        ]
    );
    let payload = "  type = \"batch\"\n  parameterized {}";
    let payload =
        good("a.hcl", &hcl(payload, "", "      dispatch_payload {\n        file = \"/input.json\"\n      }"));
    assert_eq!(payload.groups[0].tasks[0].dispatch_payload.as_deref(), Some("input.json"));
}

#[test]
fn fields_that_a_check_does_not_use_have_no_effect() {
    let service = |checks: &str| {
        format!(
            "    network {{\n      port \"http\" {{}}\n    }}\n    service {{\n      name = \"probe\"\n      port = \"http\"\n      \
             provider = \"consul\"\n{checks}\n    }}"
        )
    };
    let check = |lines: &str| {
        format!("      check {{\n{lines}\n        interval = \"10s\"\n        timeout = \"2s\"\n      }}\n")
    };
    let text = hcl(
        "",
        &service(
            &[
                check("type = \"tcp\"\npath = \"/ping\""),
                check("name = \"second\"\ntype = \"HTTP\"\npath = \"ping/#/top\"\ntask = \"main\"\nmethod = \"head\""),
                check("name = \"third\"\ntype = \"http\"\npath = \"/\"\ntls_skip_verify = true"),
            ]
            .concat(),
        ),
        "",
    );
    let checks = good("a.hcl", &text).groups[0].services[0].checks.clone();
    let CheckKind::Http { path, method, .. } = &checks[1].kind else { panic!("{checks:?}") };
    assert_eq!((&**path, &**method), ("/ping/#/top", "HEAD"));
    assert_eq!(
        warnings("a.hcl", &text),
        [
            "spec.groups[0].services[0].checks[0].path: has an effect only with `type: http`",
            "spec.groups[0].services[0].checks[1].path: no request contains what follows `#`",
            "spec.groups[0].services[0].checks[2].tls_skip_verify: has an effect only with `protocol: https`",
        ]
    );
    let none = error("a.hcl", &hcl("", &service(&check("type = \"tcp\"\ntask = \"mian\"")), ""));
    assert!(none.contains("checks[0].task: there is no task `mian`; did you mean `main`?"), "{none}");
}

#[test]
fn a_driver_refuses_users_by_itself() {
    let docker = hcl("", "", "      user = \"1000:1000\"").replace("raw_exec", "docker");
    let docker = docker.replace("command = ", "image = ");
    assert_eq!(good("a.hcl", &docker).groups[0].tasks[0].user.as_deref(), Some("1000:1000"));
    let message = error("a.hcl", &hcl("", "", "      user = \"nobody:nogroup\""));
    assert_eq!(
        message,
        "a.hcl:10:14: spec.groups[0].tasks[0].user: raw_exec runs a task with the groups that the user has on this machine: \
         write the name or number of the user only, `nobody`"
    );
}

#[test]
fn signals_may_be_in_any_case() {
    let job = of_task(
        "      kill_signal = \"SigHup\"\n      identity {\n        name = \"x\"\n        aud = [\"y\"]\n        file = true\n        \
         change_mode = \"signal\"\n        change_signal = \"sighup\"\n      }",
    );
    let task = &job.groups[0].tasks[0];
    assert_eq!(task.kill_signal.as_deref(), Some("SIGHUP"));
    assert_eq!(task.identities[0].change_signal.as_deref(), Some("SIGHUP"));
    assert!(error("a.hcl", &hcl("", "", "      kill_signal = \"hup\"")).contains("write SIGHUP"));
}

#[test]
fn disabled_features_are_accepted() {
    let text = hcl(
        "  all_at_once = false\n  migrate {}\n  ui {}\n  vault_namespace = \"\"",
        "    ephemeral_disk {\n      size = 200\n      sticky = false\n      migrate = false\n    }\n    migrate {\n      \
         max_parallel = 1\n      min_healthy_time = \"10s\"\n      healthy_deadline = \"5m0s\"\n    }\n    consul {}\n    \
         network {\n      mode = \"host\"\n      mbits = 0\n      dns {}\n    }",
        "      consul {\n        cluster = \"default\"\n      }\n      logs {\n        enabled = true\n        disabled = false\n      }\n      \
         resources {\n        cores = 0\n      }",
    );
    assert_eq!(warnings("a.hcl", &text), [""; 0]);
}

#[test]
fn a_description_and_links_are_kept() {
    let text = hcl(
        "  ui {\n    description = \"A **probe**\"\n    link {\n      label = \"Runbook\"\n      url = \"https://example.org\"\n    }\n  }",
        "    count = 1\n    scaling {\n      max = 3\n      policy {\n        cooldown = \"1m\"\n        check \"load\" {\n          \
         source = \"prometheus\"\n          strategy \"target-value\" {\n            target = 5\n          }\n        }\n      }\n    }",
        "",
    );
    let job = good("a.hcl", &text);
    let shown = herdlet_api_types::nomad::job(&job, 0);
    assert_eq!(
        shown["UI"],
        serde_json::json!({ "Description": "A **probe**", "Links": [{ "Label": "Runbook", "URL": "https://example.org" }] })
    );
    assert_eq!(
        shown["TaskGroups"][0]["Scaling"]["Policy"],
        serde_json::json!({ "cooldown": "1m", "check": [{ "load": [{
            "source": "prometheus", "strategy": [{ "target-value": [{ "target": 5 }] }] }] }] })
    );
    assert_eq!(good("a.json", &shown.to_string()), job);
    assert!(
        error("a.hcl", &text.replace("A **", &"é".repeat(1_001)))
            .contains("must have at most 1000 characters")
    );
}

#[test]
fn a_batch_job_may_have_a_maximum_run_time() {
    let text = hcl("  type = \"batch\"", "    max_run_duration = \"10m\"", "");
    let job = good("a.hcl", &text);
    assert_eq!(job.groups[0].max_run_duration, Some(Duration::from_secs(600)));
    assert_eq!(good("a.json", &herdlet_api_types::nomad::job(&job, 0).to_string()), job);
    let message = error("a.hcl", &text.replace("batch", "service"));
    assert!(message.contains("max_run_duration: a service job runs until it is stopped"), "{message}");
}

/// The keys of the driver `docker` that public job files use, in the spellings that they use.
#[test]
fn containers_in_every_spelling() {
    let config = r#"
        image = "redis:7"
        command = "redis-server"
        args = ["--port", 6379, "${NOMAD_PORT_db}"]
        ports = ["db"]
        port_map { db = 6379 }
        volumes = ["local/x:/x:ro"]
        labels { a = "1" }
        ulimit = { nofile = "10:20", nproc = 5 }
        sysctl = { "net.core.somaxconn" = "16384" }
        mount {
          type = "bind"
          source = "local"
          target = "/a"
          bind_options { propagation = "rslave" }
        }
        mount {
          type = "tmpfs"
          target = "/b"
          tmpfs_options { size = 1000 }
        }
        mounts = [{ type = "volume", target = "/c", source = "c", volume_options = [{ no_copy = true }] }]
        devices = [{ host_path = "/dev/fuse" }]
        auth {
          username = "u"
          password = "p"
        }
        auth_soft_fail = true
        logging {
          type = "syslog"
          config { tag = "x" }
        }
        entrypoint = "/e"
        privileged = "true"
        image_pull_timeout = "10m"
        dns_servers = ["1.1.1.1"]
        extra_hosts = ["a:1.2.3.4"]
        cap_add = ["net_admin"]
        shm_size = 67108864
        healthchecks { disable = true }
"#;
    let text = hcl("", "    network {\n      port \"db\" {}\n    }", "").replace("raw_exec", "docker");
    let text = text.replace("        command = \"/bin/sleep\"\n", config);
    let job = good("a.hcl", &text);
    let task = &job.groups[0].tasks[0];
    let read: herdlet_api_types::manifest::driver::DockerConfig =
        serde_json::from_value(task.config.clone()).unwrap();
    assert_eq!((read.args[1].0.as_str(), read.port_map.0["db"].as_str()), ("6379", "6379"));
    assert_eq!((read.ulimit.0["nproc"].as_str(), read.mount.len(), read.mounts.len()), ("5", 2, 1));
    assert!(read.privileged && read.mounts[0].volume_options.as_ref().unwrap().0.no_copy);
    assert_eq!(read.auth.unwrap().0.username.0, "u");
    assert_eq!(read.logging.unwrap().0.config.0["tag"], "x");
    assert_eq!(read.entrypoint.unwrap().0, ["/e"]);
    let message = error("a.hcl", &text.replace("privileged = \"true\"", "priviledged = true"));
    assert!(
        message.contains("config.priviledged") && message.contains("did you mean `privileged`?"),
        "{message}"
    );
    let message = error("a.hcl", &text.replace("image = \"redis:7\"", ""));
    assert!(message.contains("config") && message.contains("`image`"), "{message}");
}

/// 3 % of public job files have it.
#[test]
fn dns_of_a_group_in_every_language() {
    let block = "    network {\n      dns {\n        servers  = [\"192.0.2.1\", \"${attr.unique.network.ip-address}\"]\n        \
                 searches = [\"example.org\"]\n        options  = [\"ndots:2\"]\n      }\n    }";
    let text = hcl("", block, "");
    let isolated = text.replace("raw_exec", "exec");
    let job = good("a.hcl", &isolated);
    let dns = &job.groups[0].network.as_ref().unwrap().dns;
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(dns.servers, list(&["192.0.2.1", "${attr.unique.network.ip-address}"]));
    assert_eq!((&dns.searches, &dns.options), (&list(&["example.org"]), &list(&["ndots:2"])));
    assert_eq!(warnings("a.hcl", &isolated), [""; 0]);
    let printed = herdlet_api_types::nomad::job(&job, 0);
    assert_eq!(
        printed["TaskGroups"][0]["Networks"][0]["DNS"]["Searches"],
        serde_json::json!(["example.org"])
    );
    assert_eq!(good("a.json", &printed.to_string()).groups[0].network, job.groups[0].network);
    let yaml = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [{name: g, network: {dns: \
                {servers: [192.0.2.1, \"${attr.unique.network.ip-address}\"], searches: [example.org], options: [\"ndots:2\"]}}, \
                tasks: [{name: t, driver: exec, config: {command: sleep}}]}]}}";
    assert_eq!(good("a.yaml", yaml).groups[0].network.as_ref().unwrap().dns, *dns);
    let path = "spec.groups[0].network.dns";
    for (text, expected) in [
        (text, format!("{path}: has no effect: tasks of raw_exec see the machine's /etc/resolv.conf")),
        (
            isolated.replace("192.0.2.1", "dns.example.org"),
            format!("{path}.servers[0]: has no effect: resolvers ignore what is no IP address"),
        ),
        (
            isolated.replace("\"192.0.2.1\"", "\"192.0.2.1\", \"192.0.2.2\", \"2001:db8::1\""),
            format!("{path}.servers: resolvers use the first 3"),
        ),
    ] {
        let found = warnings("a.hcl", &text);
        assert!(found.len() == 1 && found[0].ends_with(&expected), "{found:?}");
    }
}

/// 5 % of public job files are from before groups had networks.
#[test]
fn networks_of_single_tasks_in_every_language() {
    let network = "      resources {\n        network {\n          mbits = 10\n          port \"db\" {\n            static = 6379\n          }\n          \
                   port \"http\" {}\n        }\n      }\n      service {\n        name = \"redis\"\n        port = \"db\"\n      }";
    let text = hcl("  type = \"batch\"", "", network);
    let text = text.replace(
        "\"/bin/sleep\"",
        "\"/bin/sleep\"\n        args = [\"${NOMAD_PORT_db}\", \"${NOMAD_ADDR_http}\"]",
    );
    let job = good("a.hcl", &text);
    let request = |fixed| PortRequest { fixed, to: None };
    let ports = [("db".to_owned(), request(Some(6379))), ("http".to_owned(), request(None))].into();
    assert_eq!((&job.groups[0].tasks[0].ports, &job.groups[0].network), (&ports, &None));
    let path = "spec.groups[0].tasks[0].resources.network";
    let no_effect = format!("{path}.mbits: `mbits` has no effect: Nomad ignores it too");
    assert_eq!(warnings("a.hcl", &text), [no_effect]);
    let printed = herdlet_api_types::nomad::job(&job, 0);
    let networks = &printed["TaskGroups"][0]["Tasks"][0]["Resources"]["Networks"];
    let port = |label: &str, value: u16| serde_json::json!([{ "Label": label, "Value": value, "To": 0, "HostNetwork": "default" }]);
    assert_eq!(
        (&networks[0]["ReservedPorts"], &networks[0]["DynamicPorts"]),
        (&port("db", 6379), &port("http", 0))
    );
    assert_eq!(good("a.json", &printed.to_string()), job);
    let yaml = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [{name: g, tasks: [\
                {name: db, driver: mock, resources: {network: {mode: host, ports: {tcp: {static: 6379, to: 80}}}}},\
                {name: web, driver: mock, config: {stdout_string: \"${NOMAD_ADDR_db_tcp}\"}, resources: {network: {ports: {tcp: {}}}}, \
                services: [{name: web, port: tcp}]}], services: [{name: db, port: tcp, task: db}]}]}}";
    let tasks = &good("a.yaml", yaml).groups[0].tasks;
    assert_eq!((tasks[0].ports["tcp"], tasks[1].ports["tcp"]), (request(Some(6379)), request(None)));
    let [to] = &warnings("a.yaml", yaml)[..] else { panic!("one warning") };
    assert!(to.starts_with(&format!("{path}.ports.tcp.to: has no effect here")), "{to}");
    // The API has a list; as in groups, only one is possible.
    let mut twice = printed.clone();
    twice["TaskGroups"][0]["Tasks"][0]["Resources"]["Networks"] =
        serde_json::json!([networks[0], networks[0]]);
    let message = error("a.json", &twice.to_string());
    assert!(
        message.contains("Resources.Networks[1]: a group or task can have only one network"),
        "{message}"
    );
    // What old files and servers write without a port has no effect.
    assert!(of_task("      resources {\n        network {}\n      }").groups[0].tasks[0].ports.is_empty());
}

#[test]
fn secrets_of_a_job_are_those_of_all_its_tasks() {
    let secret = |name: &str, path: &str| {
        format!("secret \"{name}\" {{\n provider = \"nomad\"\n path = \"{path}\"\n}}\n")
    };
    let of = |more: &str| {
        hcl(&format!("{}task \"lone\" {{\n driver = \"mock\"\n}}", secret("db", "of/job")), "", more)
    };
    let job = good("a.hcl", &of(&secret("own", "of/task")));
    let found: Vec<Vec<(&str, &str)>> = job
        .groups
        .iter()
        .flat_map(|group| &group.tasks)
        .map(|task| task.secrets.iter().map(|secret| (&*secret.name, &*secret.path)).collect())
        .collect();
    assert_eq!(found, [vec![("db", "of/job")], vec![("own", "of/task"), ("db", "of/job")]]);
    let twice = error("a.hcl", &of(&secret("db", "of/task")));
    assert!(twice.contains("secrets[1].name: "), "{twice}");
}
