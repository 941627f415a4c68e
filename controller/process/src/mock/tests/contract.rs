//! The driver contract, with ledgers of each kind.

use herdlet_driver::contract::{Behaviour, Command, Finds, Machine, attempt_id};

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
