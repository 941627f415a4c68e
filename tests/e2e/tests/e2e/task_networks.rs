//! Networks of single tasks, from before groups had networks: ports, environment, services, waiting for a port.

use std::net::TcpListener;

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, ports,
    shown::Alloc,
    wait,
};

use crate::common::{is_root, job, sleeper};

/// Returns a job file as of Nomad 0.11, with a static port for its task `db`.
fn old_file(port: u16) -> String {
    format!(
        r#"
job "old" {{
  datacenters = ["dc1"]

  group "app" {{
    task "db" {{
      driver = "raw_exec"

      config {{
        command = "/bin/sleep"
        args    = ["100000"]
      }}

      resources {{
        network {{
          mbits = 10

          port "tcp" {{
            static = "{port}"
          }}
        }}
      }}

      service {{
        name     = "old-db"
        provider = "nomad"
        port     = "tcp"
      }}
    }}

    task "web" {{
      driver = "raw_exec"

      config {{
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_ADDR_tcp $NOMAD_HOST_PORT_tcp ${{NOMAD_ADDR_db_tcp}} ${{NOMAD_IP_db_tcp}} $NOMAD_PORT_db_tcp; exec sleep 100000"]
      }}

      resources {{
        network {{
          port "tcp" {{}}
        }}
      }}
    }}
  }}
}}
"#
    )
}

/// Returns the port `tcp` of a task.
fn port_of(alloc: &Alloc, task: &str, kind: &str) -> u16 {
    let network = &alloc.0["AllocatedResources"]["Tasks"][task]["Networks"][0];
    assert_eq!(
        (&network["IP"], &network[kind][0]["Label"]),
        (&"127.0.0.1".into(), &"tcp".into()),
        "{network:#}"
    );
    u16::try_from(network[kind][0]["Value"].as_u64().unwrap()).unwrap()
}

fn apply(agent: &Agent, port: u16) {
    let file = agent.home.write("old.nomad.hcl", &old_file(port));
    agent.cli(&["apply", "-f", file.to_str().unwrap(), "--wait"]).success();
}

#[test]
fn each_task_of_an_old_job_file_has_its_ports() {
    if !is_root() {
        return;
    }
    let [port, other] = ports::free();
    let setup = Setup::default().config(format!("host_ip: 127.0.0.1\n{}", ports::for_tasks()));
    let mut agent = Agent::start_with(setup);
    apply(&agent, port);
    let alloc = agent.alloc("old.app[0]").unwrap();
    assert_eq!(port_of(&alloc, "db", "ReservedPorts"), port);
    let web = port_of(&alloc, "web", "DynamicPorts");
    let expected = format!("127.0.0.1:{web} {web} 127.0.0.1:{port} 127.0.0.1 {port}\n");
    agent.until_logged(&alloc.id(), "web", "stdout", |log| log == expected);
    let explained = agent.cli(&["describe", "old"]).success().stdout;
    assert!(explained.contains(&format!("db/tcp=127.0.0.1:{port} web/tcp=127.0.0.1:{web}")), "{explained}");
    let service = http::get(&agent.peer(), "/v1/service/old-db").unwrap().json();
    assert_eq!((&service[0]["Address"], &service[0]["Port"]), (&"127.0.0.1".into(), &port.into()));

    // The port is held, also by the next agent, until a new version requests another one.
    agent.crash();
    agent.apply(&job(
        "second",
        "service",
        &format!("network: {{ports: {{p: {{static: {port}}}}}}}"),
        &[sleeper("t", "")],
    ));
    let why = format!("second.g[0] needs port {port}, which old.app[0] holds");
    agent.until_printed(&["explain", "second"], |text| text.contains(&why));
    assert_eq!(agent.alloc("old.app[0]").unwrap().id(), alloc.id());
    apply(&agent, other);
    agent.cli(&["wait", "second"]).success();
    let replaced = agent.alloc("old.app[0]").unwrap();
    assert_eq!(port_of(&replaced, "db", "ReservedPorts"), other);
    assert_ne!(replaced.id(), alloc.id());

    agent.cli(&["delete", "old", "--wait"]).success();
    agent.cli(&["delete", "second", "--wait"]).success();
    wait::until_true("the port is free", || TcpListener::bind(("127.0.0.1", other)).is_ok());
    agent.finish();
}
