//! The files: their rights, their loss, and file systems that are full.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use herdlet_e2e::{agent::Setup, host, wait};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};

use super::{
    QUICK, RECORDER, greeting, path_of, put, quick, recorded, recorder, template, templates, until_explained,
    until_file, until_recorded,
};
use crate::{
    common::{is_root, job, shell},
    disk::{finish, on_a_small_disk},
};

#[test]
fn files_have_the_wanted_mode_and_owner() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/modes", &["greeting=one"]);
    let text = greeting("modes");
    let each = [
        template(&text, "local/plain", "change_mode: noop"),
        template(&text, "local/closed", "change_mode: noop, perms: \"0600\""),
        template(&text, "local/deep/dir/owned", "change_mode: noop, perms: \"640\", uid: 65534, gid: 1"),
        template(&text, "secrets/script", "change_mode: noop, perms: \"0700\""),
    ];
    let task = recorder("t", &each).replace("driver: raw_exec", "driver: raw_exec\n          user: nobody");
    agent.apply_and_wait(&job("modes", "service", "", &[task]));
    for value in ["one", "two"] {
        put(&agent, "nomad/jobs/modes", &[&format!("greeting={value}")]);
        for (file, mode, uid, gid) in [
            ("t/local/plain", 0o644, 0, 0),
            ("t/local/closed", 0o600, 0, 0),
            ("t/local/deep/dir/owned", 0o640, 65534, 1),
            ("t/secrets/script", 0o700, 0, 0),
        ] {
            until_file(&agent, "modes.g[0]", (file, value));
            let found = fs::metadata(path_of(&agent, "modes.g[0]", file)).unwrap();
            assert_eq!(
                (found.permissions().mode() & 0o7777, found.uid(), found.gid()),
                (mode, uid, gid),
                "{file}"
            );
        }
    }
    let dir = fs::metadata(path_of(&agent, "modes.g[0]", "t/local/deep")).unwrap();
    assert_eq!(dir.uid(), 65534, "a directory made for an output is the task's");
    agent.finish();
}

#[test]
fn files_lost_by_a_reboot_are_rendered_again() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/reboot", &["greeting=one"]);
    let each = [
        template(&greeting("reboot"), "secrets/conf", ""),
        template(&format!("A={}\n", greeting("reboot")), "secrets/env", "env: true"),
        template(&greeting("reboot"), "local/conf", ""),
    ];
    let group = "restart: {attempts: 9, delay: 50ms}";
    agent.apply_and_wait(&job("reboot", "service", group, &[recorder("t", &each)]));
    let alloc = "reboot.g[0]";
    until_recorded(&agent, (alloc, "t"), &["start"]);
    let dir = path_of(&agent, alloc, "t");
    agent.kill();
    for member in agent.members() {
        host::signal(member.pid, Signal::KILL);
    }
    for name in ["secrets", "private"] {
        unmount(dir.join(name), UnmountFlags::DETACH).unwrap();
    }
    fs::remove_file(dir.join("local/conf")).unwrap();
    assert!(!dir.join("secrets/conf").exists());
    agent.launch();
    until_recorded(&agent, (alloc, "t"), &["start", "start"]);
    for file in ["t/secrets/conf", "t/local/conf"] {
        until_file(&agent, alloc, (file, "one"));
    }
    let printed = agent.cli(&["exec", "reboot", "--", "sh", "-c", "echo $A"]).success().stdout;
    assert_eq!(printed, "one\n");
    agent.finish();
}

#[test]
fn files_that_the_task_removes_are_back_after_a_crash_without_a_restart() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/lost", &["greeting=one"]);
    let each =
        [template(&greeting("lost"), "secrets/conf", ""), template(&greeting("lost"), "local/conf", "")];
    agent.apply_and_wait(&job("lost", "service", "", &[recorder("t", &each)]));
    until_recorded(&agent, ("lost.g[0]", "t"), &["start"]);
    for file in ["t/secrets/conf", "t/local/conf"] {
        fs::remove_file(path_of(&agent, "lost.g[0]", file)).unwrap();
    }
    agent.crash();
    for file in ["t/secrets/conf", "t/local/conf"] {
        until_file(&agent, "lost.g[0]", (file, "one"));
    }
    agent.cli(&["wait", "lost"]).success();
    assert_eq!(recorded(&agent, "lost.g[0]", "t"), ["start"]);
    agent.finish();
}

/// A template whose output has about a thousand times this many bytes.
fn large(job: &str) -> String {
    let line = "x".repeat(999);
    format!(
        "{{{{ with nomadVar \"nomad/jobs/{job}\" }}}}{{{{ range loop 0 (.thousands.Value | parseInt) }}}}{line}\n{{{{ end }}}}{{{{ end }}}}"
    )
}

#[test]
fn an_output_that_does_not_fit_into_secrets_names_its_size_and_the_remedy() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    put(&agent, "nomad/jobs/large", &["thousands=2000"]);
    let task = |name: &str| recorder("t", &[template(&large(name), "secrets/large", "change_mode: signal")]);
    agent.apply(&job("large", "service", group, &[task("large")]));
    let alloc = agent.until_alloc("large.g[0]", "failed", |alloc| alloc.status() == "failed");
    let events = alloc.0["TaskStates"]["t"]["Events"].to_string();
    for part in ["secrets/large", "2000000 bytes", "1 MiB", "raise `secrets`", "write the file to `local`"] {
        assert!(events.contains(part), "{part}: {events}");
    }
    let more = format!(
        "resources: {{secrets: 3}}\n{}",
        templates(&[template(&large("large"), "secrets/large", "change_mode: signal")])
    );
    let roomy = shell("t", RECORDER, &more);
    agent.apply_and_wait(&job("large", "service", group, &[roomy]));
    assert_eq!(fs::metadata(path_of(&agent, "large.g[0]", "t/secrets/large")).unwrap().len(), 2_000_000);
    // A file is replaced in one step, so both have to fit.
    put(&agent, "nomad/jobs/both", &["thousands=600"]);
    agent.apply_and_wait(&job("both", "service", group, &[task("both")]));
    until_recorded(&agent, ("both.g[0]", "t"), &["start"]);
    put(&agent, "nomad/jobs/both", &["thousands=601"]);
    let explained = until_explained(&agent, "both", "601000 bytes");
    for part in ["secrets/large", "601000 bytes", "`local`"] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    assert_eq!(fs::metadata(path_of(&agent, "both.g[0]", "t/secrets/large")).unwrap().len(), 600_000);
    put(&agent, "nomad/jobs/both", &["thousands=400"]);
    until_recorded(&agent, ("both.g[0]", "t"), &["start", "hup"]);
    assert_eq!(fs::metadata(path_of(&agent, "both.g[0]", "t/secrets/large")).unwrap().len(), 400_000);
    agent.finish();
}

#[test]
fn a_full_disk_delays_a_render_and_names_the_cause() {
    if !is_root() {
        return;
    }
    let (disk, mut agent) = on_a_small_disk(Setup::default().config(QUICK));
    agent.launch();
    put(&agent, "nomad/jobs/full", &["thousands=1"]);
    let more = "change_mode: signal";
    let task = recorder("t", &[template(&large("full"), "local/large", more)]);
    agent.apply_and_wait(&job("full", "service", "", &[task]));
    until_recorded(&agent, ("full.g[0]", "t"), &["start"]);
    disk.fill_except(256 << 10);
    put(&agent, "nomad/jobs/full", &["thousands=3000"]);
    let explained = until_explained(&agent, "full", "No space left");
    assert!(explained.contains("local/large"), "{explained}");
    assert_eq!(fs::metadata(path_of(&agent, "full.g[0]", "t/local/large")).unwrap().len(), 1_000);
    let names: Vec<_> = fs::read_dir(path_of(&agent, "full.g[0]", "t/local"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "no part of the output is left: {names:?}");
    assert_eq!(recorded(&agent, "full.g[0]", "t"), ["start"]);
    disk.free();
    wait::until_true("it is rendered", || {
        fs::metadata(path_of(&agent, "full.g[0]", "t/local/large")).unwrap().len() == 3_000_000
    });
    until_recorded(&agent, ("full.g[0]", "t"), &["start", "hup"]);
    finish(disk, agent);
}
