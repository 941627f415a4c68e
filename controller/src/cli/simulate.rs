//! `herdlet simulate`: many nodes of a Nomad cluster in one process, for capacity tests of its servers.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use herdlet_base::error::in_full;
use herdlet_cli::{
    failure::{Failure, USAGE},
    output::{Output, Reader},
};
use herdlet_config::RpcTls;
use herdlet_node::servers;
use herdlet_rpc::address::Address;

use crate::simulate::{
    self, Options,
    behaviour::{Behaviour, Span},
};

/// Arguments of `herdlet simulate`.
#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    /// Servers of the region: HOST or HOST:PORT, separated by commas; may be given more than once
    #[arg(long, required = true, value_name = "ADDRESS", value_delimiter = ',')]
    servers: Vec<Address>,
    /// Number of nodes
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Prefix of the nodes' names, followed by a number
    #[arg(long, default_value = "sim-")]
    name: String,
    /// Region of the nodes
    #[arg(long, default_value = "global")]
    region: String,
    /// CA certificates (PEM) that verify the servers, whose certificates must be for server.REGION.nomad; enables TLS
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    ca_file: Option<PathBuf>,
    /// Certificate of the nodes (PEM)
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    key_file: Option<PathBuf>,
    /// Datacenter of the nodes
    #[arg(long, default_value = "dc1")]
    datacenter: String,
    /// Class of the nodes
    #[arg(long, default_value = "simulated", value_name = "CLASS")]
    node_class: String,
    /// Pool of the nodes
    #[arg(long, default_value = "", value_name = "POOL", hide_default_value = true)]
    node_pool: String,
    /// Processor capacity of each node, in MHz
    #[arg(long, default_value_t = 10_000, value_name = "MHZ")]
    cpu: u32,
    /// Memory of each node, in MiB
    #[arg(long, default_value_t = 10_000, value_name = "MIB")]
    memory: u32,
    /// Task drivers that the nodes offer; tasks of all of them are simulated
    #[arg(
        long,
        default_value = "mock_driver,raw_exec,exec,docker",
        value_name = "NAME",
        value_delimiter = ','
    )]
    drivers: Vec<String>,
    /// Number of nodes to start per second
    #[arg(long, default_value_t = 500, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// How long tasks run, such as 10s or 10s..5m [default: 10s for batch jobs, else until stopped]
    #[arg(long, value_name = "TIME")]
    run_for: Option<Span>,
    /// How long starting a task takes, such as 200ms or 1s..20s
    #[arg(long, value_name = "TIME")]
    start_for: Option<Span>,
    /// Percentage of tasks that fail, of those that end by themselves
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    fail: f64,
    /// Exit code of failed tasks
    #[arg(long, default_value_t = 1, value_name = "CODE")]
    exit_code: u8,
    /// Percentage of starts that fail
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    start_fail: f64,
    /// How long to run, instead of until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    length: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(args: SimulateArgs) -> Result<u8, Failure> {
    let SimulateArgs { output, length, .. } = args;
    simulate::raise_limits(args.nodes).map_err(|why| Failure::new(why).code(USAGE))?;
    let files = args.ca_file.zip(args.cert_file).zip(args.key_file);
    let tls = files.map(|((authority, certificate), key)| {
        servers::tls(&RpcTls { authority, certificate, key, verify_server_hostname: true }, &args.region)
    });
    let tls = tls.transpose();
    let tls = tls.map_err(|error| Failure::new(format!("failed to {}", in_full(&error))).code(USAGE))?;
    let options = Options {
        servers: args.servers,
        nodes: args.nodes,
        name: args.name,
        region: args.region,
        tls,
        datacenter: args.datacenter,
        node_class: args.node_class,
        node_pool: args.node_pool,
        cpu_mhz: args.cpu,
        memory_mib: args.memory,
        drivers: args.drivers,
        rate: args.rate,
        behaviour: Behaviour {
            run_for: args.run_for,
            fail_percent: args.fail,
            exit_code: args.exit_code.into(),
            start_fail_percent: args.start_fail,
            start_for: args.start_for,
        },
    };
    let end = async {
        tokio::select! {
            () = herdlet_base::interrupt::interrupted() => {}
            () = after(length) => {}
        }
    };
    let line = |figures: &simulate::Figures| match output.reader() {
        Reader::Person => output.line(&figures.to_string()),
        Reader::Program => {}
    };
    let figures =
        simulate::simulate(options, end, line).await.map_err(|error| Failure::new(error.to_string()))?;
    output.document(&figures)?;
    if figures.ready > 0 {
        return Ok(0);
    }
    let why = figures.ping_error.as_deref().unwrap_or("none has registered yet");
    Err(Failure::new(format!("no node is ready: {why}"))
        .hint("HERDLET_LOG_LEVEL=warn logs the servers' errors for each node"))
}

async fn after(length: Option<Duration>) {
    match length {
        Some(length) => tokio::time::sleep(length).await,
        None => std::future::pending().await,
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let nanos = herdlet_api_types::parse_duration(text).ok().and_then(|nanos| u64::try_from(nanos).ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| "expected a duration such as 30s or 5m".to_owned())
}
