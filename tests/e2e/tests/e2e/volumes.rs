//! Host volumes in tasks' directories.

use std::fs;

use herdlet_e2e::{agent::Agent, host, wait};

use crate::common::{is_root, job, shell, sleeper, volume};

#[test]
fn volume_data_outlives_the_job_until_purged() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let mount = "volume_mounts: [{volume: data, destination: local/deep/data}]";
    let group = "volumes: {data: {type: host, source: kept}}";
    let text = format!(
        "{}{}",
        volume("kept"),
        job("writer", "batch", group, &[shell("t", "echo written >> local/deep/data/file", mount)])
    );
    agent.apply_and_wait(&text);
    agent.until_alloc("writer.g[0]", "complete", |alloc| alloc.status() == "complete");
    let data = agent.home.state().join("volumes/kept/file");
    assert_eq!(fs::read_to_string(&data).unwrap(), "written\n");
    agent.cli(&["delete", "writer", "--wait"]).success();
    assert_eq!(fs::read_to_string(&data).unwrap(), "written\n", "delete keeps data");
    assert!(agent.cli(&["get", "volumes"]).success().stdout.contains("kept"));
    agent.apply_and_wait(&text);
    agent.until_alloc("writer.g[0]", "complete again", |alloc| {
        alloc.status() == "complete" && fs::read_to_string(&data).is_ok_and(|text| text.lines().count() == 2)
    });
    agent.cli(&["delete", "writer", "--wait", "--purge"]).success();
    assert!(!data.exists());
    agent.finish();
}

#[test]
fn read_only_mount_is_enforced_per_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {data: {type: host, source: shared}}";
    let text = format!(
        "{}{}",
        volume("shared"),
        job(
            "both",
            "service",
            group,
            &[
                sleeper("writes", "volume_mounts: [{volume: data, destination: local/data}]"),
                sleeper("reads", "volume_mounts: [{volume: data, destination: local/data, read_only: true}]"),
            ]
        )
    );
    agent.apply_and_wait(&text);
    let touch = ["--", "sh", "-c", "touch local/data/file"];
    let writes = agent.cli(&[&["exec", "both/writes"], &touch[..]].concat());
    assert_eq!(writes.code, 0, "{writes:?}");
    let reads = agent.cli(&[&["exec", "both/reads"], &touch[..]].concat());
    assert_ne!(reads.code, 0);
    assert!(reads.stderr.contains("Read-only"), "{reads:?}");
    assert!(agent.home.state().join("volumes/shared/file").exists());
    agent.finish();
}

#[test]
fn a_volume_that_is_not_there_is_waited_for_and_named() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {data: {type: host, source: later}}";
    agent.apply(&job(
        "early",
        "service",
        group,
        &[sleeper("t", "volume_mounts: [{volume: data, destination: local/data}]")],
    ));
    let explained = herdlet_e2e::wait::until("an explanation", || {
        let output = agent.cli(&["explain", "early"]);
        (output.code == 0 && output.stdout.contains("later")).then_some(output.stdout)
    });
    assert!(agent.members().is_empty(), "{explained}");
    assert_eq!(
        agent.cli(&["wait", "early", "--timeout", "1s"]).code,
        3,
        "timed out while the agent still tries"
    );
    agent.apply(&volume("later").replace("---\n", ""));
    agent.cli(&["wait", "early"]).success();
    assert_eq!(agent.members().len(), 1);
    agent.finish();
}

#[test]
fn a_task_can_not_lead_its_mount_out_of_its_directory() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let victim = agent.home.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "not ours").unwrap();
    let group = "volumes: {data: {type: host, source: data}}\nrestart: {attempts: 0, mode: fail}";
    // The tasks share nothing but the user; the first one writes into the second one's directory.
    let plant = format!("ln -s {} ../t/local/data; echo planted", victim.display());
    let text = format!(
        "{}{}",
        volume("data"),
        job(
            "led",
            "batch",
            group,
            &[
                shell("plant", &format!("mkdir -p ../t/local; {plant}"), "lifecycle: {hook: prestart}"),
                shell(
                    "t",
                    "ls local/data/; test ! -e local/data/file",
                    "volume_mounts: [{volume: data, destination: local/data}]"
                ),
            ]
        )
    );
    agent.apply(&text);
    agent.until_alloc("led.g[0]", "ended", |alloc| ["complete", "failed"].contains(&alloc.status().as_str()));
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "not ours");
    assert!(host::mounts_below(&victim).is_empty());
    agent.cli(&["delete", "led", "--wait", "--purge"]).success();
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "not ours");
    agent.finish();
}

#[test]
fn secrets_are_on_a_tmpfs_of_the_allocation() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("secret", "service", "", &[sleeper("t", "")]));
    let alloc = agent.alloc("secret.g[0]").unwrap().id();
    let secrets = agent.home.state().join("alloc").join(&alloc).join("t/secrets");
    assert!(host::mounts_below(&secrets).contains(&secrets), "{:?}", host::mounts_below(&agent.home.state()));
    agent.cli(&["delete", "secret", "--wait"]).success();
    assert!(host::mounts_below(&agent.home.state()).is_empty());
    agent.finish();
}

#[test]
fn data_that_was_kept_can_be_removed_later() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {d: {type: host, source: left}}\nrestart: {attempts: 0, mode: fail}";
    let mounts = "volume_mounts: [{volume: d, destination: local/d}]";
    let task = shell("t", "echo kept > local/d/file", mounts);
    agent.apply_and_wait(&format!("{}{}", volume("left"), job("leaving", "batch", group, &[task])));
    let data = agent.home.state().join("volumes/left");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept\n");

    // The allocation is kept for its logs; it has ended and uses the volume no longer.
    let deleted = agent.cli(&["delete", "volume", "left"]).success();
    assert!(deleted.stdout.contains("herdlet delete volume left --purge"), "{}", deleted.stdout);
    agent.cli(&["delete", "leaving", "--wait"]).success();
    wait::until_true("it is forgotten", || agent.cli(&["get", "volumes", "-o", "name"]).stdout.is_empty());
    assert!(data.join("file").exists());
    let again = agent.cli(&["delete", "volume", "left"]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains(&data.display().to_string()), "{}", again.stderr);

    agent.cli(&["delete", "volume", "left", "--purge"]).success();
    wait::until_true("its data is gone", || !data.exists());
    let gone = agent.cli(&["delete", "volume", "left", "--purge"]);
    assert!(gone.code == 1 && gone.stderr.contains("there is no volume"), "{}", gone.stderr);
    agent.finish();
}

#[test]
fn volume_in_use_names_each_user_once() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {d: {type: host, source: used}}";
    let sleeping = |seconds: u32| {
        let mounts = "volume_mounts: [{volume: d, destination: local/d}]";
        job("using", "service", group, &[shell("t", &format!("exec sleep {seconds}"), mounts)])
    };
    // The second version leaves an ended allocation of the first one.
    agent.apply_and_wait(&format!("{}{}", volume("used"), sleeping(100_000)));
    agent.apply_and_wait(&format!("{}{}", volume("used"), sleeping(100_001)));
    let refused = agent.cli(&["delete", "volume", "used"]);
    assert_eq!(refused.code, 1);
    assert_eq!(refused.stderr.matches("using.g[0]").count(), 1, "{}", refused.stderr);
    agent.finish();
}
