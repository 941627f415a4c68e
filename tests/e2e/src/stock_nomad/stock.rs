//! A running stock server or client: `nomad agent` with its own file.
//!
//! In: the name of its file, data and log in the home. Out: a process that can be killed, frozen and
//! restarted. Dropping it ends the process.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::Signal;

use super::program::Program;
use crate::{
    command::{self, User},
    home::Home,
    host, wait,
};

/// Returns the lines about loopback addresses for every file. A program that can't determine its own address
/// requires `advertise`.
pub fn addresses([http, rpc, serf]: [u16; 3]) -> String {
    let each = "  http = \"127.0.0.1\"\n  rpc = \"127.0.0.1\"\n  serf = \"127.0.0.1\"\n";
    format!(
        "bind_addr = \"127.0.0.1\"\ndisable_update_check = true\nregion = \"global\"\ndatacenter = \"dc1\"\n\
         ports {{\n  http = {http}\n  rpc = {rpc}\n  serf = {serf}\n}}\nadvertise {{\n{each}}}\n\
         consul {{\n  address = \"127.0.0.1:1\"\n  server_auto_join = false\n  client_auto_join = false\n  auto_advertise = false\n}}\n"
    )
}

/// The name of a stock client.
pub const CLIENT: &str = "stock-1";

#[derive(Debug)]
pub struct Stock {
    name: String,
    program: PathBuf,
    child: Option<Child>,
}

impl Stock {
    /// Starts it with the file `text`, to which its name and its directory are added.
    pub fn start(home: &Home, program: &Program, name: &str, text: &str) -> Self {
        let data = data(home, name);
        home.write(
            &format!("{name}.hcl"),
            &format!("name = \"{name}\"\ndata_dir = \"{}\"\n{text}", data.display()),
        );
        let mut stock = Self { name: name.to_owned(), program: program.path.clone(), child: None };
        stock.start_again(home);
        stock
    }

    /// Starts it after its end.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start_again(&mut self, home: &Home) {
        let file = home.path().join(format!("{}.hcl", self.name)).display().to_string();
        let log = home.path().join(format!("{}.log", self.name));
        let log = File::options().create(true).append(true).open(log).expect("a log");
        let mut command = command::prepare(home, User::Same, &self.program, &["agent", "-config", &file]);
        command.stdout(log.try_clone().expect("the log, twice")).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().expect("a started program"));
    }

    /// Returns whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    /// Returns whether it was started, and not killed since.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Returns its pid.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub fn signal(&self, signal: Signal) {
        host::signal(self.pid(), signal);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Terminates it, and waits; kills it after ten seconds.
    pub fn terminate(&mut self) {
        if self.child.is_some() {
            self.signal(Signal::INT);
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while !self.has_ended() && std::time::Instant::now() < deadline {
                wait::pause(Duration::from_millis(20));
            }
        }
        self.kill();
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the data directory for this name.
pub fn data(home: &Home, name: &str) -> PathBuf {
    home.path().join(name)
}

/// Returns the last lines of a log.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}
