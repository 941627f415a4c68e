//! Stock clients, for programs that can be one: disks that migrate to them and back, and a client whose
//! identity the agent takes over.

use std::time::Duration;

use crate::{
    command::Running,
    ports,
    stock_nomad::{
        cluster::{StockCluster, is, text},
        jobs::{UPDATE, group, job, shell},
        program::Program,
        stock::{self, CLIENT, Stock, addresses},
    },
    wait,
};

/// How long a client may take to become ready before it counts as unsupported.
const READY_MAX: Duration = Duration::from_secs(40);

/// Returns the file of a client.
fn lines(ground: &StockCluster, ports: [u16; 3]) -> String {
    let servers = ground.rpc.iter().map(|server| format!("\"{server}\"")).collect::<Vec<_>>().join(", ");
    format!(
        "{}client {{\n  enabled = true\n  servers = [{servers}]\n  network_interface = \"lo\"\n  cpu_total_compute = 4000\n}}\n\
         plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
        addresses(ports)
    )
}

/// Returns the id of the node with this name, if it is ready.
fn ready(ground: &StockCluster, name: &str) -> Option<String> {
    let nodes = ground.json(&["node", "status", "-json"]);
    let is_it = |node: &&serde_json::Value| is(node, "Name", name) && is(node, "Status", "ready");
    nodes.as_array()?.iter().find(is_it).map(|node| text(node, "ID"))
}

/// Starts a stock client; `None` if the program can't be one.
fn start(ground: &mut StockCluster) -> Option<String> {
    let text = lines(ground, ports::free());
    let mut client = Stock::start(ground.home(), &ground.program, CLIENT, &text);
    let deadline = std::time::Instant::now() + READY_MAX;
    loop {
        if let Some(id) = ready(ground, CLIENT) {
            ground.client = Some(client);
            return Some(id);
        }
        if client.has_ended() || std::time::Instant::now() > deadline {
            return None;
        }
        wait::pause(Duration::from_millis(200));
    }
}

pub(super) fn neighbours(program: &Program) -> Option<StockCluster> {
    let mut ground = StockCluster::plain(program);
    start(&mut ground)?;
    Some(ground)
}

pub(super) fn alone(program: &Program) -> Option<StockCluster> {
    let mut ground = StockCluster::servers(program, 1, |_| String::new());
    ground.until("there is a leader", || ground.get("/v1/status/leader").filter(|leader| leader != ""));
    ground.node = start(&mut ground)?;
    Some(ground)
}

pub(super) fn migrates(ground: &mut StockCluster) {
    let disk = "ephemeral_disk {\n  sticky = true\n  migrate = true\n}\n";
    let script = "echo $NOMAD_ALLOC_ID >> $NOMAD_ALLOC_DIR/data/all; echo $NOMAD_ALLOC_ID >> local/mine; \
         echo all; cat $NOMAD_ALLOC_DIR/data/all; echo mine; cat local/mine; exec sleep 100000";
    let body = format!("{disk}{}", shell("t", script, ""));
    ground.run("moves", &job("moves", "service", &format!("{UPDATE}{}", group("g", &body))));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let id = ground.single("moves", "g");
        seen.push(id.clone());
        let ids = seen.iter().map(|id| format!("{id}\n")).collect::<String>();
        let wanted = format!("all\n{ids}mine\n{ids}");
        ground.until_seen("the disk has come along", |found| {
            *found = ground.ok(&["alloc", "logs", &id]);
            (*found == wanted).then_some(())
        });
        let node = text(&ground.alloc(&id), "NodeID");
        ground.ok(&["node", "drain", "-enable", "-yes", "-deadline", "30s", &node]);
        ground.until_true("another allocation runs", || ground.single("moves", "g") != id);
        ground.ok(&["node", "drain", "-disable", "-yes", &node]);
    }
}

pub(super) fn moves(ground: &mut StockCluster) {
    let node = ground.node.clone();
    let body = shell("t", "exec sleep 100000", "");
    ground.run("work", &job("work", "service", &format!("{UPDATE}{}", group("g", &body))));
    let id = ground.single("work", "g");
    // The agent's file is like the client's, except for the ports, which the running client uses.
    let data = stock::data(ground.home(), CLIENT).display().to_string();
    let text = format!("name = \"{CLIENT}\"\ndata_dir = \"{data}\"\n{}", lines(ground, ports::free()));
    let file = ground.write("hcl", &text);
    ground.agent.set_arguments(vec!["--config".to_owned(), file]);
    let refused = |ground: &mut StockCluster, why: &str, words: &str| {
        let output = Running::start(ground.agent.command(&ground.agent.agent_arguments())).finish();
        let printed = format!("{}{}", output.stdout, output.stderr);
        assert!(output.code != 0 && printed.contains(words), "expected a refusal {why}, found {output:?}");
    };
    refused(ground, "while the client runs", "client is running");
    if let Some(client) = &mut ground.client {
        client.kill();
    }
    refused(ground, "while its work lives", &id);
    if let Some(client) = &mut ground.client {
        client.start_again(&ground.agent.home);
    }
    ground.until_true("the client is back", || ready(ground, CLIENT).is_some());
    ground.ok(&["node", "drain", "-enable", "-yes", "-deadline", "5s", &node]);
    ground.becomes(&id, "complete");
    if let Some(client) = &mut ground.client {
        client.terminate();
    }
    ground.agent.launch();
    ground.until_true("the same node is ready", || ready(ground, CLIENT).as_ref() == Some(&node));
    ground.ok(&["node", "drain", "-disable", "-yes", &node]);
    let next = ground.single("work", "g");
    ground.pid(&next, "t");
}
