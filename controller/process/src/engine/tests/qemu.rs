//! `qemu` with a stand-in that runs scripts, by the driver contract; and with a real emulator and a guest of one sector. These tests
//! need root and cgroups.

use std::ffi::OsString;

use futures_util::future::BoxFuture;
use herdlet_api_types::driver::QemuOptions;
use herdlet_driver::{
    FailureClass,
    contract::{Behaviour, Command, Finds, Machine, attempt_id},
};

use super::{isolated::IsolatedMachine, *};
use crate::{installed::Programs, qemu};

const EMULATOR: &str = "qemu-system-x86_64";

/// Runs the argument of `-script`.
const STAND_IN: &str = r#"
if [ "$1" = --version ]; then echo 'QEMU emulator version 7.2.22 (a stand-in)'; exit; fi
echo "$@"
while [ "$1" != -script ]; do shift; done
exec sh -c "$2""#;

/// A machine with a stand-in for an emulator.
struct QemuMachine(IsolatedMachine);

impl QemuMachine {
    fn new() -> Option<Self> {
        let machine = IsolatedMachine::new()?;
        machine.0.program(&format!("bin/{EMULATOR}"), STAND_IN);
        fs::write(machine.0.path("task/local/disk.img"), "").unwrap();
        Some(Self(machine))
    }

    fn bench(&self) -> &Bench {
        &self.0.0
    }

    fn driver(&self, options: &QemuOptions) -> Engine {
        driver(self.bench(), options, self.bench().path("bin").into())
    }

    fn script(&self, script: &str) -> TaskConfig {
        self.0.task(json!({"image_path": "local/disk.img", "args": ["-script", script]}))
    }
}

fn driver(bench: &Bench, options: &QemuOptions, search_path: OsString) -> Engine {
    let attempts = Attempts::open(&bench.path("run/attempts")).unwrap();
    qemu::driver(bench.setup(attempts), options, Programs::new(search_path, bench.path("versions"))).unwrap()
}

fn agent_of(driver: Engine) -> Agent {
    Agent { exits: driver.exits(), events: driver.events(), driver }
}

impl Machine for QemuMachine {
    fn open(&self) -> Arc<dyn TaskDriver> {
        Arc::new(self.driver(&QemuOptions::default()))
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let task = match behaviour {
            Behaviour::RunsOn => self.script(&format!("echo > ready-{attempt}; exec sleep 1000")),
            Behaviour::IgnoresSignals => {
                self.script(&format!("trap '' INT TERM; echo > ready-{attempt}; exec sleep 1000"))
            }
            Behaviour::Ends(code) => self.script(&format!("echo > ready-{attempt}; exit {code}")),
            Behaviour::FailsToStart => self.0.task(json!({"image_path": "local/none.img"})),
        };
        TaskConfig { id: attempt_id(attempt), ..task }
    }

    fn prepared<'m>(&'m self, config: &'m TaskConfig) -> BoxFuture<'m, ()> {
        async move {
            self.bench().line(&format!("ready-{}", config.id.attempt)).await;
        }
        .boxed()
    }

    fn command(&self, command: Command) -> Vec<String> {
        self.0.command(command)
    }

    fn finds(&self) -> Finds {
        Finds::ById
    }
}

fn machines() -> Vec<QemuMachine> {
    QemuMachine::new().into_iter().collect()
}

herdlet_driver::driver_contract!(
    #[tokio::test]
    machines()
);

#[tokio::test(start_paused = true)]
async fn an_emulator_that_is_installed_later_is_noticed() {
    let Some(machine) = QemuMachine::new() else { return };
    let (here, away) = (machine.bench().path(&format!("bin/{EMULATOR}")), machine.bench().path("away"));
    fs::rename(&here, &away).unwrap();
    let driver = machine.driver(&QemuOptions::default());
    let mut found = driver.fingerprint();
    for _ in 0..2 {
        let found = found.next().await.unwrap();
        assert_eq!(found.health, Health::Undetected);
        assert!(found.description.contains("the package qemu-system-x86;"), "{}", found.description);
    }
    fs::rename(&away, &here).unwrap();
    let found = found.next().await.unwrap();
    assert_eq!(found.health, Health::Healthy);
    assert_eq!(found.attributes, [("driver.qemu.version".to_owned(), "7.2.22".to_owned())].into());
}

#[tokio::test]
async fn a_guest_is_a_process_of_nobody_with_the_files_of_the_machine() {
    let Some(machine) = QemuMachine::new() else { return };
    let script =
        "id -un; id -G; pwd; grep CapEff /proc/self/status; ls -d /root /proc/1; readlink /proc/self/ns/ipc";
    let agent = agent_of(machine.driver(&QemuOptions::default()));
    let exit = agent.run(machine.script(script)).await;
    let printed = machine.bench().log("stdout");
    assert!(exit.is_success(), "{exit:?} {printed} {}", machine.bench().log("stderr"));
    let lines: Vec<&str> = printed.lines().collect();
    let disk = machine.bench().path("task/local/disk.img");
    let drive = format!("-drive file={},if=ide -nographic -script", disk.display());
    assert!(
        lines[0].starts_with("-machine type=pc,accel=tcg -name disk.img -m 300M ")
            && lines[0].contains(&drive)
    );
    let nobody = herdlet_base::user::find("nobody").unwrap();
    let (gid, dir) = (nobody.gid.to_string(), machine.bench().path("task").display().to_string());
    assert_eq!(lines[1..4], ["nobody", &*gid, &*dir], "{printed}");
    assert_eq!(lines[4..7], ["CapEff:\t0000000000000000", "/proc/1", "/root"], "{printed}");
    let own = fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string();
    assert_ne!(lines[7], own);
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
}

#[tokio::test]
async fn options_of_the_agent_refuse_users_images_and_arguments() {
    let Some(machine) = QemuMachine::new() else { return };
    let options = QemuOptions {
        args_allowlist: vec!["-smp".to_owned()],
        emulators_allowlist: ["x86_64", "qemu-system-none"].map(str::to_owned).to_vec(),
        ..QemuOptions::default()
    };
    let agent = agent_of(machine.driver(&options));
    let image = |path: &str| machine.0.task(json!({"image_path": path}));
    let foreign = machine.bench().path("run/disk.img");
    fs::write(&foreign, "").unwrap();
    fs::create_dir(machine.bench().path("images")).unwrap();
    for (task, expected) in [
        (machine.script("true"), "drivers.qemu.args_allowlist"),
        (TaskConfig { user: Some("root".into()), ..image("local/disk.img") }, "drivers.qemu.denied_users"),
        (image("/etc/passwd"), "drivers.qemu.image_paths"),
        (machine.0.task(json!({"image_path": "local/disk.img", "accelerator": "a,b"})), "accelerator"),
        (machine.0.task(json!({"image_path": "local/disk.img", "emulator": "../sh"})), "emulator"),
        (
            machine.0.task(json!({"image_path": "local/disk.img", "emulator": "qemu-system-i386"})),
            "drivers.qemu.emulators_allowlist",
        ),
        (machine.0.task(json!({"image_path": "local/disk.img", "port_map": {"x": 1}})), "port_map.x"),
    ] {
        let refused = agent.driver.start(task).await.unwrap_err();
        assert_eq!(refused.class(), FailureClass::Fatal, "{expected}");
        assert!(refused.why().contains(expected), "{expected}: {}", refused.why());
    }
    let other = machine.0.task(json!({"image_path": "local/disk.img", "emulator": "qemu-system-none"}));
    assert_eq!(agent.driver.start(other).await.unwrap_err().class(), FailureClass::NoProgram);
}

/// The code of a guest that prints `up`, waits for its power button, prints `bye`, and switches itself off. Its last two bytes mark
/// the sector as one to boot from.
fn guest() -> Vec<u8> {
    let print = |text: &str| -> Vec<u8> {
        // mov dx, 0x3f8 (the serial port); for each byte mov al, BYTE; out dx, al
        [0xba, 0xf8, 0x03].into_iter().chain(text.bytes().flat_map(|byte| [0xb0, byte, 0xee])).collect()
    };
    let mut code = print("up\n");
    // mov dx, 0x602; mov ax, 0x100; out dx, ax: the power button is reported.
    code.extend([0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, 0xfb]);
    // hlt (until the next tick); mov dx, 0x600; in ax, dx; test ah, 1; jz to hlt
    code.extend([0xf4, 0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xf6]);
    code.extend(print("bye\n"));
    // mov dx, 0x604; mov ax, 0x2000; out dx, ax: off. hlt; jmp to hlt
    code.extend([0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd]);
    code.resize(510, 0);
    code.extend([0x55, 0xaa]);
    code
}

#[tokio::test]
async fn a_guest_is_switched_off_also_after_a_restart_of_the_agent() {
    let (Some(machine), Some(_)) = (IsolatedMachine::new(), installed(EMULATOR)) else { return };
    let bench = &machine.0;
    // Longer than the path of a socket may be.
    let long = "x".repeat(120);
    fs::create_dir_all(bench.path(&long).join("task/local")).unwrap();
    let task_dir = bench.path(&long).join("task");
    fs::write(task_dir.join("local/boot.img"), guest()).unwrap();
    for path in [&task_dir, &task_dir.join("local"), &task_dir.join("local/boot.img")] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let config = json!({
        "image_path": "local/boot.img", "graceful_shutdown": true, "guest_agent": true,
        "args": ["-nodefaults", "-serial", "stdio", "-no-reboot", "-display", "none"],
    });
    let task = machine.task(config);
    let task = TaskConfig { dirs: TaskDirs { task: task_dir.clone(), ..task.dirs }, ..task };
    let open = || agent_of(driver(bench, &QemuOptions::default(), std::env::var_os("PATH").unwrap()));
    let agent = open();
    agent.driver.start(task.clone()).await.unwrap();
    bench.until_printed("up\n").await;
    assert!(task_dir.join("qa.sock").exists(), "the guest agent's socket has the name that tools expect");
    drop(agent);
    let agent = open();
    assert!(matches!(agent.recover(Some(task)).await, Recovered::Running(_)));
    let how = StopRequest { signal: None, grace: DEADLINE };
    agent.driver.stop(&id(1), how).await.unwrap();
    let exit = agent.wait().await;
    assert!(exit.is_success(), "{exit:?} {}", bench.log("stderr"));
    assert!(bench.log("stdout").contains("bye\n"), "{}", bench.log("stdout"));
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
}

#[tokio::test]
async fn a_guest_that_ignores_its_button_is_ended_after_the_grace_period() {
    let (Some(machine), Some(_)) = (IsolatedMachine::new(), installed(EMULATOR)) else { return };
    let bench = &machine.0;
    fs::write(bench.path("task/local/boot.img"), "no guest at all").unwrap();
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(bench.path("task/local/boot.img"), anybody).unwrap();
    let config = json!({
        "image_path": "local/boot.img", "graceful_shutdown": true, "args": ["-S", "-nodefaults", "-display", "none"],
    });
    let mut agent = agent_of(driver(bench, &QemuOptions::default(), std::env::var_os("PATH").unwrap()));
    agent.driver.start(machine.task(config)).await.unwrap();
    let began = Instant::now();
    while !bench.path("task/qm.sock").exists() {
        assert!(began.elapsed() < DEADLINE, "{}", bench.log("stderr"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let grace = Duration::from_millis(300);
    let began = Instant::now();
    agent.driver.stop(&id(1), StopRequest { signal: None, grace }).await.unwrap();
    assert!(began.elapsed() >= grace, "the guest had its time");
    let TaskEvent::Message { message, .. } = agent.event().await else { panic!("it is another") };
    assert_eq!(message, "Pressed the power button of the virtual machine; it is ended after 300ms");
    agent.wait().await;
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
}
