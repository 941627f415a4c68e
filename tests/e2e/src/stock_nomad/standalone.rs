//! Stock Nomad's command line against an agent without servers: each command of docs/nomad/commands.md is run.
//!
//! In: a stock program. Out: a line for each command with its exit code. A command fails if it panics, if the page says that it works
//! and it does not, or if the page says that it is refused and it succeeds.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use serde_json::Value;

use super::{campaign::Outcome, program::Program};
use crate::{
    agent::{Agent, Setup},
    command::{self, Output, Running, User},
    http, ports,
    program::{csi_plugin, example, project},
    wait,
};

/// A command may follow a roll-out.
const COMMAND_MAX: Duration = Duration::from_secs(120);

const TOKEN: &str = "0123456789abcdef0123";

/// A row of the page, and the command that is run for it. `$ALLOC`, `$EVAL`, `$NODE`, `$DEPLOYMENT` and `$SERVICE` are ids, `$FILE`
/// is the file of job `web`. Commands that stop something are last.
const COMMANDS: &[(&str, &str)] = &[
    ("job run", "job run $FILE"),
    ("job validate", "job validate $FILE"),
    ("job plan", "job plan $FILE"),
    ("job status", "job status web"),
    ("job status", "job status -verbose web"),
    ("job allocs", "job allocs web"),
    ("job deployments", "job deployments web"),
    ("job eval", "job eval -detach web"),
    ("job history", "job history -p web"),
    ("job inspect", "job inspect web"),
    ("job inspect", "job inspect -hcl web"),
    ("job scaling-events", "job scaling-events web"),
    ("job tag apply", "job tag apply -name good web"),
    ("job tag unset", "job tag unset -name good web"),
    ("agent-info", "agent-info"),
    ("alloc checks", "alloc checks $ALLOC"),
    ("alloc exec", "alloc exec -i=false -t=false $ALLOC /bin/true"),
    ("alloc fs", "alloc fs $ALLOC /"),
    ("alloc logs", "alloc logs $ALLOC"),
    ("alloc pause", "alloc pause -status $ALLOC"),
    ("alloc signal", "alloc signal -s SIGCONT $ALLOC"),
    ("alloc restart", "alloc restart $ALLOC"),
    ("alloc status", "alloc status -stats -verbose $ALLOC"),
    ("deployment list", "deployment list"),
    ("deployment status", "deployment status $DEPLOYMENT"),
    ("deployment unblock", "deployment unblock $DEPLOYMENT"),
    ("eval list", "eval list"),
    ("eval status", "eval status $EVAL"),
    ("eval delete", "eval delete $EVAL"),
    ("namespace list, inspect, status", "namespace list"),
    ("namespace list, inspect, status", "namespace status default"),
    ("namespace apply, delete", "namespace apply other"),
    ("node meta read", "node meta read"),
    ("node meta apply", "node meta apply a=1"),
    ("node pool list, info, nodes, jobs", "node pool list"),
    ("node pool list, info, nodes, jobs", "node pool info default"),
    ("node status", "node status"),
    ("node status", "node status -verbose -stats $NODE"),
    ("node status", "node status -self"),
    ("operator api", "operator api /v1/jobs"),
    ("operator metrics", "operator metrics"),
    ("operator raft list-peers, remove-peer, transfer-leadership", "operator raft list-peers"),
    ("operator root keyring list, remove, rotate", "operator root keyring list"),
    ("operator scheduler get-config, set-config", "operator scheduler get-config"),
    ("operator snapshot save, restore", "operator snapshot save state.snap"),
    ("plugin status", "plugin status"),
    ("plugin status", "plugin status disks"),
    ("plugin status", "plugin status -verbose disks"),
    ("quota apply, delete, inspect, list, status", "quota list"),
    ("recommendation apply, dismiss, info, list", "recommendation list"),
    ("scaling policy info, list", "scaling policy list"),
    ("sentinel apply, delete, list, read", "sentinel list"),
    ("server members", "server members"),
    ("service list", "service list"),
    ("service info", "service info web"),
    ("status", "status web"),
    ("acl policy apply, delete, info, list, self", "acl policy list"),
    ("acl token create, delete, info, list, self, update", "acl token self"),
    ("license get", "license get"),
    ("var put", "var put a/b x=y"),
    ("var get", "var get a/b"),
    ("var list", "var list"),
    ("var purge", "var purge a/b"),
    ("version", "version"),
    ("volume status", "volume status"),
    ("system gc", "system gc"),
    ("system reconcile summaries", "system reconcile summaries"),
    ("job scale", "job scale -detach web g 2"),
    ("job revert", "job revert -detach web 0"),
    ("job restart", "job restart -yes web"),
    ("node eligibility", "node eligibility -disable $NODE"),
    ("node eligibility", "node eligibility -enable $NODE"),
    ("alloc stop", "alloc stop -detach $ALLOC"),
    ("job stop", "job stop -yes web"),
    ("job start", "job start web"),
    ("node drain", "node drain -enable -yes -force $NODE"),
    ("node drain", "node drain -disable -yes $NODE"),
];

/// The job of the commands.
const JOB: &str = r#"job "web" {
  group "g" {
    service {
      name     = "web"
      provider = "nomad"
    }
    update {
      min_healthy_time = "0s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
"#;

/// What the page says of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Works,
    Refused,
}

/// Reads the claim from the table of the page.
fn claim(page: &str, row: &str) -> Option<Claim> {
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("| `{row}` | ")))?;
    Some(if line.starts_with("501") { Claim::Refused } else { Claim::Works })
}

fn page() -> String {
    fs::read_to_string(project().join("docs/nomad/commands.md")).expect("the page of the commands")
}

/// An agent whose API listens on TCP.
struct StandaloneTest<'p> {
    program: &'p Program,
    agent: Agent,
    port: u16,
}

impl<'p> StandaloneTest<'p> {
    fn start(program: &'p Program) -> Self {
        let [port] = ports::free();
        let mut agent = Agent::prepare(Setup::default());
        let token = agent.home.write("token", TOKEN);
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("the mode of the token");
        let config = format!("token_file: {}\n{}", token.display(), ports::for_tasks());
        let config = agent.home.write("config.yaml", &config).display().to_string();
        let listen = format!("127.0.0.1:{port}");
        agent.set_arguments(vec!["--config".to_owned(), config, "--listen".to_owned(), listen]);
        agent.home.write("web.nomad.hcl", JOB);
        agent.launch();
        let plugin = fs::read_to_string(example("csi-plugin")).expect("the example of a CSI plugin");
        let command = format!("command: {}", csi_plugin().display());
        agent.apply_and_wait(&plugin.replace("command: csi-plugin", &command));
        Self { program, agent, port }
    }

    fn run(&self, words: &str) -> Output {
        let arguments: Vec<&str> = words.split(' ').collect();
        let mut command = command::prepare(&self.agent.home, User::Same, &self.program.path, &arguments);
        command.env("NOMAD_ADDR", format!("http://127.0.0.1:{}", self.port)).env("NOMAD_TOKEN", TOKEN);
        Running::start(command).finish_within(COMMAND_MAX)
    }

    fn read(&self, path: &str) -> Value {
        http::get(&self.agent.peer(), &format!("/v1/{path}")).map_or(Value::Null, |answer| answer.json())
    }

    /// Replaces the names of ids.
    fn filled(&self, words: &str) -> String {
        let id = |value: &Value| value["ID"].as_str().unwrap_or_default().to_owned();
        let alloc = || {
            let known = self.read("job/web/allocations");
            let mut all = known.as_array().into_iter().flatten();
            all.find(|one| one["ClientStatus"] == "running").cloned()
        };
        let mut words = words.replace("$FILE", "web.nomad.hcl");
        for name in ["$ALLOC", "$EVAL", "$NODE", "$DEPLOYMENT"] {
            if words.contains(name) {
                let value = match name {
                    "$ALLOC" => id(&wait::until("a running allocation", alloc)),
                    "$EVAL" => id(&self.read("job/web/evaluations")[0]),
                    "$NODE" => id(&self.read("nodes")[0]),
                    _ => id(&self.read("job/web/deployment")),
                };
                words = words.replace(name, &value);
            }
        }
        words
    }
}

/// Why the output contradicts the claim; `None` if it does not.
fn contradiction(claim: Claim, output: &Output) -> Option<&'static str> {
    let printed = [&*output.stdout, &*output.stderr].concat();
    let has_panicked = printed.contains("panic: ") || printed.contains("goroutine ") || output.code > 128;
    match claim {
        _ if has_panicked => Some("panics"),
        Claim::Works if output.code != 0 => Some("fails"),
        Claim::Refused if output.code == 0 => Some("succeeds, although the page says that it is refused"),
        Claim::Works | Claim::Refused => None,
    }
}

/// Runs the commands that contain `only`.
///
/// # Panics
/// If a command has no row in the page.
pub fn run(program: &Program, only: &str) -> Outcome {
    let (page, mut outcome) = (page(), Outcome::default());
    let test = StandaloneTest::start(program);
    println!("{} against an agent without servers", program.version);
    for (row, words) in COMMANDS.iter().filter(|(_, words)| words.contains(only) || *words == "job run $FILE")
    {
        let claim = claim(&page, row).unwrap_or_else(|| panic!("the page has no row for {row}"));
        let output = test.run(&test.filled(words));
        if is_unknown(&output) {
            println!("  not in this version    {words}");
            continue;
        }
        match contradiction(claim, &output) {
            None => {
                outcome.passed += 1;
                println!("  ok      exit code {}  {words}", output.code);
            }
            Some(why) => {
                outcome.failed += 1;
                println!(
                    "  failed  exit code {}  {words}: {why}\n{}{}",
                    output.code, output.stdout, output.stderr
                );
            }
        }
    }
    test.agent.cli(&["eligibility", "--enable"]);
    println!("{}: {} passed, {} failed", program.version, outcome.passed, outcome.failed);
    test.agent.finish();
    outcome
}

/// Whether the program does not know the command: it prints its own usage.
fn is_unknown(output: &Output) -> bool {
    output.code != 0 && output.stderr.trim_start().starts_with("Usage: nomad [-version]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_row_in_the_page() {
        let page = page();
        for (row, words) in COMMANDS {
            assert!(claim(&page, row).is_some(), "{row}");
            let command = words.split(' ').next().unwrap_or_default();
            assert!(row.contains(command), "{row}: {words}");
        }
    }

    #[test]
    fn a_panic_and_a_wrong_exit_code_are_found() {
        let output = |code, stderr: &str| Output { code, stdout: String::new(), stderr: stderr.to_owned() };
        assert_eq!(contradiction(Claim::Works, &output(0, "")), None);
        assert_eq!(contradiction(Claim::Works, &output(1, "Error")), Some("fails"));
        assert_eq!(contradiction(Claim::Works, &output(2, "panic: nil\n\ngoroutine 1")), Some("panics"));
        assert_eq!(contradiction(Claim::Refused, &output(1, "501 (not supported: x)")), None);
        assert!(contradiction(Claim::Refused, &output(0, "")).is_some());
        assert!(is_unknown(&output(127, "Usage: nomad [-version] [-help] <command>")));
    }
}
