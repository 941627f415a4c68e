//! Recorded allocations of stock servers, and cases that were not recorded.

use herdlet_api_types::job::CheckKind;
use herdlet_rpc::codec::{self, Extent, Limits};

use super::*;
use crate::test_recordings::messages;

mod fields;

/// The allocations of every recorded `Alloc.GetAllocs`.
fn recorded() -> Vec<wire::Allocation> {
    let answers = messages()
        .into_iter()
        .filter(|message| (&*message.kind, &*message.method) == ("response", "Alloc.GetAllocs"));
    let allocs = answers.flat_map(|message| {
        let header = Extent::new(Limits::HEADER).of(&message.bytes).unwrap().unwrap();
        codec::decode::<wire::queries::AllocsResponse>(&message.bytes[header..]).unwrap().allocs
    });
    allocs.collect()
}

fn real() -> Reading {
    Reading::Real(watch::channel(Drivers::built_in()).1)
}

fn read(alloc: &wire::Allocation) -> Allocation {
    Reader::new(&real()).allocation(alloc).unwrap()
}

/// The first recorded allocation that should run.
fn stock() -> wire::Allocation {
    let mut stock =
        recorded().into_iter().find(|alloc| alloc.desired_status == wire::DesiredStatus::Run).unwrap();
    stock.client_status = wire::ClientStatus::Pending;
    stock
}

fn value(json: &Json) -> Value {
    herdlet_nomad_server::jobs::value(json).unwrap()
}

/// An allocation of a job with this group.
fn of_group(group: Json) -> wire::Allocation {
    let mut group = group;
    group["Name"] = "web".into();
    let job = json!({ "ID": "shop", "Name": "shop", "Type": "service", "Version": 3, "TaskGroups": [{ "Name": "db" }, group] });
    wire::Allocation {
        id: "f3b0d8a4-0000-4000-8000-000000000001".into(),
        namespace: "default".to_owned(),
        name: "shop.web[4]".to_owned(),
        job_id: "shop".to_owned(),
        job: wire::Job::new(value(&job)),
        task_group: "web".to_owned(),
        alloc_modify_index: 12,
        ..wire::Allocation::default()
    }
}

fn task() -> Json {
    json!({ "Name": "main", "Driver": "raw_exec", "Config": { "command": "/bin/true" } })
}

#[test]
fn every_recorded_allocation_is_accepted_or_refused_by_name() {
    let all = recorded();
    assert!(all.len() > 10, "{}", all.len());
    let mut refused = Vec::new();
    for alloc in &all {
        let spec = read(alloc);
        assert_eq!((spec.id.to_string(), &*spec.group), (alloc.id.to_string(), &*alloc.task_group));
        let tasks: Vec<&str> = spec.group().unwrap().tasks.iter().map(|task| &*task.name).collect();
        assert_eq!(tasks, alloc.job.tasks(&alloc.task_group).collect::<Vec<_>>());
        if let Some(why) = &spec.server.unwrap().refused {
            refused.push(format!("{}: {why}", alloc.name));
        }
    }
    refused.sort();
    refused.dedup();
    assert_eq!(refused, [""; 0]);
}

/// What `nomad job inspect` prints is a job file.
#[test]
fn jobs_of_recorded_servers_are_accepted_as_job_files() {
    let mut read = 0;
    for alloc in recorded() {
        let job = fields(alloc.job.value(), &[]);
        let text = json!({ "Job": job }).to_string();
        let set = manifests::parse("job.json", text.as_bytes(), &Drivers::built_in())
            .unwrap_or_else(|problems| panic!("{}: {problems}", alloc.name));
        assert!(set.warnings.is_empty(), "{}: {:?}", alloc.name, set.warnings);
        read += 1;
    }
    assert!(read > 10, "{read}");
}

#[test]
fn server_allocation_is_converted() {
    let alloc = stock();
    let spec = read(&alloc);
    let server = spec.server.clone().unwrap();
    assert_eq!((server.modify_index, server.create_index), (alloc.alloc_modify_index, alloc.create_index));
    assert_eq!((&*spec.job_key.id, &*spec.job_key.namespace), (&*alloc.job_id, &*alloc.namespace));
    assert_eq!((spec.name(), spec.desired), (alloc.name.clone(), Desired::Run));
    assert_eq!(spec.job.groups.len(), 1);
    let stopped = wire::Allocation { desired_status: wire::DesiredStatus::Evict, ..alloc };
    assert_eq!(read(&stopped).desired, Desired::Stop);
}

#[test]
fn fields_of_later_releases_are_passed_over() {
    let later = json!({ "Deep": [0.5, "x"] });
    let mut task = task();
    task["FromTheFuture"] = later.clone();
    task["Resources"] = json!({ "CPU": 100, "MemoryMB": 32, "Later": true });
    let spec =
        read(&of_group(json!({ "Tasks": [task], "FromTheFuture": later, "Networks": [{ "Later": 1 }] })));
    assert_eq!(spec.server.unwrap().refused, None);
}

/// Go parses a task's config as JSON, which has no integers, and servers send the result.
#[test]
fn numbers_of_a_config_are_floats_in_what_servers_send() {
    let config = |adjustment: f64| {
        let number = Value::Float(adjustment);
        let field = |name: &str, value: Value| (Value::Text(name.to_owned()), value);
        let config = Value::Map(vec![
            field("command", Value::Text("/bin/true".to_owned())),
            field("oom_score_adj", number),
        ]);
        let mut alloc = of_group(json!({}));
        let task = Value::Map(vec![
            field("Name", Value::Text("main".to_owned())),
            field("Driver", Value::Text("raw_exec".to_owned())),
            field("Config", config),
        ]);
        let group = Value::Map(vec![
            field("Name", Value::Text("web".to_owned())),
            field("Tasks", Value::List(vec![task])),
        ]);
        let job = Value::Map(vec![
            field("ID", Value::Text("shop".to_owned())),
            field("Type", Value::Text("service".to_owned())),
            field("TaskGroups", Value::List(vec![group])),
        ]);
        alloc.job = wire::Job::new(job);
        read(&alloc).server.unwrap().refused.clone()
    };
    assert_eq!(config(500.0), None);
    let half = config(0.5).unwrap();
    assert!(half.contains("Config.oom_score_adj: expected an integer, found the number 0.5"), "{half}");
}

#[test]
fn unsupported_field_is_named_by_its_path() {
    let mut task = task();
    task["Kind"] = "connect-proxy:web".into();
    let spec = read(&of_group(json!({ "Tasks": [task] })));
    let refused = spec.server.clone().unwrap().refused.clone().unwrap();
    assert!(
        refused.contains("TaskGroups[0].Tasks[0].Kind") && refused.contains("is not supported"),
        "{refused}"
    );
    assert_eq!(spec.group().unwrap().tasks[0].name, "main", "it has a task, which fails");
    assert!(spec.group().unwrap().update.is_none());
    let mut alloc = of_group(json!({ "Tasks": [task] }));
    alloc.deployment_id = "5f5f5f5f-1111-4000-8000-000000000000".to_owned();
    assert!(read(&alloc).group().unwrap().update.is_some(), "its deployment must get its failure");
}

/// Servers through 1.9 derive a token for a task without an identity.
#[test]
fn vault_is_accepted_with_and_without_an_identity() {
    let mut task = task();
    task["Vault"] = json!({ "Policies": ["db"] });
    let refused = read(&of_group(json!({ "Tasks": [task.clone()] }))).server.clone().unwrap().refused.clone();
    assert_eq!(refused, None);
    task["Vault"] = json!({ "Role": "web", "Cluster": "default", "Env": true, "ChangeMode": "restart", "ChangeSignal": "SIGHUP" });
    task["Identities"] =
        json!([{ "Name": "vault_default", "Audience": ["vault.io"], "TTL": 3_600_000_000_000_i64 }]);
    let spec = read(&of_group(json!({ "Tasks": [task] })));
    assert_eq!(spec.server.clone().unwrap().refused, None);
    let access = spec.group().unwrap().tasks[0].vault.clone().unwrap();
    assert_eq!((access.role.as_deref(), access.change_signal), (Some("web"), None));
}

#[test]
fn server_only_fields_refuse_nothing() {
    let mut task = task();
    task["Constraints"] =
        json!([{ "LTarget": "${attr.x}", "Operand": "set_contains_all_of_them", "RTarget": "y" }]);
    let spec = read(&of_group(json!({
        "Count": 900_000, "Tasks": [task], "ReschedulePolicy": { "Unlimited": true, "DelayFunction": "tangential" },
        "Migrate": { "HealthCheck": "task_states", "MinHealthyTime": 1_000_000_000, "HealthyDeadline": 2_000_000_000 },
        "MaxClientDisconnect": 60, "Disconnect": { "StopOnClientAfter": 5_000_000_000_i64, "Replace": true },
    })));
    let server = spec.server.unwrap();
    assert_eq!(server.refused, None);
    let second = Duration::from_secs;
    assert_eq!(server.stop_on_client_after, Some(second(5)));
    let migrate = server.migrate.unwrap();
    assert_eq!(
        (migrate.health_check, migrate.min_healthy_time, migrate.healthy_deadline),
        (HealthCheck::TaskStates, second(1), second(2))
    );
}

#[test]
fn only_batch_work_has_a_longest_run_and_only_a_positive_one() {
    for (kind, nanos, seconds) in [
        ("batch", 60_000_000_000_i64, Some(60)),
        ("sysbatch", 60_000_000_000, Some(60)),
        ("service", 60_000_000_000, None),
        ("system", 60_000_000_000, None),
        ("batch", 0, None),
        ("batch", -1, None),
    ] {
        let group = json!({ "Name": "web", "Tasks": [task()], "MaxRunDuration": nanos });
        let job = json!({ "ID": "shop", "Name": "shop", "Type": kind, "TaskGroups": [group] });
        let alloc = wire::Allocation { job: wire::Job::new(value(&job)), ..of_group(json!({})) };
        let server = read(&alloc).server.unwrap();
        let expected = seconds.map(Duration::from_secs);
        assert_eq!((&server.refused, server.max_run_duration), (&None, expected), "{kind} {nanos}");
    }
}

#[test]
fn predecessors_and_disk_migration_are_converted() {
    for (disk, expected) in [
        (json!(null), DiskMigration::None),
        (json!({ "SizeMB": 300 }), DiskMigration::None),
        (json!({ "Sticky": true, "Migrate": false, "SizeMB": 300 }), DiskMigration::SameNode),
        (json!({ "Sticky": false, "Migrate": true, "SizeMB": 300 }), DiskMigration::AnyNode),
    ] {
        let mut alloc = of_group(json!({ "Tasks": [task()], "EphemeralDisk": disk }));
        let [previous, preempted] = [8, 9].map(|n| AllocId::from_hash([n; 16]));
        alloc.previous_allocation = previous.to_string();
        alloc.preempted_allocations = vec![preempted.to_string()];
        let spec = read(&alloc);
        assert_eq!(spec.awaited().collect::<Vec<_>>(), [previous, preempted]);
        assert_eq!(spec.predecessor(), Some(previous).filter(|_| expected != DiskMigration::None));
        let server = spec.server.unwrap();
        assert_eq!((server.heritage, &server.refused), (expected, &None), "{disk}");
        alloc.preempted_allocations = vec!["no id".to_owned()];
        let why = Reader::new(&real()).allocation(&alloc).unwrap_err();
        assert!(why.contains("PreemptedAllocations"), "{why}");
    }
}

#[test]
fn identities_are_taken_as_servers_write_them() {
    let with = |name: &str, more: serde_json::Value| {
        let mut task = task();
        let key = if name == "default" { "Identity" } else { "Identities" };
        let mut identity = json!({ "Name": name, "Audience": ["nomadproject.io"], "Env": true, "File": false, "TTL": 3_600_000_000_000_i64,
            "ChangeMode": "", "ChangeSignal": "", "Filepath": "", "ServiceName": "" });
        identity.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task[key] = if name == "default" { identity } else { json!([identity]) };
        read(&of_group(json!({ "Tasks": [task] })))
    };
    let refused = |alloc: &Allocation| alloc.server.as_ref().unwrap().refused.clone();
    let default = with("default", json!({}));
    assert_eq!((refused(&default), default.job.groups[0].tasks[0].identities[0].ttl), (None, None));
    let named = with("aws", json!({ "ChangeMode": "signal", "ChangeSignal": "SIGHUP" }));
    assert_eq!(refused(&named), None);
    let identity = &named.job.groups[0].tasks[0].identities[0];
    assert_eq!(
        (&*identity.name, identity.ttl, identity.change_signal.as_deref()),
        ("aws", Some(Duration::from_secs(3_600)), Some("SIGHUP"))
    );
    let lasting = with("aws", json!({ "TTL": 0, "Audience": null, "ExtraClaims": { "a": "b" } }));
    assert_eq!((refused(&lasting), lasting.job.groups[0].tasks[0].identities[0].ttl), (None, None));
    let elsewhere = with("aws", json!({ "File": true, "Filepath": "local/token" }));
    let file = elsewhere.job.groups[0].tasks[0].identities[0].filepath.as_deref();
    assert_eq!((refused(&elsewhere), file), (None, Some("local/token")));
    for path in ["../other/token", "private/token", "alloc/token", "secrets"] {
        let outside = with("aws", json!({ "File": true, "Filepath": path }));
        assert!(refused(&outside).is_some_and(|why| why.contains("Filepath")), "{path}");
    }
}

#[test]
fn ports_are_those_that_servers_gave_in_either_form() {
    let port = |label: &str, value, to| wire::assigned::PortMapping {
        label: label.to_owned(),
        value,
        to,
        host_ip: "10.0.0.1".to_owned(),
        ignore_collision: false,
    };
    let mut alloc = of_group(json!({ "Tasks": [task()] }));
    let mut given = wire::assigned::AllocatedResources::default();
    given.shared.ports = vec![port("http", 20_001, 80)];
    alloc.allocated_resources = Some(given);
    let expected =
        herdlet_api_types::alloc::AssignedPort { host_ip: "10.0.0.1".to_owned(), value: 20_001, to: 80 };
    assert_eq!(read(&alloc).ports, BTreeMap::from([("http".to_owned(), expected)]));
}

#[test]
fn cores_are_those_that_servers_gave() {
    let mut task = task();
    task["Resources"] = json!({ "CPU": 0, "Cores": 2, "MemoryMB": 64 });
    let mut alloc = of_group(json!({ "Tasks": [task] }));
    let mut given = wire::assigned::TaskResources::default();
    (given.cpu.cpu_shares, given.cpu.reserved_cores, given.memory.memory_mb) = (4_000, vec![0, 3], 64);
    let mut all = wire::assigned::AllocatedResources::default();
    all.tasks.insert("main".to_owned(), given);
    alloc.allocated_resources = Some(all);
    let alloc = read(&alloc);
    assert_eq!(alloc.server.as_ref().unwrap().refused, None);
    let assigned = &alloc.task_cores["main"];
    assert_eq!((assigned.cores.to_string().as_str(), assigned.cpu_mhz), ("0,3", 4_000));
    let resources = alloc.resources_of(&alloc.job.groups[0].tasks[0]);
    assert_eq!((resources.cpu_mhz, resources.cores), (Some(4_000), Some(2)));
}

/// Servers add the size of `secrets` to the memory; the driver must not add it again.
#[test]
fn secrets_are_part_of_the_memory_that_servers_gave() {
    let mut task = task();
    task["Resources"] = json!({ "CPU": 100, "MemoryMB": 64, "MemoryMaxMB": 128, "SecretsMB": 5 });
    let mut alloc = of_group(json!({ "Tasks": [task] }));
    let mut given = wire::assigned::TaskResources::default();
    (given.memory.memory_mb, given.memory.memory_max_mb) = (69, 133);
    let mut all = wire::assigned::AllocatedResources::default();
    all.tasks.insert("main".to_owned(), given);
    alloc.allocated_resources = Some(all);
    let resources = &read(&alloc).job.groups[0].tasks[0].resources;
    assert_eq!((resources.memory_mib, resources.memory_max_mib), (Some(64), Some(128)));
    let allocated = resources.allocated();
    assert_eq!((allocated.memory_mib, allocated.memory_max_mib), (Some(69), Some(133)));
    assert_eq!(resources.secrets_mib(), 5);
}

#[test]
fn actions_of_a_task_are_read() {
    let mut task = task();
    let name = task["Name"].as_str().unwrap().to_owned();
    task["Actions"] = json!([{ "Name": "seed", "Command": "/bin/echo", "Args": ["sown"] }, { "Name": "bare", "Command": "x", "Args": null }]);
    let spec = read(&of_group(json!({ "Tasks": [task] })));
    assert_eq!(spec.action(&name, "seed").unwrap().to_command(), ["/bin/echo", "sown"]);
    assert_eq!(spec.action(&name, "bare").unwrap().to_command(), ["x"]);
    assert_eq!(spec.action(&name, "none"), None);
}

#[test]
fn secrets_make_no_maximum_of_memory() {
    const ALL_MEMORY: u64 = herdlet_api_types::job::Resources::ALL_MEMORY;
    for (own, given_mb, expected) in [(0, 5, None), (0, 0, None), (-1, -1, Some(ALL_MEMORY))] {
        let mut task = task();
        task["Resources"] = json!({ "CPU": 100, "MemoryMB": 64, "MemoryMaxMB": own, "SecretsMB": 5 });
        let mut alloc = of_group(json!({ "Tasks": [task] }));
        let mut given = wire::assigned::TaskResources::default();
        (given.memory.memory_mb, given.memory.memory_max_mb) = (69, given_mb);
        let mut all = wire::assigned::AllocatedResources::default();
        all.tasks.insert("main".to_owned(), given);
        alloc.allocated_resources = Some(all);
        let resources = &read(&alloc).job.groups[0].tasks[0].resources;
        assert_eq!(resources.memory_max_mib, expected, "{own} {given_mb}");
    }
}

#[test]
fn a_dispatched_child_has_its_payload() {
    let mut task = task();
    task["DispatchPayload"] = json!({ "File": "in.txt" });
    let mut alloc = of_group(json!({ "Tasks": [task] }));
    let compressed = snap::raw::Encoder::new().compress_vec(b"hello").unwrap();
    let Value::Map(mut job) = alloc.job.value().clone() else { panic!() };
    let text = |text: &str| Value::Text(text.to_owned());
    job.retain(|(key, _)| key.as_text() != Some("Type"));
    job.extend([
        (text("Type"), text("batch")),
        (text("Dispatched"), Value::Bool(true)),
        (text("ParentID"), text("shop")),
        (text("ParameterizedJob"), value(&json!({ "Payload": "required" }))),
        (text("Payload"), Value::Bytes(compressed)),
    ]);
    alloc.job = wire::Job::new(Value::Map(job));
    alloc.job_id = "shop/dispatch-1700000000-1f2e3d4c".to_owned();
    let spec = read(&alloc);
    assert_eq!(spec.server.as_ref().unwrap().refused, None);
    let Some(Child { parent, origin: Origin::Dispatch { payload, .. } }) = &spec.job.child else { panic!() };
    assert_eq!(
        (&**parent, &**payload, &*spec.job.id),
        ("shop", "aGVsbG8=", "shop/dispatch-1700000000-1f2e3d4c")
    );
    let Value::Map(mut job) = alloc.job.value().clone() else { panic!() };
    job.iter_mut().filter(|(key, _)| key.as_text() == Some("Payload")).for_each(|(_, value)| {
        *value = Value::Bytes(vec![0xff, 0xff, 0xff, 0xff, 0x0f, 1]);
    });
    alloc.job = wire::Job::new(Value::Map(job));
    let refused = read(&alloc).server.unwrap().refused.clone().unwrap();
    assert!(refused.starts_with("Payload: "), "{refused}");
}

#[test]
fn allocation_without_a_name_is_an_error() {
    let nameless = wire::Allocation { id: "x".into(), ..of_group(json!({ "Tasks": [task()] })) };
    let error = Reader::new(&real()).allocation(&nameless).unwrap_err();
    assert_eq!(error, "ID is not a UUID");
    let taskless = of_group(json!({ "Tasks": [] }));
    assert!(Reader::new(&real()).allocation(&taskless).is_err());
}

#[test]
fn a_job_is_read_once_for_all_its_allocations_of_a_batch() {
    let reading = real();
    let mut reader = Reader::new(&reading);
    let alloc = of_group(json!({ "Tasks": [task()] }));
    let jobs = [(); 2].map(|()| reader.allocation(&alloc).unwrap().job);
    assert!(Arc::ptr_eq(&jobs[0], &jobs[1]));
}

#[test]
fn every_job_can_be_simulated() {
    for alloc in recorded() {
        let spec = Reader::new(&Reading::Pretended).allocation(&alloc).unwrap();
        assert_eq!(spec.server.unwrap().refused, None, "{}", alloc.name);
        assert!(spec.job.groups[0].tasks.iter().all(|task| task.driver == "mock"));
    }
}

/// Jobs with every field of a release: most are zero, the others have the values that servers and the command line fill in.
#[test]
fn jobs_of_every_release_are_taken() {
    let jobs: Map<String, Json> = serde_json::from_str(include_str!("jobs.json")).unwrap();
    assert_eq!(jobs.len(), 5);
    let mut refused = Vec::new();
    for (release, job) in &jobs {
        for kind in ["service", "batch", "system", "sysbatch"] {
            let mut job = job.clone();
            job["Type"] = kind.into();
            if kind != "service" {
                for field in ["Update", "Migrate", "Disconnect", "Scaling"] {
                    job["TaskGroups"][0][field] = Json::Null;
                }
                job["Update"] = Json::Null;
            }
            let alloc = wire::Allocation {
                namespace: "prod".to_owned(),
                job: wire::Job::new(value(&job)),
                task_group: "Web_Group".to_owned(),
                ..of_group(json!({ "Tasks": [task()] }))
            };
            let spec = read(&alloc);
            let group = spec.group().unwrap();
            let names: Vec<&str> = group.tasks.iter().map(|task| &*task.name).collect();
            assert_eq!(
                (&*group.name, &names[..]),
                ("Web_Group", &["Main_Task", "init"][..]),
                "{release} {kind}"
            );
            refused
                .extend(spec.server.unwrap().refused.clone().map(|why| format!("{release} {kind}: {why}")));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn a_task_keeps_the_name_that_servers_know_it_by() {
    let mut one = task();
    one["Name"] = "Web Server".into();
    let check = json!({ "Type": "script", "Command": "/bin/true", "TaskName": "Web Server", "Interval": 10_000_000_000_i64, "Timeout": 1_000_000_000 });
    let service = json!({ "Name": "web", "Provider": "consul", "TaskName": "Web Server", "Checks": [check] });
    let spec = read(&of_group(json!({ "Tasks": [one, task()], "Services": [service] })));
    let group = spec.group().unwrap();
    assert_eq!((&*group.tasks[0].name, &*group.tasks[1].name), ("Web Server", "main"));
    let CheckKind::Script { task, .. } = &group.services[0].checks[0].kind else { panic!("{group:?}") };
    assert_eq!((&**task, &spec.server.as_ref().unwrap().refused), ("Web Server", &None));
    let mut outside = self::task();
    outside["Name"] = "../main".into();
    assert!(Reader::new(&real()).allocation(&of_group(json!({ "Tasks": [outside] }))).is_err());
}
