//! The driver contract, with ledgers of each kind.

use herdlet_driver::{
    NetworkSpace,
    contract::{Behaviour, Command, Finds, Inputs, Machine, attempt_id},
};

use super::{
    ledgers::{Engine, Plugin},
    *,
};

/// A machine with a ledger of one kind.
struct Mocked {
    bench: Bench,
    kind: Kind,
}

enum Kind {
    Files,
    Engine(Engine),
    Plugin(Plugin),
}

fn machines() -> Vec<Mocked> {
    [Kind::Files, Kind::Engine(Engine::default()), Kind::Plugin(Plugin::default())]
        .map(|kind| Mocked { bench: Bench::new(), kind })
        .into()
}

impl Machine for Mocked {
    fn open(&self) -> Arc<dyn TaskDriver> {
        Arc::new(match &self.kind {
            Kind::Files => self.bench.agent().0,
            Kind::Engine(engine) => Mock::with(Box::new(engine.clone()), self.bench.clock()),
            Kind::Plugin(plugin) => Mock::with(Box::new(plugin.client()), self.bench.clock()),
        })
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let command = json!({ "stdout_string": "out", "exit_code": 4 });
        let config = match behaviour {
            Behaviour::RunsOn => {
                json!({ "run_for": "9h", "exec_command": command, "driver_ip": "192.0.2.7" })
            }
            Behaviour::IgnoresSignals => json!({ "run_for": "9h", "kill_after": "9h" }),
            Behaviour::Ends(code) => json!({ "exit_code": code }),
            Behaviour::FailsToStart => json!({ "start_error": "no" }),
        };
        TaskConfig { id: attempt_id(attempt), ..self.bench.task(config) }
    }

    fn prepared<'m>(&'m self, _: &'m TaskConfig) -> BoxFuture<'m, ()> {
        async {}.boxed()
    }

    fn command(&self, command: Command) -> Vec<String> {
        match command {
            Command::Prints => vec!["print".to_owned()],
            Command::Repeats => vec!["showinput".to_owned()],
        }
    }

    fn inputs(&self) -> Option<Inputs> {
        let (mounts, devices) = some_inputs();
        let network = Some(NetworkSpace { path: "/run/netns/a".into(), hostname: Some("a".to_owned()) });
        let given = Given { mounts: mounts.clone(), devices: devices.clone(), network: network.clone() };
        // The scripted output of all commands follows.
        let expected = format!("{}out", serde_json::to_string(&given).unwrap());
        Some(Inputs { mounts, devices, network, command: vec!["showtask".to_owned()], expected })
    }

    fn slow_task(&self, attempt: u32) -> Option<TaskConfig> {
        let config = json!({ "prepare_block_for": "9h" });
        Some(TaskConfig { id: attempt_id(attempt), ..self.bench.task(config) })
    }

    fn finds(&self) -> Finds {
        match self.kind {
            Kind::Files | Kind::Engine(_) => Finds::ById,
            Kind::Plugin(_) => Finds::ByHandle,
        }
    }
}

herdlet_driver::driver_contract!(
    #[tokio::test]
    machines()
);
