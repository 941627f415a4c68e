//! Runs the commands of pages: every line of a `console` block that begins with `$`, in order, in one shell for each line.
//!
//! [`PAGES`] names for each page what its commands find, and the commands that cannot run in a test, with the reason. A command that
//! is neither run nor named there fails the test, and so does a name without a command.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    ports,
    program::{program, project},
};

use crate::common::{is_root, job, patient, sleeper};

struct Page {
    path: &'static str,
    /// Prepares the agent, and files in its directory.
    prepare: fn(&mut Agent),
    /// Beginnings of commands that are not run, each with the reason.
    left_out: &'static [(&'static str, &'static str)],
    /// Beginnings of commands that end with another code than 0.
    codes: &'static [(&'static str, i32)],
}

const BUILDS: &str = "builds the program";
const FOLLOWS: &str = "does not end by itself";
const TERMINAL: &str = "needs a terminal";
const RUNS: &str = "the test's agent runs already";
const SYSTEM: &str = "changes files of the machine";
const ID: &str = "the id is an example";

const PAGES: &[Page] = &[
    Page {
        path: "README.md",
        prepare: |_| {},
        left_out: &[
            ("cargo ", BUILDS),
            (".ci/run", "runs this test"),
            ("herdlet doctor", "its verdict depends on the machine"),
            ("herdlet agent", RUNS),
            ("herdlet logs -f", FOLLOWS),
            ("herdlet exec -it", TERMINAL),
            ("kill %1", RUNS),
        ],
        codes: &[],
    },
    Page {
        path: "docs/guide/jobs.md",
        prepare: |agent| {
            write(agent, "web.nomad.hcl", HCL);
            write(agent, "prod.vars.hcl", "count = 1\n");
            versions(agent);
        },
        left_out: &[],
        codes: &[],
    },
    Page {
        path: "docs/guide/services.md",
        prepare: |agent| agent.apply_and_wait(&patient("web")),
        left_out: &[],
        codes: &[],
    },
    Page {
        path: "docs/guide/volumes.md",
        prepare: |agent| agent.apply_and_wait(&patient("web")),
        left_out: &[("herdlet delete web --purge", "the command before it has deleted the job")],
        codes: &[],
    },
    Page {
        path: "docs/guide/updates.md",
        prepare: |agent| {
            versions(agent);
            let shop = job("shop", "service", "", &[sleeper("t", "")]).replace("name: g\n", "name: worker\n");
            agent.apply_and_wait(&shop);
            write(agent, "web.yaml", &web("3"));
        },
        left_out: &[
            ("herdlet logs c66e0bc2", ID),
            ("herdlet promote canary", "the first version has no canary"),
            ("herdlet deployment fail", "the deployment may have ended"),
        ],
        codes: &[("herdlet diff", 1)],
    },
    Page { path: "docs/guide/batch.md", prepare: |_| {}, left_out: &[], codes: &[] },
    Page {
        path: "docs/guide/variables.md",
        prepare: |agent| write(agent, "password.txt", "s3cret"),
        left_out: &[
            ("herdlet var put @secret.nv.hcl", "the file's path and items are to be filled in first"),
            ("herdlet var get nomad/jobs/web | herdlet var put", "the variable was purged before"),
            ("herdlet var lock", "its program is an example"),
            ("umask ", SYSTEM),
            ("openssl ", SYSTEM),
        ],
        codes: &[],
    },
    Page {
        path: "docs/guide/tasks.md",
        prepare: |agent| {
            let file = "templates: [{data: \"a\", destination: local/config}]";
            let web =
                job("web", "service", "", &[sleeper("httpd", file)]).replace("name: g\n", "name: web\n");
            agent.apply_and_wait(&web);
            agent.apply_and_wait(&job("db", "service", "", &[sleeper("t", "")]));
        },
        left_out: &[("herdlet run shop/web", "its program is an example"), ("herdlet logs -f", FOLLOWS)],
        codes: &[],
    },
    Page {
        path: "docs/guide/gc.md",
        prepare: |agent| agent.apply_and_wait(&patient("hello")),
        left_out: &[],
        codes: &[],
    },
    Page {
        path: "docs/guide/placement.md",
        prepare: |agent| agent.apply_and_wait(&patient("placement")),
        left_out: &[],
        codes: &[],
    },
    Page {
        path: "docs/guide/from-compose.md",
        prepare: |agent| {
            let shop = |version: &str| {
                let tasks =
                    ["db", "web"].map(|name| sleeper(name, &format!("env: {{VERSION: {version:?}}}")));
                job("shop", "service", "", &tasks)
            };
            agent.apply_and_wait(&shop("1"));
            write(agent, "herdlet.yaml", &shop("2"));
            write(agent, "password.txt", "s3cret");
        },
        left_out: &[("docker ", "changes networks of an engine"), ("herdlet logs -f", FOLLOWS)],
        codes: &[],
    },
    Page {
        path: "docs/guide/identities.md",
        prepare: |_| {},
        left_out: &[("herdlet identity key remove", ID)],
        codes: &[],
    },
    Page {
        path: "docs/monitoring.md",
        prepare: |agent| agent.apply_and_wait(&web("1")),
        left_out: &[
            ("herdlet agent", RUNS),
            ("curl ", "the port is an example"),
            ("herdlet get events --watch", FOLLOWS),
        ],
        codes: &[],
    },
    Page {
        path: "docs/reference/cli.md",
        prepare: |agent| {
            agent.apply_and_wait(&web("1").replace("spec:\n", "spec:\n  meta: {app: shop}\n"));
            write(agent, "web.yaml", &web("2"));
        },
        left_out: &[],
        codes: &[],
    },
    Page {
        path: "docs/operations/drain.md",
        prepare: |agent| agent.apply_and_wait(&web("1")),
        left_out: &[("systemctl reboot", SYSTEM)],
        codes: &[],
    },
    Page {
        path: "docs/operations/troubleshooting.md",
        prepare: |agent| agent.apply_and_wait(&web("1")),
        left_out: &[
            ("herdlet doctor", "its verdict depends on the machine"),
            ("journalctl ", "needs the unit"),
        ],
        codes: &[],
    },
    Page {
        path: "docs/folders.md",
        prepare: |agent| {
            agent.apply_and_wait(&web("1"));
            write(agent, "jobs.d/web.yaml", &web("2"));
            write(agent, "shop.d/shop.yaml", &job("shop", "service", "", &[sleeper("t", "")]));
        },
        left_out: &[
            ("herdlet agent", RUNS),
            ("cp manifests/web.yaml /etc", SYSTEM),
            ("git clone", "the repository is an example"),
            ("herdlet validate --strict /srv", "the repository is an example"),
            ("ln ", SYSTEM),
            ("mv ", SYSTEM),
        ],
        codes: &[("herdlet diff", 1)],
    },
];

/// A job file with the variables of the page.
const HCL: &str = r#"variable "image" {
  default = "v1"
}
variable "count" {
  default = 2
}
job "web" {
  group "g" {
    count = var.count
    task "t" {
      driver = "raw_exec"
      env {
        IMAGE = var.image
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
"#;

fn web(version: &str) -> String {
    job("web", "service", "", &[sleeper("t", &format!("env: {{VERSION: {version:?}}}"))])
}

fn write(agent: &Agent, name: &str, text: &str) {
    if let Some((dir, _)) = name.rsplit_once('/') {
        fs::create_dir_all(agent.home.path().join(dir)).unwrap();
    }
    agent.home.write(name, text);
}

/// Copies the examples, with timeouts for a busy machine.
fn copy_manifests(agent: &Agent) {
    for entry in fs::read_dir(project().join("manifests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            write(agent, &format!("manifests/{name}.yaml"), &patient(&name));
        }
    }
}

/// Makes versions 0 to 5 of the job `web`.
fn versions(agent: &mut Agent) {
    for version in 0..=5 {
        agent.apply_and_wait(&web(&format!("1.{version}")));
    }
}

/// The commands of a page.
fn commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(project().join(page)).unwrap();
    let blocks = text.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let lines = blocks.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("$ "));
    lines.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned()).collect()
}

/// The entry of a list for the command.
fn entry<T: Copy>(list: &[(&'static str, T)], command: &str) -> Option<(&'static str, T)> {
    list.iter().copied().find(|(begin, _)| command.starts_with(begin))
}

/// Runs the commands of a page.
fn run(path: &str) {
    if !is_root() {
        return;
    }
    let page = PAGES.iter().find(|page| page.path == path).unwrap();
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    let bin = agent.home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(program(), bin.join("herdlet")).unwrap();
    copy_manifests(&agent);
    (page.prepare)(&mut agent);
    let mut used = BTreeSet::new();
    for line in commands(path) {
        if let Some((begin, _)) = entry(page.left_out, &line) {
            used.insert(begin);
            continue;
        }
        let code = entry(page.codes, &line).map_or(0, |(begin, code)| {
            used.insert(begin);
            code
        });
        let arguments = ["-o", "pipefail", "-c", &line];
        let mut shell = command::prepare(&agent.home, User::Same, "/bin/bash".as_ref(), &arguments);
        shell.env("PATH", format!("{}:{}", bin.display(), command::SEARCH_PATH));
        let output = Running::start(shell).finish();
        assert_eq!(output.code, code, "{path}: $ {line}\n{}{}", output.stdout, output.stderr);
    }
    let left_out = page.left_out.iter().map(|(begin, _)| *begin);
    let listed = left_out.chain(page.codes.iter().map(|(begin, _)| *begin));
    let unused: Vec<&str> = listed.filter(|begin| !used.contains(begin)).collect();
    assert!(unused.is_empty(), "{path} has no such commands any more: {unused:?}");
    agent.finish();
}

#[test]
fn commands_of_readme_run() {
    run("README.md");
}

#[test]
fn commands_of_jobs_run() {
    run("docs/guide/jobs.md");
}

#[test]
fn commands_of_services_run() {
    run("docs/guide/services.md");
}

#[test]
fn commands_of_volumes_run() {
    run("docs/guide/volumes.md");
}

#[test]
fn commands_of_updates_run() {
    run("docs/guide/updates.md");
}

#[test]
fn commands_of_batch_run() {
    run("docs/guide/batch.md");
}

#[test]
fn commands_of_variables_run() {
    run("docs/guide/variables.md");
}

#[test]
fn commands_of_tasks_run() {
    run("docs/guide/tasks.md");
}

#[test]
fn commands_of_gc_run() {
    run("docs/guide/gc.md");
}

#[test]
fn commands_of_placement_run() {
    run("docs/guide/placement.md");
}

#[test]
fn commands_of_drain_run() {
    run("docs/operations/drain.md");
}

#[test]
fn commands_of_troubleshooting_run() {
    run("docs/operations/troubleshooting.md");
}

#[test]
fn commands_of_folders_run() {
    run("docs/folders.md");
}

#[test]
fn commands_of_from_compose_run() {
    run("docs/guide/from-compose.md");
}

#[test]
fn commands_of_identities_run() {
    run("docs/guide/identities.md");
}

#[test]
fn commands_of_monitoring_run() {
    run("docs/monitoring.md");
}

#[test]
fn commands_of_the_command_line_run() {
    run("docs/reference/cli.md");
}
