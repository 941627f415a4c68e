//! Names as in public job files of Nomad, and hostile ones, wherever they travel: variables, directories, logs, cgroups, the
//! API's paths, the command line, a restart of the agent.

use herdlet_e2e::{agent::Agent, http, ports, wait};

use crate::common::is_root;

/// A job file in HCL with one group and two tasks.
const JOB: &str = r#"
job "Probe_EU/blue.1" {
  namespace = "TeamA"
  group "Front_end v2" {
    network {
      port "http" {}
    }
    service {
      name     = "probe"
      provider = "nomad"
      port     = "http"
    }
    task "api_v2.x" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_ALLOC_NAME $NOMAD_JOB_ID $NOMAD_TASK_DIR; touch local/here; exec sleep 100000"]
      }
    }
    task "alloc" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_TASK_NAME; exec sleep 100000"]
      }
    }
    task "ü;$(reboot) 'x" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo own name: $NOMAD_TASK_NAME; exec sleep 100000"]
      }
    }
  }
}
"#;

const ID: &str = "TeamA/Probe_EU/blue.1";
const HOSTILE: &str = "ü;$(reboot) 'x";

#[test]
fn names_of_public_job_files_work_everywhere() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let file = agent.home.write("probe.nomad.hcl", JOB);
    agent.cli(&["apply", "-f", file.to_str().unwrap(), "--wait", "--timeout", "5m"]).success();

    // Variables and logs, before and after a restart of the agent.
    let name = format!("{ID}.Front_end v2[0]");
    let logs = |agent: &Agent, task: &str| agent.cli(&["logs", &format!("{name}/{task}")]).success().stdout;
    for crash in [false, true] {
        if crash {
            agent.crash();
            agent.cli(&["wait", ID, "--timeout", "5m"]).success();
        }
        wait::until_true("it is logged", || logs(&agent, "api_v2.x").contains("/api_v2.x/local"));
        let output = logs(&agent, "api_v2.x");
        assert!(output.starts_with("Probe_EU/blue.1.Front_end v2[0] Probe_EU/blue.1 /"), "{output}");
        assert_eq!(output.lines().count(), 1, "it still runs: {output}");
        wait::until_true("both are logged", || {
            !logs(&agent, HOSTILE).is_empty() && !logs(&agent, "alloc").is_empty()
        });
        assert_eq!(logs(&agent, HOSTILE), format!("own name: {HOSTILE}\n"));
        assert_eq!(logs(&agent, "alloc"), "alloc\n");
    }

    // Directories.
    let listed = agent.cli(&["fs", "ls", &name]).success().stdout;
    for entry in ["alloc/", "%61lloc/", "api_v2.x/", HOSTILE] {
        assert!(listed.contains(entry), "{entry}: {listed}");
    }
    assert!(!listed.contains("alloc.json"), "{listed}");
    let task = format!("{ID}/api_v2.x");
    assert!(agent.cli(&["fs", "ls", &task, "local"]).success().stdout.contains("here"));
    assert_eq!(agent.cli(&["exec", &format!("{ID}/{HOSTILE}"), "--", "echo", "in"]).success().stdout, "in\n");

    // Nomad's paths, with slashes as they are and encoded.
    for path in ["Probe_EU/blue.1", "Probe_EU%2Fblue.1"] {
        let get =
            |tail: &str| http::get(&agent.peer(), &format!("/v1/job/{path}{tail}?namespace=TeamA")).unwrap();
        assert_eq!(get("").json()["ID"], "Probe_EU/blue.1", "{path}");
        assert_eq!(get("/allocations").json().as_array().unwrap().len(), 1, "{path}");
        assert_eq!(get("/versions").json()["Versions"].as_array().unwrap().len(), 1, "{path}");
        assert_eq!(get("/nothing").status, 404, "{path}");
    }
    assert_eq!(agent.cli(&["get", "jobs", "-o", "name"]).success().stdout, format!("{ID}\n"));
    let page = http::get(&agent.peer(), "/v1/metrics?format=prometheus").unwrap().body;
    assert!(page.contains(r#"namespace="TeamA""#) && page.contains(r#""Probe_EU/blue.1""#));

    // The whole of it is restarted and deleted by name.
    agent.cli(&["restart", &format!("{ID}/{HOSTILE}"), "--wait", "--timeout", "5m"]).success();
    wait::until_true("it was started again", || logs(&agent, HOSTILE).lines().count() == 2);
    agent.cli(&["delete", ID, "--wait", "--timeout", "5m"]).success();
    agent.finish();
}

// The whole job was refused.
#[test]
fn one_of_two_allocations_gets_a_static_port() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let [port] = ports::free();
    let job = format!(
        "job \"probe\" {{\n group \"one\" {{\n count = 2\n network {{\n port \"http\" {{ static = {port} }}\n }}\n \
         task \"main\" {{\n driver = \"raw_exec\"\n config {{\n command = \"/bin/sleep\"\n args = [\"100000\"]\n }}\n }}\n }}\n}}\n"
    );
    let file = agent.home.write("probe.nomad.hcl", &job);
    agent.cli(&["apply", "-f", file.to_str().unwrap()]).success();
    agent.until_running("probe.one[0]", "main");
    let status = agent.until_printed(&["status", "probe"], |status| status.contains("probe.one[0] holds"));
    assert!(
        status.contains(&format!("probe.one[1] needs port {port}, which probe.one[0] holds")),
        "{status}"
    );
    agent.finish();
}
