//! The plugin as a program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use herdlet_csi::client::Client;

/// A running plugin; ended with the test.
pub(crate) struct Running {
    pub(crate) data: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) options: Vec<&'static str>,
    pub(crate) child: Child,
}

impl Running {
    pub(crate) async fn start(folder: &Path, options: &[&'static str]) -> Self {
        let (data, socket) = (folder.join("data"), folder.join("csi.sock"));
        fs::create_dir_all(data.join("faults")).unwrap();
        let child = spawn(&data, &socket, options);
        let mut running = Self { data, socket, options: options.to_vec(), child };
        running.ready().await;
        running
    }

    async fn ready(&mut self) {
        let begin = Instant::now();
        while self.client().probe().await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the plugin does not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the plugin has died, and starts it again.
    pub(crate) async fn restart(&mut self) {
        self.child.wait().unwrap();
        self.child = spawn(&self.data, &self.socket, &self.options);
        self.ready().await;
    }

    pub(crate) fn client(&self) -> Client {
        Client::new("p", self.socket.clone())
    }

    pub(crate) fn fail(&self, call: &str, fault: &str) {
        fs::write(self.data.join("faults").join(call), fault).unwrap();
    }

    /// Calls since the last time, each with its code; without probes.
    pub(crate) fn calls(&self) -> Vec<String> {
        let path = self.data.join("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, "").unwrap();
        text.lines().filter(|line| !line.starts_with("Probe")).map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(data: &Path, socket: &Path, options: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_csi-plugin"))
        .args(["--endpoint", &format!("unix://{}", socket.display())])
        .arg("--data")
        .arg(data)
        .args(options)
        .spawn()
        .unwrap()
}
