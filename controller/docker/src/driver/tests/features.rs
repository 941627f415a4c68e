//! What containers have: ports, mounts, environment, terminals, images.

use std::{net::Ipv4Addr, time::Duration};

use bollard::{
    Docker,
    models::{ContainerConfig, ContainerCreateBody},
    query_parameters::{
        CommitContainerOptionsBuilder, RemoveContainerOptionsBuilder, TagImageOptionsBuilder,
    },
};
use futures_util::StreamExt as _;
use herdlet_api_types::alloc::AssignedPort;
use herdlet_driver::{
    DriverError, ExecInput, ExecOutput, ExecRequest, Health, Leftover, Mount, Propagation, TaskDriver as _,
    TaskEvent, TerminalSize, contract::attempt_id,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::machine::{Link, machines};
use crate::engine::Place;

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_ports_and_a_network_of_its_own() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        let port = AssignedPort { host_ip: Ipv4Addr::LOCALHOST.to_string(), value: 23_456, to: 80 };
        task.ports = [("http".to_owned(), port)].into();
        task.config["ports"] = json!(["http"]);
        let started = driver.start(task).await.unwrap();
        let network = started.network.unwrap();
        assert!(network.ip.parse::<Ipv4Addr>().is_ok(), "{network:?}");
        assert_eq!((network.port_map["http"], network.auto_advertise), (80, false));
        let engine = driver.shared.current();
        let run = driver.shared.runs.get(&attempt_id(1)).unwrap();
        let about = super::super::locate::inspect(&engine.client().await.unwrap(), &run.container)
            .await
            .unwrap()
            .unwrap();
        let bound = about.network_settings.unwrap().ports.unwrap();
        assert_eq!(bound["80/tcp"].as_ref().unwrap()[0].host_port.as_deref(), Some("23456"));
        // After a restart the network is known again.
        drop(driver);
        let driver = machine.connected().await;
        let recovery =
            herdlet_driver::Recovery { id: attempt_id(1), config: None, handle: None, network: None };
        let recovered = driver.recover(recovery).await.unwrap();
        let herdlet_driver::Recovered::Running(again) = recovered else { panic!("{recovered:?}") };
        assert_eq!(again.network, Some(network));
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_environment_and_limits() {
    for machine in machines() {
        let machine = machine.with(json!({"volumes": {"enabled": true}}));
        let driver = machine.connected().await;
        std::fs::write(machine.task_dir().join("local/in"), "in").unwrap();
        std::fs::create_dir(machine.path().join("volume")).unwrap();
        std::fs::write(machine.path().join("volume/v"), "v").unwrap();
        let script = "cat /local/in /data/v /more/v; echo $GREETING; cat /proc/1/limits | grep 'open files'; \
                      hostname; id -u; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; \
                      touch /data/x 2>/dev/null || echo readonly; touch /alloc/logs/x 2>/dev/null || echo logs";
        let mut task = machine.script(attempt_id(1), script);
        task.config["ulimit"] = json!({"nofile": "1000:1024", "nproc": "1024:1024"});
        task.config["hostname"] = "box".into();
        task.config["volumes"] = json!([format!("{}:/more:ro", machine.path().join("volume").display())]);
        task.user = Some("7".to_owned());
        task.mounts = vec![Mount {
            host_path: machine.path().join("volume"),
            task_path: "/data".into(),
            readonly: true,
            propagation: Propagation::Private,
        }];
        let mut exits = driver.exits();
        driver.start(task).await.unwrap();
        assert_eq!(exits.next().await.unwrap().result.code, 0);
        let out = machine.stdout();
        assert!(out.starts_with("invvhello\n"), "{out}");
        for part in ["1000 ", "box\n7\n", "67108864\n", "readonly\n", "logs\n"] {
            assert!(out.contains(part), "{part} in {out}");
        }
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_terminals_and_end_with_their_session() {
    for machine in machines() {
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        let terminal = Some(TerminalSize { height: 30, width: 99 });
        let script = "tty >/dev/null && echo a terminal; read line; stty size; exit 3";
        let request =
            ExecRequest { command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), terminal };
        let (input, frames_in) = mpsc::channel(4);
        let (output, mut frames) = mpsc::channel(16);
        input.send(ExecInput::Resize(TerminalSize { height: 40, width: 111 })).await.unwrap();
        let frames_in = futures_util::stream::unfold(frames_in, |mut frames| async {
            Some((frames.recv().await?, frames))
        });
        let id = attempt_id(1);
        let running = driver.exec_frames(&id, request, frames_in.boxed(), output);
        let reading = async {
            let (mut text, mut is_asked) = (String::new(), false);
            while let Some(frame) = frames.recv().await {
                match frame {
                    ExecOutput::Stdout(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                    ExecOutput::Exited(exit) => return (text, exit.code),
                    ExecOutput::Stderr(_) | ExecOutput::StdoutEnd | ExecOutput::StderrEnd => {}
                }
                if text.contains("a terminal") && !is_asked {
                    is_asked = true;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    input.send(ExecInput::Stdin(b"go\n".to_vec())).await.unwrap();
                }
            }
            panic!("no exit")
        };
        let (done, (text, code)) = tokio::join!(running, reading);
        done.unwrap();
        assert!(text.contains("a terminal") && text.contains("40 111") && code == 3, "{text} {code}");
        // A session that is dropped ends its command.
        let command = ["/bin/sh", "-c", "echo on; exec sleep 7777"].map(str::to_owned).to_vec();
        let mut session = driver.exec_streaming(&id, ExecRequest { command, terminal: None }).await.unwrap();
        assert_eq!(session.stdout.recv().await.unwrap(), b"on\n");
        drop(session);
        loop {
            let command = ["/bin/sh", "-c", "ps | grep -v grep | grep -c 'sleep 7777'"].map(str::to_owned);
            let seen = driver.exec(&id, &command, LONG).await.unwrap();
            if seen.stdout == b"0\n" {
                break;
            }
        }
        driver.destroy(&id, Leftover::Kill).await.unwrap();
    }
}

/// What a program wrote to its terminal was taken for the head of a frame of 4 GiB: it was buffered, and nothing was shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_all_bytes() {
    for machine in machines() {
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        let script = r"stty raw; printf '\001\000\000\000\377\377\377\377'; seq 20000; exit 3";
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let terminal = Some(TerminalSize { height: 30, width: 99 });
        let mut session =
            driver.exec_streaming(&attempt_id(1), ExecRequest { command, terminal }).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = session.stdout.recv().await {
            bytes.extend(piece);
        }
        assert!(bytes.starts_with(b"\x01\0\0\0\xff\xff\xff\xff"), "{:?}", bytes.get(..20));
        assert!(bytes.trim_ascii_end().ends_with(b"20000"));
        assert_eq!(session.exit.await.unwrap().code, 3);
        let command = vec!["/bin/none".to_owned()];
        let refused = driver.exec_streaming(&attempt_id(1), ExecRequest { command, terminal }).await;
        if let Err(error) = refused {
            assert!(error.to_string().contains("none"), "{error}");
        }
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

/// With Podman a capability that is only Docker's default was not added, and each seccomp profile was refused.
#[tokio::test(flavor = "multi_thread")]
async fn capabilities_and_profiles_have_effect_with_both_engines() {
    for machine in machines() {
        let machine = machine.with(json!({"allow_caps": ["all"]}));
        let driver = machine.connected().await;
        let profile = json!({"defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]});
        std::fs::write(machine.task_dir().join("local/p.json"), profile.to_string()).unwrap();
        let script = "grep CapBnd /proc/self/status; mkdir /tmp/x || echo forbidden";
        let mut task = machine.script(attempt_id(1), script);
        task.config["cap_add"] = json!(["NET_RAW"]);
        task.config["security_opt"] = json!(["seccomp=local/p.json"]);
        let mut exits = driver.exits();
        driver.start(task).await.unwrap();
        exits.next().await.unwrap();
        let out = machine.stdout();
        let set = out.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap().trim();
        let set = u64::from_str_radix(set, 16).unwrap();
        // NET_RAW and MKNOD.
        assert_eq!((set >> 13 & 1, set >> 27 & 1), (1, 1), "{out}");
        assert!(out.contains("forbidden"), "{out}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// Of a task that uses too much memory it was not said that it did.
#[tokio::test(flavor = "multi_thread")]
async fn lack_of_memory_is_reported() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        driver.start(machine.script(attempt_id(1), "x=a; while :; do x=$x$x; done")).await.unwrap();
        let result = exits.next().await.unwrap().result;
        assert!(result.oom_killed && result.code == 137 && result.signal == 9, "{result:?}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// A registry that is down: a task starts with the image that is there, and says so; without one it fails, by the policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_uses_the_image_that_is_there() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut events = driver.events();
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        task.config["force_pull"] = true.into();
        task.config["image_pull_timeout"] = "20s".into();
        let cancel = CancellationToken::new();
        driver.prepare(&task, &cancel).await.unwrap();
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|message: &String| message.contains("the image that is there")) {
            let Some(TaskEvent::Message { message, .. }) = events.next().await else {
                panic!("{messages:?}")
            };
            messages.push(message);
        }
        assert!(messages[0].starts_with("Downloading image"), "{messages:?}");
        let mut missing = task.clone();
        missing.config["image"] = "localhost:1/none:1".into();
        let error = driver.prepare(&missing, &cancel).await.unwrap_err();
        assert!(
            matches!(error, DriverError::Recoverable(_))
                && error.to_string().contains("pull image localhost:1/none:1"),
            "{error}"
        );
        drop(driver);
        let strict = machine.with(json!({"pull_fallback": false}));
        let driver = strict.connected().await;
        driver.prepare(&task, &cancel).await.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_are_nomads() {
    for machine in machines() {
        let machine = machine.with(json!({"allow_privileged": true}));
        let driver = machine.driver();
        let mut fingerprints = driver.fingerprint();
        let healthy = loop {
            let fingerprint = fingerprints.next().await.unwrap();
            if fingerprint.health == Health::Healthy {
                break fingerprint;
            }
        };
        let of = |key: &str| healthy.attributes.get(&format!("driver.{}.{key}", machine.driver)).cloned();
        assert!(of("version").is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())));
        assert_eq!(of("privileged.enabled").as_deref(), Some("true"));
        assert!(
            machine.driver == "podman" || of("bridge_ip").is_some_and(|ip| ip.ends_with(".1")),
            "{healthy:?}"
        );
    }
}

/// Images of tasks that ran before a restart of the agent were never removed.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_no_task_uses_is_removed_also_after_a_restart() {
    for machine in machines() {
        let driver = machine.connected().await;
        let engine = driver.shared.current();
        let client = &engine.client().await.unwrap();
        let repository = format!("herdlet-test/{}", machine.instance);
        let image = format!("{repository}:used");
        let other = format!("{repository}:other");
        let id = make_image(client, &image).await;
        make_image(client, &other).await;
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        task.config["image"] = image.clone().into();
        // As if it had been pulled.
        driver.shared.note_fetched(&image, &engine.place, Some(id));
        driver.prepare(&task, &CancellationToken::new()).await.unwrap();
        driver.shared.collect(Duration::ZERO).await.unwrap();
        driver.start(task).await.unwrap();
        let machine_driver = machine.connected().await;
        let next = &machine_driver.shared;
        next.collect(Duration::ZERO).await.unwrap();
        let is_there = async |name: &str| crate::images::local(client, name).await.unwrap().is_some();
        assert!(is_there(&image).await, "its container runs");
        machine_driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        next.collect(Duration::from_secs(3_600)).await.unwrap();
        assert!(is_there(&image).await, "it was used just now");
        next.collect(Duration::ZERO).await.unwrap();
        assert!(!is_there(&image).await);
        assert!(is_there(&other).await, "no task has used it");
        let none = None::<bollard::query_parameters::RemoveImageOptions>;
        client.remove_image(&other, none, None).await.unwrap();
    }
}

/// Makes an image that is equal to no other.
async fn make_image(client: &Docker, name: &str) -> String {
    let body = ContainerCreateBody {
        image: Some(super::IMAGE.to_owned()),
        cmd: Some(vec!["/bin/true".to_owned()]),
        ..ContainerCreateBody::default()
    };
    let none = None::<bollard::query_parameters::CreateContainerOptions>;
    let made = client.create_container(none, body).await.unwrap().id;
    let (repository, tag) = name.rsplit_once(':').unwrap();
    let options = CommitContainerOptionsBuilder::new()
        .container(&made)
        .repo(repository)
        .tag(tag)
        .changes(&format!("LABEL name={name}"))
        .build();
    client.commit_container(options, ContainerConfig::default()).await.unwrap();
    let remove = RemoveContainerOptionsBuilder::new().force(true).build();
    client.remove_container(&made, Some(remove)).await.unwrap();
    crate::images::local(client, name).await.unwrap().unwrap().id
}

/// An archive that the engine did not store within the time of a call was never loaded; and nobody could end its loading.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_loaded_until_its_own_timeout_or_until_it_is_withdrawn() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let machine = machine.with(json!({"client_http_timeout": "1s"}));
        let driver = machine.connected().await;
        std::fs::write(machine.task_dir().join("local/a.tar"), "no archive").unwrap();
        let mut task = machine.script(attempt_id(1), "true");
        task.config["load"] = "a.tar".into();
        let cancel = CancellationToken::new();
        machine.link.send_replace(Link::HangsLoad);
        let mut preparing = driver.prepare(&task, &cancel);
        let waited = tokio::time::timeout(Duration::from_secs(3), &mut preparing).await;
        assert!(waited.is_err(), "{waited:?}");
        cancel.cancel();
        let error = preparing.await.unwrap_err().to_string();
        assert!(error.contains("withdrawn"), "{error}");
        task.config["image_pull_timeout"] = "1s".into();
        let error = driver.prepare(&task, &CancellationToken::new()).await.unwrap_err().to_string();
        assert!(error.contains("image_pull_timeout") || error.contains("in time"), "{error}");
    }
}

/// Each pull of `latest` left an image without a name; and an engine that was gone ended each search for unused images.
#[tokio::test(flavor = "multi_thread")]
async fn superseded_images_are_removed_too() {
    for machine in machines() {
        let driver = machine.connected().await;
        let (shared, engine) = (&driver.shared, driver.shared.current());
        let client = &engine.client().await.unwrap();
        let gone = Place { socket: "/nowhere".into(), ..engine.place.clone() };
        shared.note_fetched("a", &gone, Some("x".to_owned()));
        let name = format!("herdlet-test/{}:latest", machine.instance);
        let local = async |name: &str| crate::images::local(client, name).await.unwrap();
        make_image(client, &name).await;
        let first = local(&name).await.unwrap();
        shared.note_pulled(&name, &engine.place, None, &first);
        make_image(client, &name).await;
        let second = local(&name).await.unwrap();
        shared.note_pulled(&name, &engine.place, Some(first.clone()), &second);
        assert!(first.id != second.id && local(&first.id).await.is_some());
        // A container of somebody else.
        let body = ContainerCreateBody { image: Some(name.clone()), ..ContainerCreateBody::default() };
        let none = None::<bollard::query_parameters::CreateContainerOptions>;
        let container = client.create_container(none, body).await.unwrap().id;
        let other = TagImageOptionsBuilder::new().repo("herdlet-test/other").tag(&machine.instance).build();
        client.tag_image(&name, Some(other)).await.unwrap();
        shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(local(&first.id).await, None);
        assert_eq!(local(&name).await.map(|image| image.id), Some(second.id.clone()));
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&container, Some(remove)).await.unwrap();
        shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(local(&name).await, None);
        let other = format!("herdlet-test/other:{}", machine.instance);
        client
            .remove_image(&other, None::<bollard::query_parameters::RemoveImageOptions>, None)
            .await
            .unwrap();
    }
}

/// An image that somebody had built on the machine was removed after its task, and no registry had it.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_built_here_is_kept() {
    for machine in machines() {
        let driver = machine.connected().await;
        let engine = driver.shared.current();
        let client = &engine.client().await.unwrap();
        let image = format!("herdlet-test/{}:built", machine.instance);
        let id = make_image(client, &image).await;
        let mut task = machine.script(attempt_id(1), "true");
        task.config["image"] = image.clone().into();
        driver.prepare(&task, &CancellationToken::new()).await.unwrap();
        let mut exits = driver.exits();
        driver.start(task).await.unwrap();
        exits.next().await.unwrap();
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        driver.shared.collect(Duration::ZERO).await.unwrap();
        let found = async || crate::images::local(client, &image).await.unwrap().map(|image| image.id);
        assert_eq!(found().await.as_deref(), Some(&*id));
        // Neither one that replaces a fetched one.
        driver.shared.note_fetched(&image, &engine.place, Some("sha256:0".to_owned()));
        driver.shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(found().await.as_deref(), Some(&*id));
        driver.shared.note_fetched(&image, &engine.place, Some(id));
        driver.shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(found().await, None);
        driver.shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(driver.images().await.unwrap(), []);
    }
}
