//! Containers on a machine without an engine: images, processes, rights, crashes of the agent.
//!
//! The image is made of a static busybox and a few files, and comes as an archive over HTTP on loopback, which tasks load.

mod image;
mod networks;
mod store;

use std::fs;

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, host, wait,
};
use rustix::process::Signal;

use self::image::{IMAGE, ImageServer};
use crate::common::{is_root, job, volume};

/// An agent whose engine is its own, and the server of its image.
struct Ground {
    agent: Agent,
    image: ImageServer,
}

impl Ground {
    fn start(options: &str) -> Option<Self> {
        Self::start_with(options, "")
    }

    /// `more`: sections of the agent's config.
    fn start_with(options: &str, more: &str) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let busybox = environment::program("busybox")?;
        let config = format!("drivers: {{docker: {{engine: builtin, {options}}}}}\n{more}");
        let agent = Agent::start_with(Setup::default().config(config));
        let image = ImageServer::start(&busybox, agent.home.path());
        Some(Self { agent, image })
    }

    /// A task of the image. `config`: more fields of its config; `more`: of the task; one per line.
    fn task(&self, (name, script): (&str, &str), config: &str, more: &str) -> String {
        let command = serde_json::to_string(script).unwrap();
        self.plain(name, &format!("command: sh\nargs: [-c, {command}]\n{config}"), more)
    }

    fn plain(&self, name: &str, config: &str, more: &str) -> String {
        let lines =
            |text: &str, pad: &str| text.lines().map(|line| format!("{pad}{line}\n")).collect::<String>();
        let mode = if config.contains("network_mode") { "" } else { "network_mode: host" };
        let kill = if more.contains("kill_timeout") { "" } else { "kill_timeout: 1s" };
        format!(
            "        - name: {name}\n          driver: docker\n          artifacts: [{{source: \"{}\", options: {{archive: \"false\"}}}}]\n          config:\n            image: {IMAGE}\n            load: image.tar\n{}{}{}",
            self.image.url(),
            lines(mode, "            "),
            lines(config, "            "),
            lines(&format!("{kill}\n{more}"), "          ")
        )
    }

    fn exec(&self, job: &str, script: &str) -> String {
        self.agent.cli(&["exec", job, "--", "sh", "-c", script]).success().stdout.trim().to_owned()
    }

    /// The first process of the only attempt.
    fn first(&self) -> u32 {
        wait::until("the task runs", || self.agent.members().iter().map(|member| member.pid).min())
    }

    /// What is shown of an allocation that has failed.
    fn failure(&self, job: &str) -> String {
        self.agent.until_alloc(&format!("{job}.g[0]"), "it fails", |alloc| alloc.failed("t"));
        self.agent.cli(&["describe", &format!("alloc/{job}.g[0]")]).success().stdout
    }

    /// Ends the agent, and checks that nothing of its containers is left.
    fn finish(self) {
        let containers = self.agent.home.state().join("containers/docker/builtin");
        for job in
            self.agent.allocs().iter().map(|alloc| alloc.job()).collect::<std::collections::BTreeSet<_>>()
        {
            self.agent.cli(&["delete", &job]);
        }
        wait::until_true("no container has a directory", || {
            fs::read_dir(&containers).unwrap().next().is_none()
        });
        self.agent.finish();
    }
}

/// A script that runs on after `first`, as one process that ends at SIGTERM.
fn runs_on(first: &str) -> String {
    format!("trap 'exit 0' TERM; {first}; while :; do sleep 1000 & wait; done")
}

#[test]
fn a_container_runs_what_its_image_says() {
    let Some(mut ground) = Ground::start("") else { return };
    let plain = ground.plain("t", "", "env: {B: task}");
    ground.agent.apply_and_wait(&job("plain", "service", "", &[plain]));
    let log = ground.agent.until_printed(&["logs", "plain"], |text| text.ends_with("up\n"));
    // Its entrypoint, command, environment, user and working directory; it is the first process.
    assert_eq!(log, "entry 1 /srv/work app:x 1000 1001 1001,1010 image task /home/app\nup\n");
    let seen = ground.exec("plain", "id -u; pwd; echo $A $B; cat /proc/1/comm; ls /; cat /etc/hostname");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..4], ["1000", "/srv/work", "image task", "sh"]);
    for dir in ["alloc", "local", "secrets", "proc", "sys", "dev", "bin", "etc"] {
        assert!(lines.contains(&dir), "{dir}: {seen}");
    }
    let exec = ground.agent.cli(&["exec", "plain", "--", "nothing"]);
    assert!(exec.stderr.contains("not found in the image"), "{}", exec.stderr);
    ground.agent.cli(&["stop", "plain"]).success();
    ground.finish();
}

#[test]
fn what_a_task_says_replaces_what_its_image_says() {
    let Some(mut ground) = Ground::start("volumes: {enabled: true}") else { return };
    let shared = ground.agent.home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let config = format!(
        "entrypoint: [\"/bin/sh\", \"-c\"]\nwork_dir: /new/dir\nreadonly_rootfs: true\ninit: true\nhostname: box\n\
         volumes: [\"{}:/srv/shared\", \"local/own:/srv/own:ro\"]\nmount: [{{type: tmpfs, target: /ram, tmpfs_options: {{size: 1048576}}}}]\n\
         extra_hosts: [\"db:10.1.2.3\"]\nulimit: {{nofile: \"77:88\"}}\nshm_size: 1048576\ngroup_add: [\"55\"]\n\
         devices: [{{host_path: /dev/zero, container_path: /dev/nothing}}]\nsysctl: {{kernel.shmmax: \"12345678\"}}\npids_limit: 50",
        shared.display()
    );
    let script = runs_on("echo up");
    let script = serde_json::to_string(&script).unwrap();
    let task =
        ground.plain("t", &format!("command: {script}\n{config}"), "user: \"7:8\"\nresources: {memory: 64}");
    ground.agent.apply_and_wait(
        &(volume("data") + &job("own", "service", "volumes: {data: {type: host, source: data}}\n", &[task])),
    );
    let is = |script: &str, expected: &str| assert_eq!(ground.exec("own", script), expected, "{script}");
    is("id -u; id -g; id -G", "7\n8\n8 55");
    is("pwd; ls -d /new/dir", "/new/dir\n/new/dir");
    is("touch /x 2>&1 | grep -c Read-only", "1");
    is("ls -ld /srv/shared /srv/own /ram | wc -l; touch /srv/own/x 2>&1 | grep -c Read-only", "3\n1");
    is("grep -c '^10.1.2.3 db$' /etc/hosts; hostname; cat /etc/hostname", "1\nbox\nbox");
    is("ulimit -Sn; ulimit -Hn", "77\n88");
    is("df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2", "1024");
    is("head -c 2 /dev/nothing | od -An -tx1 | tr -d ' '", "0000");
    is("cat /proc/sys/kernel/shmmax; cat /proc/1/comm", "12345678\nherdlet-shim");
    ground.agent.cli(&["stop", "own"]).success();
    ground.finish();
}

#[test]
fn changes_are_of_one_attempt_and_layers_of_none() {
    let Some(mut ground) = Ground::start("") else { return };
    let first =
        "test -e /etc/low && ! test -e /etc/changed && rm /etc/low && touch /etc/changed && echo clean";
    let task = ground.task(("t", &runs_on(first)), "entrypoint: [env]", "user: root");
    ground.agent.apply_and_wait(&job("fresh", "service", "", &[task]));
    ground.agent.until_printed(&["logs", "fresh"], |text| text == "clean\n");
    ground.agent.cli(&["restart", "fresh"]).success();
    ground.agent.until_printed(&["logs", "fresh"], |text| text == "clean\nclean\n");
    ground.finish();
}

#[test]
fn containers_outlive_a_killed_agent_and_are_adopted() {
    let Some(mut ground) = Ground::start("") else { return };
    let script = "trap 'echo term; exit 3' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.1; done";
    let task = ground.task(("t", script), "entrypoint: [env]", "kill_timeout: 10s");
    ground.agent.apply_and_wait(&job("kept", "service", "", &[task]));
    let before = ground.first();
    for _ in 0..3 {
        ground.agent.kill();
        ground.agent.launch();
        assert_eq!(ground.first(), before, "it is the same process");
    }
    assert_eq!(ground.exec("kept", "cat /etc/low; id -u"), "low\n1000");
    ground.agent.cli(&["stop", "kept"]).success();
    // The image's stop signal is SIGTERM; its output is there once and in order.
    let log = ground.agent.until_printed(&["logs", "kept"], |text| text.ends_with("term\n"));
    let lines: Vec<&str> = log.lines().collect();
    let numbers = lines[..lines.len() - 1].iter().enumerate();
    for (at, line) in numbers {
        assert_eq!(*line, format!("line {}", at + 1));
    }
    // Output is written before the end is known.
    let alloc = ground.agent.until_alloc("kept.g[0]", "is complete", |alloc| alloc.status() == "complete");
    assert_eq!(alloc.exit_codes("t").last(), Some(&3));
    ground.finish();
}

#[test]
fn a_dead_container_is_replaced_also_after_a_crash() {
    let Some(mut ground) = Ground::start("") else { return };
    let task =
        ground.task(("t", &runs_on("echo up")), "entrypoint: [env]", "restart: {attempts: 5, delay: 1s}");
    ground.agent.apply_and_wait(&job("again", "service", "", &[task]));
    let first = ground.first();
    ground.agent.kill();
    host::signal(first, Signal::KILL);
    ground.agent.launch();
    wait::until_true("another attempt runs", || {
        ground.agent.members().iter().any(|member| member.attempt == 2)
    });
    ground.agent.until_printed(&["logs", "again"], |text| text == "up\nup\n");
    ground.finish();
}

#[test]
fn a_container_joins_the_network_of_its_group() {
    let Some(mut ground) = Ground::start("") else { return };
    let script = runs_on("cat /etc/hosts; hostname");
    let task = ground.task(
        ("t", &script),
        "entrypoint: [env]\nnetwork_mode: \"\"\nsysctl: {net.core.somaxconn: \"77\"}",
        "",
    );
    ground.agent.apply_and_wait(&job(
        "netted",
        "service",
        "network: {mode: bridge, hostname: inside}\n",
        &[task],
    ));
    let seen = ground.exec("netted", "hostname; cat /proc/sys/net/core/somaxconn; ip -o -4 addr show dev eth0 | wc -l; grep -c inside /etc/hosts");
    assert_eq!(seen, "inside\n77\n1\n1");
    let own = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    assert_ne!(own, "77\n", "the machine's setting is as before");
    ground.finish();
}

#[test]
fn what_the_engine_cannot_do_is_refused_by_its_key() {
    let Some(mut ground) = Ground::start("allow_privileged: true") else { return };
    for (key, config) in [
        ("runtime", "runtime: nvidia"),
        ("network_mode", "network_mode: other"),
        ("storage_opt.size", "storage_opt: {size: much}"),
        ("security_opt[0]", "security_opt: [\"apparmor=x\"]"),
    ] {
        let task = ground.task(("t", "true"), config, "restart: {attempts: 0, mode: fail}");
        let name = key.replace(['[', ']', '_', '.'], "");
        ground.agent.apply(&job(&name, "batch", "reschedule: {attempts: 0, unlimited: false}\n", &[task]));
        let shown = ground.failure(&name);
        assert!(shown.contains(&format!("use config.{key}: ")), "{key}: {shown}");
    }
    ground.finish();
}

#[test]
fn a_task_without_an_image_fails_with_the_reason() {
    let Some(mut ground) = Ground::start("") else { return };
    let task =
        ground.plain("t", "", "restart: {attempts: 0, mode: fail}").replace(IMAGE, "herdlet-test/other:1");
    ground.agent.apply(&job("none", "batch", "reschedule: {attempts: 0, unlimited: false}\n", &[task]));
    let shown = ground.failure("none");
    assert!(shown.contains("config.load: the archive \"image.tar\" has no image"), "{shown}");
    ground.finish();
}

#[test]
fn a_terminal_is_the_input_and_the_output_of_a_task() {
    let Some(mut ground) = Ground::start("") else { return };
    let script = "tty; test -t 0 && test -t 2 && echo terminal; echo error >&2; read line";
    let once = "restart: {attempts: 0, mode: fail}\nlogs: {max_files: 2, max_file_size: 1}";
    let group = "reschedule: {attempts: 0, unlimited: false}\n";
    for (name, config) in [("plain", ""), ("init", "init: true\n")] {
        let task = ground.task(("t", script), &format!("{config}entrypoint: [env]\ntty: true"), once);
        ground.agent.apply(&job(name, "batch", group, &[task]));
        let log = ground.agent.until_printed(&["logs", name], |text| text.contains("error"));
        assert!(log.contains("/dev/pts/0\r\nterminal\r\nerror\r\n"), "{log:?}");
        // The terminal outlives the agent.
        ground.agent.kill();
        ground.agent.launch();
        let shown = ground.exec(name, "ls -l /proc/1/fd/0 | grep -o '/dev/pts/0'");
        assert_eq!(shown, "/dev/pts/0");
        ground.agent.cli(&["stop", name]);
    }
    ground.finish();
}

#[test]
fn an_interactive_task_waits_for_its_input() {
    let Some(mut ground) = Ground::start("") else { return };
    let config = "entrypoint: [env]\ninteractive: true";
    let task = ground.task(("t", "echo up; cat; echo over"), config, "");
    ground.agent.apply_and_wait(&job("open", "service", "", &[task]));
    ground.agent.until_printed(&["logs", "open"], |text| text == "up\n");
    let ended =
        ground.task(("t", "cat; echo over"), "entrypoint: [env]", "restart: {attempts: 0, mode: fail}");
    ground.agent.apply(&job("ended", "batch", "", &[ended]));
    ground.agent.until_printed(&["logs", "ended"], |text| text == "over\n");
    assert_eq!(ground.agent.cli(&["logs", "open"]).success().stdout, "up\n");
    ground.finish();
}

#[test]
fn a_privileged_container_has_the_rights_of_root() {
    let Some(mut ground) = Ground::start("allow_privileged: true") else { return };
    let config = "entrypoint: [env]\nprivileged: true\nhostname: box";
    let task = ground.task(("t", &runs_on("echo up")), config, "user: root");
    ground.agent.apply_and_wait(&job("strong", "service", "", &[task]));
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap().to_owned();
    assert_eq!(ground.exec("strong", "grep CapEff /proc/self/status | cut -f2"), own);
    assert_eq!(ground.exec("strong", "grep Seccomp: /proc/1/status | cut -f2"), "0");
    for script in [
        "mount -t tmpfs none /mnt && touch /mnt/x",
        "mknod /tmp2 c 1 3 && echo x > /tmp2",
        "test -w /proc/sys/kernel/hostname && hostname inside",
        "mount | grep ' /sys ' | grep -q rw,",
        "mount | grep ' /sys/fs/cgroup ' | grep -q rw,",
        "test -e /dev/fuse || test -e /dev/kmsg || test -e /dev/loop-control",
        "grep -q . /proc/keys || test -r /proc/keys",
    ] {
        let tried = ground.agent.cli(&["exec", "strong", "--", "sh", "-c", script]);
        assert_eq!(tried.code, 0, "{script}: {} {}", tried.stdout, tried.stderr);
    }
    // Its mounts, processes and host name are its own.
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "inside\n");
    ground.finish();
}

#[test]
fn a_hard_limit_of_the_processor_is_one_of_the_cgroup() {
    let Some(mut ground) = Ground::start("") else { return };
    let config = "entrypoint: [env]\ncpu_hard_limit: true\ncpu_cfs_period: 50000";
    let task = ground.task(("t", &runs_on("echo up")), config, "resources: {cpu: 100}");
    ground.agent.apply_and_wait(&job("slow", "service", "", &[task]));
    let alloc = ground.agent.alloc("slow.g[0]").unwrap().id();
    let instance = ground.agent.home.instance().unwrap();
    let attempt = format!("{alloc}.t.1");
    let read = |file: &str| {
        let found = host::trees(&instance).into_iter().map(|tree| tree.join(&attempt).join(file));
        found.into_iter().find_map(|path| fs::read_to_string(path).ok())
    };
    let period = read("cpu.max").map(|text| text.split(' ').next_back().unwrap().trim().to_owned());
    let period = period.or_else(|| read("cpu.cfs_period_us").map(|text| text.trim().to_owned()));
    let quota = read("cpu.max").or_else(|| read("cpu.cfs_quota_us")).unwrap();
    assert_eq!(period.as_deref(), Some("50000"));
    let quota: u64 = quota.split(' ').next().unwrap().trim().parse().unwrap();
    assert!((1_000..50_000).contains(&quota), "{quota}");
    ground.finish();
}

#[test]
fn a_container_that_writes_too_much_is_killed_with_the_reason() {
    let Some(mut ground) = Ground::start("") else { return };
    let config = "entrypoint: [env]\nstorage_opt: {size: 5m}";
    let script = runs_on("head -c 8000000 /dev/zero > /home/app/large; echo written");
    let more = "user: root\nrestart: {attempts: 0, mode: fail}";
    let task = ground.task(("t", &script), config, more);
    ground.agent.apply(&job("large", "batch", "reschedule: {attempts: 0, unlimited: false}\n", &[task]));
    let shown = ground.failure("large");
    assert!(shown.contains("outside of its mounts, more than storage_opt.size (5 MiB) allows"), "{shown}");
    ground.finish();
}

/// Attempts of root in a container with Docker's default capabilities.
#[test]
fn root_in_a_container_stays_in_it() {
    let Some(mut ground) = Ground::start("") else { return };
    let task = ground.task(("t", &runs_on("echo up")), "entrypoint: [env]", "user: root");
    ground.agent.apply_and_wait(&job("bold", "service", "", &[task]));
    assert_eq!(ground.exec("bold", "id -u; grep CapEff /proc/self/status | cut -f2"), "0\n00000000a80405fb");
    assert_eq!(ground.exec("bold", "grep Seccomp: /proc/1/status | cut -f2"), "2");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let of_machine = ground.agent.home.write("of-the-machine", "x");
    for script in [
        "mount -t tmpfs none /mnt",
        "mount -t proc none /mnt",
        "umount /proc/sys",
        "echo x > /proc/sys/kernel/hostname",
        "echo x > /proc/sysrq-trigger",
        "grep -q . /proc/kcore",
        "grep -q . /proc/keys",
        "ls /sys/firmware/*",
        "hostname other",
        "unshare -Ur true",
        "unshare -m true",
        "mknod /disk b 254 0 && head -c 1 /disk",
        "mknod /dev/mem2 c 1 1 && head -c 1 /dev/mem2",
        "mknod /dev/shm/null c 1 3 && head -c 1 /dev/shm/null && echo x > /dev/shm/null",
        "echo x > /sys/fs/cgroup/cgroup.procs",
        "mkdir /sys/fs/cgroup/own",
        "mount -o remount,rw /sys",
        "chmod 0777 /dev/null",
        "cp /bin/busybox /x; ! insmod /x 2>&1 | grep -q 'not permitted'",
        "reboot -f",
        &format!("ls /proc/1/root/../..{}", of_machine.display()),
        "nsenter -t 1 -m true",
    ] {
        let tried = ground.agent.cli(&["exec", "bold", "--", "sh", "-c", script]);
        assert_ne!(tried.code, 0, "{script}: {} {}", tried.stdout, tried.stderr);
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), host);
    // Its processes alone are there: its own two, and those of the session.
    let count = ground.exec("bold", "ls -d /proc/[0-9]* | wc -l");
    assert!(count.parse::<u32>().unwrap() <= 6, "{count}");
    ground.finish();
}
