//! The contract of drivers.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_driver::{
    Device, Mount, Propagation, TaskConfig, TaskDriver,
    contract::{self, Behaviour, Command, Finds, Inputs, attempt_id},
};
use serde_json::json;

use super::{Machine, every_machine};

impl contract::Machine for Machine {
    fn open(&self) -> Arc<dyn TaskDriver> {
        self.any_driver()
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let ready = format!("touch /local/ready.{attempt}");
        let script = match behaviour {
            Behaviour::RunsOn => format!("trap 'exit 0' TERM; {ready}; sleep 3600 & wait"),
            Behaviour::IgnoresSignals => format!("trap '' TERM; {ready}; while :; do sleep 3600; done"),
            Behaviour::Ends(code) => format!("{ready}; exit {code}"),
            Behaviour::FailsToStart => {
                return self.task(attempt_id(attempt), json!({"command": "/bin/none"}));
            }
        };
        self.task(attempt_id(attempt), json!({"command": "/bin/sh", "args": ["-c", script]}))
    }

    fn prepared<'m>(&'m self, config: &'m TaskConfig) -> BoxFuture<'m, ()> {
        let ready = config.dirs.task.join(format!("local/ready.{}", config.id.attempt));
        async move {
            while !ready.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        .boxed()
    }

    fn command(&self, command: Command) -> Vec<String> {
        match command {
            Command::Prints => ["/bin/sh", "-c", "printf out; exit 4"].map(str::to_owned).to_vec(),
            Command::Repeats => vec!["/bin/cat".to_owned()],
        }
    }

    /// Networks are in [`super::networks`].
    fn inputs(&self) -> Option<Inputs> {
        let volume = self.path().join("volume");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(volume.join("file"), "of the volume\n").unwrap();
        let mount = Mount {
            host_path: volume,
            task_path: "/volume".into(),
            readonly: true,
            propagation: Propagation::Private,
        };
        // The engine in the agent gives all rights or none.
        let permissions = if self.is_builtin() { "rwm" } else { "r" }.to_owned();
        let device = Device { host_path: "/dev/zero".into(), task_path: "/dev/given".into(), permissions };
        let script = "cat /volume/file; touch /volume/file 2>/dev/null || echo refused
            head -c 3 /dev/given | wc -c";
        Some(Inputs {
            mounts: vec![mount],
            devices: vec![device],
            network: None,
            command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            expected: "of the volume\nrefused\n3\n".to_owned(),
        })
    }

    fn finds(&self) -> Finds {
        Finds::ById
    }

    fn slow_task(&self, attempt: u32) -> Option<TaskConfig> {
        let mut task = self.task(attempt_id(attempt), json!({"command": "/bin/true"}));
        task.config["image"] = self.slow_image().into();
        Some(task)
    }
}

herdlet_driver::driver_contract!(
    #[tokio::test(flavor = "multi_thread")]
    every_machine()
);
