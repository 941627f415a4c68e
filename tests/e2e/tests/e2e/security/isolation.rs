//! Attempts of isolated tasks to get out: to the agent's files, to other processes, to devices and mounts of the machine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    wait,
};

use crate::{
    common::{is_root, job, shell, sleeper},
    isolated::{isolated, runs_on},
};

/// Runs attempts in a task, each of which must fail; returns what they print.
pub(super) fn attempts(agent: &Agent, name: &str, attempts: &[&str]) {
    for attempt in attempts {
        let tried = agent.cli(&["exec", name, "--task", "t", "--", "sh", "-c", attempt]);
        assert_ne!(tried.code, 0, "{attempt}: {}{}", tried.stdout, tried.stderr);
    }
}

#[test]
fn a_task_of_nobody_with_all_default_capabilities_stays_in_its_root() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("victim", "service", "", &[sleeper("t", "")]));
    let victim = agent.single("victim.g[0]", "t").pid;
    agent.apply_and_wait(&job("bold", "service", "", &[isolated("t", &runs_on("echo up"), "")]));
    let state = agent.home.state().display().to_string();
    let own = agent.pid();
    attempts(
        &agent,
        "bold",
        &[
            // Files of the agent and of the machine.
            &format!("ls {state}"),
            "ls /root /home /var /boot /tmp/../../root",
            "ls /private/* | grep .",
            "grep . /etc/shadow",
            "cat /proc/1/root/../../root/.bashrc",
            // Other processes.
            &format!("test -e /proc/{own} -a \"$(cat /proc/{own}/comm)\" = herdlet"),
            &format!("kill -0 {victim}"),
            &format!("kill -9 {own}"),
            "test $(ls -d /proc/[0-9]* | wc -l) -gt 20",
            // Mounts and namespaces.
            "mount -t tmpfs none /local",
            "mount --bind /etc /local",
            "umount /proc",
            "mount -o remount,rw /sys",
            "unshare -m true",
            "nsenter -t 1 -a true",
            "chroot /proc/1/root ls /root",
            // Devices: the file can be made, and not opened.
            "mknod /local/disk b 254 0; head -c 1 /local/disk",
            "mknod /local/mem c 1 1; head -c 1 /local/mem",
            "mknod /dev/mem c 1 1; head -c 1 /dev/mem",
            // The kernel.
            "echo b > /proc/sysrq-trigger",
            "echo x > /proc/sys/kernel/core_pattern",
            "echo x > /sys/kernel/uevent_helper",
            "head -c 1 /proc/kcore | grep .",
            "echo 1 > /alloc/logs/t.stdout.0",
        ],
    );
    assert!(Path::new(&format!("/proc/{victim}")).exists());
    assert_eq!(agent.single("victim.g[0]", "t").pid, victim);
    agent.finish();
}

/// A set-user-id program makes a task root in its root. That is not root on the machine.
/// With the default capabilities a task can make programs that give root's rights to all who execute them.
#[test]
fn the_user_of_an_isolated_task_does_not_reach_its_programs_from_outside() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let planted = |dirs: [&str; 2]| {
        let plant = |dir| format!("cp /bin/sh {dir}/sh; chown 0:0 {dir}/sh; chmod 4755 {dir}/sh");
        dirs.map(plant).join("; ")
    };
    let bold = isolated("t", &runs_on(&planted(["/alloc/data", "/local"])), "");
    // The same user without a root of its own, which may not plant anything but reaches its files.
    let plain = planted(["../alloc/data", "local"]).replace("chown 0:0", "true").replace("4755", "755");
    let plain = shell("t", &runs_on(&plain), "user: nobody");
    for (name, task, mode) in [("bold", bold, 0o4755), ("plain", plain, 0o755)] {
        agent.apply_and_wait(&job(name, "service", "", &[task]));
        let alloc = agent.single(&format!("{name}.g[0]"), "t").alloc;
        let alloc = agent.home.state().join("alloc").join(alloc);
        for program in ["alloc/data/sh", "t/local/sh"].map(|path| alloc.join(path)) {
            wait::until_true("the program is planted", || {
                program.metadata().is_ok_and(|found| found.permissions().mode() & 0o7777 == mode)
            });
            // The first program still starts with the rights of root.
            let script =
                "exec setpriv --reuid=nobody --regid=nogroup --clear-groups sh -c '\"$program\" -c true'";
            let mut command =
                command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", script]);
            command.env("program", &program);
            let ran = Running::start(command).finish();
            assert_eq!(ran.code == 0, name == "plain", "{program:?}: {}", ran.stderr);
        }
    }
    agent.finish();
}

#[test]
fn root_in_a_root_reaches_nothing_more() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let first = "cp /bin/sh /local/sh; chown 0:0 /local/sh; chmod 4755 /local/sh; echo up";
    agent.apply_and_wait(&job("setuid", "service", "", &[isolated("t", &runs_on(first), "")]));
    agent.until_printed(&["logs", "setuid"], |text| text == "up\n");
    let as_root = |command: &str| format!("/local/sh -p -c '{command}'");
    let who = agent.cli(&["exec", "setuid", "--", "sh", "-c", &as_root("id -u")]).success();
    assert_eq!(who.stdout, "0\n");
    let commands = [
        "mount -t tmpfs none /local",
        "mknod /local/disk b 254 0; head -c 1 /local/disk",
        "echo b > /proc/sysrq-trigger",
        "ls /root",
        "grep . /etc/shadow",
        "nsenter -t 1 -m ls /root",
    ];
    let commands = commands.map(as_root);
    attempts(&agent, "setuid", &commands.each_ref().map(String::as_str));
    agent.finish();
}

#[test]
fn the_agents_own_files_are_hidden_where_its_directories_are_shown() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default().config("# replaced below\n"));
    let home = agent.home.path().to_owned();
    let shown = ["/bin", "/lib", "/lib64", "/usr", "/etc"].map(|path| format!("{path}: {path}")).join(", ");
    let config = format!(
        "# s3cret\ndrivers: {{exec: {{denied_users: [], chroot_env: {{{shown}, {}: /seen}}}}}}\n",
        home.display()
    );
    agent.home.write("config.yaml", &config);
    fs::write(home.join("public"), "for all").unwrap();
    agent.launch();
    let root = "user: root";
    agent.apply_and_wait(&job("curious", "service", "", &[isolated("t", &runs_on("echo up"), root)]));
    let seen = agent.cli(&["exec", "curious", "--", "cat", "/seen/public"]).success();
    assert_eq!(seen.stdout, "for all");
    let state = agent.home.state();
    let state = state.strip_prefix(&home).unwrap().display();
    let socket = agent.home.socket();
    let socket = socket.strip_prefix(&home).unwrap().display();
    attempts(
        &agent,
        "curious",
        &[
            &format!("ls /seen/{state} | grep ."),
            "grep -r s3cret /seen",
            "grep . /seen/config.yaml",
            &format!("test -S /seen/{socket}"),
        ],
    );
    agent.finish();
}

#[test]
fn root_is_no_user_of_isolated_tasks_unless_it_is_allowed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply(&job("root", "batch", "", &[isolated("t", "id -u", "user: root")]));
    agent.until_printed(&["explain", "root"], |text| text.contains("denied_users"));
    agent.finish();
}
