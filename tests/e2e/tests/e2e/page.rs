//! The status page in a real browser, through the port that `herdlet ui` opens.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use herdlet_e2e::{agent::Agent, environment, wait};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::common::{is_root, job, sleeper};

/// A headless browser with one page.
struct Browser {
    process: Child,
    socket: WebSocket<TcpStream>,
    asked: u64,
    /// The page's session.
    session: Value,
}

impl Browser {
    /// Uses the Chrome DevTools Protocol: <https://chromedevtools.github.io/devtools-protocol/>.
    fn open(program: &Path, profile: &Path, address: &str) -> Self {
        let process = Command::new(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(["--remote-debugging-port=0", address])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (port, path) = wait::until("the browser responds", || {
            let text = fs::read_to_string(profile.join("DevToolsActivePort")).ok()?;
            let (port, path) = text.split_once('\n')?;
            Some((port.parse::<u16>().ok()?, path.trim().to_owned()))
        });
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (socket, _) = tungstenite::client(format!("ws://127.0.0.1:{port}{path}"), stream).unwrap();
        let mut browser = Self { process, socket, asked: 0, session: Value::Null };
        let page = wait::until("the browser has a page", || {
            let found = browser.ask("Target.getTargets", json!({}));
            let page = found["targetInfos"].as_array()?.iter().find(|target| target["type"] == "page")?;
            Some(page["targetId"].clone())
        });
        let attached = browser.ask("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = attached["sessionId"].clone();
        browser
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut ask = json!({ "id": self.asked, "method": method, "params": parameters });
        if self.session.is_string() {
            ask["sessionId"] = self.session.clone();
        }
        self.socket.send(Message::text(ask.to_string())).unwrap();
        loop {
            let message = self.socket.read().unwrap().into_text().unwrap();
            let message: Value = serde_json::from_str(&message).unwrap();
            if message["id"] == self.asked {
                return message["result"].clone();
            }
        }
    }

    /// Evaluates an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        self.ask("Runtime.evaluate", json!({ "expression": expression }))["result"]["value"].clone()
    }

    #[track_caller]
    fn until(&mut self, what: &str, expression: &str) {
        wait::until_true(&format!("{what}: {expression}"), || self.value(expression) == true);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn open_page_stays_current_and_shows_a_lost_agent() {
    let Some(chromium) = environment::component(environment::CHROMIUM) else { return };
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("first", "service", "", &[sleeper("t", "")]));
    let door = agent.spawn(&["ui", "--no-open"]);
    door.until_stdout("\n");
    let address = door.stdout().trim().to_owned();
    let profile = agent.home.path().join("browser");
    let mut browser = Browser::open(&chromium, &profile, &address);
    let shows_text = |text: &str| format!("document.body.innerText.includes({})", json!(text));
    browser.until("the page shows the job", &shows_text("1/1 converged"));
    // The ticket is used up, and no longer in the URL.
    assert_eq!(browser.value("location.search"), "");

    agent.apply_and_wait(&job("second", "service", "", &[sleeper("t", "")]));
    browser.until("the page shows the other job without a reload", &shows_text("2/2 converged"));
    browser.value("document.getElementById('job-second').open = true");
    browser.value("document.querySelector('#job-second > details').open = true");
    browser.until("a row opens its explanation", &shows_text("waiting for nothing"));

    // A long text broke the state into `conve` and `rged`.
    let lines = "(() => { document.querySelector('td.next').textContent = 'word'.repeat(500); const range = document.createRange(); \
                 range.selectNodeContents(document.querySelector('tr.job td.converged')); return range.getClientRects().length })()";
    assert_eq!(browser.value(lines), 1);

    agent.kill();
    browser.until("the agent has exited", "document.body.classList.contains('stale')");
    browser.until(
        "the page reports that the agent is gone",
        &shows_text("The agent does not answer: this is its last known state."),
    );
    agent.launch();
    browser.until("the agent is back", "!document.body.classList.contains('stale')");
    browser.until("open rows are still open", "document.getElementById('job-second').open");

    drop(browser);
    door.signal(rustix::process::Signal::INT);
    assert_eq!(door.finish().code, 0);
    agent.finish();
}
