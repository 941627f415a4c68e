//! One command of the program, from its start to its output.
//!
//! In: a [`Home`], arguments, a user. Out: [`Running`], and at the end [`Output`]. The environment has only
//! the variables set here, so that the machine's own settings can't make a test pass.

use std::{
    ffi::OsStr,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::Signal;

pub use super::home::User;
use super::{home::Home, host, wait};

/// PATH of tasks, without the wrappers of version managers.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The exit code and the output of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit code; 128 + n after signal n.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Returns itself if the code is 0.
    ///
    /// # Panics
    /// If it isn't.
    #[track_caller]
    pub fn success(self) -> Self {
        self.ended(0)
    }

    /// Returns itself if the code is `code`.
    ///
    /// # Panics
    /// If it isn't.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// Prepares a command of `program` in `home`.
pub fn prepare<S: AsRef<OsStr>>(home: &Home, user: User, program: &Path, arguments: &[S]) -> Command {
    let mut command = match user {
        User::Same => Command::new(program),
        User::Nobody => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
            command
        }
    };
    command.args(arguments).env_clear().env("PATH", SEARCH_PATH).env("TMPDIR", home.temp());
    command.env("HERDLET_ADDR", home.address()).current_dir(home.path()).stdin(Stdio::null());
    // As on a machine without trusted certificates, e.g. in most containers: no test may depend on any.
    command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/dev/null");
    if user == User::Same {
        command.env("HOME", home.path().join("home"));
    }
    command
}

/// A started command whose output is collected.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    shown: String,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(mut command: Command) -> Self {
        let shown = format!("{command:?}");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start {shown}: {error}"));
        let stdout = Pipe::read(child.stdout.take());
        let stderr = Pipe::read(child.stderr.take());
        Self { child, stdout, stderr, shown }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn signal(&self, signal: Signal) {
        host::signal(self.child.id(), signal);
    }

    /// Waits until its standard output contains `text`.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn until_stdout(&self, text: &str) {
        wait::until_true(
            &format!("{text:?} in the output of {}; stderr: {}", self.shown, self.stderr()),
            || self.stdout().contains(text),
        );
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it doesn't exit in time.
    pub fn finish(self) -> Output {
        self.finish_within(wait::PATIENCE)
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it doesn't exit within `limit`; it is killed then.
    pub fn finish_within(mut self, limit: Duration) -> Output {
        let deadline = std::time::Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a waitable child") {
                break status;
            }
            if std::time::Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!(
                    "{} did not exit within {limit:?}\nstdout:\n{}\nstderr:\n{}",
                    self.shown,
                    self.stdout(),
                    self.stderr()
                );
            }
            wait::pause(Duration::from_millis(5));
        };
        Output { code: code(status), stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }
}

/// Returns the exit code as in a shell.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Links the program into the test's own directory, where `nobody` can execute it.
pub fn reachable(home: &Home, program: &Path) -> PathBuf {
    let link = home.path().join("herdlet");
    if !link.exists() && std::fs::hard_link(program, &link).is_err() {
        std::fs::copy(program, &link).expect("a copy of the program");
    }
    link
}

#[derive(Debug)]
struct Pipe {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Pipe {
    fn read(from: Option<impl Read + Send + 'static>) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&text);
        let reader = from.map(|mut from| {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(len) = from.read(&mut buffer) {
                    let Some(bytes) = buffer.get(..len).filter(|bytes| !bytes.is_empty()) else { return };
                    into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
                }
            })
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for the end of the output. If a process outlives the command and holds the pipe open, the test
    /// fails here.
    fn finish(mut self) -> String {
        if let Some(reader) = self.reader.take() {
            wait::until_true("the end of a command's output (does something hold its pipe?)", || {
                reader.is_finished()
            });
        }
        self.text()
    }
}
