//! `exec` with real processes in real namespaces, and the driver contract. These tests need root and cgroups.

use std::os::unix::fs::MetadataExt as _;

use futures_util::future::BoxFuture;
use herdlet_api_types::driver::ExecOptions;
use herdlet_driver::{
    Device, Mount, NetworkSpace, Propagation,
    contract::{Behaviour, Command, Finds, Inputs, Machine, attempt_id},
};
use herdlet_network::namespace::{Namespace, Pins};

use super::*;
use crate::exec::{self, Roots};

/// A machine whose tasks are isolated.
pub(super) struct IsolatedMachine(pub(super) Bench);

/// How roots are made on a machine.
pub(super) fn roots_of(bench: &Bench) -> Arc<Roots> {
    Arc::new(Roots::new(vec![bench.path("run")], bench.path("run")))
}

impl IsolatedMachine {
    pub(super) fn new() -> Option<Self> {
        if !is_root() {
            assert!(std::env::var_os("HERDLET_TEST_REQUIRE").is_none(), "this test needs root");
            return None;
        }
        let bench = Bench::with_cgroups()?;
        for name in ["task/secrets", "task/private", "shared"] {
            fs::create_dir_all(bench.path(name)).unwrap();
        }
        for name in ["task", "task/local", "shared"] {
            fs::set_permissions(bench.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o777))
                .unwrap();
        }
        Some(Self(bench))
    }

    fn driver(&self, options: &ExecOptions) -> Engine {
        let attempts = Attempts::open(&self.0.path("run/attempts")).unwrap();
        exec::driver(self.0.setup(attempts), options, roots_of(&self.0)).unwrap()
    }

    fn agent(&self) -> Agent {
        let driver = self.driver(&ExecOptions::default());
        Agent { exits: driver.exits(), events: driver.events(), driver }
    }

    pub(super) fn task(&self, config: serde_json::Value) -> TaskConfig {
        let task = self.0.task(config);
        let dirs = TaskDirs { shared: self.0.path("shared"), ..task.dirs };
        TaskConfig { dirs, ..task }
    }

    fn shell(&self, script: &str) -> TaskConfig {
        self.task(json!({"command": "sh", "args": ["-c", script]}))
    }

    /// What a script has written to its output after the output of earlier ones.
    async fn output(&self, agent: &Agent, task: TaskConfig) -> String {
        let (id, before) = (task.id.clone(), self.0.log("stdout"));
        agent.driver.start(task).await.unwrap();
        let exit = agent.end_of(id.attempt).await;
        agent.driver.destroy(&id, Leftover::MainMustBeGone).await.unwrap();
        assert!(exit.is_success(), "{exit:?} {}", self.0.log("stderr"));
        self.0.log("stdout").split_off(before.len())
    }
}

impl Drop for IsolatedMachine {
    fn drop(&mut self) {
        // Only the tests of inputs have made one.
        let _ = Pins::in_dir(self.0.path("netns")).remove("a");
        self.0.tidy();
    }
}

impl Machine for IsolatedMachine {
    fn open(&self) -> Arc<dyn TaskDriver> {
        Arc::new(self.agent().driver)
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let script = match behaviour {
            Behaviour::RunsOn => format!("echo > ready-{attempt}; exec sleep 1000"),
            Behaviour::IgnoresSignals => format!("trap '' INT TERM; echo > ready-{attempt}; exec sleep 1000"),
            Behaviour::Ends(code) => format!("echo > ready-{attempt}; exit {code}"),
            Behaviour::FailsToStart => {
                return TaskConfig {
                    id: attempt_id(attempt),
                    ..self.task(json!({"command": "no-such-tool"}))
                };
            }
        };
        // The kernel lets no signal end a first process that does not handle it.
        let task = self.task(json!({"command": "sh", "args": ["-c", script], "init": true}));
        TaskConfig { id: attempt_id(attempt), ..task }
    }

    fn prepared<'m>(&'m self, config: &'m TaskConfig) -> BoxFuture<'m, ()> {
        async move {
            self.0.line(&format!("ready-{}", config.id.attempt)).await;
        }
        .boxed()
    }

    fn command(&self, command: Command) -> Vec<String> {
        let words: &[&str] = match command {
            Command::Prints => &["sh", "-c", "echo out; exit 4"],
            Command::Repeats => &["cat"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn inputs(&self) -> Option<Inputs> {
        let volume = self.0.path("volume");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("file"), "of the volume\n").unwrap();
        let mount = Mount {
            host_path: volume,
            task_path: "/volume".into(),
            readonly: true,
            propagation: Propagation::Private,
        };
        let pins = Pins::in_dir(self.0.path("netns"));
        if !pins.path("a").exists() {
            pins.keep("a", &Namespace::new().unwrap()).unwrap();
        }
        let network = fs::metadata(pins.path("a")).unwrap().ino();
        let script = "cat /volume/file; touch /volume/file 2>/dev/null || echo refused
            stat -c %t:%T /dev/given; head -c 1 /dev/given | wc -c; echo > /dev/given && echo written
            readlink /proc/self/ns/net";
        let device = Device {
            host_path: "/dev/zero".into(),
            task_path: "/dev/given".into(),
            permissions: "rw".to_owned(),
        };
        Some(Inputs {
            mounts: vec![mount],
            devices: vec![device],
            network: Some(NetworkSpace { path: pins.path("a"), hostname: None }),
            command: ["sh", "-c", script].map(str::to_owned).into(),
            expected: format!("of the volume\nrefused\n1:5\n1\nwritten\nnet:[{network}]\n"),
        })
    }

    fn finds(&self) -> Finds {
        Finds::ById
    }
}

fn machines() -> Vec<IsolatedMachine> {
    IsolatedMachine::new().into_iter().collect()
}

herdlet_driver::driver_contract!(
    #[tokio::test]
    machines()
);

#[tokio::test]
async fn this_machine_is_found_able() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let agent = machine.agent();
    let found = agent.driver.fingerprint().next().await.unwrap();
    assert_eq!((found.health, &*found.description), (Health::Healthy, "Healthy"));
    let attempts = Attempts::open(&machine.0.path("other/attempts")).unwrap();
    let isolation = Isolation::None { why: "a test".into() };
    let setup = Setup { isolation, ..machine.0.setup(attempts) };
    let driver = exec::driver(setup, &ExecOptions::default(), roots_of(&machine.0)).unwrap();
    let found = driver.fingerprint().next().await.unwrap();
    assert_eq!(found.health, Health::Undetected);
    assert!(found.description.contains("a test; as root, mount cgroup2"), "{}", found.description);
}

#[tokio::test]
async fn a_task_sees_its_root_and_its_own_processes() {
    let Some(machine) = IsolatedMachine::new() else { return };
    fs::write(machine.0.path("task/local/own"), "of the task").unwrap();
    fs::write(machine.0.path("task/private/key"), "of the agent").unwrap();
    fs::write(machine.0.path("logs/t.stdout.7"), "").unwrap();
    let script = "
        echo $$ $(id -u) $(id -g) $(id -G); pwd; echo $HOME $USER
        echo $(cd /proc; ls -d [0-9]* | wc -l)
        cat /local/own; echo; ls /private | wc -l; ls /alloc/logs; touch /alloc/shared /own
        touch /alloc/logs/x 2>/dev/null || echo refused
        cat /proc/self/cgroup | tail -n 1";
    let mut task = machine.shell(script);
    task.logs.max_files = 9;
    let text = {
        let agent = machine.agent();
        let exit = agent.run(task).await;
        assert!(
            exit.is_success(),
            "{exit:?} {}",
            fs::read_to_string(machine.0.path("logs/t.stderr.0")).unwrap()
        );
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        fs::read_to_string(machine.0.path("logs/t.stdout.7")).unwrap()
    };
    let nobody = herdlet_base::user::find("nobody").unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let ids = format!("1 {} {} {}", nobody.uid, nobody.gid, nobody.gid);
    assert_eq!(lines[..2], [&*ids, "/"], "{text}");
    assert!(lines[2].ends_with(" nobody") && !lines[2].contains("root"), "{text}");
    // The shell, and those in its substitution.
    assert!(lines[3].parse::<u32>().unwrap() <= 5, "{text}");
    assert_eq!(lines[4..6], ["of the task", "0"], "{text}");
    assert!(lines.contains(&"t.stdout.7") && lines.contains(&"refused") && text.ends_with("::/\n"), "{text}");
    assert!(machine.0.path("shared/shared").exists() && machine.0.path("task/own").exists());
}

#[tokio::test]
async fn capabilities_are_those_that_the_config_says() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let script = "grep -E '^Cap(Bnd|Eff|Amb)' /proc/self/status | sort";
    let own = rustix::thread::capabilities(None).unwrap().permitted.bits();
    let default = (0xa804_25fb & !(1_u64 << 13)) & own;
    let all = |set: u64| format!("CapAmb:\t{set:016x}\nCapBnd:\t{set:016x}\nCapEff:\t{set:016x}\n");
    let agent = machine.agent();
    assert_eq!(machine.output(&agent, machine.shell(script)).await, all(default));
    let config =
        json!({"command": "sh", "args": ["-c", script], "cap_drop": ["all"], "cap_add": ["CAP_CHOWN"]});
    let task = TaskConfig { id: id(2), ..machine.task(config) };
    assert_eq!(machine.output(&agent, task).await, all(1 & own));
    let denied = json!({"command": "sh", "cap_add": ["sys_admin"]});
    let denied = TaskConfig { id: id(3), ..machine.task(denied) };
    let error = agent.driver.start(denied).await.unwrap_err();
    assert!(error.why().contains("sys_admin") && error.why().contains("allow_caps"), "{}", error.why());
}

#[tokio::test]
async fn users_are_those_of_the_machine_and_root_is_denied() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let task = TaskConfig { user: Some("4321:1234".into()), ..machine.shell("id -u; id -G") };
    let agent = machine.agent();
    assert_eq!(machine.output(&agent, task).await, "4321\n1234\n");
    let task = TaskConfig { id: id(2), user: Some("root".into()), ..machine.shell("id -u") };
    let error = agent.driver.start(task.clone()).await.unwrap_err();
    assert!(error.why().contains("denied_users"), "{}", error.why());
    let driver = machine.driver(&ExecOptions { denied_users: Some(Vec::new()), ..ExecOptions::default() });
    let agent = Agent { exits: driver.exits(), events: driver.events(), driver };
    assert_eq!(machine.output(&agent, task).await, "0\n");
}

#[tokio::test]
async fn namespaces_of_the_machine_can_be_allowed() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let modes = herdlet_api_types::manifest::driver::NamespaceMode::Host;
    let options = ExecOptions { default_pid_mode: modes, default_ipc_mode: modes, ..ExecOptions::default() };
    let driver = machine.driver(&options);
    let agent = Agent { exits: driver.exits(), events: driver.events(), driver };
    let script = format!(
        "readlink /proc/self/ns/ipc /proc/self/ns/pid; test -d /proc/{} && echo seen",
        std::process::id()
    );
    let exit = agent.run(machine.shell(&script)).await;
    assert!(exit.is_success(), "{exit:?} {}", machine.0.log("stderr"));
    let own = |kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
    assert_eq!(machine.0.log("stdout"), format!("{}\n{}\nseen\n", own("ipc"), own("pid")));
    agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
}

#[tokio::test]
async fn volumes_are_mounted_in_the_root() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let volume = machine.0.path("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("tool"), "#!/bin/sh\necho ran; touch /etc/data/x || echo refused\n").unwrap();
    fs::set_permissions(volume.join("tool"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mount = Mount {
        host_path: volume,
        task_path: "/etc/data".into(),
        readonly: true,
        propagation: Propagation::Private,
    };
    let task = TaskConfig { mounts: vec![mount], ..machine.task(json!({"command": "tool"})) };
    assert_eq!(machine.output(&machine.agent(), task).await, "ran\nrefused\n");
}

#[tokio::test]
async fn a_session_is_in_the_task_also_after_a_restart_of_the_agent() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let script = "echo mine > /local/file; echo > ready; exec sleep 1000";
    let task = machine.task(json!({"command": "sh", "args": ["-c", script], "work_dir": "/local"}));
    let agent = machine.agent();
    agent.driver.start(task.clone()).await.unwrap();
    let main = agent.record().task.pid;
    machine.0.line("local/ready").await;
    drop(agent);
    let agent = machine.agent();
    assert!(matches!(agent.recover(Some(task)).await, Recovered::Running(_)));
    let script = "cat file; cat /proc/1/comm; id -u; pwd; readlink /proc/self/ns/mnt";
    let command = ["sh", "-c", script].map(str::to_owned);
    let done = agent.driver.exec(&id(1), &command, DEADLINE).await.unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let nobody = herdlet_base::user::find("nobody").unwrap().uid;
    let mounts = fs::read_link(format!("/proc/{main}/ns/mnt")).unwrap();
    let expected = format!("mine\nsleep\n{nobody}\n/local\n{}\n", mounts.display());
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&done.stderr));
    let missing = agent.driver.exec(&id(1), &["no-such-tool".to_owned()], DEADLINE).await.unwrap_err();
    assert_eq!(missing.class(), herdlet_driver::FailureClass::NoProgram);
    agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
}

/// `su`, `screen` and `gpg` open the terminal by its name.
#[tokio::test]
async fn a_terminal_has_a_name_in_the_root() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let agent = machine.agent();
    agent.driver.start(machine.shell("echo > ready; exec sleep 1000")).await.unwrap();
    machine.0.line("ready").await;
    let script = "tty; echo typed > $(tty)";
    let command = ["sh", "-c", script].map(str::to_owned).into();
    let request = ExecRequest { command, terminal: Some(TerminalSize::default()) };
    let mut session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
    let mut text = Vec::new();
    while let Some(bytes) = session.stdout.recv().await {
        text.extend(bytes);
    }
    assert_eq!(String::from_utf8(text).unwrap(), "/dev/pts/0\r\ntyped\r\n");
    assert_eq!(session.exit.await.unwrap().code, 0);
    agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
}

/// Its first process is the same program in all tasks.
#[tokio::test]
async fn a_task_cannot_disable_the_first_process_of_others() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let agent = machine.agent();
    let run = |attempt: u32, script: &str| {
        let mut task = TaskConfig { id: id(attempt), ..machine.shell(script) };
        task.config["init"] = true.into();
        agent.driver.start(task)
    };
    run(1, "chmod 0 /proc/1/exe 2>/dev/null; chown 12 /proc/1/exe 2>/dev/null; true").await.unwrap();
    assert!(agent.end_of(1).await.is_success());
    run(2, "echo runs").await.unwrap();
    assert!(agent.end_of(2).await.is_success());
    assert_eq!(machine.0.log("stdout"), "runs\n", "{}", machine.0.log("stderr"));
    for attempt in 1..=2 {
        agent.driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// Root of a task may change owners and modes, and with default capabilities any task may.
#[tokio::test]
async fn files_of_the_machines_devices_cannot_be_changed() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let agent = machine.agent();
    let about = || {
        ["/dev/null", "/dev/zero", "/dev/tty"].map(|path| {
            let about = std::fs::metadata(path).unwrap();
            (about.mode(), about.uid(), about.gid())
        })
    };
    let before = about();
    let script = "echo x > /dev/null && head -c1 /dev/zero | wc -c
        for path in /dev/null /dev/zero /dev/tty /proc/self/fd/0 /proc/keys /proc/kcore; do
            chmod 600 $path 2>/dev/null && echo chmod $path
            chown 12:12 $path 2>/dev/null && echo chown $path
        done; true";
    agent.driver.start(TaskConfig { id: id(1), ..machine.shell(script) }).await.unwrap();
    assert!(agent.end_of(1).await.is_success());
    assert_eq!(about(), before);
    assert_eq!(machine.0.log("stdout"), "1\n", "{}", machine.0.log("stderr"));
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
}

/// The kernel would let both write to the same upper directories.
#[tokio::test]
async fn a_restart_uses_the_same_root_again() {
    let Some(machine) = IsolatedMachine::new() else { return };
    let agent = machine.agent();
    let script =
        "cat /etc/mine 2>/dev/null; echo 1 >> /etc/mine; rm -f /etc/hosts; ls /etc/hosts 2>/dev/null; true";
    for attempt in 1..=2 {
        agent.driver.start(TaskConfig { id: id(attempt), ..machine.shell(script) }).await.unwrap();
        assert!(agent.end_of(attempt).await.is_success());
        agent.driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
    }
    assert_eq!(machine.0.log("stdout"), "1\n", "{}", machine.0.log("stderr"));
    assert!(Path::new("/etc/hosts").exists() && !Path::new("/etc/mine").exists());
}
