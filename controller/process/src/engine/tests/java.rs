//! `java` with a stand-in that runs scripts, by the driver contract; and with the Java of this machine. These tests need root and
//! cgroups.

use std::{collections::BTreeMap, ffi::OsString};

use futures_util::future::BoxFuture;
use herdlet_api_types::driver::ExecOptions;
use herdlet_driver::contract::{Behaviour, Command, Finds, Inputs, Machine, attempt_id};

use super::{
    isolated::{IsolatedMachine, roots_of},
    *,
};
use crate::{installed::Programs, java};

/// Runs the first argument of the class `Main`.
const STAND_IN: &str = r#"
if [ "$1" = -version ]; then
    printf 'openjdk version "99.1" 2025-04-15\nA Runtime\nA VM\n' >&2
    exit
fi
while [ "$1" != Main ]; do shift; done
exec sh -c "$2""#;

/// A machine with a stand-in for Java.
struct JavaMachine(IsolatedMachine);

impl JavaMachine {
    fn new() -> Option<Self> {
        let machine = IsolatedMachine::new()?;
        machine.0.program("jdk/bin/java", STAND_IN);
        Some(Self(machine))
    }

    fn bench(&self) -> &Bench {
        &self.0.0
    }

    /// Its tasks see the stand-in, outside of the directories that they see by default.
    fn driver(&self) -> Engine {
        let mut shown: BTreeMap<String, String> =
            ["/bin", "/etc", "/lib", "/lib64", "/usr"].map(|path| (path.to_owned(), path.to_owned())).into();
        shown.insert(self.bench().path("jdk").display().to_string(), "/opt/jdk".to_owned());
        let options = ExecOptions { chroot_env: Some(shown), ..ExecOptions::default() };
        driver(self.bench(), &options, self.bench().path("jdk/bin").into())
    }
}

fn driver(bench: &Bench, options: &ExecOptions, search_path: OsString) -> Engine {
    let attempts = Attempts::open(&bench.path("run/attempts")).unwrap();
    java::driver(
        bench.setup(attempts),
        options,
        (roots_of(bench), Programs::new(search_path, bench.path("versions"))),
    )
    .unwrap()
}

impl Machine for JavaMachine {
    fn open(&self) -> Arc<dyn TaskDriver> {
        Arc::new(self.driver())
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let class = if behaviour == Behaviour::FailsToStart { "" } else { "Main" };
        let script = match behaviour {
            Behaviour::RunsOn | Behaviour::FailsToStart => {
                format!("echo > ready-{attempt}; exec sleep 1000")
            }
            Behaviour::IgnoresSignals => format!("trap '' INT TERM; echo > ready-{attempt}; exec sleep 1000"),
            Behaviour::Ends(code) => format!("echo > ready-{attempt}; exit {code}"),
        };
        // A virtual machine handles signals; a script as the first process does not.
        let config = json!({"class": class, "jvm_options": ["-Xmx9m"], "args": [script], "init": true});
        TaskConfig { id: attempt_id(attempt), ..self.0.task(config) }
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

    fn inputs(&self) -> Option<Inputs> {
        self.0.inputs()
    }

    fn finds(&self) -> Finds {
        Finds::ById
    }
}

fn machines() -> Vec<JavaMachine> {
    JavaMachine::new().into_iter().collect()
}

herdlet_driver::driver_contract!(
    #[tokio::test]
    machines()
);

/// Time is paused: the wait between two examinations takes none.
#[tokio::test(start_paused = true)]
async fn a_java_that_is_installed_replaced_or_removed_is_noticed() {
    let Some(machine) = JavaMachine::new() else { return };
    fs::rename(machine.bench().path("jdk/bin/java"), machine.bench().path("jdk/bin/other")).unwrap();
    let driver = machine.driver();
    let mut found = driver.fingerprint();
    for _ in 0..2 {
        let found = found.next().await.unwrap();
        assert_eq!(found.health, Health::Undetected);
        assert!(found.description.contains("default-jre-headless"), "{}", found.description);
    }
    fs::rename(machine.bench().path("jdk/bin/other"), machine.bench().path("jdk/bin/java")).unwrap();
    let healthy = found.next().await.unwrap();
    assert_eq!((healthy.health, &*healthy.description), (Health::Healthy, "Healthy"));
    let attribute = |name: &str, value: &str| (format!("driver.java.{name}"), value.to_owned());
    let versions = [attribute("runtime", "A Runtime"), attribute("version", "99.1"), attribute("vm", "A VM")];
    assert_eq!(healthy.attributes, versions.into());
    machine.bench().program("jdk/bin/java", "echo it is broken; exit 1");
    let broken = found.next().await.unwrap();
    assert_eq!(broken.health, Health::Unhealthy);
    assert!(broken.description.contains("it is broken"), "{}", broken.description);
    fs::remove_file(machine.bench().path("jdk/bin/java")).unwrap();
    assert_eq!(found.next().await.unwrap().health, Health::Undetected);
}

#[tokio::test]
async fn the_java_of_this_machine_runs_a_class_in_a_root_of_its_own() {
    let (Some(machine), Some(_)) = (IsolatedMachine::new(), installed("java")) else { return };
    let bench = &machine.0;
    let driver = driver(bench, &ExecOptions::default(), std::env::var_os("PATH").unwrap());
    let mut found = driver.fingerprint();
    assert_eq!(found.next().await.unwrap().health, Health::Healthy);
    let version = found.next().await.unwrap().attributes.remove("driver.java.version").unwrap();
    let agent = Agent { exits: driver.exits(), events: driver.events(), driver };
    // A program that every Java has. It prints its usage.
    let config = json!({
        "class": "sun.security.tools.keytool.Main", "args": ["-help"], "work_dir": "/local",
        "jvm_options": ["-XshowSettings:properties", "-Xmx64m"],
    });
    let exit = agent.run(machine.task(config)).await;
    let printed = bench.log("stderr");
    assert!(exit.is_success(), "{exit:?} {printed}");
    for expected in
        [&format!("java.version = {version}"), "user.dir = /local", "user.name = nobody", "-genkeypair"]
    {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    let missing = TaskConfig { id: id(2), ..machine.task(json!({"jar_path": "local/none.jar"})) };
    agent.driver.start(missing).await.unwrap();
    assert_eq!(agent.end_of(2).await.code, 1);
    for attempt in 1..=2 {
        agent.driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
    }
}
