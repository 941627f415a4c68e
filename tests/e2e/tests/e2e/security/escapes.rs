//! A hostile task of the driver `exec`, with all default capabilities: published ways out of containers, by name where they have one.
//!
//! The task runs programs of the machine, Perl for plain system calls. Each attempt must fail, and leave the machine as it was.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    environment, host, wait,
};

use super::{isolation::attempts, kernel::hold_a_key};
use crate::{
    common::{has, is_root, job, shell, sleeper, volume},
    isolated::{isolated, runs_on},
    templates::put,
};

/// Numbers of system calls, on x86_64 and elsewhere.
const fn call(x86_64: u16, other: u16) -> u16 {
    if cfg!(target_arch = "x86_64") { x86_64 } else { other }
}

/// An agent with a task that runs on, and waits for sessions.
fn with_a_task(more: &str) -> Agent {
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("bold", "service", "", &[isolated("t", &runs_on("echo up"), more)]));
    agent
}

/// The program of the agent's supervisors.
fn supervisor_program(agent: &Agent) -> PathBuf {
    let mut paths = fs::read_dir(agent.home.state().join("bin")).unwrap().map(|entry| entry.unwrap().path());
    let is_program =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"shim-"));
    paths.find(is_program).unwrap()
}

/// The interpreter of a script is found before descriptors are closed: one of them, of a directory outside, would lead out of the
/// root. As CVE-2024-21626, but by the program instead of the working directory.
#[test]
fn no_descriptor_leads_out_of_the_root() {
    if !is_root() {
        return;
    }
    let mut agent = with_a_task("");
    let outside = agent.home.path().join("outside");
    fs::copy("/bin/sh", &outside).unwrap();
    for number in 3..16 {
        let way = format!("/proc/self/fd/{number}{}{}", "/..".repeat(12), outside.display());
        let script = format!("#!{way}\necho escaped\n");
        let plant = format!("printf %s '{script}' > /local/x{number}; chmod 755 /local/x{number}");
        agent.cli(&["exec", "bold", "--", "sh", "-c", &plant]).success();
        let session = agent.cli(&["exec", "bold", "--", &format!("/local/x{number}")]);
        assert_ne!(session.code, 0, "{way}: {}{}", session.stdout, session.stderr);
        // The same as a template of a task, and as a working directory.
        let template = format!(
            "templates: [{{destination: local/x, perms: \"755\", data: {}}}]\nrestart: {{attempts: 0, mode: fail}}",
            serde_json::to_string(&script).unwrap()
        );
        let program =
            isolated("t", "", &template).replace("command: sh, args: [-c, \"\"]", "command: local/x");
        let directory = way.trim_end_matches("/outside");
        let directory = isolated("t", "cat outside && echo escaped", "restart: {attempts: 0, mode: fail}")
            .replace("command: sh,", &format!("command: sh, work_dir: {directory},"));
        for (name, task) in [("program", program), ("directory", directory)] {
            let name = format!("{name}-{number}");
            agent.apply(&job(&name, "batch", "", &[task]));
            let alloc = agent.until_alloc(&format!("{name}.g[0]"), "it fails", |alloc| {
                assert_ne!(alloc.status(), "complete", "{way}");
                alloc.status() == "failed"
            });
            assert_eq!(agent.task_log(&alloc.id(), "t", "stdout"), "", "{way}");
        }
    }
    let open = agent.cli(&["exec", "bold", "--", "sh", "-c", "ls /proc/1/fd; ls /proc/$$/fd"]).success();
    assert_eq!(open.stdout, "0\n1\n2\n".repeat(2));
    agent.finish();
}

/// CVE-2019-5736: a script whose interpreter is `/proc/self/exe` makes the kernel run the program that starts the task, and the task
/// finds that program in `/proc`.
#[test]
fn a_task_does_not_change_the_program_of_its_supervisor() {
    if !is_root() {
        return;
    }
    let mut agent = with_a_task("");
    let program = supervisor_program(&agent);
    let before = (fs::read(&program).unwrap(), fs::metadata(&program).unwrap().permissions().mode());
    // `hold` keeps the program in its own process, for others to find it.
    let template = "templates: [{destination: local/x, perms: \"755\", data: \"#!/proc/self/exe hold\\n\"}]";
    for init in [false, true] {
        let name = format!("held-{init}");
        let task = isolated("t", "", template).replace(
            "command: sh, args: [-c, \"\"]",
            &format!("command: local/x, args: [/proc/self/ns/net], init: {init}"),
        );
        agent.apply(&job(&name, "batch", "", &[task]));
    }
    // Attempts while a session is started: for a moment it runs the program that starts sessions.
    let hostile = "cp /bin/sh /local/sh; chown 0:0 /local/sh; chmod 4755 /local/sh; touch /local/ready; \
                   exec /local/sh -p -c 'while true; do for p in /proc/[0-9]*/exe; do \
                   case $(readlink $p) in /usr/*|/bin/*|/local/*) ;; *) chmod 0 $p; chown 12 $p; echo x >> $p;; esac; done; done 2>/dev/null'";
    agent.apply_and_wait(&job("hostile", "service", "", &[isolated("t", hostile, "")]));
    agent.until_printed(&["exec", "hostile", "--", "ls", "/local"], |text| text.contains("ready"));
    let change = "chmod 0 /proc/1/exe; chown 12 /proc/1/exe; echo x >> /proc/1/exe; exec 9</proc/1/exe; echo x >> /proc/self/fd/9; true";
    for _ in 0..20 {
        for name in ["hostile", "held-false", "held-true", "bold"] {
            agent.cli(&["exec", name, "--", "sh", "-c", change]);
        }
    }
    let after = (fs::read(&program).unwrap(), fs::metadata(&program).unwrap().permissions().mode());
    assert!(after == before, "mode {:o}, {} bytes", after.1, after.0.len());
    // All kinds of starts still work.
    agent.cli(&["exec", "bold", "--", "true"]).success();
    agent.apply_and_wait(&job("next", "batch", "", &[isolated("t", "true", "")]));
    let init = isolated("t", "true", "").replace("command: sh,", "command: sh, init: true,");
    agent.apply_and_wait(&job("init", "batch", "", &[init]));
    agent.finish();
}

/// A task finds no process of others by its number, in any way that takes one.
#[test]
fn other_processes_are_out_of_reach() {
    if !(is_root() && has("perl")) {
        return;
    }
    let mut agent = with_a_task("");
    agent.apply_and_wait(&job("victim", "service", "", &[isolated("t", &runs_on("echo up"), "")]));
    agent.apply_and_wait(&job("plain", "service", "", &[sleeper("t", "user: nobody")]));
    let [victim, plain] = ["victim", "plain"].map(|name| agent.single(&format!("{name}.g[0]"), "t").pid);
    let supervisor = host::supervisors(&agent.home.instance().unwrap())[0];
    for pid in [victim, plain, supervisor, agent.pid()] {
        let perl =
            |number: u16, arguments: &str| format!("perl -e 'exit(syscall({number}, {arguments}) < 0)'");
        let tried = [
            format!("kill -9 {pid}"),
            format!("ls /proc/{pid}/root/"),
            format!("cat /proc/{pid}/environ"),
            format!("nsenter -t {pid} -m true"),
            format!("nsenter --mount=/proc/{pid}/ns/mnt true"),
            // ptrace(PTRACE_ATTACH), PTRACE_SEIZE.
            perl(call(101, 117), &format!("16, {pid}, 0, 0")),
            perl(call(101, 117), &format!("0x4206, {pid}, 0, 0")),
            // pidfd_open, then setns with it.
            perl(434, &format!("{pid}, 0")),
            // prlimit64, setpriority, sched_setaffinity, move_pages.
            perl(call(302, 261), &format!("{pid}, 7, 0, my $old = \"x\" x 16")),
            perl(call(141, 140), &format!("0, {pid}, 19")),
            perl(call(203, 122), &format!("{pid}, 8, my $set = \"\\x01\" x 8")),
        ];
        attempts(&agent, "bold", &tried.each_ref().map(String::as_str));
    }
    for name in ["victim", "plain"] {
        agent.single(&format!("{name}.g[0]"), "t");
    }
    agent.finish();
}

#[test]
fn the_kernel_is_out_of_reach() {
    if !(is_root() && has("perl")) {
        return;
    }
    let agent = with_a_task("");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let perl = |number: u16, arguments: &str| format!("perl -e 'exit(syscall({number}, {arguments}) < 0)'");
    let syslog = call(103, 116);
    let tried = [
        // The kernel's log: opened, emptied, switched off. Whether it can be read is the machine's `dmesg_restrict`.
        "head -c 1 /proc/kmsg".to_owned(),
        "mknod /local/kmsg c 1 11; echo x > /local/kmsg".to_owned(),
        perl(syslog, "5, 0, 0"),
        perl(syslog, "6, 0, 0"),
        // Settings, modules, a new kernel, clock, names, swap, accounting, reboot.
        "for f in kernel/modprobe kernel/core_pattern vm/overcommit_memory net/ipv4/ip_forward fs/file-max; do \
         echo 1 > /proc/sys/$f && exit 0; done; exit 1"
            .to_owned(),
        "mount -o remount,rw /proc/sys || umount -l /proc/sys".to_owned(),
        "echo 0 > /proc/1/timens_offsets || echo x > /proc/fs/x".to_owned(),
        perl(call(175, 105), "0, 0, 0"),
        perl(call(246, 104), "0, 0, 0, 0"),
        perl(call(227, 112), "0, my $time = \"\\0\" x 16"),
        perl(call(170, 161), "my $name = \"owned\", 5"),
        perl(call(167, 224), "my $path = \"/local/swap\", 0"),
        perl(call(163, 89), "my $path = \"/local/acct\""),
        // reboot(2) with a wrong command is EINVAL for those who may call it, so any other errno means refusal.
        format!("perl -e 'syscall({}, 0xfee1dead, 672274793, 0x7fffffff, 0); exit($! == 1)'", call(169, 142)),
        // Programs in the kernel, its counters, its handles of files.
        perl(call(321, 280), "0, my $attributes = \"\\0\" x 128, 128"),
        perl(call(304, 265), "3, my $handle = \"\\x08\\0\\0\\0\\x01\\0\\0\\0\" . \"\\x02\\0\\0\\0\\0\\0\\0\\0\", 0"),
        // Cgroups: none is seen, and none can be mounted.
        "ls -d /sys/fs/cgroup/*".to_owned(),
        "mount -t cgroup2 none /local".to_owned(),
        "mkdir -p /local/cg; mount -t cgroup -o memory none /local/cg".to_owned(),
        // CVE-2022-0492: a program that the kernel runs at the end of a cgroup, from a namespace of a user.
        "unshare -UrmC sh -c 'mkdir -p /local/cg; mount -t cgroup -o rdma none /local/cg && echo x > /local/cg/release_agent'".to_owned(),
        // What covers files can't be removed in a namespace of a user either, and no new /proc shows them.
        "unshare -Urm sh -c 'umount -l /etc/shadow; grep . /etc/shadow'".to_owned(),
        "unshare -Urm sh -c 'umount -l /proc/sys; echo x > /proc/sys/kernel/core_pattern'".to_owned(),
        "unshare -Urmpf sh -c 'mkdir -p /local/proc; mount -t proc none /local/proc'".to_owned(),
        "unshare -Urmn sh -c 'mkdir -p /local/sys; mount -t sysfs none /local/sys && ls /local/sys/firmware/*'".to_owned(),
    ];
    attempts(&agent, "bold", &tried.each_ref().map(String::as_str));
    // Without this setting the machine shows the kernel's log to all of its users.
    if fs::read_to_string("/proc/sys/kernel/dmesg_restrict").unwrap().trim() == "1" {
        attempts(&agent, "bold", &[&perl(syslog, "3, my $log = \"\\0\" x 4096, 4096")]);
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), host);
    agent.finish();
}

#[test]
fn keys_of_the_agent_are_out_of_reach() {
    if !(is_root() && has("perl")) {
        return;
    }
    let name = format!("herdlet-escape-{}", std::process::id());
    if !fs::exists("/proc/keys").unwrap_or(false) || !hold_a_key(&name) {
        return environment::leave_out("this needs a kernel with keyrings");
    }
    let agent = with_a_task("");
    // request_key finds a key in the keyrings of the process; add_key adds one to that of its session.
    let request = |name: &str| {
        format!(
            "my ($kind, $name) = (\"user\", \"{name}\"); exit(syscall({}, $kind, $name, 0, 0) < 0)",
            call(249, 218)
        )
    };
    let add = format!(
        "my ($kind, $name, $key) = qw(user own x); syscall({}, $kind, $name, $key, 1, -3)",
        call(248, 217)
    );
    let own = format!("perl -e '{add}; {}'", request("own"));
    attempts(&agent, "bold", &[&format!("perl -e '{}'", request(&name)), "grep . /proc/keys"]);
    agent.cli(&["exec", "bold", "--", "sh", "-c", &own]).success();
    agent.finish();
}

/// Abstract sockets belong to a network, not to a root.
#[test]
fn sockets_outside_are_out_of_reach() {
    if !(is_root() && has("perl")) {
        return;
    }
    let name = format!("herdlet-escape-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut agent = Agent::start();
    let group = "network: {mode: none}\n";
    agent.apply_and_wait(&job("alone", "service", group, &[isolated("t", &runs_on("echo up"), "")]));
    agent.apply_and_wait(&job("bold", "service", "", &[isolated("t", &runs_on("echo up"), "")]));
    let connect = |path: &str| {
        format!(
            "perl -e 'use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0); exit !connect($s, pack(\"Sa*\", AF_UNIX, {path}))'"
        )
    };
    let abstract_name = connect(&format!("\"\\0{name}\""));
    // The attempt itself is right: a task in the machine's network has that network's sockets.
    agent.cli(&["exec", "bold", "--", "sh", "-c", &abstract_name]).success();
    let socket = agent.home.socket().display().to_string();
    let sockets = [
        connect(&format!("\"{socket}\"")),
        connect("\"/run/docker.sock\""),
        connect("\"/var/run/dbus/system_bus_socket\""),
    ];
    let sockets = sockets.each_ref().map(String::as_str);
    attempts(&agent, "alone", &[&[abstract_name.as_str()], &sockets[..]].concat());
    attempts(&agent, "bold", &sockets);
    drop(listener);
    agent.finish();
}

/// The agent's abstract socket, by which a second agent of its instance is found, is in the machine's network, as tasks may be.
#[test]
fn the_abstract_socket_of_the_agent_gives_tasks_nothing() {
    if !(is_root() && has("perl")) {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("bold", "service", "", &[isolated("t", &runs_on("echo up"), "")]));
    let name = format!("herdlet-instance-{}", agent.home.instance().unwrap());
    let connected = |then: &str| {
        let connect = format!(
            "use Socket; sub open_one {{ socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, pack(\"Sa*\", AF_UNIX, \"\\0{name}\")) or die \"refused\"; return $s }}"
        );
        format!("perl -e '{connect} {then}'")
    };
    let in_task = |agent: &Agent, script: &str| {
        let arguments = ["exec", "bold", "--task", "t", "--", "sh", "-c", script];
        agent.cli(&arguments).success().stdout
    };
    // It closes the connection of any user but its own, and reads nothing.
    let read = connected("my $s = open_one(); my $got = sysread($s, my $text, 4096); print \"got $got\\n\"");
    assert_eq!(in_task(&agent, &read), "got 0\n");
    // Connections that wait cost the agent nothing else.
    let many = connected("my @all = map { open_one() } 1..64; print scalar(@all), \"\\n\"");
    assert_eq!(in_task(&agent, &many), "64\n");
    agent.cli(&["status"]).success();
    // The name stays the agent's: no task can have it in its place.
    let take = format!(
        "perl -e 'use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0); exit !bind($s, pack(\"Sa*\", AF_UNIX, \"\\0{name}\"))'"
    );
    attempts(&agent, "bold", &[&take]);
    agent.crash();
    agent.cli(&["wait", "bold"]).success();
    assert_eq!(in_task(&agent, &read), "got 0\n");
    agent.finish();
}

/// A task types into the terminal of a session: only its own terminal reads that, never the one of the person.
#[test]
fn typed_input_stays_in_the_terminal_of_a_session() {
    if !(is_root() && has("perl") && has("script")) {
        return;
    }
    let agent = with_a_task("");
    let typed = agent.home.path().join("typed");
    // 0x5412: TIOCSTI.
    let attack = format!(
        "perl -e 'ioctl(STDIN, 0x5412, $_) for split //, \"touch {}\\n\"; print \"sent\\n\"'",
        typed.display()
    );
    let attack = agent.home.write("attack", &attack);
    // The person's shell reads its terminal after the session, and types there itself in the same way.
    let own = "perl -e 'ioctl(STDIN, 0x5412, $_) for split //, \"own\\n\"'; IFS= read -r line; echo \"read: $line\"";
    let lines = format!("\"$program\" exec -it bold -- sh -c \"$(cat {})\"; {own}\n", attack.display());
    let lines = agent.home.write("lines", &lines);
    let program = agent.command(&["version"]).get_program().to_owned();
    let mut command = command::prepare(
        &agent.home,
        User::Same,
        Path::new("script"),
        &["-qec", &format!("sh {}", lines.display()), "/dev/null"],
    );
    command.env("program", program);
    let running = Running::start(command);
    let ran = running.finish();
    assert!(ran.stdout.contains("sent"), "{}{}", ran.stdout, ran.stderr);
    assert!(!typed.exists() && ran.stdout.contains("read: own"), "{}", ran.stdout);
    agent.finish();
}

#[test]
fn no_new_privileges_makes_planted_programs_harmless() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {shared: {type: host, source: shared}}\n";
    let mount = "volume_mounts: [{volume: shared, destination: /srv}]";
    let plant = "cp /bin/sh /srv/sh; chown 0:0 /srv/sh; chmod 4755 /srv/sh";
    let planting = isolated("t", &runs_on(plant), mount);
    let careful =
        isolated("t", &runs_on("echo up"), mount).replace("command: sh,", "command: sh, no_new_privs: true,");
    agent.apply_and_wait(&(volume("shared") + &job("planting", "service", group, &[planting])));
    agent.apply_and_wait(&job("careful", "service", group, &[careful]));
    let planted = agent.home.state().join("volumes/shared/sh");
    wait::until_true("the program is planted", || {
        planted.metadata().is_ok_and(|found| found.permissions().mode() & 0o7777 == 0o4755)
    });
    let who = |name: &str| agent.cli(&["exec", name, "--", "/srv/sh", "-p", "-c", "id -u"]).success().stdout;
    assert_eq!((who("planting").trim(), who("careful").trim()), ("0", "65534"));
    agent.finish();
}

/// A neighbour of the same user, without a root of its own, replaces directories of the root by links while the task is started and
/// entered again and again.
#[test]
fn links_in_the_place_of_directories_lead_nowhere() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let victim = agent.home.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(victim.join("file"), "precious").unwrap();
    // Both have the user nobody; a task of root may change everything in the directory.
    let swap = format!(
        "cd ../t && while true; do for d in etc usr dev proc sys alloc srv tmp local; do \
         mv -T $d .$d; ln -sT {victim} $d; rm -f $d; mv -T .$d $d; done; done 2>/dev/null",
        victim = victim.display()
    );
    let group = "volumes: {inbox: {type: host, source: inbox}}\n";
    let mount = "volume_mounts: [{volume: inbox, destination: /srv/inbox}]\n\
                 restart: {attempts: 1000, interval: 1h, delay: 0s, mode: delay}";
    let first = "touch /etc/new /usr/new /alloc/data/new /srv/inbox/new /tmp/new; echo up";
    let tasks = [isolated("t", &runs_on(first), mount), shell("swap", &swap, "")];
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .filter(|line| line.contains("victim"))
            .count()
    };
    agent.apply(&(volume("inbox") + &job("raced", "service", group, &tasks)));
    for _ in 0..20 {
        // It may fail: the task's own directory is damaged.
        agent.cli(&["restart", "raced", "--task", "t"]);
        agent.cli(&["exec", "raced", "--task", "t", "--", "touch", "/etc/session", "/srv/inbox/session"]);
    }
    let names: Vec<_> = fs::read_dir(&victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "nothing was written there");
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "precious");
    assert_eq!(mounts(), 0);
    for made in ["/etc/new", "/usr/new", "/etc/session", "/tmp/new"] {
        assert!(!Path::new(made).exists(), "{made} is on the machine");
    }
    agent.cli(&["delete", "raced", "--wait", "--purge"]).success();
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "precious");
    agent.finish();
}

/// A task may replace the files of its templates. A changed template replaces what is there, and follows no link.
#[test]
fn a_link_in_the_place_of_a_template_is_replaced() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default());
    let victim = agent.home.write("victim", "precious");
    put(&agent, "nomad/jobs/bold", &["v=old"]);
    let plant = format!("ln -sf {0} /etc/app; ln -sf {0} /local/app; echo up", victim.display());
    let template = |path: &str| {
        let data = "'{{ with nomadVar \"nomad/jobs/bold\" }}{{ .v }}{{ end }}'";
        format!("{{destination: {path}, change_mode: noop, data: {data}}}")
    };
    let more = format!("templates: [{}, {}]", template("etc/app"), template("local/app"));
    let first = format!("cat /etc/app /local/app; {plant}");
    agent.apply_and_wait(&job("bold", "service", "", &[isolated("t", &runs_on(&first), &more)]));
    agent.until_printed(&["logs", "bold"], |text| text == "oldoldup\n");
    put(&agent, "nomad/jobs/bold", &["v=new"]);
    let look = ["exec", "bold", "--", "cat", "/etc/app", "/local/app"];
    agent.until_printed(&look, |text| text == "newnew");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    agent.finish();
}
