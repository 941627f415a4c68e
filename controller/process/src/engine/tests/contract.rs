//! The driver contract, with and without cgroups.

use futures_util::future::BoxFuture;
use herdlet_driver::contract::{Behaviour, Command, Finds, Machine, attempt_id};

use super::*;

/// A machine that removes its cgroups at the end.
struct Tidied(Bench);

impl Machine for Tidied {
    fn open(&self) -> Arc<dyn TaskDriver> {
        Arc::new(self.0.agent().driver)
    }

    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig {
        let task = match behaviour {
            Behaviour::RunsOn => self.0.shell(&format!("echo > ready-{attempt}; exec sleep 1000")),
            Behaviour::IgnoresSignals => {
                self.0.shell(&format!("trap '' INT TERM; echo > ready-{attempt}; exec sleep 1000"))
            }
            Behaviour::Ends(code) => self.0.shell(&format!("echo > ready-{attempt}; exit {code}")),
            Behaviour::FailsToStart => self.0.task(json!({ "command": "no-such-tool" })),
        };
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

    fn finds(&self) -> Finds {
        Finds::ById
    }
}

impl Drop for Tidied {
    fn drop(&mut self) {
        self.0.tidy();
    }
}

impl Bench {
    /// Cleans up after a failed test.
    pub(super) fn tidy(&self) {
        let Some(setup) = &self.setup else { return };
        let Isolation::Cgroups(cgroups) = Isolation::detect(setup) else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A runtime can't block on another one in the same thread.
        let removal = std::thread::spawn(move || runtime.block_on(async { cgroups.remove().await.is_ok() }));
        let _ = removal.join();
    }
}

fn machines() -> Vec<Tidied> {
    Bench::both().into_iter().map(Tidied).collect()
}

herdlet_driver::driver_contract!(
    #[tokio::test]
    machines()
);
